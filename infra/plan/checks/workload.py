"""Rules about a job of one's own."""

from __future__ import annotations

from collections.abc import Iterator

from infra.plan.checks.finding import Case, Draft, error, info, warning
from infra.spec.models.hub import way_to
from infra.spec.names import JOB_SECRETS
from infra.spec.workload.links import INIT

_SCRIPT = ("script", "give its path below the source")


def workload_source(case: Case) -> Iterator[Draft]:
    """The job's code is there before anything is paid for."""
    source, workload = case.facts.data, case.job
    if workload.source is None:
        return
    if not source.folder:
        cure = "give a folder, as a path from where the command is run"
        yield error("workload.source", "there is no such folder", seen=source.location, cure=cure)
    elif not source.matches:
        field, cure = ("module", "name one that `python -m` starts there") if workload.module else _SCRIPT
        detail = workload.module or workload.script
        yield error(f"workload.{field}", "the source has no such file", seen=detail, cure=cure)


def script_source(case: Case) -> Iterator[Draft]:
    """A script that no source holds must be in the image, under an absolute path."""
    workload = case.job
    if workload.source is None and workload.script and not workload.script.startswith("/"):
        cure = "name the folder with the script in workload.source, or give the script's absolute path in the image"
        yield error("workload.script", "is in no source", seen=workload.script, cure=cure)


def rehearsal_mounts(case: Case) -> Iterator[Draft]:
    """In a rehearsal each mount has a folder of this machine: the emulated S3 is empty."""
    workload = case.job
    if case.facts.environment.inputs:
        return
    for name in workload.mounts:
        folder = workload.rehearsal.mounts.get(name)
        if folder is None or folder not in case.facts.folders:
            field = f"workload.rehearsal.mounts.{name}"
            cure = "give a small folder of this machine, as a path from where the command is run"
            yield error(field, "there is no such folder", seen=folder or "nothing", cure=cure)


def workload_initial_weights(case: Case) -> Iterator[Draft]:
    """A folder with weights is there; for those of an S3 prefix a rehearsal has a folder of its own."""
    workload, real = case.job, case.facts.environment.inputs
    if workload.init_from is None:
        return
    field, folder = "workload.init_from", workload.init_from
    if not real and (INIT in workload.links or workload.rehearsal.init_from is not None):
        field, folder = "workload.rehearsal.init_from", workload.rehearsal.init_from or ""
    elif INIT in workload.links:
        return
    if folder not in case.facts.folders:
        cure = way_to(folder, "give a folder of this machine, as a path from where the command is run")
        yield error(field, "there is no such folder", seen=folder or "nothing", cure=cure)


def evaluation_programs(case: Case) -> Iterator[Draft]:
    """The programs that evaluate and export are in the source: they run when all the training is paid for."""
    workload = case.job
    if case.facts.source is None:
        return
    for section, name in workload.named_programs:
        if name not in case.facts.programs:
            cure = "give its path below the source, or an absolute one in the image"
            yield error(f"workload.{section}.command", "the source has no such file", seen=name, cure=cure)


def evaluation_of_export(case: Case) -> Iterator[Draft]:
    """An export is evaluated: an export that has lost weights looks like any other."""
    workload = case.job
    if workload.export is not None and workload.evaluate is None:
        cure = "give workload.evaluate: its metrics of checkpoint and export are compared"
        detail = "no workload.evaluate"
        yield warning("workload.export", "nobody sees whether the export has all weights", seen=detail, cure=cure)


def local_checkpoint_disks(case: Case) -> Iterator[Draft]:
    """A job that writes to its nodes' own disks runs on nodes that have NVMe disks."""
    instance = case.facts.instance
    if case.job.on_disks and instance is not None and not instance.nvme_count:
        cure = "write tier: shared, or take an instance type with NVMe disks"
        yield error("workload.checkpoints.tier", "the nodes have no disks of their own", seen=instance.name, cure=cure)


def own_image_needs_efa(case: Case) -> Iterator[Draft]:
    """The job's own image has libfabric and the plugin on nodes with EFA: the node has only the driver."""
    image, instance = case.spec.runtime.image, case.facts.instance
    if image is not None and instance is not None and instance.efa_interfaces:
        cure = "AWS's Deep Learning Containers have both; into others, the EFA installer with --skip-kmod"
        yield info("workload.image", "must have libfabric and aws-ofi-nccl for EFA", seen=image, cure=cure)


def host_network_risk(case: Case) -> Iterator[Draft]:
    """Warn about host networking and list what it exposes."""
    if case.job.host_network:
        yield warning(
            "workload.host_network",
            "the job reaches its node's role in AWS and each service of the node: it may pull the account's images, "
            "act at the cluster's API as this node, and read the secrets of the node's pods",
            seen="true",
            cure="leave it out if you can: EFA, NCCL and MPI work in the pods' own network",
        )


def mpirun_in_image(case: Case) -> Iterator[Draft]:
    """On AWS the job's container brings Open MPI; the trainer image has it on no path."""
    if case.job.by_mpirun and case.facts.environment.inputs and case.spec.runtime.image is None:
        cure = "name an image with Open MPI 4 and python3, such as one of AWS's Deep Learning Containers"
        yield error("workload.image", "the trainer image has no mpirun", seen="none", cure=cure)


def secret_access(case: Case) -> Iterator[Draft]:
    """A secret lies in the campaign's account and region, under a name that the boundary lets jobs read; a rehearsal
    has its own values."""
    spec, workload = case.spec, case.job
    for name, source in workload.secrets.items():
        if not source.begins(JOB_SECRETS):
            cure = f"store it as {JOB_SECRETS}/...: whoever names a secret so lets the jobs of the account read it"
            yield error(f"workload.secrets.{name}", "may not be read by a job", seen=source.place, cure=cure)
    sources = {f"secrets.{name}": source for name, source in workload.secrets.items()}
    if workload.pull_secret is not None:
        sources["pull_secret"] = workload.pull_secret
    if not case.facts.environment.inputs:
        if sources and workload.rehearsal.secrets is None:
            cure = "name a file with a line NAME=value for each of them"
            detail = ", ".join(name.removeprefix("secrets.") for name in sources)
            yield error(
                "workload.rehearsal.secrets", "the rehearsal has no values for these secrets", seen=detail, cure=cure
            )
        return
    for name, source in sources.items():
        if source.owner is not None and source.owner != (spec.region, spec.account):
            cure = f"store it in account {spec.account} in {spec.region}: the campaign's roles end there"
            yield error(f"workload.{name}.secret", "is of another account or region", seen=source.secret, cure=cure)
