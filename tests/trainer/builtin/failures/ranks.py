"""Ranks over real gloo, each on a node of its own, with one fault; what their nodes then know of them."""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import torch.multiprocessing as mp

from tests import waiting
from trainer.builtin.failures import first_end, recorder
from trainer.builtin.failures.verdict import cause_of
from trainer.builtin.gang import Gang
from trainer.builtin.heartbeat import Heartbeat
from trainer.builtin.rank import _end
from trainer.builtin.serving import Node
from trainer.contract import Phase, Status
from trainer.contract.culprit import Culprit, Located, find_culprit
from trainer.supervisor.ends import End
from trainer.supervisor.place import Place as NodePlace

STEPS = 3
_NEW_USERS_AND_NETWORK = 0x10000000 | 0x40000000
_SIOCSIFFLAGS, _UP = 0x8914, 1


class Place(NamedTuple):
    """One rank's test: its number, its node's scratch folder, and the folder that all see."""

    rank: int
    run: Path
    root: Path

    def wait_for(self, name: str) -> None:
        waiting.until((self.root / name).exists, name, every_s=0.01)

    def tell(self, name: str) -> None:
        (self.root / name).touch()


Fault = Callable[[Place], None]


def trains(place: Place, of: int, fault: Fault, timeout_s: float) -> None:
    """Exchange, once a step. After the last whole step, the rank does `fault` and then goes to the next exchange."""
    import torch.distributed as dist

    os.environ |= {"LOCAL_RANK": "0", "RANK": str(place.rank), "GLOO_SOCKET_IFNAME": "lo"}
    recorder.switch_on(os.environ, place.run, timeout_s)
    heartbeat = Heartbeat(place.run, place.rank)
    try:
        meeting = dist.FileStore(str(place.root / "store"), of)
        dist.init_process_group("gloo", store=meeting, rank=place.rank, world_size=of, timeout=timedelta(minutes=5))
        gang = Gang.join(timedelta(minutes=5))
        for step in range(STEPS):
            gang.sums([1.0])
            heartbeat.beat(phase=Phase.TRAINING, step=step + 1)
        gang.wait_up_to(timedelta(seconds=timeout_s))
        place.tell(f"ready-{place.rank}")
        fault(place)
        gang.sums([1.0])
    except BaseException as error:
        _end(place.run, heartbeat, error)
    os._exit(0)


class Ended(NamedTuple):
    causes: dict[int, End]
    culprit: Culprit | None


def end_of(root: Path, faults: Sequence[Fault], waits_for: Sequence[int], timeout_s: float) -> Ended:
    """Start a rank per fault, wait for the end of `waits_for`, and return what each node and all together conclude."""
    context = mp.get_context("fork")
    places = [Place(rank, root / f"node-{rank}", root) for rank in range(len(faults))]
    ranks: list[Any] = []
    for place, fault in zip(places, faults, strict=True):
        place.run.mkdir(parents=True)
        ranks.append(context.Process(target=trains, args=(place, len(faults), fault, timeout_s)))
        ranks[-1].start()
    try:
        for rank in waits_for:
            ranks[rank].join()
        return judged(places, ranks)
    finally:
        for process in ranks:
            process.kill()
            process.join()


def judged(places: Sequence[Place], ranks: Sequence[Any]) -> Ended:
    causes, seen = dict[int, End](), list[Located]()
    for place, process in zip(places, ranks, strict=True):
        first_end.note(place.run, place.rank, [process])
        if process.exitcode is None:
            node = Node(
                NodePlace("tiny", 1, f"node-{place.rank}", "127.0.0.1", place.rank, place.rank + 1, 1, "pod-0:29500"),
                100,
                place.run,
                place.run,
            )
            told = Status.model_validate(node.status()).rank_views()
        else:
            causes[place.rank] = cause_of(place.run, place.run, {place.rank: process.exitcode})
            told = causes[place.rank].ranks
        seen += [Located(f"node-{place.rank}", one) for one in told]
    return Ended(causes, find_culprit(seen))


def own_network() -> None:
    """Move this process, which has one thread, into a network of its own with a loopback. Raises `OSError`."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_NEW_USERS_AND_NETWORK):
        raise OSError(ctypes.get_errno(), "no network namespace")
    loopback(_UP)


def loopback(flags: int) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh", b"lo", flags))
