"""The proof of what all nodes need, by a pod on the system node, before the first GPU node bills."""

from __future__ import annotations

import json
import time
from typing import Any

import httpx2
from lightkube import Client
from lightkube.codecs import from_dict
from lightkube.core.exceptions import ApiError
from lightkube.resources.core_v1 import Pod
from pydantic import TypeAdapter, ValidationError

from infra.campaign.launch import steward_pod
from infra.cluster import attempts
from infra.cluster.confinement import ROOT
from infra.cluster.gang import CAMPAIGN_LABEL
from infra.cluster.kubernetes import is_gone, may_pass
from infra.cluster.pod_start import cure_of, ending, has_started, last_words, warnings, why_not
from infra.errors import PermanentError
from infra.record.payloads.outputs import BakeOutput
from infra.session.context import Context
from infra.spec.names import BASICS_COMMAND, NAMESPACE, shared_tier
from trainer.contract import Probe

NAME = "basics"
_RUN_S = 240.0
"""Time for the looks once the pod runs: each waits for what comes late."""
_GONE_S = 60.0
_PROBES = TypeAdapter(list[Probe])


def prove(context: Context, client: Client) -> None:
    """Run the pod. Raises `PermanentError` with what failed and its cure; no GPU node was requested."""
    labels = {CAMPAIGN_LABEL: context.spec.campaign, "bivouac.dev/role": NAME}
    config = {
        "region": context.spec.region,
        "bucket": context.buckets.state,
        "key": f"{context.store.prefix}/{NAME}",
    }
    shares = context.spec.storage.shared is not None
    if not shares:
        place = (context.spec.account, context.spec.region)
        config["shared_tier"] = shared_tier(*place, context.spec.campaign, context.identity)
    context.guard()
    _remove(context, client)
    attempts.create_config(client, NAME, labels, {"basics.json": json.dumps(config)})
    images = BakeOutput.of(context.outputs)
    image = images.steward_image or images.image
    client.create(from_dict(manifest(image, labels, shares)))
    pod, no_end = _await_end(context, client)
    probes = _probes_of(pod)
    failures = [probe for probe in probes if not probe.ok]
    if not no_end and not probes:
        no_end = f"it ended without a word: {last_words(client, NAME)}"
    if no_end or failures:
        facts = [no_end] if no_end else [f"{probe.name}: {probe.seen}" for probe in failures]
        cures = [cure_of(no_end)] if no_end else [probe.cure for probe in failures]
        raise PermanentError(
            "what every node needs does not work on the system node; no GPU node was requested",
            seen="; ".join(facts),
            cure="; ".join([*filter(None, cures), f"`bivouac run` continues, `bivouac down {context.spec.campaign}` "
                            "removes what bills"]),
        )  # fmt: skip
    _remove(context, client)
    context.progress.note(f"the system node has what all nodes need: {', '.join(probe.name for probe in probes)}")


def manifest(image: str, labels: dict[str, str], shares: bool = True) -> dict[str, Any]:
    """Return the pod: the steward's, as root on the file system, as the trainer's pods are."""
    pod = steward_pod(image, 0, 1, shares=shares)
    container = pod["containers"][0]
    container |= {"name": NAME, "command": list(BASICS_COMMAND)}
    container["securityContext"] |= {"runAsUser": ROOT, "runAsGroup": ROOT, "runAsNonRoot": False}
    pod["volumes"][0] = {"name": "config", "configMap": {"name": NAME}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": NAME, "namespace": NAMESPACE, "labels": labels},
        "spec": {**pod, "restartPolicy": "Never"},
    }


def _await_end(context: Context, client: Client) -> tuple[Pod, str]:
    """Wait for the pod's end; return it, and why it did not end or empty."""
    start_until = time.monotonic() + context.spec.recovery.startup_timeout.total_seconds()
    end_until, pod, warning = start_until + _RUN_S, Pod(), ""
    for turn, _ in enumerate(context.turns(end_until - time.monotonic())):
        try:
            pod = client.get(Pod, NAME)
            if ending(pod) is not None:
                return pod, ""
            if turn % 10 == 5 and not has_started(pod):
                warning = warnings(client).get(NAME, "")
        except (httpx2.HTTPError, ApiError) as error:
            if not may_pass(error):
                raise
        state = "it runs" if has_started(pod) else why_not(pod, warning)
        context.progress.step(f"what all nodes need, on the system node: {state[:200]}")
        if not has_started(pod) and time.monotonic() > start_until:
            return pod, f"the pod did not start within {context.spec.recovery.startup_timeout}: {state}"
    return pod, f"the pod did not end: {last_words(client, NAME)}"


def _probes_of(pod: Pod) -> list[Probe]:
    end = ending(pod)
    try:
        return _PROBES.validate_json((end.message if end else "") or "")
    except ValidationError:
        return []


def _remove(context: Context, client: Client) -> None:
    """Remove the pod, if there is one, and wait until it is gone."""
    for _ in context.turns(_GONE_S):
        try:
            client.delete(Pod, NAME, grace_period=0)
        except ApiError as error:
            if not is_gone(error):
                raise
            return
