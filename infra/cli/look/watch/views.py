"""The views of `bivouac watch` besides the whole: nodes, a rank's log, checkpoints, decisions, keys. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from rich.cells import chop_cells
from rich.text import Text

from infra.cli.look.watch.grid import mark_of, node_troubles, place_of, pod_troubles
from infra.cli.look.watch.snapshot import Snapshot
from infra.console.visible import visible
from infra.console.words import plural, size
from infra.record.payloads.attempts import short
from infra.record.payloads.checkpoints import CheckpointCopied

_SHORT_HELP = 74
"""Columns below which the help line has the keys alone."""
_KEYS = re.compile(r"\x1b\[[A-D]|.", re.DOTALL)
_UP, _DOWN, _ENTER, _ERASE, _ESCAPE = ("k", "\x1b[A"), ("j", "\x1b[B"), ("\r", "\n"), ("\x7f", "\b"), "\x1b"
_DIGITS, _MOST_SCROLLED = 5, 10**6


class ViewName(StrEnum):
    WHOLE = "o"
    NODES = "n"
    LOG = "l"
    CHECKPOINTS = "c"
    DECISIONS = "d"
    KEYS = "?"


_WORDS = {
    ViewName.WHOLE: "whole", ViewName.NODES: "nodes", ViewName.LOG: "rank's log", ViewName.CHECKPOINTS: "checkpoints",
    ViewName.DECISIONS: "decisions", ViewName.KEYS: "keys",
}  # fmt: skip


_MORE_KEYS = (
    "q  quit; the campaign goes on", "j k  or arrows: choose a node, scroll", "Enter  the log of the chosen node",
    "7  digits and Enter: this rank's log", "Esc  back",
)  # fmt: skip


class View(NamedTuple):
    """What is shown, and where in it."""

    name: ViewName = ViewName.WHOLE
    place: int = 0
    """Of the nodes the chosen one; else the lines that are scrolled over."""
    rank: int = 0
    """The rank whose log is shown."""
    digits: str = ""
    """Typed of a rank's number."""


def keys_of(text: str) -> list[str]:
    """Return the keys of what was read at once; an arrow is one key."""
    return _KEYS.findall(text)


def after_key(view: View, key: str, snapshot: Snapshot, ranks_per_node: int) -> View | None:
    """Return the view that a key leads to; None: somebody quits."""
    pods = _pods(snapshot)
    if key in ("q", "Q"):
        return None
    if key.isdecimal() and key.isascii():
        return view._replace(digits=(view.digits + key)[-_DIGITS:])
    if key in _ERASE:
        return view._replace(digits=view.digits[:-1])
    if key in _ENTER and view.digits:
        return View(ViewName.LOG, rank=int(view.digits))
    if key in _ENTER and view.name is ViewName.NODES and view.place < len(pods):
        return View(ViewName.LOG, rank=place_of(pods[view.place]) * ranks_per_node)
    if key in _UP or key in _DOWN:
        step = (-1 if key in _UP else 1) * (-1 if view.name is ViewName.LOG else 1)  # a log begins at its end
        rows = len(pods) if view.name is ViewName.NODES else _MOST_SCROLLED
        return view._replace(place=min(max(view.place + step, 0), max(rows - 1, 0)))
    name = ViewName.WHOLE if key == _ESCAPE else next((name for name in ViewName if name == key.lower()), view.name)
    return View(name, rank=view.rank) if name != view.name else view


def help_line(view: View, width: int) -> Text:
    """Return the keys, in words where there is room, and what is typed of a rank's number."""
    digits = f"rank {view.digits}: Enter " if view.digits else ""
    words = "  ".join(f"{name.value} {word}" for name, word in _WORDS.items()) + "  q quit"
    line = Text(digits + (words if width >= _SHORT_HELP else " ".join((*ViewName, "q"))), "reverse")
    line.truncate(width)
    return line


def picture(
    view: View, snapshot: Snapshot, columns: int, lines: int, ranks_per_node: int, log: Sequence[str], trouble: str
) -> Text:
    """Return a view of so many columns and lines, the help line not counted. `log`: the lines of the rank's log;
    `trouble`: why there are no newer ones."""
    match view.name:
        case ViewName.LOG:
            return _log(view, log, trouble, columns, lines)
        case ViewName.NODES:
            return Text("\n").join(_nodes(view, snapshot, ranks_per_node, lines))
        case ViewName.CHECKPOINTS:
            title, *body = _checkpoints(snapshot)
        case ViewName.DECISIONS:
            title, *body = _decisions(snapshot)
        case _:
            title, *body = _key_words()
    begin = min(view.place, max(len(body) - 1, 0))
    return Text("\n").join([title, *body[begin : begin + lines]])


def _pods(snapshot: Snapshot) -> list[Mapping[str, Any]]:
    return sorted(snapshot.live.get("pods") or (), key=place_of)


def _nodes(view: View, snapshot: Snapshot, ranks_per_node: int, lines: int) -> Iterator[Text]:
    """Yield what is known of the chosen node, then the list around it."""
    pods = _pods(snapshot)
    if not pods:
        yield Text("the steward tells of no node", "bold")
        return
    place = min(view.place, len(pods) - 1)
    details = list(_node(pods[place], snapshot, ranks_per_node))
    yield from details
    window = max(lines - len(details), 1)
    begin = min(max(place - window // 2, 0), max(len(pods) - window, 0))
    for number, pod in enumerate(pods[begin : begin + window], begin):
        mark, style = mark_of(pod), "bold" if number == place else ""
        late = f", {plural(len(pod['ranks']), 'rank')} not well" if pod.get("ranks") else ""
        text = f"{'>' if number == place else ' '} {place_of(pod)} {short(pod.get('node') or pod.get('name'))} "
        yield Text.assemble((text, style), (mark.sign, mark.style), f" {mark.word}{late}")


def _node(pod: Mapping[str, Any], snapshot: Snapshot, ranks_per_node: int) -> Iterator[Text]:
    begin = place_of(pod) * ranks_per_node
    name = short(pod.get("node") or pod.get("name"))
    yield Text(f"{name}, ranks {begin} to {begin + ranks_per_node - 1}; Enter shows its log", "bold")
    yield Text(f"pod {pod.get('name')}: {str(pod.get('phase')).lower()}, step {pod.get('step')}")
    nodes = [node for node in snapshot.live.get("nodes") or () if node.get("name") == pod.get("node")]
    for node in nodes:
        ready = {True: "Ready", False: "not Ready", None: "unknown"}[node.get("ready")]
        yield Text(f"by Kubernetes {ready}; by EC2 {node.get('instance_state') or 'unknown'}")
    yield from (Text(trouble, "yellow") for trouble in (*pod_troubles([pod]), *node_troubles(nodes)))


def _checkpoints(snapshot: Snapshot) -> Iterator[Text]:
    rows = sorted(snapshot.tiers, key=lambda row: (-row.step, row.tier, row.node))
    yield Text("checkpoints, by the steward's listing and the record" if rows else "no checkpoint is listed", "bold")
    for row in rows:
        state, style = ("committed", "green") if row.committed else (row.why or "not committed", "dim")
        place = f"{row.tier} on {short(row.node)}" if row.node else row.tier
        yield Text.assemble(f"step {row.step}  {place}  ", (visible(state, lines=False), style))
    for event in reversed(snapshot.record.events):
        if isinstance(event.payload, CheckpointCopied):
            yield Text(f"step {event.payload.step}  S3, copied {event.at:%d %b %H:%M:%S}, {size(event.payload.bytes)}")
    if (archive := snapshot.state.archive) is not None:
        yield Text(f"step {archive.step}  archive, golden", "green")


def _decisions(snapshot: Snapshot) -> Iterator[Text]:
    yield Text("events, the newest first; `bivouac explain NAME NUMBER` says why", "bold")
    for number, event in reversed(list(enumerate(snapshot.record.events, 1))):
        if event.payload.watched:
            yield Text(f"{number}  {event.at:%d %b %H:%M:%S} {visible(event.sentence(), lines=False)}")


def _key_words() -> Iterator[Text]:
    yield Text("keys", "bold")
    yield from (Text(f"{name.value}  {word}") for name, word in _WORDS.items())
    yield from map(Text, _MORE_KEYS)


def _log(view: View, log: Sequence[str], trouble: str, columns: int, lines: int) -> Text:
    title = Text(f"log of rank {view.rank}'s node", "bold")
    title.append(f", {plural(view.place, 'line')} back" if view.place else "", "yellow")
    rows = [row for line in log for row in chop_cells(visible(line, lines=False), columns) or [""]]
    window = max(lines - 1 - bool(trouble), 1)
    end = max(len(rows) - view.place, min(window, len(rows)))
    body = [Text(row) for row in rows[max(end - window, 0) : end]] or [Text("no line is known yet", "dim")]
    troubles = [Text(visible(trouble, lines=False), "yellow")] if trouble else []
    return Text("\n").join([title, *troubles, *body])
