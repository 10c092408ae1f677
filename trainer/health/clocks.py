"""The node's clock compared with chrony's estimate, AWS's `Date` and the gang's median."""

from __future__ import annotations

import statistics
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from email.utils import parsedate_to_datetime

from trainer.contract import Probe
from trainer.health.looking import CannotLook, Look, blind, text_of
from trainer.health.parsers import clock

_DATE_STEP_S = 1.0
"""`Date` counts whole seconds."""
_ANSWER_S = 5.0


def clock_probes(skew_s: float, time_source: str | None, look: Look) -> Iterator[Probe]:
    """Probe chrony, which a pod mostly cannot reach, and AWS if the driver has named an endpoint."""
    try:
        yield tracking_probe(clock.parse_tracking(text_of(look("chronyc", "-n", "tracking"), "chronyc")), skew_s)
    except (CannotLook, ValueError) as error:
        if time_source is None:
            yield blind("clock", error, f"within {skew_s} s")
    if time_source is not None:
        yield _against(time_source, skew_s)


def tracking_probe(seen: clock.Tracking, skew_s: float) -> Probe:
    """Judge chrony's bound on the error, not its estimate."""
    ok = seen.synchronised and seen.bound_s <= skew_s
    said = f"off by at most {seen.bound_s:.6f} s" if seen.synchronised else "not synchronised"
    return Probe(name="chrony", ok=ok, seen=f"{said}, source {seen.reference}", wanted=f"within {skew_s} s")


def _against(url: str, skew_s: float) -> Probe:
    """Compare the clock with the `Date` of an answer of AWS."""
    wanted = f"within {skew_s} s of AWS (whose Date counts whole seconds)"
    began = time.time()
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=_ANSWER_S) as answer:
            date = answer.headers["Date"]
    except urllib.error.HTTPError as error:  # an answer all the same
        date = error.headers["Date"]
    except OSError as error:
        return blind("clock_aws", f"{url}: {error}", wanted, "the node needs its way to S3")
    ended = time.time()
    try:
        theirs = parsedate_to_datetime(date).timestamp()
    except (TypeError, ValueError):
        return blind("clock_aws", f"{url} answers with Date {date!r}", wanted)
    return date_probe(began, ended, theirs, skew_s)


def date_probe(began: float, ended: float, theirs: float, skew_s: float) -> Probe:
    """Judge the least offset between the request's duration and AWS's second; all in Unix seconds."""
    early, late = theirs - ended, began - (theirs + _DATE_STEP_S)
    off = max(early, late, 0.0)
    return Probe(
        name="clock_aws",
        ok=off <= skew_s,
        seen=f"off by at least {off:.3f} s",
        wanted=f"within {skew_s} s of AWS (whose Date counts whole seconds)",
        cure="chronyd of the node must follow 169.254.169.123" if off > skew_s else "",
    )


def skew_probe(me: int, names: Callable[[], Sequence[str]], clocks: Sequence[float], skew_s: float) -> Probe:
    """Compare node `me` with the gang's median. `clocks`: each node's offset from one clock, seconds. `names` returns
    the nodes' names and is called on all nodes or on none.

    Without a majority that agrees, as with two nodes that differ, no node is blamed.
    """
    middle = statistics.median_low(clocks)
    off = [one - middle for one in clocks]
    if 2 * sum(abs(one) <= skew_s for one in off) <= len(off):
        last, first = off.index(min(off)), off.index(max(off))
        known = names()
        seen = f"{known[first]} is {off[first] - off[last]:.3f} s ahead of {known[last]}, and no majority agrees"
        cure = "chronyd of each node must follow 169.254.169.123"
        return blind("clock_skew_s", seen, f"a majority within {skew_s} s", cure)
    ok = abs(off[me]) <= skew_s
    return Probe(
        name="clock_skew_s",
        ok=ok,
        seen=f"{off[me]:+.3f}",
        wanted=f"within {skew_s} of the gang's median",
        cure="" if ok else "chronyd of the node must follow 169.254.169.123",
    )
