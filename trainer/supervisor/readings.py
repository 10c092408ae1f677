"""What an agent reads of its own node: errors that its GPUs corrected, their heat, EFA's counters, the room that is
left.

A thread reads, so that a driver that hangs holds up no answer. What cannot be read is not known.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading
import time
from pathlib import Path
from typing import Any, Callable, Mapping
from xml.etree import ElementTree

LOCAL, SHM = "/local-checkpoints", "/dev/shm"
"""`trainer.contract.LOCAL_CHECKPOINTS`, and the pod's own memory."""
TIERS = {"local": LOCAL, "shared": "/shared-checkpoints"}
"""Tier -> where a pod has its file system: `trainer.contract.SHARED_CHECKPOINTS`, where it is no bucket."""
EFA = "/sys/class/infiniband"
"""Counters of EFA's driver, a folder for each device; every pod sees them.
https://github.com/amzn/amzn-drivers/tree/master/kernel/linux/efa"""
_EFA_COUNTERS = ("rx_bytes", "tx_bytes", "rx_drops")
ACTION, REBALANCE = "/node/instance-action.json", "/node/rebalance.json"
"""`trainer.contract.job.SPOT_NOTICE` and `REBALANCE_NOTICE`."""
_EVERY_S, _GPUS_EVERY = 30.0, 2
"""Between two looks, and looks between two of the GPUs: a query of eight takes a second of one core."""
_QUERY_S = 20.0


def room_of(folder: str) -> Any:
    """Open a folder, and return the room of its file system. Lustre's client may answer statfs alone from its memory,
    and without the targets that are away (`lazystatfs`, which it sets by default): only who opens asks a server.
    https://git.whamcloud.com/?p=fs/lustre-release.git;a=blob;f=lustre/llite/llite_lib.c"""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        return os.fstatvfs(descriptor)
    finally:
        os.close(descriptor)


class FileSystem:
    """Asks a file system for its room in a thread of its own: Lustre's client holds up whoever asks while its server is
    away."""

    def __init__(self, folder: str, ask: Callable[[str], Any] = room_of) -> None:
        self._folder, self._ask = folder, ask
        self._asked_at: float | None = None
        self._room: Any = None
        """None: not known yet, or no such folder."""
        self._answer_s = 0.0

    def look(self) -> None:
        """Ask anew, unless the last question is still open."""
        if self._asked_at is None:
            self._asked_at = time.monotonic()
            threading.Thread(target=self._take, args=(self._asked_at,), name="room", daemon=True).start()

    def _take(self, asked_at: float) -> None:
        try:
            self._room = self._ask(self._folder)
        except OSError:
            self._room = None
        self._answer_s, self._asked_at = time.monotonic() - asked_at, None

    def facts(self) -> dict[str, float]:
        """Return free and all bytes, and the seconds that the last answer took, or that one is late by now."""
        asked_at, room = self._asked_at, self._room
        if room is None:
            return {}
        waits_s = 0.0 if asked_at is None else time.monotonic() - asked_at
        return {
            "free_bytes": float(room.f_bavail * room.f_frsize),
            "size_bytes": float(room.f_blocks * room.f_frsize),
            "answer_s": round(max(waits_s, self._answer_s), 3),
        }


class Readings:
    """The newest readings of a node, as `trainer.contract.job.NodeReadings` has them."""

    def __init__(
        self,
        local: str = LOCAL,
        shm: str = SHM,
        query: Callable[[], str] | None = None,
        tiers: Mapping[str, str] = TIERS,
        efa: str = EFA,
    ) -> None:
        self._local, self._shm, self._query, self._efa = local, shm, query or _nvidia_smi, Path(efa)
        self._file_systems = {tier: FileSystem(folder) for tier, folder in tiers.items()}
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
        further_readings = {**self._gpus, **rooms, "efa": of_efa(self._efa) or None}
        for file_system in self._file_systems.values():
            file_system.look()
        self.newest = {name: value for name, value in further_readings.items() if value is not None}

    def full(self) -> dict[str, Any]:
        """Return the newest readings with each tier's room, as it is known at this moment."""
        readings = dict(self.newest)
        for tier, file_system in self._file_systems.items():
            for name, value in file_system.facts().items():
                readings.setdefault(name, {})[tier] = value
        return readings


def notice(action: str = ACTION, rebalance: str = REBALANCE) -> dict[str, Any] | None:
    """Return `trainer.contract.job.SpotNotice` by the files that the node writes, in the form of EC2's metadata; None
    without one. https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html"""
    for path, names in ((action, ("action", "time")), (rebalance, ("action", "-"))):
        try:
            with open(path) as file:
                document = json.load(file)
            return {"action": str(document.get(names[0], ""))[:64], "due": document.get(names[1])}
        except (OSError, ValueError, AttributeError, RecursionError):
            continue
    return None


def of_efa(folder: Path) -> dict[str, int]:
    """Return the sums of EFA's counters over all devices below `folder`; nothing without one, and where one cannot be
    read: a sum without it would look like a counter that began anew."""
    try:
        return {
            name: sum(int(path.read_text()) for path in paths)
            for name in _EFA_COUNTERS
            if (paths := list(folder.glob(f"*/ports/*/hw_counters/{name}")))
        }
    except (OSError, ValueError):
        return {}


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
