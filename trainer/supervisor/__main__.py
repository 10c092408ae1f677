"""`python3 supervisor.pyz`: entry point of a workload's pod."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

from trainer.contract.exits import write_termination
from trainer.supervisor import ends, shell
from trainer.supervisor.ends import INTERNAL, USER, End
from trainer.supervisor.job import Job
from trainer.supervisor.judge import Judge
from trainer.supervisor.life import live
from trainer.supervisor.place import Place
from trainer.supervisor.redact import take_secrets
from trainer.supervisor.warm import ranks
from trainer.supervisor.warm.job import WarmJob

IMPORTS = "imports"
"""Word after the supervisor's name; `trainer.contract.workload.IMPORTS`."""
_LONGEST_S = 300.0
_SPEC_ERRORS = (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError)
_SAYS = "import torch; print('torch', torch.__version__ + ',', torch.cuda.device_count(), 'CUDA devices')"


def main() -> int:
    """Run one node's share of the job, or, with the word `evaluate`, its evaluation and export. `BIVOUAC_WORKLOAD`,
    `_SHARED`, `_LOCAL`, `_SECRETS` and `_EXPORTS` name other places than a pod's."""
    return live(_make_job, _end_of)


def _end_of(error: Exception) -> End:
    """Return the end that an error means by which no job could be made: the pod's spec lacks a file or names another
    one, or a disk or a limit of the node refused it, which another attempt may not meet."""
    if isinstance(error, (ValueError, *_SPEC_ERRORS)):
        return End(USER, f"the workload's pod is not as it must be: {error}")
    if isinstance(error, OSError):
        return ends.error_end(error, Path(error.filename or "/"), "no job could be made: ")
    traceback.print_exception(type(error), error, error.__traceback__)
    return End(INTERNAL, f"{type(error).__name__}: {error}")


def _make_job(run: Path) -> Job:
    config_file = Path(os.environ.get("BIVOUAC_WORKLOAD", "/config/workload.json"))
    shared = Path(os.environ.get("BIVOUAC_SHARED", "/shared-checkpoints"))
    local = Path(os.environ.get("BIVOUAC_LOCAL", "/local-checkpoints"))
    place, config = Place.from_environment(), json.loads(config_file.read_text())
    take_secrets(config.get("secrets", ()))
    if sys.argv[1:] == ["evaluate"]:
        return Judge(config, place, shared, run, Path(os.environ.get("BIVOUAC_EXPORTS", "/bivouac-export")))
    return (WarmJob if config.get("warm") else Job)(config, place, shared, run, local)


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
