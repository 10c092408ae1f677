"""JSON answers of commands: one value on standard output, numbers as numbers; text for people goes elsewhere."""

from __future__ import annotations

import json as json_text
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from rich.console import Console

from infra.cli.options import stderr

if TYPE_CHECKING:
    from infra.session.context import Context


def write_json(console: Console, value: object) -> None:
    """Write a value as JSON, without wrapping, colour or markup."""
    console.file.write(json_text.dumps(value, indent=2, default=_plain) + "\n")


def aside(console: Console, as_json: bool) -> Console:
    """Return the console for people: standard error when standard output is for machines."""
    return stderr if as_json else console


def ending(context: Context) -> dict[str, object]:
    """Return a campaign's state after a command that drove it: outcome, seconds by stage, archive, certificate."""
    from infra.record.payloads.base import data_of
    from infra.record.payloads.stages import StageFinished

    state = context.state()
    return {
        "campaign": context.spec.campaign, "outcome": state.outcome, "ended": state.ended,
        "stages": [
            {"stage": event.payload.stage, "seconds": event.payload.seconds}
            for event in context.store.events()
            if isinstance(event.payload, StageFinished)
        ],
        "archive": data_of(state.archive), "unproven": data_of(state.unproven),
        "certificate": data_of(state.certificate),
        "results": str(context.results),
    }  # fmt: skip


def _plain(value: object) -> object:
    """Convert amounts to numbers: pydantic's JSON has them as text, with which nobody can calculate."""
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    from pydantic import TypeAdapter

    return TypeAdapter(Any).dump_python(value, mode="json", fallback=str)
