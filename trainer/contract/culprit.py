"""The search for the rank that a gang waited for, from what is known of each rank of all nodes. Pure.

An agent judges its own ranks by it, the steward those of all nodes: ranks that wait name nobody, their numbers do.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Annotated, NamedTuple

from pydantic import AfterValidator, Field

from trainer.contract.exits import OF_OTHERS, PEER_LOST
from trainer.contract.frozen import Frozen

_MOST_NAMED = 8
_MOST_WORDS = 4096
"""Characters of a text that a node gave; a termination message is no longer either."""


class Sign(StrEnum):
    """How a rank was found when the first of its node had ended; else the reason that it gave."""

    RUNS = "runs"
    STOPPED = "stopped"
    """Frozen by a signal (SIGSTOP, a debugger, a frozen cgroup)."""
    ABORTED = "aborted"
    """Ended by its own NCCL watchdog, since an exchange with others did not end."""
    DIED = "died"
    """Died of a signal that neither its watchdog nor its agent sent."""


_Number = Annotated[int, Field(ge=-(10**15), le=10**15)]
_Words = Annotated[str, AfterValidator(lambda text: text[:_MOST_WORDS])]


class Exchanges(NamedTuple):
    """A rank's exchanges in one process group, by torch's sequence numbers, which are equal on all its ranks."""

    enqueued: _Number
    started: _Number
    """On the GPU; -1 where that is not recorded."""
    completed: _Number
    waited_s: float | None = None
    """Time that it has waited in the exchange after `completed`, by its own clock; None: it waits in none."""
    timeout_s: float = 0.0

    @property
    def waits_in(self) -> int:
        return self.completed + 1

    @property
    def timed_out(self) -> bool:
        return self.waited_s is not None and 0 < 0.9 * self.timeout_s <= self.waited_s


class RankSeen(Frozen, extra="ignore"):
    """What a node knows of one of its ranks."""

    rank: _Number
    step: _Number = 0
    """Optimizer steps finished."""
    phase: _Words = ""
    """`trainer.contract.Phase`; empty before its first heartbeat."""
    age_s: float | None = None
    """Age of its heartbeat."""
    end: _Words = Sign.RUNS
    """A `Sign`, or the reason that it gave."""
    detail: _Words = ""
    """The signal it died of, or what it said."""
    groups: dict[str, Exchanges] = {}
    """Process group -> its exchanges, from the flight recorder; empty: it left no dump."""


class Culprit(Frozen, extra="ignore"):
    """Ranks at fault, as far as they can be told; none: the numbers of all are equal, or there are none."""

    ranks: tuple[int, ...] = ()
    nodes: tuple[str, ...] = ()
    why: str
    proven: bool = True
    """Nothing that other ranks may still tell can change it."""

    @property
    def node(self) -> str | None:
        """Return the one node at fault, if it is one."""
        return self.nodes[0] if len(self.nodes) == 1 else None

    def __str__(self) -> str:
        if not self.ranks:
            return f"no rank can be named: {self.why}"
        named = ", ".join(map(str, self.ranks[:_MOST_NAMED])) + (" and more" if len(self.ranks) > _MOST_NAMED else "")
        plural = "s" if len(self.ranks) > 1 else ""
        where = f" on {', '.join(self.nodes[:_MOST_NAMED])}" if any(self.nodes) else ""
        return f"rank{plural} {named}{where}: {self.why}"


class Located(NamedTuple):
    node: str
    seen: RankSeen


def find_culprit(ranks: Sequence[Located]) -> Culprit | None:
    """Return who kept the others waiting, by the strongest evidence there is; None where no rank waited or ended.

    In order: a rank that died or failed of its own; one that is frozen; one that others wait for, by the numbers of
    their exchanges; one that left no numbers where the others did; one that is steps behind.
    """
    for sign, why in ((Sign.DIED, "died"), (Sign.STOPPED, "is stopped by a signal")):
        if found := [one for one in ranks if one.seen.end == sign]:
            told = next((one.seen.detail for one in found if one.seen.detail), "")
            return _named(found, told or f"{why} {_at(found[0].seen)}")
    signs = frozenset(Sign)
    if own := [one for one in ranks if one.seen.end not in signs and one.seen.end not in {*OF_OTHERS, "done"}]:
        return _named(own, f"{own[0].seen.end}: {own[0].seen.detail}"[:300])
    lost = [one for one in ranks if one.seen.end in (Sign.ABORTED, PEER_LOST)]
    if not lost:
        return None
    return _behind(ranks) or _without_numbers(ranks) or _steps_behind(ranks) or _equal(ranks)


def _behind(ranks: Sequence[Located]) -> Culprit | None:
    """Follow each wait to those that had not come to it, and from them on: who waits for nobody is at fault."""
    waits_for = {one.seen.rank: _blockers(one, ranks) for one in ranks}
    blocking = {rank for blockers in waits_for.values() for rank in blockers}
    ends = {rank for rank in blocking if not waits_for.get(rank)}
    found = [one for one in ranks if one.seen.rank in ends]
    if not found:
        return None
    why = next(why for blockers in waits_for.values() for rank, why in blockers.items() if rank == found[0].seen.rank)
    return _named(found, why)


def _blockers(one: Located, ranks: Sequence[Located]) -> dict[int, str]:
    """Return rank -> why, of those that a rank waits for in any group."""
    found = dict[int, str]()
    for name, mine in one.seen.groups.items():
        if mine.waited_s is None:
            continue
        for other in ranks:
            theirs = other.seen.groups.get(name)
            if theirs is not None and other is not one and (why := _lacks(mine, theirs)):
                found[other.seen.rank] = f"{why} of group {name}, in which rank {one.seen.rank} waited {_seconds(mine)}"
    return found


def _lacks(mine: Exchanges, theirs: Exchanges) -> str:
    """Return why the rank of `theirs` keeps the rank of `mine` waiting; empty when it does not."""
    wanted = mine.waits_in
    if theirs.enqueued < wanted:
        return f"did not enter exchange {wanted}"
    if 0 <= theirs.started < wanted <= mine.started:
        return f"did not start exchange {wanted} on its GPU"
    if theirs.waits_in == wanted and mine.timed_out and mine.waited_s is not None and theirs.waited_s is not None:
        late_s = mine.waited_s - theirs.waited_s
        if late_s > mine.waited_s / 2:
            return f"came {late_s:.1f} s late to exchange {wanted}"
    return ""


def _without_numbers(ranks: Sequence[Located]) -> Culprit | None:
    """A rank that left no dump where others did: its process does not run any more, or not as far as to write one."""
    silent = [one for one in ranks if not one.seen.groups]
    if not silent or len(silent) == len(ranks):
        return None
    why = f"left no record of its exchanges where the others did; last seen {_at(silent[0].seen)}"
    return _named(silent, why, proven=False)


def _steps_behind(ranks: Sequence[Located]) -> Culprit | None:
    if any(one.seen.groups for one in ranks):
        return None
    last, first = min(one.seen.step for one in ranks), max(one.seen.step for one in ranks)
    behind = [one for one in ranks if one.seen.step == last]
    why = f"at step {last} when others had finished {first}"
    return _named(behind, why, proven=False) if last < first else None


def _equal(ranks: Sequence[Located]) -> Culprit:
    waits = [
        (mine.waited_s, name, mine)
        for one in ranks
        for name, mine in one.seen.groups.items()
        if mine.waited_s is not None and mine.timed_out
    ]
    nodes = tuple(dict.fromkeys(one.node for one in ranks))
    if not waits:
        return Culprit(why="nothing tells the ranks apart", proven=False)
    _, name, mine = max(waits, key=lambda wait: wait[0])
    where = f"the network between {' and '.join(nodes)}" if len(nodes) == 2 else "the network between the nodes"
    perhaps = f"perhaps {where}" if len(nodes) > 1 else "perhaps a link between its GPUs"
    why = f"every rank had entered exchange {mine.waits_in} of group {name}; {perhaps}"
    return Culprit(why=why, proven=False)


def _named(found: Iterable[Located], why: str, proven: bool = True) -> Culprit:
    rows = sorted(found, key=lambda one: one.seen.rank)
    nodes = tuple(dict.fromkeys(one.node for one in rows))
    return Culprit(ranks=tuple(one.seen.rank for one in rows), nodes=nodes, why=why, proven=proven)


def _at(seen: RankSeen) -> str:
    age = "" if seen.age_s is None else f", heartbeat {seen.age_s:.1f} s old"
    return f"after step {seen.step}{f', {seen.phase}' if seen.phase else ''}{age}"


def _seconds(mine: Exchanges) -> str:
    return f"{mine.waited_s or 0.0:.1f} s"
