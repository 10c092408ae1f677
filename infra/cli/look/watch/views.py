"""The views of `bivouac watch` besides the whole: nodes, one node, a rank's log, checkpoints, decisions, keys. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from rich.cells import chop_cells
from rich.text import Text

from infra.cli.look.watch.grid import mark_of, place_of, troubles_of
from infra.cli.look.watch.snapshot import Snapshot
from infra.console.visible import visible
from infra.console.words import plural, size
from infra.record.payloads.attempts import short
from infra.record.payloads.checkpoints import CheckpointCopied

_SHORT_HELP = 74
"""Columns below which the help line has the keys alone."""
_KEYS = re.compile(r"\x1b\[[A-D]|.", re.DOTALL)
_UP, _DOWN, _ENTER, _ERASE, _ESCAPE = ("k", "\x1b[A"), ("j", "\x1b[B"), ("\r", "\n"), ("\x7f", "\b"), "\x1b"
_DIGITS = 5


class ViewName(StrEnum):
    WHOLE = "o"
    NODES = "n"
    NODE = "node"
    LOG = "l"
    CHECKPOINTS = "c"
    DECISIONS = "d"
    KEYS = "?"


_WORDS = {
    ViewName.WHOLE: "whole", ViewName.NODES: "nodes", ViewName.LOG: "rank's log", ViewName.CHECKPOINTS: "checkpoints",
    ViewName.DECISIONS: "decisions", ViewName.KEYS: "keys",
}  # fmt: skip
"""Each view that has a key."""


class View(NamedTuple):
    """What is shown, and where in it."""

    name: ViewName = ViewName.WHOLE
    place: int = 0
    """Of the nodes the chosen one; else the lines that are scrolled over."""
    rank: int = 0
    """The rank whose log is shown."""
    digits: str = ""
    """Typed of a rank's number."""


def keys_of(typed: str) -> list[str]:
    """Return the keys of what was read at once; an arrow is one key."""
    return _KEYS.findall(typed)


def after_key(view: View, key: str, snapshot: Snapshot, ranks_per_node: int) -> View | None:
    """Return the view that a key leads to; None: somebody quits."""
    if key in ("q", "Q"):
        return None
    if key.isdecimal() and key.isascii():
        return view._replace(digits=(view.digits + key)[-_DIGITS:])
    if key in _ERASE:
        return view._replace(digits=view.digits[:-1])
    if key in _ENTER:
        return _entered(view, snapshot, ranks_per_node)
    if key in _UP or key in _DOWN:
        step = (-1 if key in _UP else 1) * (-1 if view.name is ViewName.LOG else 1)  # a log begins at its end
        return view._replace(place=min(max(view.place + step, 0), _last_place(view, snapshot)))
    if key == _ESCAPE:
        return View(ViewName.NODES, rank=view.rank) if view.name is ViewName.NODE else View(rank=view.rank)
    name = next((name for name in _WORDS if name == key.lower()), None)
    return view if name is None else View(name, rank=view.rank)


def _entered(view: View, snapshot: Snapshot, ranks_per_node: int) -> View:
    pods = _pods(snapshot)
    if view.digits:
        return View(ViewName.LOG, rank=int(view.digits))
    if view.name in (ViewName.NODES, ViewName.NODE) and view.place < len(pods):
        if view.name is ViewName.NODES:
            return view._replace(name=ViewName.NODE)
        return View(ViewName.LOG, rank=place_of(pods[view.place]) * ranks_per_node)
    return view


def _last_place(view: View, snapshot: Snapshot) -> int:
    if view.name in (ViewName.NODES, ViewName.NODE):
        return max(len(_pods(snapshot)) - 1, 0)
    if view.name is ViewName.CHECKPOINTS:
        return max(len(snapshot.tiers) - 1, 0)
    return 10**6 if view.name is ViewName.LOG else max(len(snapshot.record.events) - 1, 0)


def help_line(view: View, width: int) -> Text:
    """Return the keys, in words where there is room, and what is typed of a rank's number."""
    digits = f"rank {view.digits}: Enter " if view.digits else ""
    pairs = [(name.value, word) for name, word in _WORDS.items()]
    if width >= _SHORT_HELP:
        text = "  ".join(f"{key} {word}" for key, word in pairs) + "  q quit"
    else:
        text = " ".join(key for key, _ in pairs) + " q"
    line = Text(digits + text, "reverse", no_wrap=True, overflow="crop")
    line.truncate(width)
    return line


def picture(
    view: View, snapshot: Snapshot, columns: int, lines: int, ranks_per_node: int, log: Sequence[str], trouble: str
) -> Text:
    """Return a view of so many columns and lines, the help line not counted. `log`: the lines of the rank's log;
    `trouble`: why there are no newer ones."""
    rows: Callable[[], Iterator[Text]] = {
        ViewName.NODES: lambda: _nodes(view, snapshot),
        ViewName.NODE: lambda: _node(view, snapshot, ranks_per_node),
        ViewName.CHECKPOINTS: lambda: _checkpoints(snapshot),
        ViewName.DECISIONS: lambda: _decisions(snapshot),
        ViewName.KEYS: _key_words,
        ViewName.LOG: lambda: iter(()),
        ViewName.WHOLE: lambda: iter(()),
    }[view.name]
    if view.name is ViewName.LOG:
        return _log(view, log, trouble, columns, lines)
    title, *body = rows()
    window = max(lines - 1, 1)
    if view.name is ViewName.NODES:  # the chosen one stays in sight
        begin = min(max(view.place - window // 2, 0), max(len(body) - window, 0))
    else:
        begin = 0 if view.name is ViewName.NODE else view.place
    return Text("\n").join([title, *body[begin : begin + window]])


def _pods(snapshot: Snapshot) -> list[Mapping[str, Any]]:
    return sorted(snapshot.live.get("pods") or (), key=place_of)


def _nodes(view: View, snapshot: Snapshot) -> Iterator[Text]:
    pods = _pods(snapshot)
    yield Text(f"{len(pods)} nodes of the gang, by the steward" if pods else "the steward tells of no node", "bold")
    for number, pod in enumerate(pods):
        mark, name = mark_of(pod), short(pod.get("node") or pod.get("name"))
        chosen = number == view.place
        text = f"{'>' if chosen else ' '} {place_of(pod)} {name} "
        late = f", {plural(len(pod['ranks']), 'rank')} not well" if pod.get("ranks") else ""
        yield Text.assemble((text, "bold" if chosen else ""), (mark.sign, mark.style), f" {mark.word}{late}")


def _node(view: View, snapshot: Snapshot, ranks_per_node: int) -> Iterator[Text]:
    pods = _pods(snapshot)
    if view.place >= len(pods):
        yield Text("this node is gone", "yellow")
        return
    pod = pods[view.place]
    first = place_of(pod) * ranks_per_node
    yield Text(f"node {place_of(pod)}, {short(pod.get('node') or pod.get('name'))}; Enter shows its log", "bold")
    yield Text(f"pod {pod.get('name')}: {str(pod.get('phase')).lower()}, {mark_of(pod).word}, step {pod.get('step')}")
    yield Text(f"ranks {first} to {first + ranks_per_node - 1}")
    nodes = [node for node in snapshot.live.get("nodes") or () if node.get("name") == pod.get("node")]
    for node in nodes:
        ready = {True: "Ready", False: "not Ready", None: "Ready is not known"}[node.get("ready")]
        yield Text(f"Kubernetes calls it {ready}; EC2 calls its instance {node.get('instance_state') or 'unknown'}")
    if not nodes:
        yield Text("the steward tells nothing of its machine", "dim")
    for trouble in troubles_of([pod], nodes):
        yield Text(trouble, "yellow")


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
    numbered = list(enumerate(snapshot.record.events, 1))
    for number, event in reversed(numbered):
        if event.payload.watched:
            yield Text(f"{number}  {event.at:%d %b %H:%M:%S} {visible(event.sentence(), lines=False)}")


def _key_words() -> Iterator[Text]:
    yield Text("keys", "bold")
    yield from (Text(f"{name.value}  {word}") for name, word in _WORDS.items())
    for key, words in (
        ("q", "quit; the campaign goes on"),
        ("j k", "or arrows: choose a node, scroll"),
        ("Enter", "the chosen node; then its log"),
        ("7", "digits and Enter: this rank's log"),
        ("Esc", "back"),
    ):
        yield Text(f"{key}  {words}")


def _log(view: View, log: Sequence[str], trouble: str, columns: int, lines: int) -> Text:
    title = Text(f"log of rank {view.rank}'s node", "bold")
    title.append(f", {plural(view.place, 'line')} back" if view.place else "", "yellow")
    rows = [row for line in log for row in chop_cells(visible(line, lines=False), columns) or [""]]
    window = max(lines - 1 - bool(trouble), 1)
    end = max(len(rows) - view.place, min(window, len(rows)))
    body = [Text(row) for row in rows[max(end - window, 0) : end]] or [Text("no line is known yet", "dim")]
    troubles = [Text(visible(trouble, lines=False), "yellow")] if trouble else []
    return Text("\n").join([title, *troubles, *body])
