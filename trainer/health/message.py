"""A health report as a termination message."""

from __future__ import annotations

from collections.abc import Iterator

from trainer.contract import HealthReport, Probe, Verdict
from trainer.contract.exits import fitting

_SHORTEST = 24


def of(report: HealthReport) -> str:
    """Return the report as JSON within the limit: shorten passed probes first, failed ones last.

    The pod's log has the whole report.
    """
    return fitting(one.model_dump_json(exclude_defaults=True) for one in _shorter(report))


def _shorter(report: HealthReport) -> Iterator[HealthReport]:
    yield report
    for length in (200, 80, 40, _SHORTEST):
        passed = tuple(_short(one, length) if one.verdict is Verdict.PASS else one for one in report.probes)
        report = report.model_copy(update={"probes": passed})
        yield report
    for length in (400, 200, 120, 80, 40, _SHORTEST):
        report = report.model_copy(update={"probes": tuple(_short(one, length) for one in report.probes)})
        yield report
    failed = [one for one in report.probes if one.verdict is not Verdict.PASS]
    for count in range(len(failed), 0, -1):
        yield report.model_copy(update={"probes": tuple(failed[:count])})


def _short(probe: Probe, length: int) -> Probe:
    passed = probe.verdict is Verdict.PASS
    cut = {"seen": probe.seen[:length], "wanted": probe.wanted[:length], "cure": "" if passed else probe.cure[:length]}
    return probe.model_copy(update=cut)
