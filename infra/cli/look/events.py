"""`bivouac events NAME`: the record of a campaign in sentences, oldest first."""

from __future__ import annotations

import time
from collections.abc import Callable

from rich.console import Console

from infra.cli.answers import write_json
from infra.cli.records import kept_record, record_of
from infra.console.plain_console import say
from infra.errors import UserError
from infra.record.events import Event, fold

_LOOK_S = 2.0


def events_command(campaign: str, region: str, follow: bool, tail: int | None, as_json: bool, console: Console) -> int:
    """Print the events; with `follow` until the campaign has ended. JSON is one value, or a line for each event that is
    followed. Raises `UserError` if neither the account nor the results folder has the campaign."""
    read: Callable[[], tuple[Event, ...]]
    try:
        read = record_of(campaign, region).events
    except UserError as error:
        events = kept_record(campaign, region, error).events
        read, follow = (lambda: events), False
    if as_json and not follow:
        write_json(console, [event.model_dump(mode="json") for event in read()[-(tail or 0) :]])
    else:
        print_events(read, console, follow=follow, tail=tail, as_json=as_json)
    return 0


def print_events(
    read: Callable[[], tuple[Event, ...]],
    console: Console,
    *,
    follow: bool,
    tail: int | None = None,
    writer: str = "",
    since_s: float = 0.0,
    as_json: bool = False,
    pause: Callable[[], object] = lambda: time.sleep(_LOOK_S),
) -> None:
    """Print a record's events with their numbers, each once, also those that come late. `writer`: only those of this
    role. `since_s`: only those from this time on, seconds since the epoch."""
    ids = set[tuple[str, int]]()
    while True:
        events = read()
        fresh = [
            (number, event)
            for number, event in enumerate(events, 1)
            if event.writer.startswith(writer) and event.at.timestamp() >= since_s
            if (event.writer, event.sequence) not in ids
        ]
        ids |= {(event.writer, event.sequence) for _, event in fresh}
        for number, event in fresh[-(tail or 0) :]:
            if as_json:
                console.file.write(event.model_dump_json() + "\n")
            else:
                role = event.writer.partition("-")[0]
                say(console, f"{number:>4}  {event.at:%Y-%m-%d %H:%M:%S}  {role:<8} {event.sentence()}")
        tail = None
        if not follow or fold(events).ended:
            return
        pause()
