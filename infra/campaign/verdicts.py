"""Verdicts on nodes from their health reports. Pure."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from infra.cluster.fitness import NodeFacts
from infra.plan.catalogue.thresholds import number
from trainer.contract import (
    DATA_IN_S3,
    DATA_MOUNT,
    SHARED_CHECKPOINTS,
    SHARED_TIER_IN_S3,
    HealthReport,
    Probe,
    Verdict,
)

SHARED_TIER = "shared_throughput"
START = "start"
"""Probe of a pod whose container never ran, for its image, mounts or devices, or because no node took it."""
ANSWER = "answer"
"""Probe of a pod that still ran when its time was over."""
REPORT = "report"
"""Probe of a pod that ended without a report; several such pods may have different causes."""
_UNENDED = frozenset({START, ANSWER})
COLLECTIVE = frozenset({"fabric", "all_reduce", "bus_bandwidth_gb_s", SHARED_TIER}) | _UNENDED
"""Probes of what the nodes share (fabric, file system, image, mounts), which blame no node. The exception is a single
pod among several that does not end: what they share works for the others."""
_COMPARED = frozenset({"local_throughput"})
"""Probes of a node's own hardware that are compared with the gang where no source states a figure."""

_SHARED_PLACES = {f"mount {DATA_MOUNT}", f"mount {SHARED_CHECKPOINTS}", SHARED_TIER_IN_S3, DATA_IN_S3}
_OF_ALL = frozenset({START, "efa_libfabric", *_SHARED_PLACES})
_OF_ALL_KINDS = ("version ", "import ")
"""Probes of what is alike on all nodes: image, spec, launch template, file system. One node's failure tells enough."""


def of_all(probe: Probe) -> bool:
    """Return whether every node would fail this probe too."""
    return probe.name in _OF_ALL or probe.name.startswith(_OF_ALL_KINDS)


@dataclass(frozen=True)
class GangCheck:
    verdicts: tuple[dict[str, Any], ...]
    """One per report, as the record keeps it."""
    common: tuple[Probe, ...]
    """Failures with the same text on every node: no node's fault, and a new node would fail too."""
    blind: tuple[Probe, ...]
    """Probes that could not look, each once."""
    stuck: tuple[Probe, ...] = ()
    """Probes of pods without a report, if they are too many to blame a node; each text begins with its node."""
    alone: Probe | None = None
    """Probe of the only pod among several that did not end: its node's own fault, if it has a node."""

    @property
    def unfit(self) -> list[dict[str, Any]]:
        """Verdicts of the nodes to replace."""
        return [verdict for verdict in self.verdicts if not verdict["fit"]]

    @property
    def fabric(self) -> bool:
        return all(verdict["fabric"] for verdict in self.verdicts)

    @property
    def failed_shared_names(self) -> set[str]:
        """Return the names of failed probes of what the nodes share."""
        probes = [probe for verdict in self.verdicts for probe in verdict["probes"]]
        failures = [row for row in probes if row["looked"] and not row["ok"]]
        return {row["name"] for row in failures if row["name"] in COLLECTIVE or row["blamed_nodes"] == []}


def judge(reports: Mapping[str, HealthReport], nodes: Iterable[NodeFacts], pending: Sequence[Probe] = ()) -> GangCheck:
    """Return the verdicts: a node is judged by its own probes, not by failures between nodes or common to all.
    `pending`: the `START` probe of each pod that no node took."""
    instances = {node.name: node.instance for node in nodes}
    reports = _move_to_blamed_nodes(_compare_with_median(reports))
    common = _common(list(reports.values()))
    shared = {(probe.name, probe.seen) for probe in common}
    # Where none of several nodes left a report, the cause is shared: nodes do not die together.
    silent = len(reports) > 1 and len(_failures_named(reports, _UNENDED | {REPORT})) == len(reports)
    stuck_probes = _stuck_probes(reports, silent, pending)
    running_probes = [*(probe for _, probe in _failures_named(reports, _UNENDED)), *pending]
    lone = None if stuck_probes else next(iter(running_probes), None)
    verdicts = []
    for node, report in sorted(reports.items()):
        failures = [probe for probe in report.probes if probe.verdict is Verdict.FAIL]
        nobodys = COLLECTIVE | ({REPORT} if silent else set())
        faults = [row for row in failures if not _is_shared(row, nobodys) and (row.name, row.seen) not in shared]
        faults += [row for row in failures if row is lone]
        verdicts.append(
            {
                "node": node,
                "instance": instances.get(node, ""),
                "fit": not faults,
                "fabric": not any(_is_shared(probe, COLLECTIVE) for probe in failures),
                "probes": json.loads(report.model_dump_json())["probes"],
                "bus_bandwidth_gb_s": report.bus_bandwidth_gb_s,
                "hardware": list(report.hardware),
            }
        )
    blind = {probe.name: probe for row in reports.values() for probe in row.probes if probe.verdict is Verdict.BLIND}
    return GangCheck(tuple(verdicts), common, tuple(blind.values()), stuck_probes, lone)


def _is_shared(probe: Probe, names: Set[str]) -> bool:
    """Return whether a failed probe is of what the nodes share: by its name, or because it blames nobody."""
    return probe.name in names or probe.blamed_nodes == ()


def _move_to_blamed_nodes(reports: Mapping[str, HealthReport]) -> dict[str, HealthReport]:
    """Move the failures of what lies between the nodes from the node that looked to those that it blames. Nodes that
    gave no report are not blamed: without one of its nodes such a failure is everybody's."""
    probes = {node: list(report.probes) for node, report in reports.items()}
    for node, report in reports.items():
        for probe in report.probes:
            if probe.blamed_nodes and probe.verdict is Verdict.FAIL:
                has_reports = set(probe.blamed_nodes) <= reports.keys()
                probes[node].remove(probe)
                for blamed_node in probe.blamed_nodes if has_reports else (node,):
                    probes[blamed_node].append(probe.model_copy(update={"blamed_nodes": None if has_reports else ()}))
    return {node: report.model_copy(update={"probes": tuple(probes[node])}) for node, report in reports.items()}


def _failures_named(reports: Mapping[str, HealthReport], names: Set[str]) -> list[tuple[str, Probe]]:
    """Return (node, probe) of the failed probes with these names."""
    rows = [(node, probe) for node, report in sorted(reports.items()) for probe in report.probes]
    return [(node, probe) for node, probe in rows if probe.name in names and probe.verdict is Verdict.FAIL]


def _stuck_probes(reports: Mapping[str, HealthReport], silent: bool, pending: Sequence[Probe]) -> tuple[Probe, ...]:
    failures = _failures_named(reports, _UNENDED | ({REPORT} if silent else set()))
    if len(failures) + len(pending) == 1 and len(reports) + len(pending) > 1:
        return ()
    return (*(probe.model_copy(update={"seen": f"{node}: {probe.seen}"}) for node, probe in failures), *pending)


def _compare_with_median(reports: Mapping[str, HealthReport]) -> dict[str, HealthReport]:
    """Turn a figure far below the gang's median into a failure of its node."""
    figures: dict[str, list[float]] = {}
    for probe in (probe for report in reports.values() for probe in report.probes):
        if probe.name in _COMPARED and probe.figure is not None:
            figures.setdefault(probe.name, []).append(probe.figure)
    share, fewest = number("far_below_share"), number("comparable_nodes")
    floors = {name: statistics.median(gang) * share for name, gang in figures.items() if len(gang) >= fewest}

    def with_floor(probe: Probe) -> Probe:
        floor = floors.get(probe.name)
        if floor is None or probe.figure is None or probe.figure >= floor:
            return probe
        expectation = f"a third of the gang's median, {floor:.0f} MB/s, or more"
        return probe.model_copy(
            update={"ok": False, "wanted": expectation, "cure": "replace the node: one of its disks is slow"}
        )

    return {
        node: report.model_copy(update={"probes": tuple(with_floor(probe) for probe in report.probes)})
        for node, report in reports.items()
    }


def _common(reports: list[HealthReport]) -> tuple[Probe, ...]:
    """Return failures common to all reports; none for a single report."""
    if len(reports) < 2:
        return ()
    sets = [
        {(p.name, p.seen): p for p in row.probes if p.verdict is Verdict.FAIL and not _is_shared(p, COLLECTIVE)}
        for row in reports
    ]
    return tuple(probe for key, probe in sets[0].items() if key[0] != REPORT and all(key in row for row in sets))


def fault_text(verdict: Mapping[str, Any], profile: str) -> str:
    bad = [probe for probe in verdict["probes"] if not probe["ok"] and probe.get("looked", True)]
    texts = [f"{probe['name']}: {probe['seen']}, wanted {probe['wanted']}" for probe in bad]
    return f"{'; '.join(texts)} (profile {profile})"


def probe_text(probe: Probe) -> str:
    cure = f" ({probe.cure})" if probe.cure else ""
    return f"{probe.name}: {probe.seen}, wanted {probe.wanted}{cure}"
