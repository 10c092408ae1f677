"""Rules about an existing cluster: what belongs to AWS alone, images, devices, namespace and inputs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import reduce
from typing import Any

from infra.plan.checks.finding import Case, Draft, error, info, warning
from infra.spec.campaign import Spec, Storage
from infra.spec.image_reference import ImageReference
from infra.spec.secrets import SecretSource
from infra.spec.section import Section
from infra.spec.standing import PLACEHOLDERS, shared_tier
from infra.spec.workload.links import INIT

GPU = "nvidia.com/gpu"
_CLUSTER = "the cluster's owner decides it"
AWS_ONLY = {
    "account": "the bucket of cluster.s3 keeps record and archive",
    "region": "cluster.s3.region is the one that requests to S3 are signed for",
    "zone": "cluster.nodes.labels choose the nodes",
    "second_zone": _CLUSTER,
    "kubernetes": _CLUSTER,
    "access": _CLUSTER,
    "nodes.capacity": "nodes are borrowed and not bought",
    "nodes.reservation_id": "nodes are borrowed and not bought",
    "nodes.block_end": "nodes are borrowed and not bought",
    "nodes.block_fee_usd": "nodes.usd_per_hour is their price",
    "nodes.placement_group": _CLUSTER,
    "nodes.system_instance_type": "cluster.system_labels choose the steward's nodes",
    "nodes.system_count": "the Deployment is made anew where its node dies",
    "money.alarm_email": "no AWS Budget watches borrowed nodes; the steward guards the budget",
    "money.alarm_topic_arn": "no AWS Budget watches borrowed nodes; the steward guards the budget",
    "money.freeze_roles": "no AWS Budget watches borrowed nodes; the steward guards the budget",
    "notify.topic": "there is no SNS topic",
    "notify.webhook": "its address lies in AWS; put NOTIFY_WEBHOOK into the Secret of cluster.s3.secret",
    "notify.routes": "their addresses lie in AWS; NOTIFY_WEBHOOK in the Secret of cluster.s3.secret is the route here",
    "notify.email": "there is no SNS topic",
    "network": _CLUSTER,
    "encryption": "volumes and bucket are encrypted by their owner",
    "addons": _CLUSTER,
    "image.nodes": _CLUSTER,
    "image.builders": "nothing is baked",
    "preflight.pilot": "nodes that stand bill in any case, so all start at once",
}
"""Field -> why it has no meaning at a cluster that stands."""
_SECRET_NAME = r"[a-z0-9]+([.-]+[a-z0-9]+)*"
_OTHERS = ("default", "kube-node-lease", "kube-public", "kube-system")


def field_of_aws(case: Case) -> Iterator[Draft]:
    """No field is given that means something on AWS only."""
    for field, reason in AWS_ONLY.items():
        value = reduce(getattr, field.split("."), case.spec)
        if value != _default(field):
            yield _misplaced(field, _words(value), f"remove it: {reason}")
    cluster = case.spec.cluster
    if cluster is not None:
        shared = shared_tier(cluster.shared.capacity_gib, cluster.shared.write_mb_s)
        if case.spec.storage != Storage.model_validate({"shared": shared}):
            yield _misplaced("storage", "a section", "remove it: cluster.shared and cluster.local are the tiers")


def _misplaced(field: str, value: str, cure: str) -> Draft:
    return error(field, "has no meaning with target kubernetes", seen=value, cure=cure)


def _default(field: str) -> Any:
    """Return the field's value in a spec that does not have it."""
    if field in PLACEHOLDERS:
        return PLACEHOLDERS[field]
    model: type[Section] = Spec
    *sections, name = field.split(".")
    for section in sections:
        annotation = model.model_fields[section].annotation
        assert isinstance(annotation, type) and issubclass(annotation, Section), f"{section} is a section"
        model = annotation
    return model.model_fields[name].get_default(call_default_factory=True)


def _words(value: Any) -> str:
    return "a section" if isinstance(value, Section | dict) else str(value)


def image_digest(case: Case) -> Iterator[Draft]:
    """Nothing is baked: the images hold the project, lie in a registry that nodes reach, and are named by digest."""
    image, job_image = case.spec.image, case.spec.runtime.image
    names = {"image.base": image.base, "image.steward_base": image.steward_base, "workload.image": job_image}
    for field, name in names.items():
        if name is None:
            continue
        try:
            reference = ImageReference.parse(name)
        except ValueError:
            reference = None
        if reference is None or not reference.which.startswith("sha256:") or reference.registry not in name:
            cure = "write registry/repository@sha256:..., an image with the project in it, pushed there by you"
            message = "nothing is baked for an existing cluster: the image is named with its registry and by digest"
            yield error(field, message, seen=name, cure=cure)


def device_count(case: Case) -> Iterator[Draft]:
    """Each pod takes as many GPUs as the nodes' type has: the ranks are counted by them."""
    cluster, instance = case.spec.cluster, case.facts.instance
    if cluster is None or instance is None:
        return
    count = cluster.nodes.devices.get(GPU)
    if count != instance.accelerators:
        detail = f"{'none' if count is None else count}; {instance.name} has {instance.accelerators}"
        cure = f"write {GPU}: {instance.accelerators}, or the instance_type whose accelerators the nodes have"
        yield error("cluster.nodes.devices", f"a pod takes all {GPU} of a node of this type", seen=detail, cure=cure)


def own_namespace(case: Case) -> Iterator[Draft]:
    """The namespace is no one that every cluster has: rights and quota are given by namespace."""
    cluster = case.spec.cluster
    if cluster is not None and cluster.namespace in _OTHERS:
        cure = "name one of your team's; `bivouac grant` prints what makes it"
        yield error("cluster.namespace", "is no tenant's namespace", seen=cluster.namespace, cure=cure)


def free_names(case: Case) -> Iterator[Draft]:
    """No object of somebody else's has a name that the campaign writes over or removes, if they were looked up."""
    for holding in () if case.facts.cluster is None else case.facts.cluster.held_names:
        if holding.campaign:
            cure = f"end campaign {holding.campaign} first, or name another namespace: one holds one campaign at a time"
            detail = f"{holding.kind} {holding.name} of campaign {holding.campaign}"
        else:
            cure = "name a namespace of your campaigns' own, or have its owner rename it"
            detail = f"{holding.kind} {holding.name}, which has no campaign's label"
        yield error("cluster.namespace", "a name that the campaign would take is in use", seen=detail, cure=cure)


def own_price(case: Case) -> Iterator[Draft]:
    """Without a price of the spec's own neither plan nor budget counts anything."""
    if case.spec.nodes.usd_per_hour is None:
        yield info(
            "nodes.usd_per_hour",
            "borrowed nodes have no price: the plan cannot price them, and the budget never ends",
            seen="nothing",
            cure="write what one node costs you by the hour, if you want cost and budget",
        )


def job_inputs(case: Case) -> Iterator[Draft]:
    """The job names nothing that only AWS's services hand out."""
    job = case.job
    if case.spec.prepares_data:
        yield _misplaced("data.prepare", "where: cluster", "prepare the data on the driver's machine")
    cures = {
        "pull_secret": "name the Secret in cluster.pull_secrets",
        "mounts": "put the files on the shared claim",
    }
    yield from _secret_names(job.secrets)
    for field, cure in cures.items():
        if value := getattr(job, field):
            detail = ", ".join(value) if isinstance(value, dict) else "a login in AWS"
            yield _misplaced(f"workload.{field}", detail, cure)
    if job.requirements is not None and job.image is None:
        cure = "put the packages into image.base, or give workload.image and its workload.python"
        yield _misplaced("workload.requirements", job.requirements, cure)
    if INIT in job.links:
        cure = "give a folder of this machine"
        yield _misplaced("workload.init_from", str(job.init_from), cure)


def _secret_names(secrets: Mapping[str, SecretSource]) -> Iterator[Draft]:
    """Each secret of the job is a Secret of the namespace, by its name."""
    for name, source in secrets.items():
        if source.secret is None or not re.fullmatch(_SECRET_NAME, source.secret):
            cure = "write {secret: NAME, key: KEY}, of a Secret that you have made in the namespace"
            yield error(f"workload.secrets.{name}", "is no Secret of a namespace", seen=source.place, cure=cure)
    if secrets:
        names = ", ".join(f"{source.secret} ({source.key or name})" for name, source in secrets.items())
        cure = "`kubectl get secret NAME` shows them; a pod waits with CreateContainerConfigError for one that lacks"
        message = "only kubelets read them, so nobody has looked whether they exist"
        yield info("workload.secrets", message, seen=names, cure=cure)


def encrypted_s3(case: Case) -> Iterator[Draft]:
    """The way to S3 is encrypted: without TLS, who listens can change checkpoints."""
    cluster = case.spec.cluster
    endpoint = None if cluster is None else cluster.s3.endpoint
    if endpoint is not None and endpoint.startswith("http://"):
        message = "record and checkpoints pass to S3 without TLS"
        cure = "write https://, with the service's own CA in cluster.s3.ca"
        yield warning("cluster.s3.endpoint", message, seen=endpoint, cure=cure)


def granted_rights(case: Case) -> Iterator[Draft]:
    """The login has each right of the grant, if the cluster was asked."""
    look = case.facts.cluster
    for right in look.missing_rights if look is not None else ():
        cure = f"have an admin apply what `bivouac grant` prints; the cluster knows you as {look.user if look else ''}"
        yield error("cluster.namespace", "a right is missing", seen=right, cure=cure)


def fit_nodes(case: Case) -> Iterator[Draft]:
    """As many nodes have the labels, devices and taints of the spec as the gang has pods, if they were looked up."""
    nodes = None if case.facts.cluster is None else case.facts.cluster.nodes
    if nodes is None:
        return
    fit, count = [node for node in nodes if not node.obstacle], case.spec.nodes.count
    if len(fit) < count:
        obstacles = "; ".join(f"{node.name}: {node.obstacle}" for node in nodes if node.obstacle)
        detail = f"{len(fit)} of {count}{'; ' + obstacles if obstacles else ', and no other has the labels'}"
        cure = "write fewer nodes, other labels or tolerations, or have the nodes mended"
        yield error("cluster.nodes", "the cluster has too few nodes that can take the gang", seen=detail, cure=cure)


def shared_volume(case: Case) -> Iterator[Draft]:
    """All pods can mount the shared claim, and its storage class exists, if they were looked up."""
    if case.facts.cluster is not None and case.facts.cluster.volume:
        cure = "name a claim of the namespace with access mode ReadWriteMany, or a storage class that exists"
        yield error("cluster.shared", "is no shared tier", seen=case.facts.cluster.volume, cure=cure)


def readable_bucket(case: Case) -> Iterator[Draft]:
    """The Secret's login reads the bucket from this machine, if it was tried."""
    if case.facts.cluster is not None and case.facts.cluster.bucket:
        cure = "mend endpoint, bucket, CA or the Secret; record and archive lie there"
        yield error("cluster.s3", "the bucket cannot be read", seen=case.facts.cluster.bucket, cure=cure)


def fabric_claim(case: Case) -> Iterator[Draft]:
    """What the gang's pods claim of a DRA driver is there, if it was looked up."""
    if case.facts.cluster is not None and case.facts.cluster.claim:
        cure = "name a DeviceClass of the cluster (`kubectl get deviceclasses`), and have an admin apply the grant anew"
        yield error("cluster.fabric", "the pods would wait for adapters", seen=case.facts.cluster.claim, cure=cure)


def accepted_objects(case: Case) -> Iterator[Draft]:
    """The API server would make each object with which the campaign opens, if it was asked."""
    for answer in case.facts.cluster.dry_runs if case.facts.cluster is not None else ():
        if answer.refusal:
            cure = "mend what the cluster names; without JobSet there, have an admin install it"
            yield error("cluster", f"the cluster would refuse {answer.what}", seen=answer.refusal, cure=cure)


def guarded_namespace(case: Case) -> Iterator[Draft]:
    """The grant's policy holds a namespace that the job's network or memory opens, if it was tried."""
    if case.facts.cluster is not None and case.facts.cluster.policy_gap:
        field = "workload.host_network" if case.spec.runtime.host_network else "cluster.fabric.ipc_lock"
        cure = "have an admin apply policy and binding of `bivouac grant`: without them its pods may be all they like"
        detail = f"the cluster would make {case.facts.cluster.policy_gap}"
        yield error(field, "the namespace is open, and no policy holds it", seen=detail, cure=cure)


def queued_launcher(case: Case) -> Iterator[Draft]:
    """A job by mpirun names no queue: its MPIJob would take nodes past it."""
    cluster = case.spec.cluster
    if cluster is not None and cluster.queue is not None and case.job.by_mpirun:
        cure = "write launcher: torchrun or none, or remove cluster.queue"
        yield error("cluster.queue", "a job by mpirun cannot wait in a queue yet", seen=cluster.queue, cure=cure)


def queued_growth(case: Case) -> Iterator[Draft]:
    """A gang that may grow waits in no queue: for a larger one it would give up the quota that it holds."""
    cluster, count = case.spec.cluster, case.spec.nodes.count
    may_grow = (case.spec.recovery.min_nodes or count) < count
    if may_grow and cluster is not None and cluster.queue is not None:
        message = "a gang in a queue gives up its quota to grow, and may wait for hours to get it back"
        yield error("recovery.min_nodes", message, seen=f"cluster.queue {cluster.queue}", cure="leave out either")


def open_queue(case: Case) -> Iterator[Draft]:
    """The queue exists, admits gangs, and its flavours have what the gang takes, if it was looked up."""
    queue = None if case.facts.cluster is None else case.facts.cluster.queue
    if queue is None:
        return
    if queue.absent:
        cure = "name a LocalQueue of the namespace (`kubectl get localqueues`), or have an admin make it"
        yield error("cluster.queue", "the queue is not whole", seen=queue.absent, cure=cure)
    if queue.inactive:
        cure = "have an admin mend what it names; until then every gang waits"
        yield error("cluster.queue", "the queue admits nobody", seen=queue.inactive, cure=cure)
    for resource in queue.uncovered:
        # Whether Kueue passes over it stands in its own configuration, which no right of a tenant shows.
        cure = "ask an admin whether Kueue's excludeResourcePrefixes has it; if not, have it added there or to "
        cure += "coveredResources of the ClusterQueue, else the gang waits for ever"
        yield warning("cluster.queue", "a resource of the gang has no quota there", seen=resource, cure=cure)
    if queue.short:
        cure = "write fewer nodes, name another queue, or have an admin raise nominalQuota or borrowingLimit"
        yield error("cluster.queue", "no flavour has room for the gang", seen="; ".join(queue.short), cure=cure)
    if queue.borrowed:
        message = "the queue's own quota is too small: the rest is borrowed, and its owner may take it back at any time"
        cure = (
            "have an admin raise nominalQuota if the gang must not be preempted for that; it commits and starts again"
        )
        yield info("cluster.queue", message, seen="; ".join(queue.borrowed), cure=cure)
    if queue.checks:
        message = "the queue has admission checks: with its quota reserved the gang waits until each is ready"
        cure = "ask an admin what decides them; `bivouac status` says which one a gang waits for"
        yield info("cluster.queue", message, seen=", ".join(queue.checks), cure=cure)
