"""Every metric that Bivouac exports, once: exporters, alert rules, dashboards and docs/metrics.md are made from this.

Standard library and Python 3.8 only: the supervisor serves its part in the job's own image.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

PREFIX = "bivouac_"
STEWARD_PORT = 8472
"""The steward's port for `/metrics`."""
SUPERVISOR, STEWARD, DRIVER = "supervisor", "steward", "driver"
PLACES: dict[str, tuple[str, ...]] = {
    SUPERVISOR: ("campaign", "attempt", "node"),
    STEWARD: ("campaign",),
    DRIVER: ("campaign",),
}
"""Source -> labels of each of its metrics. No driver is scraped: the steward exports its metrics from the record."""


class Metric(NamedTuple):
    """One metric. A value that its source does not know has no sample: unknown is not zero."""

    source: str
    name: str
    """Without the prefix; ends in the unit, if it has one."""
    field: str
    """Where the source has it: names joined by dots."""
    help: str
    unit: str = ""
    label: str = ""
    """A label of its own; its field is then a mapping from the label's value to the metric's."""
    kind: str = "gauge"
    view: str = "run"
    """Whom it speaks of: the run, a node, or a rank."""
    most: float = math.inf
    """A greater value is an error of whoever made it, and has no sample."""

    @property
    def full_name(self) -> str:
        return PREFIX + self.name


METRICS: tuple[Metric, ...] = (
    Metric(SUPERVISOR, "step", "step", "Newest finished step, of the slowest local rank or by the job's word", "steps"),
    Metric(SUPERVISOR, "steps", "steps", "Steps planned", "steps"),
    Metric(SUPERVISOR, "committed_step", "committed_step", "Newest step committed, -1 before the first", "steps"),
    Metric(SUPERVISOR, "tokens", "tokens", "Tokens consumed by all ranks, as far as they are known", "tokens"),
    Metric(SUPERVISOR, "loss", "loss", "Training loss of the newest step"),
    Metric(SUPERVISOR, "step_seconds", "step_seconds", "Duration of the last step", "seconds"),
    Metric(SUPERVISOR, "data_wait_seconds", "data_wait_seconds", "Spent waiting for data in this attempt", "seconds",
           view="node"),
    Metric(SUPERVISOR, "watch_alarms", "alarms", "Alarms of the watch in this attempt"),
    Metric(SUPERVISOR, "generation", "generation", "Restarts in place of this attempt"),
    Metric(SUPERVISOR, "phase", "phases", "1 for the current phase", label="phase", view="node"),
    Metric(SUPERVISOR, "heartbeat_age_seconds", "heartbeat_ages", "Since a rank's last sign of life", "seconds",
           label="rank", view="rank"),
    Metric(SUPERVISOR, "unrecognised_bytes", "unrecognised.bytes",
           "In the job's folder, in no checkpoint of its format", "bytes"),
    Metric(SUPERVISOR, "gradient_norm", "figures.norm", "Norm of all gradients before clipping"),
    Metric(SUPERVISOR, "learning_rate", "figures.rate", "Learning rate"),
    Metric(SUPERVISOR, "loss_scale", "figures.loss_scale", "Factor of the loss in its backward pass"),
    Metric(SUPERVISOR, "tokens_per_second", "figures.tokens_per_second", "Tokens of all ranks per second",
           "tokens/second"),
    Metric(SUPERVISOR, "mfu_ratio", "figures.mfu", "Model FLOP/s / dense peak of the accelerators (PaLM, appendix B)",
           "ratio", most=1.0),
    Metric(SUPERVISOR, "hfu_ratio", "figures.hfu", "The same with what is computed again", "ratio", most=1.0),
    Metric(SUPERVISOR, "memory_gib", "figures.memory_gib", "Most memory that one rank has used", "GiB"),
    Metric(SUPERVISOR, "step_data_seconds", "figures.data_s", "Part of the step that waited for data", "seconds"),
    Metric(SUPERVISOR, "step_compute_seconds", "figures.compute_s", "Part of the step in forward and backward passes",
           "seconds"),
    Metric(SUPERVISOR, "step_communication_seconds", "figures.communication_s",
           "Part of the step that reduced gradients", "seconds"),
    Metric(SUPERVISOR, "step_optimizer_seconds", "figures.optimizer_s", "Part of the step in the optimizer", "seconds"),
    Metric(SUPERVISOR, "step_checkpoint_seconds", "figures.checkpoint_s", "Stall of a save before the step", "seconds"),
    Metric(SUPERVISOR, "slowest_rank", "figures.slowest_rank", "Rank with the longest forward passes"),
    Metric(SUPERVISOR, "slowest_rank_ratio", "figures.slowest_ratio", "Its time / the median over the ranks", "ratio"),
    Metric(SUPERVISOR, "layer_norm", "figures.layers", "Norm of a group's gradients", label="layers"),
    Metric(SUPERVISOR, "tier_free_bytes", "readings.free_bytes", "Free on a tier's file system", "bytes", label="tier",
           view="node"),
    Metric(SUPERVISOR, "tier_size_bytes", "readings.size_bytes", "Size of a tier's file system", "bytes", label="tier",
           view="node"),
    Metric(SUPERVISOR, "tier_answer_seconds", "readings.answer_s",
           "A tier's file system takes to answer or is late", "seconds", label="tier",
           view="node"),
    Metric(SUPERVISOR, "efa_received_bytes_total", "readings.efa.rx_bytes", "Received by EFA since the node's start",
           "bytes", kind="counter", view="node"),
    Metric(SUPERVISOR, "efa_sent_bytes_total", "readings.efa.tx_bytes", "Sent by EFA since the node's start", "bytes",
           kind="counter", view="node"),
    Metric(SUPERVISOR, "efa_dropped_packets_total", "readings.efa.rx_drops", "Packets that EFA has dropped",
           kind="counter", view="node"),
    Metric(STEWARD, "look_timestamp_seconds", "looked_at", "Time of the steward's last look, since 1970", "seconds"),
    Metric(STEWARD, "look_seconds", "look_s", "Duration of the steward's last look", "seconds"),
    Metric(STEWARD, "over", "over", "1 once all is archived and the steward waits for the teardown"),
    Metric(STEWARD, "attempts_total", "attempts", "Attempts launched", kind="counter"),
    Metric(STEWARD, "failures_total", "failures", "Attempts that failed since the last relaunch", label="failure",
           kind="counter"),
    Metric(STEWARD, "in_flight", "in_flight", "1 while an attempt runs"),
    Metric(STEWARD, "held", "held", "1 while the campaign is held for a person"),
    Metric(STEWARD, "pods", "pods", "Pods of the gang by phase", label="phase"),
    Metric(STEWARD, "silent_seconds", "silent", "Since a running pod's last good answer", "seconds", label="pod",
           view="node"),
    Metric(STEWARD, "nodes", "nodes", "GPU nodes: wanted, there, fit", label="state"),
    Metric(STEWARD, "run_step", "step", "Highest step that every node has finished, over all attempts", "steps"),
    Metric(STEWARD, "since_step_seconds", "since_step_s", "Since that step last rose, or since launch", "seconds"),
    Metric(STEWARD, "hang_timeout_seconds", "hang_timeout_s", "Time without a step after which the attempt is ended",
           "seconds"),
    Metric(STEWARD, "safe_step", "committed_step", "Newest step committed on a tier that outlives a node", "steps"),
    Metric(STEWARD, "since_commit_seconds", "since_commit_s", "Since that step rose, while the gang trains", "seconds"),
    Metric(STEWARD, "save_interval_seconds", "save_interval_s", "Between two commits on such a tier, by the pace",
           "seconds"),
    Metric(STEWARD, "checkpoint_age_seconds", "checkpoint_ages", "Since its newest step was committed or copied",
           "seconds", label="tier"),
    Metric(STEWARD, "copied_step", "copied_step", "Newest step copied to S3 while it trains", "steps"),
    Metric(STEWARD, "copies_total", "copies", "Copies to S3 by outcome, of the whole campaign", label="outcome",
           kind="counter"),
    Metric(STEWARD, "file_system_read_bytes_per_second", "file_system.read_bytes_s",
           "Read from FSx, mean of a minute", "bytes/second"),
    Metric(STEWARD, "file_system_written_bytes_per_second", "file_system.written_bytes_s", "Written to it",
           "bytes/second"),
    Metric(STEWARD, "file_system_metadata_operations_per_second", "file_system.metadata_s", "On names and folders",
           "operations/second"),
    Metric(STEWARD, "file_system_free_bytes", "file_system.free_bytes", "Free on all its storage targets", "bytes"),
    Metric(STEWARD, "file_system_target_free_bytes", "file_system.target_free_bytes",
           "Free on its fullest storage target", "bytes"),
    Metric(STEWARD, "spent_usd", "spent_usd", "Spent so far by the meter", "usd"),
    Metric(STEWARD, "usd_per_hour", "usd_per_hour", "What bills by the hour now", "usd/hour"),
    Metric(STEWARD, "budget_usd", "budget_usd", "The spec's budget", "usd"),
    Metric(STEWARD, "reserve_seconds", "reserve_s", "Kept for one more commit and the archive, by the pace", "seconds"),
    Metric(STEWARD, "projected_usd", "projected_usd", "Spent at the end of training and archive, by the measured pace",
           "usd"),
    Metric(STEWARD, "peak_flops", "peak", "Denominator of MFU and HFU: dense peak of all",
           "flop/second", label="accelerators"),
    Metric(STEWARD, "cause_seconds_total", "cause_seconds", "As in the report; `dip`: useful, lost to saves",
           "seconds", label="cause", kind="counter"),
    Metric(STEWARD, "deadline_timestamp_seconds", "deadline", "When the GPU nodes are set to zero, since 1970",
           "seconds"),
    Metric(STEWARD, "unseen_seconds", "unseen", "Since a source last answered the steward", "seconds", label="source"),
    Metric(STEWARD, "troubles", "troubles", "Calls and looks of the steward that fail and are tried again"),
    Metric(STEWARD, "source_errors_total", "source_errors", "Calls that failed since this steward began",
           label="source", kind="counter"),
    Metric(STEWARD, "lease_left_seconds", "lease_left_s", "Until the steward's lease ends if not renewed", "seconds"),
    Metric(STEWARD, "events_written_total", "events_written", "Events that this steward has recorded",
           kind="counter"),
    Metric(DRIVER, "stage_seconds_total", "stage_seconds", "In a stage of the driver, all its runs", "seconds",
           label="stage", kind="counter"),
    Metric(DRIVER, "stage_running", "stage_running", "1 while a stage runs, 0 once it ran", label="stage"),
    Metric(DRIVER, "driver_gone", "driver_gone", "1 while no driver is needed: one left, or the closer took over"),
)  # fmt: skip


def exposition(source: str, facts: Mapping[str, Any], place: Mapping[str, Any]) -> str:
    """Return the source's metrics in Prometheus' text form, version 0.0.4. `place`: values of its `PLACES`.
    https://prometheus.io/docs/instrumenting/exposition_formats/"""
    lines: list[str] = []
    for metric in METRICS:
        if metric.source != source:
            continue
        rows = list(samples(metric, facts, place))
        if rows:
            lines += [f"# HELP {metric.full_name} {metric.help}", f"# TYPE {metric.full_name} {metric.kind}"]
        for labels, value in rows:
            text = ",".join(f'{key}="{_escaped(labels[key])}"' for key in sorted(labels))
            lines.append(f"{metric.full_name}{{{text}}} {float(value)}")
    return "\n".join(lines) + "\n"


def samples(
    metric: Metric, facts: Mapping[str, Any], place: Mapping[str, Any]
) -> Iterator[tuple[Mapping[str, Any], Any]]:
    """Yield labels and value of each sample of a metric that the source's fields tell."""
    value: Any = facts
    for name in metric.field.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    pairs: Iterable[tuple[Any, Any]] = [("", value)]
    if metric.label:
        pairs = value.items() if isinstance(value, Mapping) else ()
    for key, number in pairs:
        if number is not None and not float(number) > metric.most:
            yield ({**place, metric.label: key} if metric.label else place), number


def _escaped(value: Any) -> str:
    return str(value).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
