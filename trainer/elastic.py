"""Torch's elastic agent with a fixed gang and no restarts; ranks' output goes to `rank-N.log` and to our stdout."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch.distributed import PrefixStore, Store
from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing.api import LogsDest, LogsSpecs
from torch.distributed.elastic.rendezvous.api import RendezvousInfo, RendezvousStoreInfo
from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous

from trainer.engine import import_deepspeed
from trainer.failures import first_end
from trainer.model.named import import_transformers
from trainer.place import NodePlace, Paths

_MONITOR_S = 0.2
_EXIT_BARRIER_S = 15
_SHUTDOWN_S = 15


def run_ranks(
    place: NodePlace,
    endpoint: tuple[str, int],
    store: Store,
    join_timeout_s: float,
    logs: Path,
    entrypoint: Callable[[Paths], None],
    paths: Paths,
    start_method: str,
    named: bool = False,
) -> dict[int, int]:
    """Start the local ranks and wait for their end. Return exit codes by global rank, negative for a signal.

    `fork` inherits this process's imports, which saves seconds per rank; CUDA needs `spawn`. `named`: the model is one
    of `transformers`.
    """
    # Its report on a failed rank repeats the rank's output, and formatting it imports torch's compiler (1.5 s).
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    if start_method == "fork":
        import_deepspeed()
        # Every rank inherits these imports; torch's optimizers import the first at their first step (1.5 s).
        import torch._dynamo  # noqa: F401

        import trainer.assembly  # noqa: F401

        if named:
            import_transformers()
    rendezvous = _Rendezvous(place, endpoint, store, join_timeout_s)
    spec = WorkerSpec(
        # Empty, so that passed-through lines carry no prefix and stay JSON.
        role="",
        local_world_size=place.ranks_per_node,
        entrypoint=entrypoint,
        args=(paths,),
        rdzv_handler=rendezvous,
        max_restarts=0,
        monitor_interval=_MONITOR_S,
        master_addr=endpoint[0],
        master_port=endpoint[1],
    )
    agent = _Agent(
        spec,
        logs_specs=_RankLogs(logs),
        start_method=start_method,
        exit_barrier_timeout=_EXIT_BARRIER_S,
        shutdown_timeout=_SHUTDOWN_S,
        log_line_prefix_template="${role_name}",
    )
    agent.watch(paths.run, place.node_rank * place.ranks_per_node)
    agent.run("")
    return agent.exit_codes(place.node_rank * place.ranks_per_node)


class _Agent(LocalElasticAgent):
    def watch(self, run: Path, first_rank: int) -> None:
        """Note in `run` how the ranks are found when the first of them has failed."""
        first_end.forget(run)
        self._noted_in, self._first_rank = run, first_rank

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        context: Any = self._pcontext
        first_end.note(self._noted_in, self._first_rank, context._pc.processes if context is not None else [])
        return super()._monitor_workers(worker_group)

    def exit_codes(self, first_rank: int) -> dict[int, int]:
        """Return the exit codes of all local ranks; the run's result has only the first failed one."""
        context: Any = self._pcontext
        processes = context._pc.processes if context is not None else []
        return {first_rank + index: process.exitcode or 0 for index, process in enumerate(processes)}


class _Rendezvous(StaticTCPRendezvous):
    """Static rendezvous over a store that is open: pod 0 serves it, whichever ranks it has."""

    def __init__(self, place: NodePlace, endpoint: tuple[str, int], store: Store, timeout_s: float) -> None:
        run_id = f"{place.campaign}-{place.attempt}"
        super().__init__(*endpoint, place.node_rank, place.node_count, run_id, int(timeout_s))
        self._open = store

    def next_rendezvous(self) -> RendezvousInfo:
        store = PrefixStore(self.run_id, self._open)
        info = RendezvousStoreInfo(self.master_addr, self.master_port)
        return RendezvousInfo(store, self.rank, self.world_size, info)


class _RankLogs(LogsSpecs):
    """Names the logs `rank-N.log` by global rank and copies them to the agent's stdout."""

    def __init__(self, folder: Path) -> None:
        super().__init__(str(folder))
        self._folder = folder

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        files = {local: str(self._folder / f"rank-{env['RANK']}.log") for local, env in envs.items()}
        for env in envs.values():
            env["TORCHELASTIC_ERROR_FILE"] = os.devnull
        nothing = dict.fromkeys(envs, "")
        return LogsDest(stdouts=files, stderrs=nothing, tee_stdouts=dict(files), error_files=dict.fromkeys(envs, ""))

    @property
    def root_log_dir(self) -> str:
        return str(self._folder)
