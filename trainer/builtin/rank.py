"""One rank: join the gang, restore, train, and end with an exit code that names the cause."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import traceback
from pathlib import Path

from trainer.builtin.failures.recorder import dump_own
from trainer.builtin.heartbeat import Heartbeat, Outcome
from trainer.contract import ExitCode, ModelConfig
from trainer.errors import Interrupted, PeerLost, classify
from trainer.events import emit
from trainer.place import Paths
from trainer.supervisor import stacks
from trainer.supervisor.family import end_with_parent


def rank_main(paths: Paths) -> None:
    """Run one local rank, started by the agent; return only when training is done."""
    _die_with_the_agent()
    os.dup2(sys.stdout.fileno(), sys.stderr.fileno())
    heartbeat = Heartbeat(paths.run, int(os.environ["RANK"]))
    stacks.register(paths.run)
    try:
        # The agent imports this module before it has set the variables that torch reads at its import.
        from trainer.builtin.assembly import train

        train(paths, heartbeat)
        heartbeat.beat(outcome=Outcome(exit_code=ExitCode.DONE, reason="done"))
    except BaseException as error:
        _end(paths.run, heartbeat, error)


def import_ahead(model: ModelConfig) -> None:
    """Import what a rank will need, before there is one."""
    # The same reason as in `rank_main`.
    from trainer.builtin.assembly import import_ahead

    import_ahead(model)


def _end(run: Path, heartbeat: Heartbeat, error: BaseException) -> None:
    """Write the cause to the heartbeat and stderr and exit at once: collectives with a lost peer never finish."""
    failure = classify(error)
    if isinstance(failure, PeerLost):
        # Before the last beat: whoever reads that one finds the dump.
        dump_own(run)
    heartbeat.beat(outcome=Outcome(exit_code=failure.exit_code, reason=failure.reason, detail=str(failure)[:1000]))
    # The log's disk may be the one that failed.
    with contextlib.suppress(OSError):
        if not isinstance(failure, Interrupted):
            traceback.print_exception(error)
        emit("ended", exit_code=int(failure.exit_code), reason=failure.reason, detail=str(failure)[:1000])
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(failure.exit_code)


def _die_with_the_agent() -> None:
    """End with the agent, and let the agent's SIGTERM end this process as by default."""
    end_with_parent()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM, signal.SIGINT})
