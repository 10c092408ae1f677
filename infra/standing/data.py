"""Provision at an existing cluster: the job's data goes to S3, and from there to the shared claim by a Job."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lightkube import Client
from lightkube.codecs import from_dict
from lightkube.resources.core_v1 import PersistentVolumeClaim, Pod

from infra.archive import archive_job
from infra.campaign import provision
from infra.campaign.capacity import deadline_passed, is_late
from infra.cluster import attempts, pod_start
from infra.cluster.confinement import ROOT, batch_job, container_context, environment, one_time_pod
from infra.cluster.gang import CAMPAIGN_LABEL, volumes
from infra.cluster.kubernetes import create
from infra.cluster.standing.placing import CA_CONFIG, CA_FILE, placed
from infra.data.dataset import DataSet, files_of
from infra.data.source import PackedSource
from infra.errors import PermanentError
from infra.record.payloads.outputs import BakeOutput, ProvisionOutput
from infra.session.context import Context
from infra.spec.campaign import Spec
from infra.spec.names import TRAINER_ACCOUNT, data_prefix
from infra.spec.standing import StandingCluster
from infra.standing.bring import COMMAND, CONFIG, LISTING, NAME, BringConfig, DataFile, Listing
from infra.standing.openings import shared_claim_object
from infra.standing.tenancy import refuse_held
from trainer.contract import DATA_MOUNT

Object = dict[str, Any]
ROLE = "bivouac.dev/role"
TRIES = 3


def run(context: Context) -> ProvisionOutput:
    """Prepare the data, claim the shared tier unless it is there, and bring the data to it. Idempotent."""
    spec, cluster = context.spec, context.spec.cluster
    assert cluster is not None, "the stage is one of an existing cluster"
    data, figures = provision.job_data(context)
    provision.upload(context, data)
    client = context.cluster_client()
    refuse_held(client, spec, cluster)
    context.guard()
    if cluster.shared.storage_class is not None:
        _claim(client, spec, cluster)
    if cluster.s3.ca is not None:
        text = Path(cluster.s3.ca).expanduser().read_text()
        attempts.create_config(client, CA_CONFIG, {CAMPAIGN_LABEL: spec.campaign}, {CA_FILE: text})
    files = listed(spec, data)
    prefix = f"{spec.bucket_root}{data_prefix(data.digest)}"
    summary = _bring(context, client, cluster, _configuration(context, prefix, files))
    context.progress.note(f"data: {len(files)} files on the shared claim, {summary.get('bytes', 0)} bytes brought")
    return figures.model_copy(update={"data_digest": data.digest})


def lay(context: Context, paths: Sequence[Path], digest: str) -> None:
    """Bring more files to those of a digest, by way of the bucket."""
    spec, cluster = context.spec, context.spec.cluster
    assert cluster is not None, "the data is that of an existing cluster"
    prefix = f"{spec.bucket_root}{data_prefix(digest)}"
    for path in paths:
        context.account.client("s3").upload_file(str(path), context.buckets.data, f"{prefix}{path.name}")
    config = _configuration(context, prefix, tuple(map(_listed, paths)))
    _bring(context, context.cluster_client(), cluster, config)


def _configuration(context: Context, prefix: str, files: tuple[DataFile, ...]) -> BringConfig:
    """Return what the Job is told. The files' list goes to S3: a config map has no room for that of many."""
    key = f"{context.store.prefix}/{LISTING}"
    context.store.put(key, Listing(files=files).model_dump_json().encode())
    return BringConfig(region=context.spec.s3_region, bucket=context.buckets.data, prefix=prefix, listing=key)


def listed(spec: Spec, data: DataSet | PackedSource) -> tuple[DataFile, ...]:
    """Return every file that the job's pods see at `/data`."""
    folder, weights = provision.weights_of(spec, data)
    further_files = [
        DataFile(name=f"{folder}/{file.name}", size_bytes=file.size_bytes, sha256=file.sha256) for file in weights
    ]
    return (*map(_listed, files_of(data.folder)), *further_files)


def _listed(path: Path) -> DataFile:
    with path.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    return DataFile(name=path.name, size_bytes=path.stat().st_size, sha256=sha256)


def _claim(client: Client, spec: Spec, cluster: StandingCluster) -> None:
    """Claim the shared tier from its storage class; leave a claim that exists as it is."""
    create(client, PersistentVolumeClaim.from_dict(shared_claim_object(spec, cluster)))


def data_job(spec: Spec, image: str) -> Object:
    """Return the Job that brings the data, before placing. Root: the volume's folders may be root's."""
    labels = {CAMPAIGN_LABEL: spec.campaign, ROLE: NAME}
    pod_volumes, mounts = volumes(NAME, data_read_only=False)
    volume_names = ("config", "shared")
    container = {
        "name": NAME,
        "image": image,
        "command": list(COMMAND),
        "env": environment(),
        "securityContext": container_context(),
        "volumeMounts": [row for row in mounts if row["name"] == "config" or row["mountPath"] == DATA_MOUNT],
    }
    job_volumes = [row for row in pod_volumes if row["name"] in volume_names]
    return batch_job(NAME, labels, one_time_pod(TRAINER_ACCOUNT, ROOT, job_volumes, container), backoffLimit=TRIES - 1)


def _bring(context: Context, client: Client, cluster: StandingCluster, config: BringConfig) -> Object:
    """Run the Job to its end, and return its summary. Raises `PermanentError` if it fails, if it is removed, if it does
    not begin within `recovery.startup_timeout`, and `UserError` at the deadline."""
    spec = context.spec
    labels = {CAMPAIGN_LABEL: spec.campaign}
    attempts.create_config(client, NAME, labels, {CONFIG: config.model_dump_json(indent=1)})
    _remove(context, client)  # of an earlier try, whose files may be others
    image = BakeOutput.of(context.outputs).steward_image or spec.image.steward_base
    context.guard()
    create(client, from_dict(placed(data_job(spec, image), cluster)))
    patience = time.monotonic() + spec.recovery.startup_timeout.total_seconds()
    while True:
        # The Job is read before its pods: if it reports an end, the later listing shows the pod's end too.
        status, pods = archive_job.status_of(client, NAME), _pods(client, spec)
        if status.get("succeeded"):
            summary = archive_job.verdict_of(pods)
            _remove(context, client)
            return summary
        if not status or status.get("leaving"):
            raise _failure("the Job that brings the data was removed", "somebody removed it")
        if status.get("over") or status.get("failed", 0) >= TRIES:
            raise _failure("the data was not brought to the shared claim", archive_job.last_message(pods))
        if is_late(context):
            raise deadline_passed(context, context.deadline.isoformat())
        if any(pod_start.has_started(pod) and not pod_start.is_over(pod) for pod in pods):
            patience = time.monotonic() + spec.recovery.startup_timeout.total_seconds()
            context.progress.step("data: it goes from S3 to the shared claim")
        else:
            words = "; ".join(pod_start.why_not(pod, "") for pod in pods) or "its Job has no pod yet"
            context.progress.step(f"data: a pod is to bring it to the shared claim; {words[:240]}")
            if time.monotonic() > patience:
                raise _failure("the pod that brings the data does not start", _warnings(client) or words)
        for _ in context.turns(1.0):
            context.guard()


def _warnings(client: Client) -> str:
    """Return what Kubernetes warns of the Job and its pods."""
    warnings = pod_start.warnings(client)
    return "; ".join(f"{name}: {text}" for name, text in warnings.items() if name.startswith(NAME))


def _remove(context: Context, client: Client) -> None:
    """Remove the Job of an earlier try, and wait until its pods are gone. Raises `PermanentError` if they stay."""
    archive_job.remove(client, NAME)
    for _ in context.turns(context.spec.recovery.startup_timeout.total_seconds()):
        if not archive_job.status_of(client, NAME) and not _pods(client, context.spec):
            return
        context.progress.step("data: the Job of an earlier try is ending")
    raise _failure("the Job of an earlier try does not end", f"Job {NAME} or its pods, on a node that may be dead")


def _pods(client: Client, spec: Spec) -> list[Pod]:
    return list(client.list(Pod, labels={CAMPAIGN_LABEL: spec.campaign, ROLE: NAME}))


def _failure(title: str, words: str) -> PermanentError:
    cure = "mend the cause, and run the same command again: what is whole on the claim stays"
    return PermanentError(title, seen=words or "no message", cure=cure)
