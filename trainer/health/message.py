"""A health report as a termination message, of which the kubelet keeps 4096 bytes."""

from __future__ import annotations

from trainer.contract import HealthReport, Probe, Verdict
from trainer.contract.exits import TERMINATION_LIMIT_BYTES

_SHORTEST = 24


def of(report: HealthReport) -> str:
    """Return the report as JSON within the limit: shorten passed probes first, failed ones last.

    The pod's log has the whole report.
    """
    text = _json(report)
    for length in (200, 80, 40, _SHORTEST):
        if len(text.encode()) <= TERMINATION_LIMIT_BYTES:
            return text
        passed = tuple(_short(one, length) if one.verdict is Verdict.PASS else one for one in report.probes)
        report = report.model_copy(update={"probes": passed})
        text = _json(report)
    for length in (400, 200, 120, 80, 40, _SHORTEST):
        if len(text.encode()) <= TERMINATION_LIMIT_BYTES:
            return text
        report = report.model_copy(update={"probes": tuple(_short(one, length) for one in report.probes)})
        text = _json(report)
    if len(text.encode()) <= TERMINATION_LIMIT_BYTES:
        return text
    told = [one for one in report.probes if one.verdict is not Verdict.PASS]
    while told and len(_json(report).encode()) > TERMINATION_LIMIT_BYTES:
        report = report.model_copy(update={"probes": tuple(told)})
        told = told[:-1]
    return _json(report)


def _json(report: HealthReport) -> str:
    return report.model_dump_json(exclude_defaults=True)


def _short(probe: Probe, length: int) -> Probe:
    passed = probe.verdict is Verdict.PASS
    cut = {"seen": probe.seen[:length], "wanted": probe.wanted[:length], "cure": "" if passed else probe.cure[:length]}
    return probe.model_copy(update=cut)
