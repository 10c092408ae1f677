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
        ranks = ", ".join(map(str, self.ranks[:_MOST_NAMED])) + (" and more" if len(self.ranks) > _MOST_NAMED else "")
        plural = "s" if len(self.ranks) > 1 else ""
        place = f" on {', '.join(self.nodes[:_MOST_NAMED])}" if any(self.nodes) else ""
        return f"rank{plural} {ranks}{place}: {self.why}"


class Located(NamedTuple):
    node: str
    seen: RankSeen


def find_culprit(ranks: Sequence[Located]) -> Culprit | None:
    """Return who kept the others waiting, by the strongest evidence there is; None where no rank waited or ended.

    In order: a rank that died or failed of its own; one that is frozen; one that others wait for, by the numbers of
    their exchanges; one that left no numbers where the others did; one that is steps behind.
    """
    for sign, reason in ((Sign.DIED, "died"), (Sign.STOPPED, "is stopped by a signal")):
        if suspects := [member for member in ranks if member.seen.end == sign]:
            detail = next((member.seen.detail for member in suspects if member.seen.detail), "")
            return _blame(suspects, detail or f"{reason} {_state_of(suspects[0].seen)}")
    ends = frozenset({*Sign, *OF_OTHERS, "done"})
    if failures := [member for member in ranks if member.seen.end not in ends]:
        return _blame(failures, f"{failures[0].seen.end}: {failures[0].seen.detail}"[:300])
    waiters = [member for member in ranks if member.seen.end in (Sign.ABORTED, PEER_LOST)]
    if not waiters:
        return None
    return _blame_blockers(ranks) or _without_numbers(ranks) or _steps_behind(ranks) or _equal(ranks)


def _blame_blockers(ranks: Sequence[Located]) -> Culprit | None:
    """Follow each wait to those that had not come to it, and from them on: who waits for nobody is at fault."""
    waits_for = {member.seen.rank: _blockers(member, ranks) for member in ranks}
    blocking = {rank for blockers in waits_for.values() for rank in blockers}
    ends = {rank for rank in blocking if not waits_for.get(rank)}
    suspects = [member for member in ranks if member.seen.rank in ends]
    if not suspects:
        return None
    suspect = suspects[0].seen.rank
    return _blame(suspects, next(blockers[suspect] for blockers in waits_for.values() if suspect in blockers))


def _blockers(waiter: Located, ranks: Sequence[Located]) -> dict[int, str]:
    """Return rank -> why, of those that a rank waits for in any group."""
    reasons = dict[int, str]()
    for name, exchanges in waiter.seen.groups.items():
        if exchanges.waited_s is None:
            continue
        for peer in ranks:
            peer_exchanges = peer.seen.groups.get(name)
            if peer_exchanges is not None and peer is not waiter and (reason := _lacks(exchanges, peer_exchanges)):
                reasons[peer.seen.rank] = (
                    f"{reason} of group {name}, in which rank {waiter.seen.rank} waited {_seconds(exchanges)}"
                )
    return reasons


def _lacks(waiter: Exchanges, peer: Exchanges) -> str:
    """Return why the rank of `peer` keeps the rank of `waiter` waiting; empty when it does not."""
    exchange = waiter.waits_in
    if peer.enqueued < exchange:
        return f"did not enter exchange {exchange}"
    if 0 <= peer.started < exchange <= waiter.started:
        return f"did not start exchange {exchange} on its GPU"
    if peer.waits_in == exchange and waiter.timed_out and waiter.waited_s is not None and peer.waited_s is not None:
        late_s = waiter.waited_s - peer.waited_s
        if late_s > waiter.waited_s / 2:
            return f"came {late_s:.1f} s late to exchange {exchange}"
    return ""


def _without_numbers(ranks: Sequence[Located]) -> Culprit | None:
    """A rank that left no dump where others did: its process does not run any more, or not as far as to write one."""
    silent = [member for member in ranks if not member.seen.groups]
    if not silent or len(silent) == len(ranks):
        return None
    reason = f"left no record of its exchanges where the others did; last seen {_state_of(silent[0].seen)}"
    return _blame(silent, reason, proven=False)


def _steps_behind(ranks: Sequence[Located]) -> Culprit | None:
    if any(member.seen.groups for member in ranks):
        return None
    oldest_step, newest_step = min(member.seen.step for member in ranks), max(member.seen.step for member in ranks)
    laggards = [member for member in ranks if member.seen.step == oldest_step]
    reason = f"at step {oldest_step} when others had finished {newest_step}"
    return _blame(laggards, reason, proven=False) if oldest_step < newest_step else None


def _equal(ranks: Sequence[Located]) -> Culprit:
    waits = [
        (exchanges.waited_s, name, exchanges)
        for member in ranks
        for name, exchanges in member.seen.groups.items()
        if exchanges.waited_s is not None and exchanges.timed_out
    ]
    nodes = tuple(dict.fromkeys(member.node for member in ranks))
    if not waits:
        return Culprit(why="nothing tells the ranks apart", proven=False)
    _, name, exchanges = max(waits, key=lambda wait: wait[0])
    network = f"the network between {' and '.join(nodes)}" if len(nodes) == 2 else "the network between the nodes"
    perhaps = f"perhaps {network}" if len(nodes) > 1 else "perhaps a link between its GPUs"
    reason = f"every rank had entered exchange {exchanges.waits_in} of group {name}; {perhaps}"
    return Culprit(why=reason, proven=False)


def _blame(suspects: Iterable[Located], reason: str, proven: bool = True) -> Culprit:
    rows = sorted(suspects, key=lambda member: member.seen.rank)
    nodes = tuple(dict.fromkeys(member.node for member in rows))
    return Culprit(ranks=tuple(member.seen.rank for member in rows), nodes=nodes, why=reason, proven=proven)


def _state_of(rank: RankSeen) -> str:
    age = "" if rank.age_s is None else f", heartbeat {rank.age_s:.1f} s old"
    return f"after step {rank.step}{f', {rank.phase}' if rank.phase else ''}{age}"


def _seconds(exchanges: Exchanges) -> str:
    return f"{exchanges.waited_s or 0.0:.1f} s"
