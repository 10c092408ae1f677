"""Ranks' stacks in a campaign's record: `stacks/attempt-N/<pod>.txt`, kept when a hang is decided."""

from __future__ import annotations

from infra.record.store import CampaignStore

FOLDER = "stacks/"


def name_of(attempt: int, pod: str) -> str:
    """Return the name of a pod's stacks below the record."""
    return f"{FOLDER}attempt-{attempt}/{pod}.txt"


def bodies(store: CampaignStore) -> dict[str, bytes]:
    """Return name -> content of all that are kept. Raises S3's errors."""
    kept = {key.removeprefix(f"{store.prefix}/"): store.get(key) for key in store.keys(FOLDER)}
    return {name: body for name, body in kept.items() if body is not None}
