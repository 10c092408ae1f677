"""Real ranks over gloo, one of them stopped, killed, hung, slowed or cut off: each end names the right one.

No verdict depends on how long something took on a busy machine: a rank that is late comes when the other has given up.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import threading
from pathlib import Path

import pytest
import torch.multiprocessing as mp

from tests.trainer.builtin.failures.ranks import Ended, Place, end_of, loopback, own_network
from trainer.builtin.failures.recorder import FOLDER
from trainer.contract.culprit import Sign

SHORT_S = 2.0
LONG_S = 15.0
"""Where two healthy ranks must come to an exchange within half of it."""


def nothing(place: Place) -> None:
    """The rank is well."""


def is_stopped(place: Place) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def is_killed(place: Place) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def crashes(place: Place) -> None:
    faulthandler.disable()  # pytest's would print the test's own stack
    os.kill(os.getpid(), signal.SIGSEGV)


def hangs(place: Place) -> None:
    threading.Event().wait()


def comes_late(place: Place) -> None:
    other = place.root / "node-0" / FOLDER / "gloo_trace_rank_0"
    place.wait_for(str(other.relative_to(place.root)))


def is_cut_off(place: Place) -> None:
    """All go to the same exchange, once no packet passes any more."""
    if place.rank == 0:
        place.wait_for("ready-1")
        loopback(0)
        place.tell("cut")
    place.wait_for("cut")


def test_a_stopped_rank_is_named_and_those_that_waited_for_it_are_not(tmp_path: Path) -> None:
    end = end_of(tmp_path, [nothing, is_stopped, nothing], (0, 2), SHORT_S)
    assert {cause.reason for cause in end.causes.values()} == {"peer-lost"} and 1 not in end.causes
    assert end.culprit is not None and (end.culprit.ranks, end.culprit.node) == ((1,), "node-1")
    assert "stopped by a signal after step 3" in str(end.culprit)


@pytest.mark.parametrize(("fault", "name"), [(is_killed, "SIGKILL"), (crashes, "SIGSEGV")])
def test_a_rank_that_dies_is_named_with_its_signal(fault: object, name: str, tmp_path: Path) -> None:
    end = end_of(tmp_path, [nothing, fault, nothing], (0, 1, 2), LONG_S)  # type: ignore[list-item]
    assert [end.causes[rank].reason for rank in range(3)] == ["peer-lost", "signal", "peer-lost"]
    assert end.causes[1].signal == getattr(signal, name)
    assert str(end.culprit) == f"rank 1 on node-1: died of {name}"


def test_a_rank_that_hangs_is_named_since_it_alone_left_no_numbers(tmp_path: Path) -> None:
    end = end_of(tmp_path, [nothing, hangs], (0,), SHORT_S)
    assert end.culprit is not None and (end.culprit.ranks, end.culprit.node) == ((1,), "node-1")
    assert not end.culprit.proven and "left no record of its exchanges" in end.culprit.why
    waiting_ranks = {rank: cause.ranks[0] for rank, cause in end.causes.items()}
    assert sorted(waiting_ranks) == [0] and all(rank.end == "peer-lost" for rank in waiting_ranks.values())
    waited = [group for rank in waiting_ranks.values() for group in rank.groups.values() if group.timed_out]
    assert waited and all(group.timeout_s == SHORT_S for group in waited)


def test_a_rank_that_comes_when_the_other_has_given_up_is_named_as_late(tmp_path: Path) -> None:
    end = end_of(tmp_path, [nothing, comes_late], (0, 1), 2 * SHORT_S)
    assert [end.causes[rank].reason for rank in range(2)] == ["peer-lost", "peer-lost"]
    assert end.culprit is not None and (end.culprit.ranks, end.culprit.node) == ((1,), "node-1")
    assert "late to exchange 4" in end.culprit.why


def in_own_network(root: Path, said: object) -> None:
    try:
        own_network()
    except OSError as error:
        said.put(error)  # type: ignore[attr-defined]
        return
    said.put(end_of(root, [is_cut_off, is_cut_off], (0, 1), LONG_S))  # type: ignore[attr-defined]


@pytest.mark.nightly
def test_a_cut_network_accuses_no_rank(tmp_path: Path) -> None:
    context = mp.get_context("fork")
    queue = context.Queue()
    world = context.Process(target=in_own_network, args=(tmp_path, queue))
    world.start()
    ended = queue.get()
    world.join()
    assert not isinstance(ended, OSError), f"a rehearsal needs network namespaces: {ended}"
    assert isinstance(ended, Ended) and ended.culprit is not None
    assert {cause.reason for cause in ended.causes.values()} == {"peer-lost"}
    assert ended.culprit.ranks == () and ended.culprit.node is None
    assert "every rank had entered exchange 4" in ended.culprit.why and "node-0 and node-1" in ended.culprit.why
    assert all(rank.end != Sign.DIED for cause in ended.causes.values() for rank in cause.ranks)
