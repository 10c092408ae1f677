"""The steward's newest figures in the record, read for people and for money."""

from __future__ import annotations

from typing import Any

from pydantic import AwareDatetime, BaseModel, ConfigDict, FiniteFloat

from infra.record.store import LIVE, CampaignStore


class _Figures(BaseModel):
    model_config = ConfigDict(extra="allow")

    at: AwareDatetime
    attempt: int
    step: int
    steps: int
    loss: float | None
    committed_step: int
    spent_usd: FiniteFloat
    usd_per_hour: FiniteFloat
    why: str


def live_figures(store: CampaignStore) -> dict[str, Any] | None:
    """Return the figures as the steward writes them; None if there are none. If they cannot be read, None too,
    and `store.unread` says so: money then counts from the events."""
    newest_figures = store.figures(LIVE, _Figures)
    return None if newest_figures is None else newest_figures.model_dump() | {"at": newest_figures.at.isoformat()}
