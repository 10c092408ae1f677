"""`python -m trainer.builtin.agent`: the entry point of a training pod, one job of the supervisor's.

It starts the local ranks, and starts them again where `trainer.supervisor.in_place` says so; all other restarts are the
infrastructure's. Signals, server and last words are any supervisor's.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.builtin.checkpoint.tiers import Tier
from trainer.builtin.config import load_config
from trainer.builtin.failures import recorder
from trainer.builtin.failures.verdict import cause_of
from trainer.builtin.heartbeat import forget_beats, read_beats
from trainer.builtin.rank import import_ahead, rank_main
from trainer.builtin.ranks import Ranks
from trainer.builtin.serving import Node, new_token
from trainer.contract import CONFIG_FILE, DATA_MOUNT, LOCAL_CHECKPOINTS, SHARED_CHECKPOINTS, Env
from trainer.contract.exits import PEER_LOST, write_termination
from trainer.errors import ConfigError, classify
from trainer.events import emit
from trainer.health.gpus import suspicion
from trainer.health.looking import Look, look
from trainer.network import interface_of, split_endpoint, wait_for_name
from trainer.place import GENERATION_VARIABLE, Paths, place_of
from trainer.supervisor.ends import INTERNAL, INTERRUPTED, End
from trainer.supervisor.in_place.generations import Generations
from trainer.supervisor.in_place.meeting import Meeting, Word
from trainer.supervisor.life import live

if TYPE_CHECKING:
    from torch.distributed import TCPStore

_LOOK_S = 0.2


def main() -> int:
    options = _parse()
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    folders = (options.config, options.data, options.local, options.shared)
    return live(lambda run: TrainerJob(Paths(*folders, run), options.join_timeout_s), end_of)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m trainer.builtin.agent", description="Entry point of a training pod."
    )
    parser.add_argument("--config", type=Path, default=Path(CONFIG_FILE))
    parser.add_argument("--data", type=Path, default=Path(DATA_MOUNT))
    parser.add_argument("--local", type=Path, default=Path(LOCAL_CHECKPOINTS))
    parser.add_argument("--shared", type=Path, default=Path(SHARED_CHECKPOINTS))
    parser.add_argument("--join-timeout-s", type=float, help="wait so long for the other nodes; else as configured")
    return parser.parse_args()


def end_of(error: Exception) -> End:
    """Return the end that an error of the agent means."""
    failure = classify(error)
    if failure is not error:
        traceback.print_exception(error)
    return End(int(failure.exit_code), str(failure), failure.reason)


class TrainerJob(Node):
    """One node's share of a training by the built-in trainer."""

    def __init__(self, paths: Paths, join_timeout_s: float | None = None, look: Look = look) -> None:
        """Raises `ConfigError` where place or configuration are not as they must be."""
        place = place_of(os.environ)
        self.paths, self.settings, self._look = paths, load_config(paths.config), look
        if self.settings.campaign != place.campaign:
            raise ConfigError("configuration of another campaign", f"{self.settings.campaign} in {place.campaign}")
        super().__init__(place, self.settings.steps, paths.run, paths.local / place.campaign)
        self._join_timeout_s = join_timeout_s or self.settings.start_timeout_s
        self._meeting = Meeting(place, self.settings.meet_s)
        self._has_gpus = any(Path("/dev").glob("nvidia[0-9]*"))
        self._logs = paths.run
        self._ranks: Ranks

    def emit(self, event: str, **fields: object) -> None:
        emit(event, **fields)

    def end_of(self, error: Exception) -> End:
        return end_of(error)

    def take(self, message: Mapping[str, Any]) -> dict[str, Any]:
        return self._meeting.table.take(message)

    def run(self) -> End:
        """Join the other nodes and run the ranks, generation after generation."""
        new_token()
        self._prepare_environment()
        recorder.switch_on(os.environ, self.run_folder, self.settings.collective_timeout_s)
        host, port = split_endpoint(self.place.rendezvous)
        wait_for_name(host, self._join_timeout_s)
        store = self._join_in_order((host, port))
        start_method, ahead = "spawn" if self._has_gpus else "fork", partial(import_ahead, self.settings.model)
        if not self._has_gpus:
            ahead()
        self._logs, restarts = self._rank_logs(), self.settings.restarts_in_place
        self._ranks = Ranks(self.place, store, self._logs, rank_main, self.paths, start_method, restarts, ahead)
        return Generations(self, self.place.node_name, self._meeting, restarts).run()

    def _join_in_order(self, endpoint: tuple[str, int]) -> TCPStore:
        """Join the other nodes, and take the rank that fits what this node holds. Return the gang's store."""
        # Torch reads thread counts at its import: after the environment is set, once for agent and ranks.
        from trainer.builtin.rank_order import agree, standing
        from trainer.store import open_store

        store = open_store(self.place, endpoint, timedelta(seconds=self._join_timeout_s))
        own_standing = standing(Tier("local", self.checkpoints), self.place, self.paths.config)
        pod = self.place.node_rank
        self.place = self.place._replace(node_rank=agree(store, self.place, own_standing, self._look))
        os.environ[Env.NODE_RANK] = str(self.place.node_rank)
        newest_step = sorted(own_standing.held, reverse=True)[:1]
        emit("node_rank", pod=pod, node_rank=self.place.node_rank, holds=newest_step)
        return store

    def _prepare_environment(self) -> None:
        """Set what torch, gloo and DeepSpeed read at their import."""
        interface = interface_of(self.place.pod_ip)
        os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = str(self.settings.threads)
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
        os.environ.setdefault("NCCL_SOCKET_IFNAME", interface)
        if self._has_gpus:
            from trainer.health.infiniband.node import choice_of, nccl_environment

            # Those of a person or of the plugin for EFA stand; without InfiniBand and RoCE there are none.
            for name, value in nccl_environment(choice_of(self._look)).items():
                os.environ.setdefault(name, value)
            # The allocator's blocks then grow, instead of lying about in sizes that nothing asks for any more.
            os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")
        else:
            os.environ["DS_ACCELERATOR"] = "cpu"

    def stop(self, number: int) -> None:
        """Ask the ranks to commit and end, by a file that a rank which still starts will also see. Before the first
        has started, end at once: the main thread may be in a rendezvous."""
        self.stopping = signal.Signals(number).name
        emit("stopping", signal=self.stopping)
        self.messages.stop()
        if not read_beats(self.run_folder):
            write_termination(self.message(End(INTERRUPTED, "asked to stop before the ranks had started")))
            os._exit(INTERRUPTED)

    def start_ranks(self, generation: int, over_event: threading.Event) -> End:
        codes = self._ranks.run(generation, over_event)
        end = cause_of(self.run_folder, self._logs, codes)
        by_us = over_event.is_set() and all(code in (0, -signal.SIGTERM) for code in codes.values())
        if by_us and not any(beat.outcome for beat in read_beats(self.run_folder)):
            detail = "another node's agent said that a process had died"
            return end._replace(code=INTERNAL, reason=PEER_LOST, rank=None, detail=detail)
        return end

    def suspicion(self) -> str:
        return suspicion(self._look) if self._has_gpus else ""

    def prepare(self, generation: int, culprit: Word) -> None:
        """Set the generation, which ranks inherit, and remove the beats of dead ranks."""
        forget_beats(self.run_folder)
        os.environ[GENERATION_VARIABLE] = str(generation)
        if self.place.node_rank == 0:
            threading.Thread(target=self._tell, args=(generation, culprit), name="restarted", daemon=True).start()

    def _tell(self, generation: int, culprit: Word) -> None:
        """Say that ranks were started again, with the seconds from the death to their first new step."""
        while os.environ.get(GENERATION_VARIABLE) == str(generation):
            beats = read_beats(self.run_folder)
            if len(beats) == self.place.ranks_per_node and all(beat.step_seconds is not None for beat in beats):
                emit("restarted_in_place", generation=generation, step=self.newest_steps()[0], **culprit.event())
                return
            time.sleep(_LOOK_S)

    def _logs_below(self, tier: Path) -> Path:
        folder = tier / self.place.campaign / "logs" / f"attempt-{self.place.attempt:04d}"
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def _rank_logs(self) -> Path:
        """Return the folder of the ranks' logs: with a full local tier the scratch folder, so that the pod starts."""
        try:
            return self._logs_below(self.paths.local)
        except OSError as error:
            emit("logs_moved", why=f"{self.paths.local}: {error.strerror}", to=str(self.run_folder))
            return self.run_folder

    def keep_logs(self) -> None:
        """Copy the ranks' logs to the shared tier. Without a shared file system the log that the steward ships is the
        one that stays."""
        with contextlib.suppress(OSError):
            recorder.keep(self.run_folder, self._logs_below(self.paths.local))
            if self.paths.shared.is_dir():
                shared = self._logs_below(self.paths.shared)
                shutil.copytree(self._logs_below(self.paths.local), shared, dirs_exist_ok=True)


def _exit(code: int) -> Any:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    _exit(main())
