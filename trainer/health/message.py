"""A health report as a termination message."""

from __future__ import annotations

from collections.abc import Iterator

from trainer.contract import HealthReport, Probe, Verdict
from trainer.contract.exits import fitting

_SHORTEST = 24


def serialize(report: HealthReport) -> str:
    """Return the report as JSON within the limit: shorten passed probes first, failed ones last.

    The pod's log has the whole report.
    """
    return fitting(candidate.model_dump_json(exclude_defaults=True) for candidate in _shorter(report))


def _shorter(report: HealthReport) -> Iterator[HealthReport]:
    yield report
    for length in (200, 80, 40, _SHORTEST):
        probes = tuple(_short(probe, length) if probe.verdict is Verdict.PASS else probe for probe in report.probes)
        report = report.model_copy(update={"probes": probes})
        yield report
    for length in (400, 200, 120, 80, 40, _SHORTEST):
        report = report.model_copy(update={"probes": tuple(_short(probe, length) for probe in report.probes)})
        yield report
    failures = [probe for probe in report.probes if probe.verdict is not Verdict.PASS]
    for count in range(len(failures), 0, -1):
        yield report.model_copy(update={"probes": tuple(failures[:count])})


def _short(probe: Probe, length: int) -> Probe:
    ok = probe.verdict is Verdict.PASS
    cut = {"seen": probe.seen[:length], "wanted": probe.wanted[:length], "cure": "" if ok else probe.cure[:length]}
    return probe.model_copy(update=cut)
