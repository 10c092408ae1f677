"""`python -m trainer.builtin.agent`: the entry point of a training pod.

It starts the local ranks, serves their state, forwards their output, and ends with the contract's exit code and
termination message. It starts them again where `in_place` says so; all other restarts are the infrastructure's.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import sys
import tempfile
import threading
import traceback
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.builtin.checkpoint.tiers import Tier
from trainer.builtin.config import load_config
from trainer.builtin.failures import recorder
from trainer.builtin.failures.verdict import Cause, cause_of
from trainer.builtin.heartbeat import read_beats, request_stop
from trainer.builtin.rank import rank_main
from trainer.builtin.serving import Node, new_token, serve
from trainer.contract import (
    CONFIG_FILE,
    DATA_MOUNT,
    LOCAL_CHECKPOINTS,
    SHARED_CHECKPOINTS,
    Env,
    ExitCode,
    Termination,
    TrainConfig,
)
from trainer.contract.exits import write_termination
from trainer.errors import ConfigError, classify
from trainer.events import emit
from trainer.network import interface_of, split_endpoint, wait_for_name
from trainer.place import Paths, place_of
from trainer.supervisor.place import Place

if TYPE_CHECKING:
    from torch.distributed import TCPStore

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def main() -> int:
    options = _parse()
    paths = Paths(
        options.config, options.data, options.local, options.shared, Path(tempfile.mkdtemp(prefix="bivouac-run-"))
    )
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    place: Place | None = None
    try:
        place = place_of(os.environ)
        config = load_config(paths.config)
        if config.campaign != place.campaign:
            raise ConfigError("configuration of another campaign", f"{config.campaign} in {place.campaign}")
        _stop_on_signals(place, paths.run)
        termination = _run(place, config, paths, options.join_timeout_s or config.start_timeout_s)
    except Exception as error:
        failure = classify(error)
        if failure is not error:
            traceback.print_exception(error)
        print(failure, file=sys.stderr)
        termination = _termination(place, paths.run, Cause(int(failure.exit_code), failure.reason, detail=str(failure)))
    _leave(place, paths, termination)
    return termination.exit_code


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


def _run(place: Place, config: TrainConfig, paths: Paths, join_timeout_s: float) -> Termination:
    node = Node(place, config.steps, paths.run, paths.local / config.campaign)
    new_token()
    serve(node)
    emit("agent", phase="starting", node_rank=place.node_rank, nodes=place.node_count)
    has_gpus = _prepare_environment(place, config)
    recorder.switch_on(os.environ, paths.run, config.collective_timeout_s)
    # Torch reads thread counts at its import: after the environment is set, once for agent and ranks.
    from trainer.builtin.in_place.generations import Generations
    from trainer.builtin.ranks import Ranks

    host, port = split_endpoint(place.rendezvous)
    wait_for_name(host, join_timeout_s)
    store, place = _join_in_order(place, paths, (host, port), join_timeout_s)
    node.place = place
    if not has_gpus:
        from trainer.builtin.assembly import import_ahead

        import_ahead(config.model)
    logs, method = _rank_logs(paths, place), "spawn" if has_gpus else "fork"

    def verdict(exit_codes: dict[int, int]) -> Termination:
        return _termination(place, paths.run, cause_of(paths.run, logs, exit_codes))

    generations = Generations(place, paths.run, config.restarts_in_place, config.meet_s, has_gpus, verdict)
    return generations.run(Ranks(place, store, logs, rank_main, paths, method))


def _join_in_order(place: Place, paths: Paths, endpoint: tuple[str, int], timeout_s: float) -> tuple[TCPStore, Place]:
    """Join the other nodes. Return the gang's store, and the place with the rank that fits what this node holds."""
    from trainer.builtin.rank_order import agree, standing
    from trainer.store import open_store

    store = open_store(place, endpoint, timedelta(seconds=timeout_s))
    own_standing = standing(Tier("local", paths.local / place.campaign), place, paths.config)
    new_place = place._replace(node_rank=agree(store, place, own_standing))
    os.environ[Env.NODE_RANK] = str(new_place.node_rank)
    newest_step = sorted(own_standing.held, reverse=True)[:1]
    emit("node_rank", pod=place.node_rank, node_rank=new_place.node_rank, holds=newest_step)
    return store, new_place


def _prepare_environment(place: Place, config: TrainConfig) -> bool:
    """Set what torch, gloo and DeepSpeed read at their import. Return whether there are CUDA devices."""
    has_gpus = any(Path("/dev").glob("nvidia[0-9]*"))
    interface = interface_of(place.pod_ip)
    os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = str(config.threads)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
    os.environ.setdefault("NCCL_SOCKET_IFNAME", interface)
    if has_gpus:
        # The allocator's blocks then grow, instead of lying about in sizes that nothing asks for any more.
        os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    else:
        os.environ["DS_ACCELERATOR"] = "cpu"
    return has_gpus


def _stop_on_signals(place: Place, run: Path) -> None:
    """Turn SIGTERM into a stop request to the ranks, in a thread: the main thread may be in a rendezvous.

    Libraries have threads that block no signal (numpy's, from its import on), and multiprocessing unblocks both when it
    spawns. So no mask keeps a signal for the thread: whichever thread gets it, a handler passes it on by a pipe.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer)
    for number in _SIGNALS:
        signal.signal(number, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)  # a forked rank must not pass its own end on

    def wait() -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        while True:
            signal_number = os.read(reader, 1)[0]
            emit("stopping", signal=signal.Signals(signal_number).name)
            request_stop(run)
            if not read_beats(run):
                detail = "asked to stop before the ranks had started"
                cause = Cause(int(ExitCode.INTERRUPTED), "interrupted", detail=detail)
                write_termination(_termination(place, run, cause).message())
                os._exit(cause.code)

    threading.Thread(target=wait, name="signals", daemon=True).start()


def _termination(place: Place | None, run: Path, cause: Cause) -> Termination:
    beats = read_beats(run)
    return Termination(
        exit_code=cause.code,
        reason=cause.reason,
        attempt=place.attempt if place else -1,
        node=place.node_name if place else "",
        step=min((beat.step for beat in beats), default=0),
        committed_step=max((beat.committed_step for beat in beats), default=-1),
        signal=cause.signal_number,
        rank=cause.rank,
        detail=cause.detail[:1500],
        ranks=cause.ranks,
    )


def _logs(tier: Path, place: Place) -> Path:
    folder = tier / place.campaign / "logs" / f"attempt-{place.attempt:04d}"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _rank_logs(paths: Paths, place: Place) -> Path:
    """Return the folder of the ranks' logs: the scratch folder if the local tier is full, so that the pod starts."""
    try:
        return _logs(paths.local, place)
    except OSError as error:
        emit("logs_moved", why=f"{paths.local}: {error.strerror}", to=str(paths.run))
        return paths.run


def _leave(place: Place | None, paths: Paths, termination: Termination) -> None:
    """Write the termination message, copy the ranks' logs to the shared tier, and remove the scratch folder."""
    emit("agent_ended", **termination.model_dump(exclude_none=True, exclude={"attempt", "node", "ranks"}))
    write_termination(termination.message())
    if place is not None:
        # Without a shared file system the log that the steward ships is the one that stays.
        with contextlib.suppress(OSError):
            recorder.keep(paths.run, _logs(paths.local, place))
            if paths.shared.is_dir():
                shutil.copytree(_logs(paths.local, place), _logs(paths.shared, place), dirs_exist_ok=True)
    shutil.rmtree(paths.run, ignore_errors=True)


def _exit(code: int) -> Any:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    _exit(main())
