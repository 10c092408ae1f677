"""Launch: the steward starts in the cluster, and launches the first attempt; from then on the driver may leave."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from decimal import Decimal
from typing import Any

from lightkube import Client
from lightkube.codecs import from_dict
from lightkube.core.exceptions import ApiError
from lightkube.resources.apps_v1 import Deployment
from lightkube.resources.core_v1 import Pod
from lightkube.types import CascadeType

from infra import catalogue
from infra.actions import attempts
from infra.actions.cluster import from_outside, is_gone
from infra.actions.gang import CAMPAIGN_LABEL
from infra.actions.nodes import GpuNodes
from infra.actions.steward_config import CONFIG_NAME, Relaunch, StewardConfig, config_key, config_map
from infra.errors import PermanentError, UserError
from infra.events import Kind, Stage
from infra.layout import layout
from infra.lifecycle import node_image
from infra.lifecycle.bake import ImageManifest
from infra.lifecycle.context import Context
from infra.names import NAMESPACE, POOL_LABEL, SHARED_CLAIM, STEWARD_ACCOUNT, SYSTEM_POOL
from infra.plan import train_config
from infra.store import CampaignStore
from trainer.contract import grace_seconds

STEWARD = "steward"
_STEWARD_S = 120.0
"""For the steward itself to start, before the attempt's own time."""
_LAST_LINES = 3


def run(context: Context) -> dict[str, Any]:
    """Idempotent: a steward that is there stays, with the configuration it has."""
    node_image.insist(context.store, context.names, context.account.client("ec2"))
    config = recorded_config(context.store, context.state().version) or steward_config(context)
    client = from_outside(context.account, context.names.cluster)
    context.guard()
    deploy(client, context.store, config)
    return _first_attempt(context, client)


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
        spec=spec,
        train=train_config(spec, plan, provision["data_digest"], spec.training.model.vocabulary),
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
    deployment = client.get(Deployment, STEWARD)
    seen = f"{(deployment.status.readyReplicas if deployment.status else 0) or 0} of 1 steward pods ready; {said}"
    last = "".join(_last_words(client))
    _withdraw(context, client)
    raise PermanentError(
        "no attempt began to train; the GPU nodes were given back",
        seen=seen + (f"; the steward's last words: {last}" if last else ""),
        cure="mend the cause; `bivouac run` asks for nodes again, or `bivouac down "
        f"{context.spec.campaign}` ends the campaign",
    )


def _withdraw(context: Context, client: Client) -> None:
    """Give the nodes back, and leave neither steward nor gang: they would take the next nodes before their proof."""
    context.guard()
    try:
        client.delete(Deployment, STEWARD, cascade=CascadeType.BACKGROUND)
    except ApiError as error:
        if not is_gone(error):
            raise
    for name in attempts.jobsets(client, context.spec.campaign).values():
        attempts.remove(client, name)
    GpuNodes(context.account, client, context.names, context.guard).set_desired(0)
    context.store.append(Kind.NODES_AT_ZERO, group=context.names.gpu_group)


def _last_words(client: Client) -> Iterator[str]:
    """Of the steward, whose pod goes with it; nothing where it never spoke."""
    for pod in client.list(Pod, namespace=NAMESPACE, labels={"app": STEWARD}):
        name = str(pod.metadata.name if pod.metadata else "")
        with suppress(ApiError):
            yield from list(client.log(name, tail_lines=_LAST_LINES))


def _deployment(config: StewardConfig) -> dict[str, Any]:
    labels = {"app": STEWARD, CAMPAIGN_LABEL: config.spec.campaign}
    container = {
        "name": STEWARD,
        "image": config.image,
        "command": ["python", "-m", "infra.steward"],
        "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}},
        "volumeMounts": [
            {"name": "config", "mountPath": "/config", "readOnly": True},
            {"name": "shared", "mountPath": "/shared-checkpoints", "subPath": "checkpoints"},
        ],
    }
    pod = {
        "serviceAccountName": STEWARD_ACCOUNT,
        "nodeSelector": {POOL_LABEL: SYSTEM_POOL},
        "terminationGracePeriodSeconds": 5,
        "volumes": [
            {"name": "config", "configMap": {"name": config_map(config.version)}},
            {"name": "shared", "persistentVolumeClaim": {"claimName": SHARED_CLAIM}},
        ],
        "containers": [container],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": STEWARD, "namespace": NAMESPACE, "labels": labels},
        "spec": {
            "replicas": 1,
            "strategy": {"type": "Recreate"},
            "selector": {"matchLabels": {"app": STEWARD}},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }
