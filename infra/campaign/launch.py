"""Launch: starts the steward, which launches the first attempt; from then on the driver may leave."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from decimal import Decimal
from functools import partial
from typing import Any, NamedTuple

import httpx2
from lightkube import Client
from lightkube.codecs import from_dict
from lightkube.core.exceptions import ApiError
from lightkube.resources.apps_v1 import Deployment
from lightkube.resources.core_v1 import Pod
from lightkube.types import CascadeType

from infra.bake import node_image
from infra.bake.bake import ImageManifest
from infra.bake.sources import code_of
from infra.campaign import launch_budget
from infra.campaign.capacity import stay_reason
from infra.campaign.closing import give_launch_budget
from infra.cluster import attempts, pod_start, pull_secret
from infra.cluster.confinement import NOBODY, container_context, environment, leaving_a_dead_node, pod_context
from infra.cluster.gang import CAMPAIGN_LABEL
from infra.cluster.kubernetes import or_none
from infra.cluster.nodes import GpuNodes
from infra.cluster.standing.placing import placed
from infra.cluster.steward_config import CONFIG_NAME, Relaunch, StewardConfig, config_key, config_map
from infra.errors import PermanentError, UserError
from infra.plan import catalogue, survey
from infra.plan.job_config import train_config, workload_config
from infra.plan.layout import layout
from infra.record.events import Stage
from infra.record.payloads.attempts import AttemptRunning, NodesAtZero
from infra.record.payloads.outputs import BakeOutput, LaunchOutput, ProvisionOutput
from infra.record.store import CampaignStore
from infra.session.context import Context
from infra.spec.checkpoint import archive_interval
from infra.spec.names import (
    NAMESPACE,
    POOL_LABEL,
    SHARED_CLAIM,
    STEWARD_ACCOUNT,
    STEWARD_COMMAND,
    STEWARD_PRIORITY_CLASS,
    SYSTEM_POOL,
)
from trainer.contract import SHARED_CHECKPOINTS
from trainer.contract.metrics import STEWARD_PORT

STEWARD = "steward"
_STEWARD_S = 120.0
"""Time for the steward to start, added to the attempt's startup timeout."""
_STEWARD_ENDS_S = 30.0
_LAST_LINES = 3
_LEAVES_A_DEAD_NODE_S = 10
"""Toleration of a dead node. Kubernetes needs 40 to 50 s to call it unreachable; its default toleration is 300 s."""


_APART = {
    "maxSkew": 1,
    "topologyKey": "kubernetes.io/hostname",
    "whenUnsatisfiable": "DoNotSchedule",
    "labelSelector": {"matchLabels": {"app": STEWARD}},
}


class NodesLeft(NamedTuple):
    """What became of the nodes of a launch that failed."""

    words: str
    way_on: str
    """What the next `bivouac run` does."""


def run(context: Context) -> LaunchOutput:
    """Start the steward and wait for its first attempt. A steward that exists stays, with its configuration."""
    node_image.insist(context.store, context.names, context.account.client("ec2"))
    launch_budget.postpone(context)
    config = configuration(context)
    client = context.cluster_client()
    context.guard()
    pull_secret.give(client, context.account, context.spec)
    give_launch_budget(context)
    deploy(client, context.store, config)
    return _first_attempt(context, client)


def configuration(context: Context) -> StewardConfig:
    """Return the recorded configuration, or a new one if a failed launch was followed by a bake of another image."""
    version = context.state().version
    config = recorded_config(context.store, version)
    images = BakeOutput.of(context.outputs)
    names = (images.image, images.steward_image, images.job_image)
    if config is None or (version == 0 and (config.image, config.steward_image, config.job_image) != names):
        return steward_config(context)
    return config


def deploy(client: Client, store: CampaignStore, config: StewardConfig) -> None:
    """Bring the steward to this configuration.

    One write of the Deployment switches image and configuration together, and Kubernetes ends the old steward before it
    starts the new one. The record's copy is written first: a lost deployment is made again from it.
    """
    text = config.model_dump_json(indent=1)
    store.put(f"{store.prefix}/{config_key(config.version)}", text.encode())
    labels = {CAMPAIGN_LABEL: config.spec.campaign}
    attempts.create_config(client, config_map(config.version), labels, {CONFIG_NAME: text})
    client.apply(from_dict(placed(_deployment(config), config.spec.cluster)), force=True)


def recorded_config(store: CampaignStore, version: int) -> StewardConfig | None:
    document = store.get_json(config_key(version))
    return None if document is None else StewardConfig.model_validate(document)


def steward_config(context: Context, version: int = 0, relaunch: Relaunch | None = None) -> StewardConfig:
    """Return everything that the steward needs, so that it never asks the driver."""
    spec, plan, bake = context.spec, context.plan, BakeOutput.of(context.outputs)
    body = context.store.get(bake.manifest)
    if body is None or ImageManifest.model_validate_json(body).image != bake.image:
        raise UserError("the image has no manifest", seen=bake.image, cure="bake it again: `bivouac run` does")
    instance = catalogue.instance_type(spec.nodes.instance_type)
    provision = ProvisionOutput.of(context.outputs)
    digest, code, packages = provision.data_digest, provision.source_sha256, provision.packages_for
    is_built_in = spec.runtime.is_built_in
    usd_gpu = plan.totals.usd_per_hour.value - plan.totals.usd_per_hour_idle.value
    return StewardConfig(
        version=version,
        relaunch=relaunch,
        identity=context.identity,
        spec=spec,
        train=train_config(spec, plan, digest, context.identity, provision.init_from) if is_built_in else None,
        workload=None if is_built_in else workload_config(spec, plan, digest, code, context.identity, packages),
        image=bake.image,
        steward_image=bake.steward_image,
        job_image=bake.job_image,
        code_digest=bake.code,
        image_manifest=bake.manifest,
        ranks_per_node=layout(spec).ranks_per_node,
        accelerators=instance.accelerators,
        efa_interfaces=instance.efa_interfaces,
        grace_seconds=spec.job.grace_s + spec.runtime.sealing_s,
        deadline=context.deadline,
        base_usd_per_hour=Decimal(str(plan.totals.usd_per_hour_idle.value)),
        node_usd_per_hour=Decimal(str(usd_gpu)) / spec.nodes.count,
        lines=plan.cost,
        interval_and_archive=_interval(context) + _archive(context),
        archive=_archive(context),
        state_bucket=context.buckets.state,
        archive_bucket=context.buckets.archive,
        closer=code_of(context) if survey.environment(spec).makes_cluster else None,
        archive_every=archive_interval(spec.checkpoint, timedelta(seconds=float(plan.figure("training time").value))),
    )


def _archive(context: Context) -> timedelta:
    return timedelta(seconds=float(sum(s.seconds for s in context.plan.clock if s.stage == Stage.ARCHIVE)))


def _interval(context: Context) -> timedelta:
    return timedelta(seconds=context.plan.checkpoint.every_steps * float(context.plan.figure("step time").value))


def _first_attempt(context: Context, client: Client) -> LaunchOutput:
    # The steward ends the nodes from its first attempt on.
    return await_attempt(context, client, partial(launch_budget.switch_off, context), _set_to_zero)


def await_attempt(
    context: Context, client: Client, on_life: Callable[[], None], give_back: Callable[[Context, Client], NodesLeft]
) -> LaunchOutput:
    """Wait until the first attempt trains or has ended. `on_life` is called once the steward lives, `give_back` for the
    nodes if no attempt begins to train. Raises `PermanentError` then.
    """
    timeout = context.spec.recovery.startup_timeout.total_seconds() + _STEWARD_S
    situation, steward_lives = "the steward starts", False
    for _ in context.turns(timeout):
        context.progress.step(situation)
        state = context.state()
        if state.attempts and not steward_lives:
            on_life()
            steward_lives = True
        runs = any(isinstance(event.payload, AttemptRunning) for event in context.store.events())
        if runs or state.outcome is not None or any(attempt.failure for attempt in state.attempts):
            return LaunchOutput(attempts=len(state.attempts))
        if state.attempts:
            situation = f"attempt {state.attempts[-1].number} is starting"
    left = give_back(context, client)
    try:
        steward_state = _came_to(client)
        withdraw(context, client)
    except httpx2.HTTPError as error:
        steward_state = f"the steward can be neither seen nor ended: {error}"
    raise PermanentError(
        f"no attempt began to train; {left.words}",
        seen=f"{situation}; {steward_state}",
        cure=f"mend the cause; {left.way_on}, or `bivouac down {context.spec.campaign}` ends the campaign",
    )


def _set_to_zero(context: Context, client: Client) -> NodesLeft:
    """Give the GPU nodes back unless their places bill in any case."""
    if stay := stay_reason(context):
        return NodesLeft(stay, "`bivouac run` bakes changed code and uses them")
    # The nodes go first: they bill, and the cluster may not answer. The record is written before: otherwise a driver
    # killed in between would leave no nodes and a record that counts them as proven.
    try:
        context.store.append(NodesAtZero(group=context.names.gpu_group))
    finally:
        GpuNodes(context.account, client, context.names, context.guard).set_desired(0)
    return NodesLeft("the GPU nodes were given back", "`bivouac run` bakes changed code and asks for nodes again")


def withdraw(context: Context, client: Client) -> None:
    """Remove steward and gang, which would take the next nodes before their health check. Idempotent."""
    context.guard()
    or_none(lambda: client.delete(Deployment, STEWARD, cascade=CascadeType.BACKGROUND))
    # A steward that still runs may launch one more gang.
    for _ in context.turns(_STEWARD_ENDS_S):
        if not list(client.list(Pod, labels={"app": STEWARD})):
            break
        context.progress.step("the steward of the launch that failed is ending")
    kind = attempts.kind_of(context.spec)
    for name in attempts.jobs(client, kind, context.spec.campaign).values():
        attempts.remove(client, kind, name)


def _came_to(client: Client) -> str:
    """Return the state of the steward for the error."""
    steward = next(iter(client.list(Deployment, labels={"app": STEWARD})), None)
    ready, log = (
        (steward.status.readyReplicas if steward and steward.status else 0) or 0,
        "".join(_last_words(client)),
    )
    count = (steward.spec.replicas if steward and steward.spec else None) or 1
    parts = [f"{ready} of {count} steward pods ready", *([f"the steward's last words: {log}"] if log else [])]
    events = pod_start.warnings(client)
    for pod in client.list(Pod, labels={"app": STEWARD}):
        if not pod_start.has_started(pod):
            parts.append(f"its pod: {pod_start.why_not(pod, events.get(pod_start.name_of(pod), ''))}")
    return "; ".join(parts)


def _last_words(client: Client) -> Iterator[str]:
    """Yield the last log lines of the steward, whose pod is about to be deleted."""
    for pod in client.list(Pod, labels={"app": STEWARD}):
        name = str(pod.metadata.name if pod.metadata else "")
        with suppress(ApiError):
            yield from list(client.log(name, tail_lines=_LAST_LINES))


def steward_pod(image: str, version: int, nodes: int, standby: bool = False, shares: bool = True) -> dict[str, Any]:
    """Return the steward's pod spec, for the system pool. `nodes`: number of pods whose logs it follows. `standby`: it
    is one of two, each on its own node. `shares`: it mounts the shared file system."""
    volumes: dict[str, dict[str, Any]] = {
        "config": {"configMap": {"name": config_map(version)}},
        "shared": {"persistentVolumeClaim": {"claimName": SHARED_CLAIM}},
        "scratch": {"emptyDir": {"sizeLimit": "256Mi"}},
    }
    mounts: dict[str, dict[str, Any]] = {
        "config": {"mountPath": "/config", "readOnly": True},
        "shared": {"mountPath": SHARED_CHECKPOINTS, "subPath": "checkpoints"},
        "scratch": {"mountPath": "/tmp"},
    }
    volume_names = [name for name in volumes if shares or name != "shared"]
    container = {
        "name": STEWARD,
        "image": image,
        "command": list(STEWARD_COMMAND),
        "env": environment(),
        "ports": [{"name": "metrics", "containerPort": STEWARD_PORT}],
        "securityContext": container_context(readOnlyRootFilesystem=True),
        # Kubelets first evict pods that use more memory than they request, at any priority.
        "resources": {"requests": {"cpu": "100m", "memory": f"{192 + nodes // 2}Mi"}},
        "volumeMounts": [{"name": name, **mounts[name]} for name in volume_names],
    }
    return {
        "serviceAccountName": STEWARD_ACCOUNT,
        "priorityClassName": STEWARD_PRIORITY_CLASS,
        "nodeSelector": {POOL_LABEL: SYSTEM_POOL},
        "tolerations": leaving_a_dead_node(_LEAVES_A_DEAD_NODE_S),
        **({"topologySpreadConstraints": [_APART]} if standby else {}),
        "terminationGracePeriodSeconds": 5,
        "securityContext": pod_context(NOBODY),
        "volumes": [{"name": name, **volumes[name]} for name in volume_names],
        "containers": [container],
    }


def _deployment(config: StewardConfig) -> dict[str, Any]:
    """Return the Deployment; with two system nodes it has a second steward, which waits for the first one's lease."""
    labels = {"app": STEWARD, CAMPAIGN_LABEL: config.spec.campaign}
    count = config.spec.nodes.system_count
    image, shares = config.steward_image or config.image, config.spec.storage.shared is not None
    pod = steward_pod(image, config.version, config.spec.nodes.count, count > 1, shares)
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": STEWARD, "namespace": NAMESPACE, "labels": labels},
        "spec": {
            "replicas": count,
            "strategy": {"type": "Recreate"},
            "selector": {"matchLabels": {"app": STEWARD}},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }
