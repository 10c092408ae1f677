"""What the image's own Python is and imports: the answer of a pilot's pod, as a health report. It judges nothing."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from typing import Any

CALL = "imports"
"""Word after the supervisor's name; `trainer.contract.workload.IMPORTS`."""
_LONGEST_S = 300.0
_SAYS = "import torch; print('torch', torch.__version__ + ',', torch.cuda.device_count(), 'CUDA devices')"


def report() -> dict[str, Any]:
    """Return `trainer.contract.HealthReport` as JSON holds it."""
    python = _probe("python", f"{platform.python_version()} at {sys.executable}")
    return {"node": os.environ.get("BIVOUAC_NODE_NAME", ""), "probes": [python, _probe("job torch", _torch())]}


def _torch() -> str:
    try:
        done = subprocess.run(
            [sys.executable, "-c", _SAYS], capture_output=True, text=True, timeout=_LONGEST_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"not imported: {error}"[:300]
    words = (done.stdout if done.returncode == 0 else done.stderr).strip().splitlines() or ["no output"]
    return words[-1][:300] if done.returncode == 0 else f"not imported: {words[-1]}"[:300]


def _probe(name: str, seen: str) -> dict[str, Any]:
    return {"name": name, "ok": True, "seen": seen, "wanted": "told only"}
