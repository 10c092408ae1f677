"""The ways in which an attempt ends, and what the steward then does, by asking the steward's own `decide`.

Each way is an observation. The class, the actions and the limits are answers of the code that runs in the cluster, so
this table cannot differ from it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from signal import SIGSEGV
from typing import Any, Literal, NamedTuple

from infra.cluster.cloud_notice import CloudNotice
from infra.cluster.fitness import Sickness
from infra.spec.sections import Recovery
from infra.steward.decide import (
    Action,
    Attempt,
    EndAttempt,
    FailureClass,
    Finish,
    History,
    Launch,
    NodeView,
    Observation,
    PodView,
    Policy,
    Reboot,
    Replace,
    decide,
)
from trainer.contract import ExitCode
from trainer.contract.exits import REASONS

_NOW = datetime(2000, 1, 1, tzinfo=UTC)
_ENOUGH = 10**6
"""A limit that no history of this table reaches."""
DEEDS = {
    "wait": "waits",
    "launch": "starts the next attempt",
    "end-attempt": "ends the attempt",
    "replace": "replaces the node",
    "reboot": "reboots the node, once",
    "hold": "holds the warm cluster for a person, as long as `hold_for` says",
    "finish": "archives what is sound and ends the training",
    "give-back": "has the gang commit and gives the GPU nodes back",
}
"""Kind of an action of the steward -> what it does."""
LIMITS = tuple(name for name in Policy.model_fields if type(getattr(Recovery(), name, None)) is int)
"""The limits of the spec's `recovery` that the steward decides by."""


class Way(NamedTuple):
    """One way in which an attempt ends."""

    how: str
    running: Observation
    """What the steward sees at the end."""
    between: Observation
    """What it sees next."""


class EndingRow(NamedTuple):
    """A way, and what `decide` makes of it."""

    how: str
    failure: FailureClass | None
    """None: the attempt ended well."""
    follows: str
    limits: tuple[str, ...]
    """Limits of `recovery` that it counts against: with none left, the steward ends the training instead."""


def rows(recovery: Recovery) -> list[EndingRow]:
    """Return the table under these limits."""
    return [_row(way, recovery) for way in _ways(recovery)]


def causes(failure: str, recovery: Recovery) -> list[EndingRow]:
    """Return the rows of a class; none for one that this version does not know."""
    return [row for row in rows(recovery) if row.failure == failure]


def _row(way: Way, recovery: Recovery) -> EndingRow:
    end = decide(way.running, _policy(recovery), History())
    if not isinstance(end, EndAttempt):
        return EndingRow(way.how, None, DEEDS[end.kind], ())
    actions = _actions(way, end, _policy(recovery))
    if_held, if_not = _words(actions), _words(_actions(way, end, _policy(recovery, on_stop="teardown")))
    follows = if_held if if_held == if_not else f"{if_held} (`on_stop: hold`), else {if_not}"
    if isinstance(actions[-1], Finish):
        return EndingRow(way.how, end.failure, follows, ())
    limits = [name for name in LIMITS if isinstance(_actions(way, end, _policy(recovery, limit=name))[-1], Finish)]
    return EndingRow(way.how, end.failure, follows, tuple(limits))


def _words(actions: Sequence[Action]) -> str:
    return ", then ".join(map(_deed, actions))


def _deed(action: Action) -> str:
    fewer = isinstance(action, Launch) and action.nodes
    return DEEDS[action.kind] + (" with fewer nodes" if fewer else "")


def _policy(recovery: Recovery, on_stop: Literal["hold", "teardown"] = "hold", limit: str = "") -> Policy:
    """Return the policy of a spec of whose limits none is reached, but for `limit`, which is as low as it may be."""
    shared = {name: value for name in Policy.model_fields if (value := getattr(recovery, name, None)) is not None}
    waits = {"capacity_timeout": timedelta(hours=1), "gang_sizes": (1,)}
    fields: dict[str, Any] = {**waits, **shared, **dict.fromkeys(LIMITS, _ENOUGH)}
    if limit:  # an attempt without progress counts as one
        fields[limit] = int(limit == "attempts_without_progress")
    money = {"budget_usd": Decimal(_ENOUGH), "interval_and_archive": timedelta(hours=1)}
    return Policy(**fields, **money, on_stop=on_stop, reboots=True)


def _actions(way: Way, end: EndAttempt, policy: Policy) -> list[Action]:
    """Return what the steward does after the end of an attempt that committed nothing new, up to the next launch."""
    attempt = Attempt(
        number=1, failure=end.failure, ended_at=_NOW, committed_at_launch=-1,
        committed_at_end=way.running.committed_step if end.grows_to else -1,
        dead_nodes=end.dead_nodes, first_failed=end.first_failed, grows_to=end.grows_to,
    )  # fmt: skip
    history, view = History(attempts=(attempt,)), way.between
    actions = [decide(view, policy, history)]
    if isinstance(replacement := actions[0], Replace | Reboot):
        nodes = tuple(node for node in view.nodes if node.name not in replacement.nodes)
        view = view.model_copy(update={"nodes": (*nodes, *map(_node, range(2, 2 + len(replacement.nodes))))})
        actions.append(decide(view, policy, history))
    return actions


def _ways(recovery: Recovery) -> Iterator[Way]:
    for code in ExitCode:
        if code is not ExitCode.DONE:
            yield _way(f"a pod exits with {code.value} ({REASONS.get(code, code.name.lower())})", _failure_of(code))
    yield _way("a pod exits with any other code, or dies of a signal", _failure_of(128 + SIGSEGV))
    silent_for = 2 * recovery.heartbeat_timeout
    yield _way(
        "a pod is silent for `heartbeat_timeout`, and Kubernetes, EC2 or a failed peer calls its node dead",
        {"pods": (_pod(0), _pod(1, silent_for=silent_for)), "nodes": (_node(0), _node(1, ready=None))},
    )
    if recovery.min_nodes is not None:
        yield from _resizing_ways(recovery)
    sick = {Sickness.FAULT: timedelta(hours=1)}
    yield _way(
        "a pod fails, and the monitoring agent reports Xid 48, 64 or 95 of its node",
        _failure_of(ExitCode.INTERNAL),
        {"nodes": (_node(0), _node(1, unfit="Xid 48", sick_for=sick, reboot_cures=True))},
    )
    starts = {"step": 0, "since_launch": 2 * recovery.startup_timeout}
    yield _way(
        "a pod was never started on a node that is not Ready",
        {"pods": (_pod(0, step=0), _pod(1, phase="Pending", step=0)), "nodes": (_node(0), _node(1, ready=False))}
        | starts,
    )
    yield _way("no first step within `startup_timeout`", {"pods": (_pod(0, step=0), _pod(1, step=0))} | starts)
    yield _way("no finished step within `hang_timeout`", {"since_step": 2 * recovery.hang_timeout})
    notice = CloudNotice(code="instance-retirement", due=_NOW + timedelta(minutes=1))
    yield _way(
        "EC2 announces that an instance is taken: within two hours, at the next commit, or at once if it is near",
        {},
        {"nodes": (_node(0), _node(1, cloud_notice=notice))},
    )
    committed_since = {"notice_steps": {"i-1": 9}, "committed_step": 10}
    declining = {"nodes": (_node(0), _node(1, decline="heat"))}
    yield _way(
        "a node declines (ECC errors, heat, a slower rank; a rebalance recommendation of EC2), at the next commit",
        {},
        committed_since | declining,
    )
    yield _way("`/dev/shm` of a node fills, once for an instance, at the next commit", committed_since | declining)
    queue = "Kueue will not start the gang by itself"
    yield _way(
        "the gang's queue has stopped it for good, longer than `heartbeat_timeout` ago: an admin or a limit of Kueue's",
        {"pods": (), "queued": queue, "stopped_for": 2 * recovery.heartbeat_timeout},
    )
    yield _way("the job of a gang in a queue is deleted, and not by Bivouac", {"pods": (), "vanished": queue})
    yield _way("a stop is requested, such as by `bivouac down`", {}, {"stop_requested": True})
    yield _way("the money or the time left covers no other interval and the archive", {}, {"deadline": _NOW})
    yield _way("every pod succeeds", {"pods": (_pod(0, phase="Succeeded"), _pod(1, phase="Succeeded"))})


def _resizing_ways(recovery: Recovery) -> Iterator[Way]:
    """Yield the ways that `recovery.min_nodes` adds."""
    yield _way(
        "a node is lost, and for `spare_timeout` no other is there in its place (with `min_nodes`)",
        {"pods": (_pod(0), _pod(1, silent_for=2 * recovery.heartbeat_timeout))},
        {"nodes": (_node(0),), "since_short": 2 * recovery.spare_timeout},
    )
    yield _way(
        "a gang with fewer nodes has room for more, at the next commit, after an hour or more",
        {"gang_nodes": 1, "room_step": 9, "committed_step": 10, "pods": (_pod(0),)},
    )


def _way(label: str, running: dict[str, Any], always: dict[str, Any] | None = None) -> Way:
    """Return a way. `running`: what is seen in the attempt only; `always`: also after it."""
    base: dict[str, Any] = {
        "now": _NOW, "deadline": _NOW + timedelta(days=1), "spent_usd": Decimal(0), "usd_per_hour": Decimal(1),
        "attempt": 1, "nodes": (_node(0), _node(1)), "nodes_wanted": 2, "step": 10, **(always or {}),
    }  # fmt: skip
    attempt = {"in_flight": True, "pods": (_pod(0), _pod(1)), **running}
    return Way(label, Observation(**{**base, **attempt}), Observation(**base, in_flight=False))


def _failure_of(code: int) -> dict[str, Any]:
    return {"pods": (_pod(0), _pod(1, phase="Failed", exit_code=code, ended_at=_NOW))}


def _pod(index: int, **fields: Any) -> PodView:
    base = {"index": index, "name": f"pod-{index}", "node": f"node-{index}", "phase": "Running", "step": 10}
    return PodView(**{**base, **fields})


def _node(index: int, **fields: Any) -> NodeView:
    return NodeView(**{"name": f"node-{index}", "instance": f"i-{index}", "ready": True, **fields})
