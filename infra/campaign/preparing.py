"""The data, prepared by nodes of the campaign: an indexed Job, one pod on each of them, whose parts lie in S3.

The nodes come when all else stands and go when the data are there, before the first GPU node. A driver that was killed
finds the Job, or its result, again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx2
from lightkube import Client
from lightkube.codecs import from_dict
from lightkube.core.exceptions import ApiError
from lightkube.resources.batch_v1 import Job
from lightkube.resources.core_v1 import Pod

from infra.archive import archive_job
from infra.cluster import attempts, pod_start
from infra.cluster.confinement import (
    NOBODY,
    batch_job,
    container_context,
    environment,
    leaving_a_dead_node,
    one_time_pod,
)
from infra.cluster.gang import CAMPAIGN_LABEL
from infra.cluster.kubernetes import OF_WORLD, create, may_pass
from infra.cluster.nodes import GpuNodes
from infra.data import in_cluster
from infra.data.dataset import DataSet
from infra.data.in_cluster import SourceListing
from infra.errors import BivouacError, PermanentError
from infra.plan.estimates.cost import DATA_NODES
from infra.record.payloads.outputs import BakeOutput
from infra.record.payloads.stages import DataBegun, DataEnded
from infra.session.context import Context
from infra.spec import duration
from infra.spec.names import DATA_ACCOUNT, DATA_POOL, POOL_LABEL, SHARE_COMMAND
from trainer.contract import ExitCode
from trainer.contract.preparing import SCRATCH, SHARE_FILE, Preparing

ROLE = "data"
_ROLE_LABEL = "bivouac.dev/role"
_INTERVAL_S = 2.0
_TRIES = 4
"""Of each pod, besides those that a lost node takes with it."""
_LEAVES_A_DEAD_NODE_S = 30


def prepare(context: Context, listing: SourceListing) -> DataSet:
    """Return the data set, prepared in the cluster and verified in S3. Raises `BivouacError` after the nodes are given
    back; what is finished stays in S3, and the same command goes on from there."""
    settings = context.spec.built_in[1].prepare
    client = context.cluster_client()
    nodes = GpuNodes(context.account, client, context.names, context.guard, context.names.of("node group", DATA_POOL))
    bucket, files = context.buckets.data, f"{listing.files:,} files, {listing.bytes / 1e9:.3g} GB"
    context.guard()
    price = sum(line.usd_per_hour for line in context.plan.cost if line.name == DATA_NODES)
    totals = {"plan": listing.plan, "files": listing.files, "bytes": listing.bytes}
    context.store.append(DataBegun(nodes=settings.nodes, usd_per_hour=str(price), **totals))
    try:
        nodes.set_desired(settings.nodes)
        in_cluster.give_tokenizer(context.account, context.spec, bucket, listing.plan)
        work = in_cluster.preparing(context.spec, bucket, listing.plan)
        _start(context, client, work)
        digest = _wait(context, client, nodes, work)
        data = in_cluster.verified_data(context.account, bucket, digest, context.progress.step)
    except (BivouacError, *OF_WORLD) as error:
        nodes.set_desired(0)
        context.store.append(DataEnded(error=str(error)[:1000]))
        raise
    nodes.set_desired(0)
    context.store.append(DataEnded(digest=digest))
    archive_job.remove(client, name_of(work))
    context.progress.note(f"data: {files} prepared in the cluster, every file has its digest in S3; its nodes go")
    return data


def name_of(work: Preparing) -> str:
    """Return the name of Job and config map: another plan is another Job."""
    return f"data-{work.plan[:10]}"


def manifest(campaign: str, image: str, work: Preparing, limit: timedelta) -> dict[str, Any]:
    """Return the Job: as many pods as workers, each on a node of its own, whatever processors that has.

    It is over when pod 0 has handed the data over. A node that is lost costs no try, and an error in the text is not
    tried again.
    """
    labels, name = {CAMPAIGN_LABEL: campaign, _ROLE_LABEL: ROLE}, name_of(work)
    neighbours = {"labelSelector": {"matchLabels": labels}, "topologyKey": "kubernetes.io/hostname"}
    pod_volumes: list[dict[str, Any]] = [
        {"name": "config", "configMap": {"name": name}},
        {"name": "work", "emptyDir": {}},
        {"name": "scratch", "emptyDir": {"sizeLimit": "1Gi"}},
    ]
    container = {
        "name": ROLE,
        "image": image,
        "command": list(SHARE_COMMAND),
        "env": environment(),
        "securityContext": container_context(readOnlyRootFilesystem=True),
        "resources": {"requests": {"cpu": "100m", "memory": "512Mi"}},
        "volumeMounts": [
            {"name": "config", "mountPath": SHARE_FILE.rpartition("/")[0], "readOnly": True},
            {"name": "work", "mountPath": SCRATCH},
            {"name": "scratch", "mountPath": "/tmp"},
        ],
    }
    pod = one_time_pod(
        DATA_ACCOUNT, NOBODY, pod_volumes, container, nodeSelector={POOL_LABEL: DATA_POOL},
        affinity={"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [neighbours]}},
        tolerations=leaving_a_dead_node(_LEAVES_A_DEAD_NODE_S), terminationGracePeriodSeconds=5,
    )  # fmt: skip
    ends = [int(ExitCode.USER), int(ExitCode.DATA)]
    spec: dict[str, Any] = {
        "completionMode": "Indexed",
        "completions": work.workers,
        "parallelism": work.workers,
        "backoffLimitPerIndex": _TRIES,
        "activeDeadlineSeconds": int(limit.total_seconds()),
        "successPolicy": {"rules": [{"succeededIndexes": "0"}]},
        "podFailurePolicy": {
            "rules": [
                {"action": "FailJob", "onExitCodes": {"containerName": ROLE, "operator": "In", "values": ends}},
                {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
            ]
        },
    }
    return batch_job(name, labels, pod, **spec)


def _start(context: Context, client: Client, work: Preparing) -> None:
    """Create the Job unless it is there; remove one that has failed, or that prepares other files."""
    name, labels = name_of(work), {CAMPAIGN_LABEL: context.spec.campaign}
    limit = context.spec.built_in[1].prepare.limit
    job_body = from_dict(manifest(context.spec.campaign, BakeOutput.of(context.outputs).image, work, limit))
    attempts.create_config(client, name, labels, {SHARE_FILE.rpartition("/")[2]: work.model_dump_json(indent=1)})
    for job in client.list(Job, labels={**labels, _ROLE_LABEL: ROLE}):
        job_name = str(job.metadata.name if job.metadata else "")
        if job_name != name or archive_job.status_of(client, job_name).get("over"):
            archive_job.remove(client, job_name)
    for _ in context.turns(limit.total_seconds(), _INTERVAL_S):
        if not archive_job.status_of(client, name).get("leaving"):
            break
        context.progress.step("data: an earlier job is ending")
    create(client, job_body)


def _wait(context: Context, client: Client, nodes: GpuNodes, work: Preparing) -> str:
    """Return the digest of the data set once the result is there. Raises the pods' own error, or `PermanentError`."""
    settings, start, words = context.spec.built_in[1].prepare, datetime.now(UTC), ""
    any_ran, running = False, list[Pod]()
    for turn, _ in enumerate(context.turns(settings.limit.total_seconds(), _INTERVAL_S)):
        context.guard()
        if (digest := in_cluster.result(context.account, work.bucket, work.plan)) is not None:
            return digest
        try:
            # The Job is read before its pods: if it reports an end, the later listing shows the pods' ends too.
            has_ended = archive_job.status_of(client, name_of(work)).get("over")
            pods = list(client.list(Pod, labels={CAMPAIGN_LABEL: context.spec.campaign, _ROLE_LABEL: ROLE}))
            if has_ended:
                raise _failure(context.spec.campaign, client, pods)
            running = [pod for pod in pods if pod_start.has_started(pod) and not pod_start.is_over(pod)]
            any_ran = any_ran or bool(running)
            if turn % 5 == 0:
                reasons = "; ".join(_reasons(client, pods, nodes, start))
                words = _progress(client, running) or reasons or "they start"
        except httpx2.HTTPError as error:
            if not may_pass(error):
                raise
            words = f"the cluster does not answer: {error}"[:200]
        context.progress.step(f"data: {len(running)} of {settings.nodes} workers; {words}")
        if not any_ran and datetime.now(UTC) - start > context.spec.capacity_timeout:
            raise PermanentError(
                f"no node for the data came within {duration.text(context.spec.capacity_timeout)}",
                seen=words,
                cure="write another data.prepare.instance_type or capacity, then run the same command again",
            )
    raise PermanentError(
        f"the data were not prepared within {duration.text(settings.limit)}",
        seen=words,
        cure="write more data.prepare.nodes or a longer data.prepare.limit; the same command goes on from there",
    )


def _failure(campaign: str, client: Client, pods: list[Pod]) -> BivouacError:
    message, of_text = archive_job.last_message(pods), (ExitCode.USER, ExitCode.DATA)
    if any((end := pod_start.ending(pod)) is not None and end.exitCode in of_text for pod in pods):
        return in_cluster.refusal(message)
    return PermanentError(
        "the preparation of the data failed; no GPU node was requested",
        seen=message or "; ".join(pod_start.warnings(client).values())[:500] or "its pods ended without a word",
        cure=f"see what its pods said: `bivouac shell {campaign} -- kubectl logs -l {_ROLE_LABEL}={ROLE}`; the same "
        "command goes on from what is there",
    )


def _progress(client: Client, running: list[Pod]) -> str:
    """Return how far all workers are, by the newest line of one of them."""
    for line in (line for pod in running for line in reversed(_lines(client, pod_start.name_of(pod)))):
        try:
            report = json.loads(line)
        except ValueError:
            continue
        if isinstance(report, dict) and report.get("event") == "progress" and report.get("of"):
            return f"{report['stage']}: {_sentence(report)}"
    return ""


def _sentence(report: dict[str, Any]) -> str:
    rate, left = report.get("documents_per_s"), report.get("left_s")
    parts = [f"{report['parts']:,} of {report['of']:,} parts"]
    parts += [f"{rate:,.0f} documents/s"] if rate else []
    parts += [f"{timedelta(seconds=left)} to go"] if left else []
    return ", ".join(parts)


def _lines(client: Client, pod: str) -> list[str]:
    try:
        return list(client.log(pod, tail_lines=5, newlines=False))
    except ApiError:
        return []


def _reasons(client: Client, pods: list[Pod], nodes: GpuNodes, start: datetime) -> Iterator[str]:
    """Yield why no worker has said anything yet."""
    try:
        yield from nodes.refusals(start)
    except OF_WORLD as error:
        yield f"could not look at the nodes: {error}"[:200]
    events = pod_start.warnings(client)
    for pod in [pod for pod in pods if not pod_start.has_started(pod)][:1]:
        yield pod_start.why_not(pod, events.get(pod_start.name_of(pod), ""))[:300]
