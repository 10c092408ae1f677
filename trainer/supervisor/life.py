"""One life of a pod, whatever job it runs: its signals, its scratch folder, its server, and its last words."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tempfile
import threading
from pathlib import Path
from typing import Callable

from trainer.contract.exits import write_termination
from trainer.supervisor import ends, family
from trainer.supervisor.ends import End
from trainer.supervisor.running import Running
from trainer.supervisor.serving import serve

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def live(make_job: Callable[[Path], Running], end_of: Callable[[Exception], End]) -> int:
    """Run a job from the pod's start to its end; return its exit code. `make_job` gets the scratch folder; `end_of`
    reads an error by which it makes none."""
    try:
        run = Path(tempfile.mkdtemp(prefix="bivouac-run-"))
    except OSError as error:
        return _never_began(ends.error_end(error, Path("/tmp"), "no folder for the run: "))
    try:
        job = make_job(run)
    except Exception as error:
        shutil.rmtree(run, ignore_errors=True)
        return _never_began(end_of(error))
    family.adopt()
    stop_on_signals(job)
    try:
        job.readings.open()
        serve(job.place.pod_ip, job.full_status, job.answer_any, stream=job.stream, take=job.take)
        job.emit("agent", phase="starting", node_rank=job.place.node_rank, nodes=job.place.node_count)
        end = job.run()
    except Exception as error:
        end = job.end_of(error)
    job.leave_nothing()
    message = job.message(end)
    fields = {name: value for name, value in json.loads(message).items() if value is not None and name != "ranks"}
    job.emit("agent_ended", **fields)
    write_termination(message)
    job.keep_logs()  # last: a tier that hangs may take what is left of the pod's time
    shutil.rmtree(run, ignore_errors=True)
    return end.code


def _never_began(end: End) -> int:
    """Tell an end before there was a job."""
    print(end.detail, file=sys.stderr)
    variables = {name: os.environ.get(f"BIVOUAC_{name.upper()}", "") for name in ("attempt", "node_name")}
    attempt = int(variables["attempt"]) if variables["attempt"].isdigit() else 0
    write_termination(json.dumps(ends.termination(end, attempt, variables["node_name"], 0, -1)))
    return end.code


def stop_on_signals(job: Running) -> None:
    """Ask the job to stop at a signal, in a thread: the main one may be in a rendezvous, or wait for a slow tier.

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
            if (number := os.read(reader, 1)[0]) in _SIGNALS:  # the pipe tells each signal that has a handler
                try:
                    job.stop(number)
                except Exception as error:  # the next signal must be heard, too
                    job.print_error(error)

    threading.Thread(target=wait, name="signals", daemon=True).start()
