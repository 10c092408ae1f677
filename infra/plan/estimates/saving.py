"""The checkpoint cadence of a spec, with its figures."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import timedelta

from infra.plan.estimates import storage, work
from infra.plan.estimates.figure import Figure, figure
from infra.plan.estimates.step_time import seconds_of
from infra.plan.facts import Facts
from infra.spec import duration
from infra.spec.campaign import Spec
from infra.spec.checkpoint import FEWEST_COPIES, KEPT_COPIES, LONGEST_INTERVAL, SHORTEST_INTERVAL, archive_interval
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
    inputs = _Inputs(
        step_s=seconds_of(spec),
        stall_s=storage.stall_seconds(spec, facts, world_size),
        write_s=storage.local_write_seconds(spec, facts),
        shared_write_s=storage.shared_write_seconds(spec),
        restore_s=storage.shared_read_seconds(spec),
        mtbf_s=spec.recovery.node_mtbf_hours * 3600 / spec.nodes.count,
        restart_s=spec.recovery.heartbeat_timeout.total_seconds() + REPLACEMENT_S + RANKS_START_S,
        sealing_s=storage.sealing_seconds(spec, facts),
    )
    best = cadence.choose(
        step_s=inputs.step_s,
        steps=spec.job.steps,
        stall_s=inputs.stall_s,
        write_s=inputs.write_s,
        mtbf_s=inputs.mtbf_s,
        restart_s=inputs.restart_s,
    )
    shared_every = max(1, math.ceil(inputs.shared_write_s / (best.every_steps * inputs.step_s)))
    spec_checkpoint = None if spec.checkpoint is None else spec.checkpoint.of_ranks
    checkpoint = spec_checkpoint or CheckpointConfig(
        every_steps=best.every_steps,
        shared_every=shared_every,
        measured=True,
        node_mtbf_hours=spec.recovery.node_mtbf_hours,
    )
    # A lost node loses its local tier, so the cost of a failure counts from the last shared checkpoint.
    period = checkpoint.shared_every * (checkpoint.every_steps * inputs.step_s + inputs.stall_s)
    useful = cadence.efficiency(
        period, checkpoint.shared_every * inputs.stall_s, inputs.mtbf_s, inputs.restart_s, inputs.restore_s
    )
    figures = (*_rates(spec, inputs), *_interval(inputs, best), *_choice(spec, inputs, best, checkpoint, useful))
    return Saving(checkpoint=checkpoint, derived=spec_checkpoint is None, efficiency=useful, figures=figures)


def _rates(spec: Spec, inputs: _Inputs) -> tuple[Figure, ...]:
    emergency = f"stall + local write + shared write; a stopped pod has {spec.job.grace_s} s"
    node = f"{spec.recovery.node_mtbf_hours:g} h per node / {spec.nodes.count}"
    return (
        figure(
            "save stall", inputs.stall_s, "s", "bytes of the busiest rank / 6 GB/s host copy + 0.005 s to gather it"
        ),
        figure("local write", inputs.write_s, "s", "bytes of a node / (1 GB/s x disks), in the background"),
        figure("shared write", inputs.shared_write_s, "s", _shared_write(spec)),
        *_sealing(spec, inputs),
        figure("emergency save", inputs.stall_s + inputs.write_s + inputs.shared_write_s, "s", emergency),
        figure("MTBF of the job", inputs.mtbf_s / 3600, "h", node),
    )


def _sealing(spec: Spec, inputs: _Inputs) -> tuple[Figure, ...]:
    if not inputs.sealing_s:
        return ()
    rate_source = "each node's disks" if spec.runtime.on_disks else "the file system's throughput, by one node"
    words = (
        f"bytes of a checkpoint, read and written once more / {rate_source}, in the background: sealed files are copies"
    )
    return (figure("sealing", inputs.sealing_s, "s", words),)


def _shared_write(spec: Spec) -> str:
    if spec.storage.shared is None:
        return f"bytes of all shards to S3 and read back / ({spec.nodes.count} nodes x 1.25 GB/s), in the background"
    return "bytes of all shards, written and read back / file system's throughput, likewise"


def _interval(inputs: _Inputs, best: cadence.Cadence) -> tuple[Figure, ...]:
    daly = "sqrt(2 C mu) [1 + sqrt(C/2mu)/3 + (C/2mu)/9], "
    daly += f"C = {inputs.stall_s:.3g} s stall, mu = {inputs.mtbf_s:.0f} s MTBF"
    fewest = f"stall at most {100 * cadence.MAX_OVERHEAD:g} % of the interval; durable before the next save"
    most_steps = f"at least {cadence.MIN_SAVES} saves in a run; at most {cadence.MAX_WORK_AT_RISK_S:g} s at risk"
    return (
        figure("Daly's period", best.daly_period_s, "s", daly),
        figure("Daly's interval", best.daly_steps, "steps", f"(period - stall) / {inputs.step_s:g} s"),
        figure("fewest steps", best.fewest_steps, "steps", fewest),
        figure("most steps", best.most_steps, "steps", most_steps),
    )


def _choice(
    spec: Spec, inputs: _Inputs, best: cadence.Cadence, checkpoint: CheckpointConfig, useful: float
) -> tuple[Figure, ...]:
    every_steps, shared = "spec: checkpoint.every_steps", "spec: checkpoint.shared_every"
    if spec.checkpoint is None or spec.checkpoint.of_ranks is None:
        every_steps, shared = _REASONS[best.bound], "shared write / interval, rounded up"
    waste = (
        "1 - (T-C) / [(mu+D) e^(R/mu) (e^(T/mu)-1)], T and C between shared checkpoints,"
        f" D = {inputs.restart_s:.0f} s restart, R = the same bytes read once"
    )
    return (
        figure("save every", checkpoint.every_steps, "steps", every_steps),
        figure("re-evaluated", int(checkpoint.measured), "", "1: while running, from measured stall, dip and failures"),
        figure("replicate every", checkpoint.shared_every, "saves", shared),
        *_archive_figure(spec),
        figure("expected waste", 100 * (1 - useful), "%", waste),
    )


def _archive_figure(spec: Spec) -> tuple[Figure, ...]:
    if spec.storage.shared is None:
        return ()  # every checkpoint of the shared tier is in S3
    return (figure("archive every", archive_every(spec).total_seconds(), "s", _why_archive(spec)),)


def archive_every(spec: Spec) -> timedelta:
    """Return the interval between the copies of committed checkpoints to S3, of a spec with a step's time."""
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
