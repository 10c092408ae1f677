"""Ranks as forked processes around the real save, commit, restore: what a drill kills, damages and looks at.

Ranks talk over pipes instead of gloo, and a tiny engine stands where DeepSpeed's stands: a state that is a function
of seed, rank and step, so that every loaded byte can be judged. Fork needs a parent that is warm and has no threads.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from trainer.builtin.checkpoint import commit
from trainer.builtin.checkpoint.commit import Committer, ManifestIdentity, TrainingProgress
from trainer.builtin.checkpoint.fence import claim
from trainer.builtin.checkpoint.restore import choose_start, load_start
from trainer.builtin.checkpoint.tiers import Tiers, campaign_tiers
from trainer.builtin.gang import Gang
from trainer.contract import CheckpointConfig
from trainer.errors import classify

CAMPAIGN = "tiny"
CONFIG = CheckpointConfig(every_steps=10, keep_local=2, keep_shared=2)
NOBODY = 65534
_HUNG_S = 60.0
commit._DRAIN_POLL_S = 0.002  # a drill waits often


@dataclass(frozen=True)
class PipeGang(Gang):
    """Rank 0 is the hub; a peer that is gone ends every exchange as gloo would."""

    pipes: tuple[Connection, ...] = ()
    pipes_beside: tuple[Connection, ...] = ()
    """Of the background threads."""

    def gather(self, mine: Any) -> list[Any]:
        return self._gather(mine, self.pipes)

    def gather_beside(self, mine: Any) -> list[Any]:
        return self._gather(mine, self.pipes_beside)

    def _gather(self, mine: Any, pipes: tuple[Connection, ...]) -> list[Any]:
        try:
            if self.rank:
                pipes[0].send(mine)
                return list(pipes[0].recv())
            everyone = [mine, *(pipe.recv() for pipe in pipes)]
            for pipe in pipes:
                pipe.send(everyone)
            return everyone
        except (EOFError, OSError) as error:
            raise RuntimeError("Connection closed by peer") from error

    @contextmanager
    def patient(self) -> Iterator[None]:
        yield

    def of_holder(self, content: bytes | None, holder: int) -> bytes:
        return bytes(self.gather(content)[holder])

    def sums(self, values: list[float]) -> list[float]:
        return [sum(column) for column in zip(*self.gather(values), strict=True)]


class TinyEngine:
    """The part of DeepSpeed's engine that the checkpoint code calls."""

    def __init__(self, gang: Gang, weights: dict[str, torch.Tensor] | None = None, padding: int = 0) -> None:
        from trainer.builtin.checkpoint.deepspeed_engine import HostCopyEngine

        self.gang, self.step, self.weights, self.padding = gang, 0, weights, padding
        self.checkpoint_engine: Any = HostCopyEngine(lambda path, file: None)
        self.loaded: dict[str, Any] = {}
        self.optimizer, self.save_zero_checkpoint = None, False

    def states(self, step: int) -> dict[str, Any]:
        rank = self.gang.rank
        module = self.weights or {"w": torch.full((512,), float(step))}
        mine = {"m": torch.full((256,), step * 100.0 + rank), "step": step, "rank": rank}
        if self.padding:
            mine["padding"] = torch.zeros(self.padding, dtype=torch.uint8)
        return {
            "mp_rank_00_model_states.pt": {"module": module, "step": step},
            f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt": {"optimizer": mine},
        }

    def _save_checkpoint(self, root: str, tag: str) -> None:
        for name, state in self.states(self.step).items():
            if self.gang.first_on_node or not name.startswith("mp_rank"):
                self.checkpoint_engine.save(state, f"{root}/{tag}/{name}")

    def load_checkpoint(self, root: str, tag: str) -> tuple[str, None]:
        self.loaded = {name: self.checkpoint_engine.load(f"{root}/{tag}/{name}") for name in self.states(0)}
        return root, None

    def holds(self, step: int) -> bool:
        """Whether the loaded state is that of this step and of this rank, bit for bit."""
        return repr(self.loaded) == repr(self.states(step)) and all(
            torch.equal(a, b) for a, b in zip(_tensors(self.loaded), _tensors(self.states(step)), strict=True)
        )


@dataclass(frozen=True)
class Camp:
    """Folders of one case: a local tier per node, one shared tier, one log per rank."""

    root: Path
    ranks: int = 2
    ranks_per_node: int = 1

    def tiers(self, rank: int) -> Tiers:
        return campaign_tiers(self.root / f"local-{rank // self.ranks_per_node}", self.root / "shared", CAMPAIGN)

    def every_tier(self) -> dict[str, Any]:
        found = {f"local-{r // self.ranks_per_node}": self.tiers(r).local for r in range(self.ranks)}
        return {**found, "shared": self.tiers(0).shared}

    def log(self, rank: int, attempt: int) -> Path:
        return self.root / f"rank-{rank}-attempt-{attempt}.log"

    def events(self, attempt: int, *kinds: str) -> list[dict[str, Any]]:
        events = []
        for rank in range(self.ranks):
            path = self.log(rank, attempt)
            for line in path.read_text().splitlines() if path.exists() else ():
                if line.startswith("{") and line.endswith("}") and (event := json.loads(line))["event"] in kinds:
                    events.append(event)
        return events


@dataclass(frozen=True)
class Orders:
    """What an attempt's ranks do."""

    attempt: int
    steps: tuple[int, ...] = ()
    """Steps that are saved, as far as they lie after the restored one."""
    drained: bool = True
    """Wait for each commit before the next save; else saves and replication overlap as in the loop."""
    config: CheckpointConfig = CONFIG
    weights: dict[str, torch.Tensor] | None = None
    evaluation_loss: float | None = None
    padding_bytes: int = 0
    """Makes the optimizer's shard so much larger."""
    sabotage: Callable[[int], None] = field(default=lambda rank: None)
    """Called in each rank's process before anything else."""
    user: int | None = None


def run_attempt(camp: Camp, orders: Orders) -> list[int]:
    """Exit codes of all ranks, negative for a signal; raises `AssertionError` when one hangs."""
    links = [Pipe() for _ in range(camp.ranks - 1)] + [Pipe() for _ in range(camp.ranks - 1)]
    children = []
    for rank in range(camp.ranks):
        child = os.fork()
        if child == 0:
            half = len(links) // 2
            both = [_ends(rank, each) for each in (links[:half], links[half:])]
            ours = (*both[0], *both[1])
            for link in links:
                for end in link:
                    if end not in ours:
                        end.close()
            _be_a_rank(camp, orders, rank, both[0], both[1])
        children.append(child)
    for link in links:
        for end in link:
            end.close()
    return [_wait(child) for child in children]


def _ends(rank: int, links: list[tuple[Connection, Connection]]) -> tuple[Connection, ...]:
    return tuple(link[0] for link in links) if rank == 0 else (links[rank - 1][1],)


def _wait(child: int) -> int:
    deadline = time.monotonic() + _HUNG_S
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            raise AssertionError("a rank hung")
        time.sleep(0.002)


def _be_a_rank(
    camp: Camp, orders: Orders, rank: int, pipes: tuple[Connection, ...], beside: tuple[Connection, ...]
) -> None:
    code = 70
    try:
        log = os.open(camp.log(rank, orders.attempt), os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        sys.stdout = os.fdopen(1, "w", closefd=False)
        if orders.user is not None:
            os.setresuid(orders.user, orders.user, orders.user)
        orders.sabotage(rank)
        local_rank = rank % camp.ranks_per_node
        gang = PipeGang(rank, local_rank, camp.ranks, None, pipes=pipes, pipes_beside=beside)  # type: ignore[arg-type]
        _train(camp, orders, gang)
        code = 0
    except BaseException as error:
        known = classify(error)
        code = int(known.exit_code)
        print(json.dumps({"event": "ended", "code": code, "reason": known.reason, "detail": str(known)}), flush=True)
    finally:
        os._exit(code)


def _train(camp: Camp, orders: Orders, gang: PipeGang) -> None:
    tiers = camp.tiers(gang.rank)
    if gang.first:
        claim(tiers.shared, orders.attempt)
    gang.barrier()
    engine = TinyEngine(gang, orders.weights, orders.padding_bytes)
    begun = load_start(engine, choose_start(gang, tiers, 1, orders.attempt))
    sound = begun.manifest is None or engine.holds(begun.step)
    print(json.dumps({"event": "restored", "step": begun.step, "sound": sound}), flush=True)
    identity = ManifestIdentity(CAMPAIGN, orders.attempt, 1, "c", "", "", "")
    committer = Committer(gang, tiers, orders.config, identity, begun)
    for step in (step for step in orders.steps if step > begun.step):
        engine.step = step
        committer.settle(gang.sums(committer.votes()))
        while not committer.save(engine, TrainingProgress(step, step, step, 1.0, orders.evaluation_loss)):
            committer.settle(gang.sums(committer.votes()))
        if orders.drained:
            committer.drain(replicate=False)
    committer.drain(replicate=True)
    gang.barrier()


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    items = value.values() if isinstance(value, dict) else ()
    return [tensor for item in items for tensor in _tensors(item)]
