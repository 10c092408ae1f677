"""All that a frame of `bivouac watch` shows, read from a campaign's record."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, NamedTuple

from pydantic import AliasPath, AwareDatetime, BaseModel, Field

from infra.campaign.report import JSON
from infra.checkpoints.find import TIERS, TIERS_EVERY_S
from infra.cli.look.status import training_of
from infra.cli.records import kept_record, record_of
from infra.errors import UserError
from infra.plan.estimates.step_time import peak_tflops, seconds_of
from infra.plan.estimates.work import implied_mfu
from infra.plan.layout import layout
from infra.plan.survey import survey
from infra.record.events import CampaignState, fold
from infra.record.store import CampaignStore, live_figures
from infra.report.build import build
from infra.report.record import Record
from infra.report.trained import Losses
from infra.session.session import stored_deadline, stored_plan, stored_spec
from infra.spec.campaign import Spec
from trainer.contract.listing import Listed, Listing

_PAGE_EVERY_S = 60.0
"""A driver writes the report as often."""


class PageFigures(BaseModel):
    """What the newest report says."""

    made_at: AwareDatetime
    goodput: float | None = None
    """Useful new training time / paid time."""
    series: tuple[Losses, ...] = Field(default=(), validation_alias=AliasPath("training", "losses"))


class GangFacts(NamedTuple):
    """What the spec and the catalogue say of the gang."""

    ranks_per_node: int = 1
    peak: str = ""
    """The denominator of MFU, in words."""
    mfu_seconds: float | None = None
    """MFU x seconds of a step; None: no peak is known."""


@dataclass(frozen=True)
class Snapshot:
    """A campaign at one moment. `record.at` is the time of reading."""

    record: Record
    live: Mapping[str, Any] = field(default_factory=dict)
    """The steward's newest figures; empty: there are none."""
    page: PageFigures | None = None
    tiers: tuple[Listed, ...] = ()
    """The steward's newest listing."""
    deadline: datetime | None = None
    live_losses: Mapping[int, float] = field(default_factory=dict)
    """Step -> loss, of the steward's figures since the watch began."""
    gone: bool = False
    """It is the record that the report has kept, of a campaign that cannot be reached."""

    @cached_property
    def state(self) -> CampaignState:
        return fold(self.record.events)

    @property
    def ended(self) -> bool:
        return self.gone or self.state.ended

    @cached_property
    def training(self) -> dict[str, Any] | None:
        """What the newest attempt does, as `bivouac status` has it; None where no steward tells."""
        live = dict(self.live) if self.state.outcome is None else {}
        return training_of(self.record.spec, self.state, live)

    @cached_property
    def losses(self) -> dict[int, float]:
        """Step -> loss, in the order of steps; of a step that was trained twice, the later one."""
        series = () if self.page is None else self.page.series
        page_losses = {point.step: point.loss for attempt in series for point in attempt.points}
        return dict(sorted({**page_losses, **self.live_losses}.items()))


def machines_of(spec: Spec) -> GangFacts:
    """Return what is known of a spec's machines. Pure."""
    facts = survey(spec)
    try:
        shape = layout(spec)
        mfu, peak = implied_mfu(spec, facts, shape.world_size), peak_tflops(spec.training, facts)
    except UserError:
        return GangFacts()
    if mfu is None:
        return GangFacts(shape.ranks_per_node)
    words = f"{shape.world_size} x {peak:g} TFLOP/s, dense bfloat16"
    return GangFacts(shape.ranks_per_node, words, mfu * seconds_of(spec))


def source(campaign: str, region: str) -> Callable[[], Snapshot]:
    """Return a function that reads the campaign anew. Raises `UserError` if neither the account nor the results folder
    has it."""
    try:
        return RecordReader(record_of(campaign, region)).read
    except UserError as error:
        record = kept_record(campaign, region, error)
        page = PageFigures.model_validate(build(record).model_dump())
        return lambda: Snapshot(record, page=page, gone=True)


class RecordReader:
    """Reads a record again and again: what changes seldom only now and then."""

    def __init__(self, store: CampaignStore, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._store, self._monotonic = store, monotonic
        self._base: tuple[int, Record, datetime | None] | None = None
        """Version of the spec, and what is read with it."""
        self._losses: dict[int, float] = {}
        self._read_at: dict[str, float] = {}
        self._objects: dict[str, Any] = {}

    def read(self) -> Snapshot:
        """Return the campaign as it is now. Raises what the record raises."""
        events = self._store.events()
        version = fold(events).version
        if self._base is None or self._base[0] != version:
            spec = stored_spec(self._store)
            record = Record(spec, stored_plan(self._store, spec), events, datetime.now(UTC))
            self._base = version, record, stored_deadline(self._store)
        _, record, deadline = self._base
        live = live_figures(self._store) or {}
        if live and live["loss"] is not None and live["step"] > 0:
            self._losses[live["step"]] = live["loss"]
        listing = self._seldom(TIERS, Listing, TIERS_EVERY_S)
        return Snapshot(
            record=replace(record, events=events, at=datetime.now(UTC)),
            live=live,
            page=self._seldom(JSON, PageFigures, _PAGE_EVERY_S),
            tiers=() if listing is None else listing.rows,
            deadline=deadline,
            live_losses=dict(self._losses),
        )

    def _seldom(self, name: str, model: type[Any], every_s: float) -> Any:
        """Return an object of the record, or None, as it was at most `every_s` ago."""
        now = self._monotonic()
        if name not in self._read_at or now - self._read_at[name] >= every_s:
            self._objects[name], self._read_at[name] = self._store.figures(name, model), now
        return self._objects[name]
