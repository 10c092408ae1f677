"""`python3 supervisor.pyz`: entry point of a workload's pod."""

from __future__ import annotations

import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from pathlib import Path
from typing import Any, Iterator

from trainer.contract.exits import REASONS, fitting, write_termination
from trainer.supervisor import ends, family, shell
from trainer.supervisor.ends import INTERNAL, STORAGE, USER, End
from trainer.supervisor.job import Job
from trainer.supervisor.judge import Judge
from trainer.supervisor.place import Place
from trainer.supervisor.redact import take_secrets
from trainer.supervisor.serving import serve
from trainer.supervisor.warm import ranks
from trainer.supervisor.warm.again import Again

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
IMPORTS = "imports"
"""Word after the supervisor's name; `trainer.contract.workload.IMPORTS`."""
_LONGEST_S = 300.0
_SAYS = "import torch; print('torch', torch.__version__ + ',', torch.cuda.device_count(), 'CUDA devices')"


def main() -> int:
    """Run one node's share of the job, or, with the word `evaluate`, its evaluation and export. `BIVOUAC_WORKLOAD`,
    `_SHARED`, `_LOCAL`, `_SECRETS` and `_EXPORTS` name other places than a pod's."""
    config_file = Path(os.environ.get("BIVOUAC_WORKLOAD", "/config/workload.json"))
    shared = Path(os.environ.get("BIVOUAC_SHARED", "/shared-checkpoints"))
    local = Path(os.environ.get("BIVOUAC_LOCAL", "/local-checkpoints"))
    try:
        place, config = Place.from_environment(), json.loads(config_file.read_text())
        take_secrets(config.get("secrets", ()))
    except (OSError, ValueError) as error:
        return _never_began(USER, f"the workload's pod is not as it must be: {error}")
    try:
        run = Path(tempfile.mkdtemp(prefix="bivouac-run-"))
    except OSError as error:
        return _never_began(STORAGE, "no folder for the run: " + ends.of_error(error, Path("/tmp")))
    family.adopt()
    export_folder = Path(os.environ.get("BIVOUAC_EXPORTS", "/bivouac-export"))
    judges = sys.argv[1:] == ["evaluate"]
    kind = Again if config.get("warm") else Job
    job = Judge(config, place, shared, run, export_folder) if judges else kind(config, place, shared, run, local)
    _stop_on_signals(job, float(config.get("grace_s", 50.0)))
    try:
        serve(place.pod_ip, job.status, job.sealing.answer)
        job.emit("agent", phase="starting", node_rank=place.node_rank, nodes=place.node_count)
        end = job.run()
    except OSError as error:
        end = End(STORAGE, ends.of_error(error, job.tier))
    except Exception as error:
        end = End(INTERNAL, repr(error))
        print(job.secrets.text(traceback.format_exc()), file=sys.stderr)
    job.leave_nothing()
    message = _termination(job, end)
    job.emit("agent_ended", **{name: value for name, value in message.items() if value is not None})
    _write_message(message)
    shutil.rmtree(run, ignore_errors=True)
    return end.code


def _never_began(code: int, detail: str) -> int:
    """Tell an end before there was a job."""
    print(detail, file=sys.stderr)
    variables = {name: os.environ.get(f"BIVOUAC_{name.upper()}", "") for name in ("attempt", "node_name")}
    message = {
        "exit_code": code, "reason": REASONS[code], "node": variables["node_name"], "step": 0, "committed_step": -1,
        "attempt": int(variables["attempt"]) if variables["attempt"].isdigit() else 0, "signal": None, "rank": None,
        "detail": detail[:1500],
    }  # fmt: skip
    _write_message(message)
    return code


def _stop_on_signals(job: Job, grace_s: float) -> None:
    """A thread waits for signals, since the main one may wait for a file on a slow tier."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)

    def wait() -> None:
        while True:
            job.stop(signal.sigwait(_SIGNALS), grace_s)

    threading.Thread(target=wait, name="signals", daemon=True).start()


def _termination(job: Job, end: End) -> dict[str, Any]:
    """`trainer.contract.Termination`; of an evaluation also the digest of its judgement."""
    process = job.process
    number = -process.returncode if process is not None and (process.returncode or 0) < 0 else None
    return {
        "exit_code": end.code,
        "reason": end.reason or REASONS.get(end.code, "signal" if number else "internal"),
        "attempt": job.place.attempt,
        "node": job.place.node_name,
        "step": job.step,
        "committed_step": job.committed_step,
        "signal": number,
        "rank": end.rank,
        "detail": job.secrets.text(end.detail)[:1500],
        **({"judgement": job.judgement} if isinstance(job, Judge) else {}),
    }


def _write_message(message: dict[str, Any]) -> None:
    """Write a message with as much of its detail as a termination message has room for."""
    write_termination(fitting(json.dumps(text, ensure_ascii=False) for text in _shorter(message)))


def _shorter(message: dict[str, Any]) -> Iterator[dict[str, Any]]:
    while message["detail"]:
        yield message
        message = {**message, "detail": message["detail"][: len(message["detail"]) * 3 // 4]}
    yield message


def report() -> dict[str, Any]:
    """Return what the image's own Python is and imports, as JSON holds `trainer.contract.HealthReport`. It judges
    nothing."""
    python = _probe("python", f"{platform.python_version()} at {sys.executable}")
    return {"node": os.environ.get("BIVOUAC_NODE_NAME", ""), "probes": [python, _probe("job torch", _torch_words())]}


def _torch_words() -> str:
    try:
        process = subprocess.run(
            [sys.executable, "-c", _SAYS], capture_output=True, text=True, timeout=_LONGEST_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"not imported: {error}"[:300]
    words = (process.stdout if process.returncode == 0 else process.stderr).strip().splitlines() or ["no output"]
    return words[-1][:300] if process.returncode == 0 else f"not imported: {words[-1]}"[:300]


def _probe(name: str, text: str) -> dict[str, Any]:
    return {"name": name, "ok": True, "seen": text, "wanted": "told only"}


def start() -> None:
    """Run, and leave without waiting for threads that may hang on a slow tier. With a first argument of `shell`: be one
    end of a remote shell for `mpirun`; of `warm-ranks`: import, and fork the ranks; of `imports`: only tell what the
    image's Python is."""
    if sys.argv[1:2] == [shell.CALL]:
        code = shell.call(sys.argv[2:])
    elif sys.argv[1:2] == [shell.LISTEN]:
        place = Place.from_environment()
        code = shell.listen(place.pod_ip, place.node_rank)
    elif sys.argv[1:2] == [ranks.CALL]:
        code = ranks.main(json.loads(sys.argv[2]))
    elif sys.argv[1:2] == [IMPORTS]:
        message, code = json.dumps(report()), 0
        print(message)
        write_termination(message)
    else:
        code = main()
    sys.stdout.flush()
    os._exit(code)


if __name__ == "__main__":
    start()
