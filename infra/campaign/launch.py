"""Launch: the steward starts in the cluster, and launches the first attempt; from then on the driver may leave."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from decimal import Decimal
from typing import Any

import httpx2
from lightkube import Client
from lightkube.codecs import from_dict
from lightkube.core.exceptions import ApiError
from lightkube.resources.apps_v1 import Deployment
from lightkube.resources.core_v1 import Pod
from lightkube.types import CascadeType

from infra.bake import node_image
from infra.bake.bake import ImageManifest
from infra.cluster import attempts, starting
from infra.cluster.confinement import NOBODY, container_context, environment, pod_context
from infra.cluster.gang import CAMPAIGN_LABEL
from infra.cluster.kubernetes import from_outside, is_gone
from infra.cluster.nodes import GpuNodes
from infra.cluster.steward_config import CONFIG_NAME, Relaunch, StewardConfig, config_key, config_map
from infra.errors import PermanentError, UserError
from infra.plan import catalogue
from infra.plan.layout import layout
from infra.plan.plan import train_config
from infra.record.events import Kind, Stage
from infra.record.store import CampaignStore
from infra.session.context import Context
from infra.spec.names import (
    NAMESPACE,
    POOL_LABEL,
    SHARED_CLAIM,
    STEWARD_ACCOUNT,
    STEWARD_COMMAND,
    STEWARD_PRIORITY_CLASS,
    SYSTEM_POOL,
)
from trainer.contract import grace_seconds

STEWARD = "steward"
_STEWARD_S = 120.0
"""For the steward itself to start, before the attempt's own time."""
_STEWARD_ENDS_S = 30.0
_LAST_LINES = 3
_LEAVES_A_DEAD_NODE_S = 10
"""Kubernetes' own 300 s come on top of the 40 to 50 s that it takes to call a node unreachable."""


_APART = {
    "maxSkew": 1,
    "topologyKey": "kubernetes.io/hostname",
    "whenUnsatisfiable": "DoNotSchedule",
    "labelSelector": {"matchLabels": {"app": STEWARD}},
}


def run(context: Context) -> dict[str, Any]:
    """Idempotent: a steward that is there stays, with the configuration it has."""
    node_image.insist(context.store, context.names, context.account.client("ec2"))
    config = _config(context)
    client = from_outside(context.account, context.names.cluster)
    context.guard()
    deploy(client, context.store, config)
    return _first_attempt(context, client)


def _config(context: Context) -> StewardConfig:
    """As recorded; made anew where the bake has brought another image since, as it does after a launch that failed."""
    version = context.state().version
    known = recorded_config(context.store, version)
    if known is None or (version == 0 and known.image != context.outputs[Stage.BAKE]["image"]):
        return steward_config(context)
    return known


def deploy(client: Client, store: CampaignStore, config: StewardConfig) -> None:
    """Bring the steward to this configuration: the one write of the Deployment switches image and configuration at
    once, and Kubernetes ends the old steward before it starts the new one. The record's copy comes first: from it a
    lost deployment is made again."""
    text = config.model_dump_json(indent=1)
    store.put(f"{store.prefix}/{config_key(config.version)}", text.encode())
    labels = {CAMPAIGN_LABEL: config.spec.campaign}
    attempts.create_config(client, config_map(config.version), labels, {CONFIG_NAME: text})
    client.apply(from_dict(_deployment(config)), force=True)


def recorded_config(store: CampaignStore, version: int) -> StewardConfig | None:
    stored = store.get_json(config_key(version))
    return None if stored is None else StewardConfig.model_validate(stored)


def steward_config(context: Context, version: int = 0, relaunch: Relaunch | None = None) -> StewardConfig:
    """Everything the steward needs, so that it never asks the driver."""
    spec, plan, bake = context.spec, context.plan, context.outputs[Stage.BAKE]
    body = context.store.get(bake["manifest"])
    if body is None or ImageManifest.model_validate_json(body).image != bake["image"]:
        raise UserError("the image has no manifest", seen=bake["image"], cure="bake it again: `bivouac run` does")
    instance = catalogue.instance_type(spec.nodes.instance_type)
    provision = context.outputs[Stage.PROVISION]
    usd_gpu = plan.totals.usd_per_hour.value - plan.totals.usd_per_hour_idle.value
    grace = grace_seconds(spec.training.collective_timeout_s)
    return StewardConfig(
        version=version,
        relaunch=relaunch,
        identity=context.identity,
        spec=spec,
        train=train_config(spec, plan, provision["data_digest"], spec.training.model.vocabulary, context.identity),
        image=bake["image"],
        code_digest=bake["code"],
        image_manifest=bake["manifest"],
        ranks_per_node=layout(spec).ranks_per_node,
        accelerators=instance.accelerators,
        efa_interfaces=instance.efa_interfaces,
        grace_seconds=grace,
        deadline=context.deadline,
        base_usd_per_hour=Decimal(str(plan.totals.usd_per_hour_idle.value)),
        node_usd_per_hour=Decimal(str(usd_gpu)) / spec.nodes.count,
        interval_and_archive=_interval(context) + _archive(context),
        archive=_archive(context),
        state_bucket=context.buckets.state,
        archive_bucket=context.buckets.archive,
    )


def _archive(context: Context) -> timedelta:
    return timedelta(seconds=float(sum(s.seconds for s in context.plan.clock if s.stage == Stage.ARCHIVE)))


def _interval(context: Context) -> timedelta:
    return timedelta(seconds=context.plan.checkpoint.every_steps * context.spec.training.step_seconds_estimate)


def _first_attempt(context: Context, client: Client) -> dict[str, Any]:
    """Wait until the first attempt trains, or has ended."""
    timeout = context.spec.recovery.startup_timeout.total_seconds() + _STEWARD_S
    said = "the steward starts"
    for _ in context.turns(timeout):
        context.progress.step(said)
        state = context.state()
        events = {event.kind for event in context.store.events()}
        if Kind.ATTEMPT_RUNNING in events or state.outcome is not None or any(a.get("failure") for a in state.attempts):
            return {"attempts": len(state.attempts)}
        if state.attempts:
            said = f"attempt {state.attempts[-1]['attempt']} is starting"
    # First of all: they bill, and the cluster may be what does not answer. Recorded before that: were it the other way
    # round, a driver killed in between would leave none, and a record that counts them as proven.
    try:
        context.store.append(Kind.NODES_AT_ZERO, group=context.names.gpu_group)
    finally:
        GpuNodes(context.account, client, context.names, context.guard).set_desired(0)
    try:
        seen = _came_to(client)
        withdraw(context, client)
    except httpx2.HTTPError as error:
        seen = f"what the steward does cannot be seen or ended: {error}"
    raise PermanentError(
        "no attempt began to train; the GPU nodes were given back",
        seen=f"{said}; {seen}",
        cure="mend the cause, in the code too; `bivouac run` bakes what has changed and asks for nodes again, or "
        f"`bivouac down {context.spec.campaign}` ends the campaign",
    )


def withdraw(context: Context, client: Client) -> None:
    """Leave neither steward nor gang: they would take the next nodes before their proof. Done twice is done once."""
    context.guard()
    try:
        client.delete(Deployment, STEWARD, cascade=CascadeType.BACKGROUND)
    except ApiError as error:
        if not is_gone(error):
            raise
    # What still stewards may launch one more gang.
    for _ in context.turns(_STEWARD_ENDS_S):
        if not list(client.list(Pod, namespace=NAMESPACE, labels={"app": STEWARD})):
            break
        context.progress.step("the steward of the launch that failed is ending")
    for name in attempts.jobsets(client, context.spec.campaign).values():
        attempts.remove(client, name)


def _came_to(client: Client) -> str:
    """What became of the steward."""
    found = next(iter(client.list(Deployment, labels={"app": STEWARD})), None)
    ready, last = (found.status.readyReplicas if found and found.status else 0) or 0, "".join(_last_words(client))
    wanted = (found.spec.replicas if found and found.spec else None) or 1
    said = [f"{ready} of {wanted} steward pods ready", *([f"the steward's last words: {last}"] if last else [])]
    told = starting.warnings(client)
    for pod in client.list(Pod, namespace=NAMESPACE, labels={"app": STEWARD}):
        if not starting.has_started(pod):
            said.append(f"its pod: {starting.why_not(pod, told.get(starting.name_of(pod), ''))}")
    return "; ".join(said)


def _last_words(client: Client) -> Iterator[str]:
    """Of the steward, whose pod goes with it; nothing where it never spoke."""
    for pod in client.list(Pod, namespace=NAMESPACE, labels={"app": STEWARD}):
        name = str(pod.metadata.name if pod.metadata else "")
        with suppress(ApiError):
            yield from list(client.log(name, tail_lines=_LAST_LINES))


def _memory_mib(pods: int) -> int:
    """What the steward asks for: kubelets end first who uses more than that, whatever its priority.

    Measured, resident: 106 MiB before it follows a log, 114 with 64 pods' logs, 166 with 512; on top of that come the
    lists of pods and nodes, and of each pod what it printed in a quarter of an hour.
    """
    return 192 + pods // 2


def steward_pod(image: str, version: int, nodes: int, standby: bool = False) -> dict[str, Any]:
    """Its pod, on a node that the system has to itself; `nodes`: whose pods' logs it follows; `standby`: one of two,
    each on a node of its own."""
    container = {
        "name": STEWARD,
        "image": image,
        "command": list(STEWARD_COMMAND),
        "env": environment(),
        "securityContext": container_context(readOnlyRootFilesystem=True),
        "resources": {"requests": {"cpu": "100m", "memory": f"{_memory_mib(nodes)}Mi"}},
        "volumeMounts": [
            {"name": "config", "mountPath": "/config", "readOnly": True},
            {"name": "shared", "mountPath": "/shared-checkpoints", "subPath": "checkpoints"},
            {"name": "scratch", "mountPath": "/tmp"},
        ],
    }
    return {
        "serviceAccountName": STEWARD_ACCOUNT,
        "priorityClassName": STEWARD_PRIORITY_CLASS,
        "nodeSelector": {POOL_LABEL: SYSTEM_POOL},
        "tolerations": [
            {
                "key": f"node.kubernetes.io/{key}",
                "operator": "Exists",
                "effect": "NoExecute",
                "tolerationSeconds": _LEAVES_A_DEAD_NODE_S,
            }
            for key in ("unreachable", "not-ready")
        ],
        **({"topologySpreadConstraints": [_APART]} if standby else {}),
        "terminationGracePeriodSeconds": 5,
        "securityContext": pod_context(NOBODY),
        "volumes": [
            {"name": "config", "configMap": {"name": config_map(version)}},
            {"name": "shared", "persistentVolumeClaim": {"claimName": SHARED_CLAIM}},
            {"name": "scratch", "emptyDir": {"sizeLimit": "256Mi"}},
        ],
        "containers": [container],
    }


def _deployment(config: StewardConfig) -> dict[str, Any]:
    """The steward; with a second system node a second one, which waits for the first one's lease."""
    labels = {"app": STEWARD, CAMPAIGN_LABEL: config.spec.campaign}
    count = config.spec.nodes.system_count
    pod = steward_pod(config.image, config.version, config.spec.nodes.count, standby=count > 1)
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
