"""Events as sentences for people."""

from __future__ import annotations

from infra.console.visible import visible
from infra.record.events import Event


def sentence(event: Event) -> str:
    """Return an event in one line; control characters of foreign text are made visible."""
    try:
        return visible(event.payload.sentence(), lines=False)
    except ValueError:
        return f"{event.kind}: its data cannot be read"
