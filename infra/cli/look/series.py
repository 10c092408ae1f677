"""Where a campaign's series are answered from: Prometheus in its cluster, or what the record or the report kept."""

from __future__ import annotations

import errno
import shutil
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import httpx2

from infra.aws.account import Account, NoCredentials
from infra.cli.look.inside import open_cluster
from infra.cli.records import record_of
from infra.console.words import plural
from infra.errors import BivouacError, PermanentError, UserError, first_line
from infra.folders import kept_results, results_root, tools_dir
from infra.monitoring.prometheus import PORT, PROGRAMS, SERVICE, SPACE, over_text, range_path
from infra.monitoring.refusal import reason_of, refusal, silent
from infra.monitoring.selection import select, selection
from infra.monitoring.series import MetricSeries, matrix
from infra.record import series
from infra.record.events import Stage
from infra.record.figures import driver_lines
from infra.record.store import CampaignStore
from infra.session.session import campaigns
from infra.spec.names import buckets

_PROXY = f"/api/v1/namespaces/{SPACE}/services/http:{SERVICE}:{PORT}/proxy"
"""https://kubernetes.io/docs/tasks/access-application-cluster/access-cluster-services/"""
LOST = (ValueError, OSError, EOFError, zlib.error)
"""Errors of kept series that are damaged."""
Lines = Callable[[], Iterator[str]]
_PROGRAM = "Prometheus"


class LiveSeries:
    """Prometheus in the cluster, reached through the API server."""

    origin = "Prometheus in the cluster"

    def __init__(self, http: httpx2.Client, begin: float) -> None:
        self._http, self.begin = http, begin

    @property
    def end(self) -> float:
        return time.time()

    def ask(self, query: str, begin: float, end: float, step: float) -> list[MetricSeries]:
        """Return the series. Raises `UserError` for a query that Prometheus refuses, else `TemporaryError`."""
        try:
            response = self._http.get(_PROXY + range_path(query, begin, end, step))
        except httpx2.TransportError as error:
            raise silent(_PROGRAM, str(error)) from error
        return _rows(query, response.status_code, response.content)


class KeptSeries:
    """Series of the record or of the results folder: by Prometheus itself where it is installed."""

    def __init__(
        self,
        origin: str,
        begin: float,
        end: float,
        lines: Callable[[], Iterator[str]],
        driven: tuple[float, float] | None = None,
    ) -> None:
        """`driven`: begin and end of what the record tells of the driver, which works before and after the cluster."""
        self.origin, self.begin, self.end, self._lines, self.driven = origin, begin, end, lines, driven
        self._get: Callable[[str], tuple[int, bytes]] | None = None

    @contextmanager
    def opened(self) -> Iterator[KeptSeries]:
        """Yield it with a Prometheus over its series, if the programs are here."""
        programs = _programs()
        with ExitStack() as stack:
            if len(programs) == len(PROGRAMS):
                try:
                    self._get = stack.enter_context(over_text(self._lines(), programs))
                except LOST as error:
                    raise _damaged(error) from error
            yield self

    def ask(self, query: str, begin: float, end: float, step: float) -> list[MetricSeries]:
        """Return the series. Raises `UserError` for a query that is refused, `PermanentError` for damaged series."""
        if self._get is not None:
            return _rows(query, *self._get(range_path(query, begin, end, step)))
        selector = selection(query)
        try:
            return select(selector, self._lines(), begin, end, step)
        except LOST as error:
            raise _damaged(error) from error


SeriesSource = LiveSeries | KeptSeries
"""It has words for its `origin`, the `begin` and `end` of its series in seconds since 1970, and answers `ask`."""


@contextmanager
def series_of(campaign: str, region: str, note: Callable[[str], None]) -> Iterator[SeriesSource]:
    """Yield the source of a campaign's series. `note` gets why Prometheus is not asked, where it might be there.

    Raises `UserError` if neither cluster, record nor results folder has any.
    """
    try:
        store = record_of(campaign, region)
    except UserError as error:
        with _of_file(kept_results(campaign, region) / series.JOINED, error).opened() as source:
            yield source
        return
    with ExitStack() as stack:
        live = None if Stage.TEARDOWN in store.state().finished_stages else _live(store, stack, note)
        yield live or stack.enter_context(_of_record(store).opened())


def _live(store: CampaignStore, stack: ExitStack, note: Callable[[str], None]) -> LiveSeries | None:
    """Return Prometheus in the cluster if it answers."""
    begin = store.state().started_at
    attempt = ExitStack()
    try:
        cluster = attempt.enter_context(open_cluster(store))
        live = LiveSeries(cluster.http, 0.0 if begin is None else begin.timestamp())
        live.ask("vector(1)", live.end - 1, live.end, 1)
    except BivouacError as error:
        attempt.close()
        note(f"what the record keeps, since Prometheus in the cluster cannot be asked: {error.what} ({error.seen})")
        return None
    stack.push(attempt)
    return live


def _of_record(store: CampaignStore) -> KeptSeries:
    keys = series.pieces(store)
    spans = [span for key in keys if (span := series.span(key)) is not None]
    if not spans:
        raise UserError(
            "the record has no series of this campaign",
            seen=f"no {series.FOLDER} below s3://{store.bucket}/{store.prefix}",
            cure=f"they are kept while `addons.prometheus` is on, a quarter of an hour at a time; "
            f"`bivouac events {store.campaign}` tells what could not be kept",
        )
    origin, events = f"{len(keys)} pieces of the record", store.events()
    driven = (events[0].at.timestamp(), events[-1].at.timestamp()) if events else None

    def lines() -> Iterator[str]:
        yield from series.lines_of_pieces(store, keys)
        yield from driver_lines(events, store.campaign)

    return KeptSeries(origin, spans[0][0], spans[-1][1], lines, driven)


def _of_file(path: Path, error: UserError) -> KeptSeries:
    """Return the series that the report left; raise `error`, why there is no other, without."""
    try:
        times = [float(line.rsplit(" ", 1)[1]) for line in series.lines_of_file(path) if not line.startswith("#")]
    except FileNotFoundError:
        raise error from None
    except (*LOST, IndexError) as problem:
        raise _damaged(problem) from problem
    begin, end = (min(times), max(times)) if times else (0.0, 0.0)
    return KeptSeries(str(path), begin, end, lambda: series.lines_of_file(path))


def _programs() -> dict[str, Path]:
    """Return the programs that are here: on PATH, or among a rehearsal's tools."""
    places = {name: shutil.which(name) or shutil.which(name, path=str(tools_dir())) for name in PROGRAMS}
    return {name: Path(place) for name, place in places.items() if place}


def _rows(query: str, code: int, body: bytes) -> list[MetricSeries]:
    """Return the series of Prometheus' answer. Raises `UserError` for a query that it refuses, and what `refusal` has
    for another answer."""
    if code in (400, 422):
        fact = f"{query}: {reason_of(body)}"
        raise UserError("Prometheus refuses the query", seen=fact, cure="docs/metrics.md has names")
    if code != 200:
        raise refusal(_PROGRAM, code, body)
    try:
        return matrix(body)
    except ValueError as error:
        raise silent(_PROGRAM, str(error)) from error


def _damaged(error: Exception) -> PermanentError:
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        cure = "make room, or set TMPDIR to a folder with room: text takes many times the size of what is kept"
        return PermanentError("there is no room for the kept series as text", seen=first_line(error), cure=cure)
    cure = "an earlier version of the object may lie in the bucket: `aws s3api list-object-versions`"
    return PermanentError("kept series cannot be read", seen=first_line(error), cure=cure)


def all_campaigns(region: str, note: Callable[[str], None]) -> KeptSeries:
    """Return the series of all campaigns that are known here. `note` gets which cannot be read. Raises `UserError`
    if there are none."""
    texts: dict[str, Lines] = {
        path.parent.name: partial(series.lines_of_file, path)
        for path in sorted(results_root().glob(f"*-*/*/{series.JOINED}"))
    }
    try:
        account = Account(region)
        bucket = buckets(account.identity()["Account"], region).state
        for name in campaigns(account, bucket):
            store = CampaignStore(account.client("s3"), bucket, name, "")
            if keys := series.pieces(store):
                texts[name] = partial(series.lines_of_pieces, store, keys)
    except NoCredentials:
        note("AWS was not asked: there are no credentials")
    return from_second_zero(texts, note)


def from_second_zero(texts: Mapping[str, Lines], note: Callable[[str], None]) -> KeptSeries:
    """Return the series of these campaigns, each from second 0 on."""
    spans = dict[str, tuple[float, float]]()
    for name, lines in texts.items():
        try:
            times = [float(line.rsplit(" ", 1)[1]) for line in lines() if not line.startswith("#")]
        except (*LOST, IndexError) as error:
            note(f"the series of {name} cannot be read: {first_line(error)}")
            continue
        if times:
            spans[name] = min(times), max(times)
    if not spans:
        cure = "they are kept while `addons.prometheus` is on; `bivouac dashboard NAME` shows one campaign, also live"
        raise UserError("no campaign here has series that are kept", seen=str(results_root()), cure=cure)

    def moved() -> Iterator[str]:
        for name, (begin, _) in spans.items():
            for line in texts[name]():
                text, _, second = line.rpartition(" ")
                yield line if line.startswith("#") else f"{text} {float(second) - begin:.3f}\n"

    longest = max(end - begin for begin, end in spans.values())
    return KeptSeries(f"what is kept of {plural(len(spans), 'campaign')}", 0.0, longest, moved)
