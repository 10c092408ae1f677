"""`bivouac logs NAME`: what the job's pods printed, from the record, and what the record has not yet, from the cluster.

The steward stores a pod's lines in pieces, up to a quarter of an hour late. A living pod's log goes on where its last
piece ends, so nothing is shown twice.
"""

from __future__ import annotations

import json
import queue
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import httpx2
from rich.console import Console

from infra.cli.look.events import print_events
from infra.cli.look.inside import open_cluster
from infra.cli.options import stderr
from infra.cli.records import record_of
from infra.cluster.pod_logs import PodLogs, is_gone
from infra.cluster.ranks import members
from infra.console.plain_console import say
from infra.console.visible import visible
from infra.errors import BivouacError, TemporaryError, UserError
from infra.plan.layout import layout
from infra.record import pod_logs
from infra.record.pod_logs import Position
from infra.record.store import CampaignStore
from infra.record.trainer_lines import MARK, event_of
from infra.report.trainer_log import place_of
from infra.session.session import stored_spec
from infra.spec import duration
from infra.spec.names import NAMESPACE

_LOOK_S = 2.0
_LAST_S = 5.0
"""For the last lines of a pod whose training is over."""
_S = 10**9
_JUDGE = re.compile(r"-judge\d+-gang-0-0(?:-[a-z0-9]+)?$")
"""Pod of a job's own evaluation and export; see `infra.steward.gangs.judge`."""
_AFTER_THE_GANG = 10**6
_PREFIX = re.compile(r"(?:node \d+|evaluation) \| ")
JOB, STEWARD, DRIVER = "job", "steward", "driver"
_NOT_FOR_PEOPLE = ("event", "time", "node", "attempt", "generation", "rank")


class Asked(NamedTuple):
    attempt: int | None = None
    """None: the newest, and those that come while it is followed."""
    rank: int | None = None
    """Only the node of this rank."""
    follow: bool = False
    since: int = 0
    """Lines from this time on, ns since the epoch."""
    tail: int | None = None
    """So many of each pod's newest lines, before those that come while it is followed; None: all."""


class Living:
    """The logs of pods that the cluster still has."""

    def __init__(self, http: httpx2.Client, campaign: str) -> None:
        self._http, self._campaign = http, campaign
        self.logs = PodLogs(http)

    def pods(self) -> dict[str, tuple[int, int]]:
        """Return pod -> (attempt, index in the gang). Raises `httpx2.HTTPError`."""
        return {member.pod: (member.attempt, member.node) for member in members(self._http, self._campaign)}

    def stewards(self) -> list[str]:
        """Return the steward's pods, the newest last. Raises `httpx2.HTTPError`."""
        answer = self._http.get(f"/api/v1/namespaces/{NAMESPACE}/pods", params={"labelSelector": f"app={STEWARD}"})
        pods = [pod["metadata"] for pod in answer.raise_for_status().json()["items"]]
        return [pod["name"] for pod in sorted(pods, key=lambda pod: str(pod.get("creationTimestamp")))]


def logs_command(
    campaign: str,
    region: str,
    console: Console,
    *,
    attempt: int | None = None,
    rank: int | None = None,
    follow: bool = False,
    since: str | None = None,
    tail: int | None = None,
    raw: bool = False,
    of: str = JOB,
    notes: Console = stderr,
) -> int:
    """Print the logs of the job, the steward or the drivers, in words or `raw`; with `follow` until the campaign's
    training is over. `notes`: console for what may be missing."""
    if of not in (JOB, STEWARD, DRIVER):
        raise UserError("nothing of this name has logs", seen=of, cure=f"write one of {JOB}, {STEWARD}, {DRIVER}")
    if of != JOB and (attempt is not None or rank is not None):
        raise UserError("only a job has attempts and ranks", seen=f"--of {of}", cure="leave out --attempt and --rank")
    store = record_of(campaign, region)
    request = Asked(attempt, rank, follow, moment(since), tail)
    with living_logs(store, notes) as living:
        if of == DRIVER or (of == STEWARD and living is None):
            notes.print(f"of a {of} that has no log here, this is what it wrote into the record")
            print_events(store.events, console, since_s=request.since / 1e9, follow=follow, tail=tail, writer=of)
            return 0
        if of == STEWARD and living is not None:
            texts = _of_steward(store, living, request)
        else:
            texts = lines(store, request, living, lambda: time.sleep(_LOOK_S))
        for text in texts:
            prefix, bar, line = text.partition(" | ") if _PREFIX.match(text) else ("", "", text)
            say(console, visible(prefix + bar + (line.replace(MARK, "", 1) if raw else in_words(line))))
    return 0


def in_words(line: str) -> str:
    """Return a line for people: an event of the trainer or its supervisor as words, anything else as it is."""
    event = event_of(line, marks=False)
    if event is None:
        return line.replace(MARK, "", 1)
    name, time_s = event["event"], event.get("time", -1)
    is_time = isinstance(time_s, int | float) and 0 <= time_s < 10**10
    stamp = f"{datetime.fromtimestamp(time_s, UTC):%H:%M:%S} " if is_time else ""
    fields = {key: value for key, value in event.items() if key not in _NOT_FOR_PEOPLE and value not in (None, "")}
    step = f" {fields.pop('step', '?')}" if name == "step" else ""
    words = (
        f"{key.replace('_', ' ')} {f'{value:.4g}' if isinstance(value, float) else value}"
        for key, value in fields.items()
    )
    return stamp + ", ".join((name.replace("_", " ") + step, *words))


def _of_steward(store: CampaignStore, living: Living, request: Asked) -> Iterator[str]:
    """Yield the log of each steward's pod that the cluster still has."""
    readers: dict[str, PodReader] = {}
    pods = living.stewards()
    while True:
        is_last_look = not request.follow or store.state().outcome is not None
        for pod in pods:
            readers.setdefault(pod, PodReader(store, living, pod, request._replace(follow=False), ""))
        for reader in readers.values():
            yield from reader.read(to_the_end=True)
        if is_last_look:
            return
        time.sleep(_LOOK_S)
        with suppress(httpx2.HTTPError):  # the next look asks again
            pods = living.stewards()


def moment(text: str | None) -> int:
    """Return the time that lies so long ago, in ns since the epoch; 0 for None. Raises `UserError`."""
    return 0 if text is None else time.time_ns() - round(ago(text) * _S)


def ago(text: str, option: str = "--since") -> float:
    """Return the duration of an option in seconds. Raises `UserError`."""
    try:
        duration_ago = duration.parse(text)
    except ValueError as error:
        raise UserError(
            f"{option} is no duration", seen=f"{text} {error}", cure="write 90s, 10m, 1h30m or 7d"
        ) from error
    if not isinstance(duration_ago, timedelta):
        raise UserError(f"{option} is no duration", seen=text, cure="write 90s, 10m, 1h30m or 7d")
    return duration_ago.total_seconds()


@contextmanager
def living_logs(store: CampaignStore, notes: Console) -> Iterator[Living | None]:
    """Yield the cluster's logs, None if it has none any more or does not answer."""
    with ExitStack() as stack:
        living = None
        try:
            if store.state().outcome is None:
                living = Living(stack.enter_context(open_cluster(store)).http, store.campaign)
                living.pods()
        except (UserError, TemporaryError) as error:
            living = None
            late = "the newest lines may be missing, for the record is up to a quarter of an hour late"
            say(notes, f"{late}: {error}")
        yield living


def lines(store: CampaignStore, request: Asked, living: Living | None, pause: Callable[[], object]) -> Iterator[str]:
    """Yield the lines of an attempt's pods, of one rank's node or of all, each then with its node, and last those of
    the job's evaluation. Raises `UserError` if there are none."""
    node = node_of(store, request.rank)
    reading: dict[str, PodReader] = {}
    is_over = False
    while True:
        # Looked at before the pods: what they print until training is over is read in this round.
        is_over = is_over or not request.follow or store.state().outcome is not None
        for name, index in sorted(pods_of(store, living, request, node, reading).items(), key=lambda item: item[1]):
            if name not in reading:
                prefix = "" if node is not None else f"node {index} | " if index < _AFTER_THE_GANG else "evaluation | "
                reading[name] = PodReader(store, living, name, request, prefix)
        for reader in reading.values():
            yield from reader.read(to_the_end=is_over)
        if is_over:
            if not reading:
                raise UserError(
                    "there are no logs of this",
                    seen=f"attempt {request.attempt or 'any'}, rank {'any' if request.rank is None else request.rank}",
                    cure=f"`bivouac status {store.campaign}` says which attempts there were",
                )
            return
        pause()


class PodReader:
    """One pod's lines: first the pieces of the record, then the cluster's. A followed log has a thread of its own."""

    def __init__(self, store: CampaignStore, living: Living | None, pod: str, request: Asked, prefix: str) -> None:
        self._store, self._living, self._pod, self._asked, self._prefix = store, living, pod, request, prefix
        self._pieces, self._rest, self._position = 0, "", Position(request.since)
        self._came: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._tail = request.tail

    def read(self, to_the_end: bool) -> Iterator[str]:
        """Yield what has come since the last call."""
        if self._thread is None:
            yield from self._unread() if self._tail is None else deque(self._unread(), self._tail)
            self._tail = None
        if self._living is not None and self._asked.follow and self._thread is None:
            self._thread = threading.Thread(target=self._follow, args=(self._living.logs,), name=self._pod, daemon=True)
            self._thread.start()
        if to_the_end and self._rest:  # a line without an end
            yield self._prefix + self._rest
            self._rest = ""
        if to_the_end and self._thread is not None:
            self._thread.join(_LAST_S)
        while not self._came.empty():
            yield self._came.get()

    def _unread(self) -> Iterator[str]:
        yield from self._recorded_lines()
        if self._living is not None:
            yield from self._fresh(self._living.logs, follow=False)

    def _recorded_lines(self) -> Iterator[str]:
        for key in pod_logs.pieces(self._store, self._pod)[self._pieces :]:
            self._pieces += 1
            position, text = pod_logs.read(self._store, key)
            if self._asked.since and position.at < self._asked.since:
                continue
            self._position = max(self._position, position)
            complete, end, self._rest = (self._rest + text).rpartition("\n")
            if not end:
                continue
            yield from (self._prefix + line for line in _lines_since(complete.split("\n"), self._asked.since))

    def _fresh(self, logs: PodLogs, follow: bool) -> Iterator[str]:
        """Yield the cluster's lines after the position. One that the cluster does not give now is not given."""
        try:
            for line in logs.follow(self._pod, self._position, follow=follow):
                same_time_lines = self._position.lines + 1 if line.at <= self._position.at else 1
                self._position = Position(max(line.at, self._position.at), same_time_lines)
                yield self._prefix + line.text.removesuffix("\n")
        except (httpx2.HTTPError, BivouacError):
            return

    def _follow(self, logs: PodLogs) -> None:
        while True:
            for line in self._fresh(logs, follow=True):
                self._came.put(line)
            try:
                if logs.ended(self._pod):
                    return
            except httpx2.HTTPError as error:
                if is_gone(error):
                    return
            time.sleep(_LOOK_S)


def _lines_since(lines: list[str], earliest: int) -> list[str]:
    """Return the lines from this time on. Only events have a time of their own; a piece without any is given whole."""
    if not earliest:
        return lines
    times = [(number, time_s) for number, line in enumerate(lines) if (time_s := _time_of(line)) is not None]
    start = next((number for number, time_s in times if time_s * _S >= earliest), len(lines) if times else 0)
    return lines[start:]


def _time_of(line: str) -> float | None:
    try:
        event = json.loads(line.removeprefix(MARK)) if line.startswith(("{", MARK)) else None
    except (ValueError, RecursionError):
        return None
    seconds = event.get("time") if isinstance(event, dict) else None
    return float(seconds) if isinstance(seconds, int | float) else None


def node_of(store: CampaignStore, rank: int | None) -> int | None:
    if rank is None:
        return None
    shape = layout(stored_spec(store))
    if not 0 <= rank < shape.world_size:
        raise UserError("there is no such rank", seen=rank, cure=f"write 0 to {shape.world_size - 1}")
    return rank // shape.ranks_per_node


def pods_of(
    store: CampaignStore, living: Living | None, request: Asked, node: int | None, reading: dict[str, PodReader]
) -> dict[str, int]:
    """Return pod -> index in the gang: of the attempt, or of the newest and of those that are being read. `node`: the
    node rank of the only one."""
    places = {name: place for name in pod_logs.pods(store) if (place := place_of(name)) is not None}
    attempts = {name: (place.attempt, place.node) for name, place in places.items()}
    if living is not None:
        with suppress(httpx2.HTTPError):  # away for a moment; the record tells them too, later
            attempts |= living.pods()
    newest = max((attempt for attempt, _ in attempts.values()), default=0)
    node_rank = store.state().node_rank
    is_unfiltered = request.attempt is None and node is None
    judges = {name: _AFTER_THE_GANG for name in pod_logs.pods(store) if is_unfiltered and _JUDGE.search(name)}
    return judges | {
        name: index
        for name, (attempt, index) in attempts.items()
        if (attempt == (request.attempt or newest) or name in reading) and node in (None, node_rank(attempt, index))
    }
