"""The checkpoint cadence of a spec, with its figures."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import timedelta

from infra.plan.estimates import storage, work
from infra.plan.estimates.figure import Figure, figure
from infra.plan.facts import Facts
from infra.spec import duration
from infra.spec.campaign import Spec
from infra.spec.checkpoint import (
    FEWEST_COPIES,
    KEPT_COPIES,
    LONGEST_INTERVAL,
    SHORTEST_INTERVAL,
    archive_interval,
)
from trainer.contract import CheckpointConfig, cadence

REPLACEMENT_S = 300.0
"""Time from the decision to replace a node until a new one is ready: an estimate until the campaign measures it."""
RANKS_START_S = 30.0
"""Time from a scheduled pod to the first step, without the restore."""


@dataclass(frozen=True)
class Saving:
    """The cadence in use; `checkpoint` is the spec's own section if it has one."""

    checkpoint: CheckpointConfig
    derived: bool
    efficiency: float
    """Expected useful share of the training stage."""
    figures: tuple[Figure, ...]


@dataclass(frozen=True)
class _Inputs:
    step_s: float
    stall_s: float
    write_s: float
    shared_write_s: float
    restore_s: float
    mtbf_s: float
    restart_s: float
    sealing_s: float


def saving(spec: Spec, facts: Facts, world_size: int) -> Saving:
    given = _Inputs(
        step_s=spec.job.step_seconds_estimate,
        stall_s=storage.stall_seconds(spec, facts, world_size),
        write_s=storage.local_write_seconds(spec, facts),
        shared_write_s=storage.shared_write_seconds(spec),
        restore_s=storage.shared_read_seconds(spec),
        mtbf_s=spec.recovery.node_mtbf_hours * 3600 / spec.nodes.count,
        restart_s=spec.recovery.heartbeat_timeout.total_seconds() + REPLACEMENT_S + RANKS_START_S,
        sealing_s=0.0 if spec.workload is None else storage.sealing_seconds(spec, facts),
    )
    best = cadence.choose(
        step_s=given.step_s,
        steps=spec.job.steps,
        stall_s=given.stall_s,
        write_s=given.write_s,
        mtbf_s=given.mtbf_s,
        restart_s=given.restart_s,
    )
    shared_every = max(1, math.ceil(given.shared_write_s / (best.every_steps * given.step_s)))
    own = None if spec.checkpoint is None else spec.checkpoint.of_ranks
    used = own or CheckpointConfig(
        every_steps=best.every_steps,
        shared_every=shared_every,
        measured=True,
        node_mtbf_hours=spec.recovery.node_mtbf_hours,
    )
    # A lost node loses its local tier, so the cost of a failure counts from the last shared checkpoint.
    period = used.shared_every * (used.every_steps * given.step_s + given.stall_s)
    useful = cadence.efficiency(
        period, used.shared_every * given.stall_s, given.mtbf_s, given.restart_s, given.restore_s
    )
    figures = (*_rates(spec, given), *_interval(given, best), *_chosen(spec, given, best, used, useful))
    return Saving(checkpoint=used, derived=own is None, efficiency=useful, figures=figures)


def _rates(spec: Spec, given: _Inputs) -> tuple[Figure, ...]:
    emergency = f"stall + local write + shared write; a stopped pod has {spec.job.grace_s} s"
    node = f"{spec.recovery.node_mtbf_hours:g} h per node / {spec.nodes.count}"
    return (
        figure("save stall", given.stall_s, "s", "bytes of the busiest rank / 6 GB/s host copy + 0.005 s to gather it"),
        figure("local write", given.write_s, "s", "bytes of a node / (1 GB/s x disks), in the background"),
        figure("shared write", given.shared_write_s, "s", _shared_write(spec)),
        *_sealing(spec, given),
        figure("emergency save", given.stall_s + given.write_s + given.shared_write_s, "s", emergency),
        figure("MTBF of the job", given.mtbf_s / 3600, "h", node),
    )


def _sealing(spec: Spec, given: _Inputs) -> tuple[Figure, ...]:
    if spec.workload is None:
        return ()
    where = "each node's disks" if storage.on_disks(spec) else "the file system's throughput, by one node"
    words = f"bytes of a checkpoint, read and written once more / {where}, in the background: sealed files are copies"
    return (figure("sealing", given.sealing_s, "s", words),)


def _shared_write(spec: Spec) -> str:
    if spec.storage.shared is None:
        return f"bytes of all shards to S3 and read back / ({spec.nodes.count} nodes x 1.25 GB/s), in the background"
    return "bytes of all shards, written and read back / file system's throughput, likewise"


def _interval(given: _Inputs, best: cadence.Cadence) -> tuple[Figure, ...]:
    daly = (
        f"sqrt(2 C mu) [1 + sqrt(C/2mu)/3 + (C/2mu)/9], C = {given.stall_s:.3g} s stall, mu = {given.mtbf_s:.0f} s MTBF"
    )
    fewest = f"stall at most {100 * cadence.MAX_OVERHEAD:g} % of the interval; durable before the next save"
    most = f"at least {cadence.MIN_SAVES} saves in a run; at most {cadence.MAX_WORK_AT_RISK_S:g} s at risk"
    return (
        figure("Daly's period", best.daly_period_s, "s", daly),
        figure("Daly's interval", best.daly_steps, "steps", f"(period - stall) / {given.step_s:g} s"),
        figure("fewest steps", best.fewest_steps, "steps", fewest),
        figure("most steps", best.most_steps, "steps", most),
    )


def _chosen(
    spec: Spec, given: _Inputs, best: cadence.Cadence, used: CheckpointConfig, useful: float
) -> tuple[Figure, ...]:
    every, shared = "spec: checkpoint.every_steps", "spec: checkpoint.shared_every"
    if spec.checkpoint is None or spec.checkpoint.of_ranks is None:
        every, shared = _REASONS[best.bound], "shared write / interval, rounded up"
    waste = (
        "1 - (T-C) / [(mu+D) e^(R/mu) (e^(T/mu)-1)], T and C between shared checkpoints,"
        f" D = {given.restart_s:.0f} s restart, R = the same bytes read once"
    )
    return (
        figure("save every", used.every_steps, "steps", every),
        figure("re-evaluated", int(used.measured), "", "1: while running, from measured stall, dip and failures"),
        figure("replicate every", used.shared_every, "saves", shared),
        *_archive_figure(spec),
        figure("expected waste", 100 * (1 - useful), "%", waste),
    )


def _archive_figure(spec: Spec) -> tuple[Figure, ...]:
    if spec.storage.shared is None:
        return ()  # every checkpoint of the shared tier is in S3
    return (figure("archive every", archive_every(spec).total_seconds(), "s", _why_archive(spec)),)


def archive_every(spec: Spec) -> timedelta:
    """Return the interval between the copies of committed checkpoints to S3."""
    return archive_interval(spec.checkpoint, timedelta(seconds=work.training_seconds(spec)))


def _why_archive(spec: Spec) -> str:
    if spec.checkpoint is not None and spec.checkpoint.archive_every is not None:
        return "spec: checkpoint.archive_every"
    return (
        f"training time / {FEWEST_COPIES}, at most {duration.text(LONGEST_INTERVAL)}, "
        f"at least {duration.text(SHORTEST_INTERVAL)}; the newest {KEPT_COPIES} copies stay in S3"
    )


_REASONS = {
    "daly": "Daly's interval, rounded to the better whole number",
    "fewest": "Daly's interval is below the fewest steps",
    "most": "Daly's interval is above the most steps",
}
