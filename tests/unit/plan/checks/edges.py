"""A spec with an estimate given by hand, and what a rule tells of it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

from infra.plan.checks.finding import Case
from infra.plan.facts import Facts
from infra.plan.survey import survey
from tests.unit.plan.checks.refused import FRESH

Told = list[tuple[str, str]]


def cases(spec_file: Callable[..., Any]) -> Callable[..., Case]:
    """Of a spec with changes; `estimate`: what would have been worked out of it."""

    def make(
        changes: dict[str, Any] | None = None,
        estimate: Any = None,
        facts: Callable[[Facts], Facts] = lambda facts: facts,
        today: date = FRESH,
    ) -> Case:
        spec = spec_file(changes).spec
        case = Case(spec, facts(survey(spec)), today)
        if estimate is not None:
            case.__dict__["estimate"] = estimate
        return case

    return make


def told(rule: Callable[[Case], Any], case: Case) -> Told:
    return [(draft.level.value, draft.place.rpartition(".")[2]) for draft in rule(case)]


def estimated(**told: Any) -> Any:
    given = {name: Decimal(value) if isinstance(value, str) else value for name, value in told.items()}
    return SimpleNamespace(**{"usd": Decimal(1), "usd_at_deadline": Decimal(1), "lines": (), "stages": ()} | given)


def taking(seconds: int, more: int = 0) -> Any:
    """All that comes before the teardown takes so long together, and `more` where AWS takes its longest; the teardown
    itself does not count."""
    rest = seconds - 150
    parts = {"bake": 10, "provision": 20, "preflight": 30, "launch": 40, "supervise": rest, "archive": 50}
    parts |= {"teardown": 10**6, "certify": 10**6}
    stages = {name: {"stage": name, "seconds": Decimal(s), "longest": Decimal(s)} for name, s in parts.items()}
    stages["provision"]["longest"] = Decimal(20 + more)
    stages["bake"]["longest"] = None
    return estimated(stages=tuple(SimpleNamespace(**stage) for stage in stages.values()))


def unknown(facts: Facts) -> Facts:
    return facts.model_copy(update={"instance": None})


def of_instance(**changes: Any) -> Callable[[Facts], Facts]:
    def bend(facts: Facts) -> Facts:
        assert facts.instance is not None
        return facts.model_copy(update={"instance": facts.instance.model_copy(update=changes)})

    return bend


def levels(rule: Any, made: Case) -> list[str]:
    return [level for level, _ in told(rule, made)]


def of(**changes: Any) -> Callable[[Facts], Facts]:
    return lambda facts: facts.model_copy(update=changes)


def environment(**changes: bool) -> Callable[[Facts], Facts]:
    return lambda facts: facts.model_copy(update={"environment": facts.environment.model_copy(update=changes)})
