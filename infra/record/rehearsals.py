"""When each spec was last rehearsed on this machine, and how that ended."""

from __future__ import annotations

import json
from contextlib import suppress
from datetime import UTC, datetime

from infra.folders import cache_root, keep
from infra.spec.campaign import Spec
from trainer.contract.frozen import Frozen

_FILE = "rehearsals.json"


class RehearsalResult(Frozen):
    digest: str
    """Of the spec for AWS."""
    at: datetime
    ended_well: bool

    @classmethod
    def now(cls, spec: Spec, ended_well: bool) -> RehearsalResult:
        return cls(digest=spec.digest(), at=datetime.now(UTC), ended_well=ended_well)


def remember(rehearsal: RehearsalResult) -> None:
    """Keep the rehearsal in this machine's cache."""
    rehearsals = _rehearsals() | {rehearsal.digest: rehearsal.model_dump(mode="json")}
    keep(cache_root() / _FILE, json.dumps(rehearsals, indent=1), lambda note: None)


def last(spec: Spec) -> RehearsalResult | None:
    """Return the newest rehearsal of this very spec; None if there is none on this machine."""
    entry = _rehearsals().get(spec.digest())
    return None if entry is None else RehearsalResult.model_validate(entry)


def sentence(spec: Spec) -> str:
    """Return what is known of the spec's rehearsal, for people who are about to spend."""
    rehearsal = last(spec)
    if rehearsal is None:
        return "this spec has not been rehearsed on this machine: `bivouac rehearse` shows it without cost"
    end = "it ended well" if rehearsal.ended_well else "it did not end well"
    return f"this spec was rehearsed at {rehearsal.at:%Y-%m-%d %H:%M} UTC: {end}"


def _rehearsals() -> dict[str, object]:
    with suppress(OSError, ValueError):
        content = json.loads((cache_root() / _FILE).read_text())
        return content if isinstance(content, dict) else {}
    return {}
