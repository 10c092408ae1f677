"""What an agent reads of its own node: errors that its GPUs corrected, their heat, and the room that is left.

A thread reads, so that a driver that hangs holds up no answer. What cannot be read is not known.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading
import time
from typing import Any, Callable
from xml.etree import ElementTree

LOCAL, SHM = "/local-checkpoints", "/dev/shm"
"""`trainer.contract.LOCAL_CHECKPOINTS`, and the pod's own memory."""
ACTION, REBALANCE = "/node/instance-action.json", "/node/rebalance.json"
"""`trainer.contract.job.SPOT_NOTICE` and `REBALANCE_NOTICE`."""
_EVERY_S, _GPUS_EVERY = 30.0, 2
"""Between two looks, and looks between two of the GPUs: a query of eight takes a second of one core."""
_QUERY_S = 20.0


class Readings:
    """The newest readings of a node, as `trainer.contract.job.NodeReadings` has them."""

    def __init__(self, local: str = LOCAL, shm: str = SHM, query: Callable[[], str] | None = None) -> None:
        self._local, self._shm, self._query = local, shm, query or _nvidia_smi
        self._gpus: dict[str, Any] = {}
        self.newest: dict[str, Any] = {}
        self._looks = 0

    def open(self) -> None:
        threading.Thread(target=self._run, name="readings", daemon=True).start()

    def _run(self) -> None:
        while True:
            self.look()
            time.sleep(_EVERY_S)

    def look(self) -> None:
        """Read anew."""
        if self._looks % _GPUS_EVERY == 0:
            self._gpus = of_gpus(self._query())
        self._looks += 1
        rooms = {"local_free": _free(self._local), "shm_free": _free(self._shm)}
        self.newest = {name: value for name, value in {**self._gpus, **rooms}.items() if value is not None}


def notice(action: str = ACTION, rebalance: str = REBALANCE) -> dict[str, Any] | None:
    """Return `trainer.contract.job.SpotNotice` by the files that the node writes, in the form of EC2's metadata; None
    without one. https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html"""
    for path, names in ((action, ("action", "time")), (rebalance, ("action", "-"))):
        try:
            with open(path) as file:
                told = json.load(file)
            return {"action": str(told.get(names[0], ""))[:64], "due": told.get(names[1])}
        except (OSError, ValueError, AttributeError, RecursionError):
            continue
    return None


def of_gpus(text: str) -> dict[str, Any]:
    """Return what the output of `nvidia-smi -q -x` says of errors and heat; nothing for any other text."""
    try:
        gpus = ElementTree.fromstring(text.strip()).findall("gpu")
    except ElementTree.ParseError:
        return {}
    counts = [
        int(field.text or "")
        for gpu in gpus
        for field in gpu.findall("ecc_errors/volatile/*")
        if field.tag.endswith("_correctable") and (field.text or "").strip().isdigit()
    ]
    heats = [
        (field.text or "").strip()
        for gpu in gpus
        for name in ("clocks_event_reasons", "clocks_throttle_reasons")
        for field in gpu.findall(f"{name}/*")
        if field.tag.endswith("thermal_slowdown")
    ]
    return {
        "corrected": sum(counts) if counts else None,
        "is_throttled": "Active" in heats if heats else None,
    }


def _nvidia_smi() -> str:
    """Return the tool's answer; empty without one."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return ""
    try:
        answer = subprocess.run((program, "-q", "-x"), capture_output=True, text=True, timeout=_QUERY_S, check=False)
    except (OSError, subprocess.SubprocessError, ValueError):
        return ""
    return answer.stdout


def _free(folder: str) -> float | None:
    """Return the free share of a file system, 0 to 1; None if it cannot be read."""
    try:
        room = os.statvfs(folder)
    except OSError:
        return None
    return round(room.f_bavail / room.f_blocks, 4) if room.f_blocks else None
