"""Torch's elastic agent with a fixed gang and no restarts of its own; ranks' output goes to `rank-N.log` and to our
stdout. A start of all ranks is a generation, see `trainer.builtin.in_place`."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch.distributed import PrefixStore, TCPStore
from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing.api import LogsDest, LogsSpecs
from torch.distributed.elastic.rendezvous.api import RendezvousInfo, RendezvousStoreInfo
from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous

from trainer.builtin.engine import import_deepspeed
from trainer.builtin.failures import first_end
from trainer.builtin.model.adapters import import_peft
from trainer.builtin.model.named import import_transformers
from trainer.contract import ModelConfig
from trainer.errors import TrainerError
from trainer.place import Paths
from trainer.supervisor.place import Place

_MONITOR_S = 0.2
_EXIT_BARRIER_S = 15
_SHUTDOWN_S = 15


def import_ahead(model: ModelConfig) -> None:
    """Import what every rank needs, for ranks that are forked."""
    import_deepspeed()
    # Torch's optimizers import the first at their first step (1.5 s).
    import torch._dynamo  # noqa: F401

    import trainer.builtin.assembly  # noqa: F401

    if model.name:
        import_transformers()
    if model.lora is not None:
        import_peft()


class Ranks:
    """The local ranks of an agent, which it can start more than once."""

    def __init__(
        self,
        place: Place,
        endpoint: tuple[str, int],
        store: TCPStore,
        join_timeout_s: float,
        logs: Path,
        entrypoint: Callable[[Paths], None],
        paths: Paths,
        start_method: str,
    ) -> None:
        """`fork` inherits this process's imports, which saves seconds per rank; CUDA needs `spawn`."""
        # Its report on a failed rank repeats the rank's output, and formatting it imports torch's compiler (1.5 s).
        logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
        self._place, self._logs, self._entrypoint, self._paths = place, logs, entrypoint, paths
        self._start_method = start_method
        self.store = store
        """By which the agents find each other. It lives in the agent of pod 0."""
        self._rendezvous = _Rendezvous(place, endpoint, store, join_timeout_s)

    def run(self, generation: int, over: threading.Event) -> dict[int, int]:
        """Start the local ranks and wait for their end. Return exit codes by global rank, negative for a signal.

        `over` ends them at once. No rank lives when this returns: it raises `TrainerError` for one that stays.
        """
        self._rendezvous.generation = generation
        spec = WorkerSpec(
            # Empty, so that passed-through lines carry no prefix and stay JSON.
            role="",
            local_world_size=self._place.ranks_per_node,
            entrypoint=self._entrypoint,
            args=(self._paths,),
            rdzv_handler=self._rendezvous,
            max_restarts=0,
            monitor_interval=_MONITOR_S,
            master_addr=self._rendezvous.master_addr,
            master_port=self._rendezvous.master_port,
        )
        agent = _Agent(
            spec,
            logs_specs=_RankLogs(self._logs, generation),
            start_method=self._start_method,
            exit_barrier_timeout=_EXIT_BARRIER_S,
            shutdown_timeout=_SHUTDOWN_S,
            log_line_prefix_template="${role_name}",
        )
        agent.over = over
        first_rank = self._place.node_rank * self._place.ranks_per_node
        agent.watch(self._paths.run, first_rank)
        agent.run("")
        return agent.exit_codes(first_rank)


class _Agent(LocalElasticAgent):
    over: threading.Event

    def watch(self, run: Path, first_rank: int) -> None:
        """Note in `run` how the ranks are found when the first of them has failed."""
        first_end.forget(run)
        self._noted_in, self._first_rank = run, first_rank

    def exit_codes(self, first_rank: int) -> dict[int, int]:
        """Return the exit codes of all local ranks; the run's result has only the first failed one."""
        context: Any = self._pcontext
        processes = context._pc.processes if context is not None else []
        if alive := [process.pid for process in processes if process.is_alive()]:
            cure = "replace the node: its kernel holds the process"
            raise TrainerError("ranks do not end though they were killed", f"processes {alive}", cure)
        return {first_rank + index: process.exitcode or 0 for index, process in enumerate(processes)}

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        context: Any = self._pcontext
        first_end.note(self._noted_in, self._first_rank, context._pc.processes if context is not None else [])
        seen = super()._monitor_workers(worker_group)
        if seen.state == WorkerState.HEALTHY and self.over.is_set():
            return RunResult(state=WorkerState.FAILED)
        return seen


class _Rendezvous(StaticTCPRendezvous):
    """Static rendezvous over a store that is open: pod 0 serves it, whichever ranks it has."""

    generation = 0

    def __init__(self, place: Place, endpoint: tuple[str, int], store: TCPStore, timeout_s: float) -> None:
        run_id = f"{place.campaign}-{place.attempt}"
        super().__init__(*endpoint, place.node_rank, place.node_count, run_id, int(timeout_s))
        self._open = store

    def next_rendezvous(self) -> RendezvousInfo:
        store = PrefixStore(f"{self.run_id}-{self.generation}", self._open)
        info = RendezvousStoreInfo(self.master_addr, self.master_port)
        return RendezvousInfo(store, self.rank, self.world_size, info)


class _RankLogs(LogsSpecs):
    """Names the logs `rank-N.log` by global rank, later generations' apart, and copies them to the agent's stdout."""

    def __init__(self, folder: Path, generation: int) -> None:
        super().__init__(str(folder))
        self._folder, self._of = folder, f"-generation-{generation}" if generation else ""

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        files = {local: str(self._folder / f"rank-{env['RANK']}{self._of}.log") for local, env in envs.items()}
        for env in envs.values():
            env["TORCHELASTIC_ERROR_FILE"] = os.devnull
        nothing = dict.fromkeys(envs, "")
        return LogsDest(stdouts=files, stderrs=nothing, tee_stdouts=dict(files), error_files=dict.fromkeys(envs, ""))

    @property
    def root_log_dir(self) -> str:
        return str(self._folder)
