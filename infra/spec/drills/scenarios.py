"""Reads the scenarios: faults of a rehearsal by name, what each does, and what must follow."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, Literal

from infra.tables import table
from trainer.contract.frozen import Frozen

AGAIN = "attempt.restarted-in-place"
"""Kind of the event of a restart within the attempt."""


class Hand(Frozen):
    """One call of a route below `/_site/` of the emulated AWS. In `query`, `{last}` and `{first}` are the instances of
    the gang's last and first pod, and `{campaign}` is the campaign's name."""

    route: str
    query: Mapping[str, str] = {}
    body: Mapping[str, Any] | None = None


class Need(Frozen):
    """A field that a spec must have for the fault to strike, or to be noticed; without a value below any will do."""

    field: str
    """Its path in the spec."""
    one_of: tuple[str | bool, ...] = ()
    at_least: int | None = None
    contains: str = ""
    """Words of a command."""

    def holds(self, value: object) -> bool:
        """Return whether the field may have this value; None is a field that the spec lacks."""
        if value is None or (self.one_of and value not in self.one_of):
            return False
        if self.at_least is not None and not (isinstance(value, int) and value >= self.at_least):
            return False
        return self.contains in (" ".join(value) if isinstance(value, tuple) else str(value))

    @property
    def cure(self) -> str:
        """Return what to write."""
        if self.one_of:
            return f"write `{self.field}: {' or '.join(str(value).lower() for value in self.one_of)}`"
        if self.at_least is not None:
            return f"write {self.at_least} or more for `{self.field}`"
        return f"give `{self.field}`{f' with {self.contains}' if self.contains else ''}"


class Expectation(Frozen):
    """What must follow a strike. Times are seconds of the record, from the strike on."""

    attempts: int = 0
    """Attempts that it ends, at least."""
    failure: str | None = None
    """Class of the failure by which the first of them ends."""
    events: tuple[str, ...] = ()
    """Kinds of events that must follow."""
    absent: tuple[str, ...] = ()
    """Kinds of events that must not follow."""
    alerts: tuple[str, ...] = ()
    """Alerts that must fire; no other one of severity `page` may, except the `tolerated`."""
    tolerated: tuple[str, ...] = ()
    """Alerts that fire or not, by how long the recovery takes."""
    driver_ends: bool = False
    """The driver may give up, and says to run the same command again."""
    seen_within_s: float | None = None
    """None: nothing of it is in the record."""
    committed_within_s: float | None = None
    """Until a step is committed that was not trained before; None: it ends the training, or strikes after that."""
    outcome: str | None = None
    """How the training ends of itself; None: it goes on."""
    ends_within_s: float = 0.0
    """Until the training has ended of itself, or after a strike at the teardown, until nothing is left."""


class Scenario(Frozen):
    """A fault by name."""

    what: str
    """One sentence for people."""
    hands: tuple[Hand, ...] = ()
    driver: Literal["KILL", "SECOND"] | None = None
    """What happens to the driver, which is no process of the site: `bivouac drill` kills it and starts it again, or
    starts the same command a second time beside it, which must be refused."""
    after_event: str = ""
    """Kind of an event that the record must have before it strikes; empty: none."""
    lasts_s: float = 0.0
    """Time after which `undo` follows."""
    undo: tuple[Hand, ...] = ()
    stage: Literal["training", "teardown"] = "training"
    """When it strikes: after a step of the training, or once the teardown has begun."""
    spec: Mapping[str, Any] = {}
    """Fields of the spec, by their path, that a drill with it has."""
    needs: tuple[Need, ...] = ()
    """What every spec must have that asks for it; `check` refuses others."""
    group: str = ""
    """In a drill it shares a campaign with those of its group alone, whose spec suits no other."""
    abandons: bool = False
    """No GPU node can be had any more, and the archive needs one: who ends the campaign gives up what is not in S3."""
    absent_because: str = ""
    """Why a rehearsal cannot strike with it; empty where it can."""
    nodes: int = 0
    """GPU nodes that are to be replaced."""
    expect: Expectation

    @property
    def restarts(self) -> bool:
        """Return whether processes of the gang start again."""
        return bool(self.expect.attempts) or AGAIN in self.expect.events

    @property
    def sentence(self) -> str:
        """Return what happens, and why no rehearsal strikes with it, if none does."""
        return f"{self.what}; not struck: {self.absent_because}" if self.absent_because else self.what

    @property
    def ends_campaign(self) -> bool:
        """Return whether the campaign is over after it, so that no other fault can follow."""
        return self.expect.outcome is not None

    @property
    def goes_on(self) -> bool:
        """Return whether it strikes a training that then goes on, so that others can follow."""
        return self.stage == "training" and not self.ends_campaign and not self.absent_because

    @property
    def leaves_events(self) -> bool:
        """Return whether the record is to show more than steps."""
        return self.restarts or bool(self.expect.events)


@cache
def scenarios() -> Mapping[str, Scenario]:
    """Return the scenarios by name."""
    rows: dict[str, Any] = table("infra.spec.drills", "scenarios")
    return {name: Scenario.model_validate(row) for name, row in rows.items()}
