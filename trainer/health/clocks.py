"""The node's clock compared with chrony's estimate, AWS's `Date` and the gang's median."""

from __future__ import annotations

import re
import statistics
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from email.utils import parsedate_to_datetime

from trainer.contract import Probe
from trainer.health.looking import CannotLook, Look, blind, text_of


@dataclass(frozen=True)
class Tracking:
    reference: str
    synchronised: bool
    offset_s: float
    """System clock minus true time, as chrony estimates it."""
    root_delay_s: float
    root_dispersion_s: float

    @property
    def bound_s(self) -> float:
        """Return |offset| + dispersion + delay/2, a bound on the clock's error (chronyc(1), `tracking`)."""
        return abs(self.offset_s) + self.root_dispersion_s + self.root_delay_s / 2


def parse_tracking(text: str) -> Tracking:
    """Parse the output. Raises `ValueError` when a line is missing."""
    rows = dict(re.split(r"\s*: ", line, maxsplit=1) for line in text.splitlines() if " : " in line)
    try:
        system = rows["System time"].split()
        return Tracking(
            reference=rows["Reference ID"],
            synchronised=rows["Leap status"].strip() != "Not synchronised",
            offset_s=float(system[0]) * (1 if system[2] == "fast" else -1),
            root_delay_s=float(rows["Root delay"].split()[0]),
            root_dispersion_s=float(rows["Root dispersion"].split()[0]),
        )
    except (KeyError, IndexError) as error:
        raise ValueError(f"no `chronyc tracking`: {error}: {text[:120]!r}") from error


_DATE_STEP_S = 1.0
"""`Date` counts whole seconds."""
_ANSWER_S = 5.0


def clock_probes(skew_s: float, time_source: str | None, look: Look) -> Iterator[Probe]:
    """Probe chrony, which a pod mostly cannot reach, and AWS if the driver has named an endpoint."""
    try:
        yield tracking_probe(parse_tracking(text_of(look("chronyc", "-n", "tracking"), "chronyc")), skew_s)
    except (CannotLook, ValueError) as error:
        if time_source is None:
            yield blind("clock", error, f"within {skew_s} s")
    if time_source is not None:
        yield _against(time_source, skew_s)


def tracking_probe(tracking: Tracking, skew_s: float) -> Probe:
    """Judge chrony's bound on the error, not its estimate."""
    ok = tracking.synchronised and tracking.bound_s <= skew_s
    bound = f"off by at most {tracking.bound_s:.6f} s" if tracking.synchronised else "not synchronised"
    return Probe(name="chrony", ok=ok, seen=f"{bound}, source {tracking.reference}", wanted=f"within {skew_s} s")


def _against(url: str, skew_s: float) -> Probe:
    """Compare the clock with the `Date` of an answer of AWS."""
    target = f"within {skew_s} s of AWS (whose Date counts whole seconds)"
    start = time.time()
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=_ANSWER_S) as answer:
            date = answer.headers["Date"]
    except urllib.error.HTTPError as error:  # an answer all the same
        date = error.headers["Date"]
    except OSError as error:
        return blind("clock_aws", f"{url}: {error}", target, "the node needs its way to S3")
    end = time.time()
    try:
        server_time = parsedate_to_datetime(date).timestamp()
    except (TypeError, ValueError):
        return blind("clock_aws", f"{url} answers with Date {date!r}", target)
    return date_probe(start, end, server_time, skew_s)


def date_probe(start: float, end: float, server_time: float, skew_s: float) -> Probe:
    """Judge the least offset between the request's duration and AWS's second; all in Unix seconds."""
    early, late = server_time - end, start - (server_time + _DATE_STEP_S)
    offset_s = max(early, late, 0.0)
    return Probe(
        name="clock_aws",
        ok=offset_s <= skew_s,
        seen=f"off by at least {offset_s:.3f} s",
        wanted=f"within {skew_s} s of AWS (whose Date counts whole seconds)",
        cure="chronyd of the node must follow 169.254.169.123" if offset_s > skew_s else "",
    )


def skew_probe(me: int, names: Callable[[], Sequence[str]], clocks: Sequence[float], skew_s: float) -> Probe:
    """Compare node `me` with the gang's median. `clocks`: each node's offset from one clock, seconds. `names` returns
    the nodes' names and is called on all nodes or on none.

    Without a majority that agrees, as with two nodes that differ, no node is blamed.
    """
    middle = statistics.median_low(clocks)
    offsets = [offset - middle for offset in clocks]
    if 2 * sum(abs(offset) <= skew_s for offset in offsets) <= len(offsets):
        slowest, fastest = offsets.index(min(offsets)), offsets.index(max(offsets))
        node_names = names()
        lead_s = offsets[fastest] - offsets[slowest]
        finding = f"{node_names[fastest]} is {lead_s:.3f} s ahead of {node_names[slowest]}, and no majority agrees"
        cure = "chronyd of each node must follow 169.254.169.123"
        return blind("clock_skew_s", finding, f"a majority within {skew_s} s", cure)
    ok = abs(offsets[me]) <= skew_s
    return Probe(
        name="clock_skew_s",
        ok=ok,
        seen=f"{offsets[me]:+.3f}",
        wanted=f"within {skew_s} of the gang's median",
        cure="" if ok else "chronyd of the node must follow 169.254.169.123",
    )
