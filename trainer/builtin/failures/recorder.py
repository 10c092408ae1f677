"""Torch's flight recorder: its settings, and its dumps as numbers. `torch.distributed.flight_recorder.fr_trace` reads
the same dumps for a person."""

from __future__ import annotations

import os
import pickle
import shutil
from collections.abc import Iterable, MutableMapping
from contextlib import suppress
from io import BufferedReader
from pathlib import Path
from typing import Any

from trainer.contract.culprit import Exchanges

FOLDER = "flight"
"""Folder below the scratch folder; each rank writes its own files there."""
_ENTRIES = 2000
_PREFIXES = ("nccl_trace_rank_", "gloo_trace_rank_")
_LARGEST_BYTES = 64 * 2**20
_MOST_GROUPS = 6


def settings(run: Path, heartbeat_s: float) -> dict[str, str]:
    """Return what torch reads when it makes a process group; names as in torch 2.13's `ProcessGroupNCCL.hpp` and
    `FlightRecorder.hpp`. `heartbeat_s`: longest silence of a watchdog that is itself stuck in the driver.
    """
    return {
        # 3 ends the process without aborting communicators first, which may hang as the exchange does.
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3",
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
        # Without start events nobody can tell a rank whose GPU never came to an exchange.
        "TORCH_NCCL_ENABLE_TIMING": "1",
        "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": str(int(heartbeat_s)),
        "TORCH_FR_BUFFER_SIZE": str(_ENTRIES),
        "TORCH_FR_DUMP_TEMP_FILE": str(run / FOLDER / _PREFIXES[0]),
    }


def switch_on(environment: MutableMapping[str, str], run: Path, step_timeout_s: float) -> None:
    """Set torch's variables where nobody else has, and make the folder of the dumps."""
    (run / FOLDER).mkdir(parents=True, exist_ok=True)
    # A stuck watchdog must not hide a timeout: it is given longer than any exchange of a step.
    for name, value in settings(run, max(480.0, 2 * step_timeout_s)).items():
        environment.setdefault(name, value)


def dump_own(run: Path) -> None:
    """Write this rank's record of its gloo exchanges. NCCL's watchdog writes that of NCCL's by itself."""
    import torch

    path = run / FOLDER / f"{_PREFIXES[1]}{os.environ['RANK']}"
    temporary = path.with_name(f"{path.name}.partial")
    # A rank that ends must end, also with a full disk.
    with suppress(OSError, RuntimeError, AttributeError):
        trace = torch._C._distributed_c10d._dump_fr_trace(True, False, False)  # type: ignore[attr-defined]
        temporary.write_bytes(trace)
        temporary.rename(path)


def any_dump(run: Path) -> bool:
    return any((run / FOLDER).glob("*_rank_*[0-9]"))


def keep(run: Path, logs: Path) -> None:
    """Copy the dumps beside the ranks' logs; a full disk costs the dumps and no more."""
    with suppress(OSError):
        for dump in sorted((run / FOLDER).glob("*_rank_*")):
            shutil.copy2(dump, logs / dump.name)


def exchanges_of(run: Path, rank: int) -> dict[str, Exchanges]:
    """Return group -> exchanges from the dumps of a rank; empty when it left none."""
    exchanges = dict[str, Exchanges]()
    for prefix in _PREFIXES:
        path = run / FOLDER / f"{prefix}{rank}"
        # The rank may have died while it wrote.
        with suppress(OSError, ValueError, KeyError, TypeError, EOFError, pickle.UnpicklingError):
            status = path.stat()
            if status.st_size <= _LARGEST_BYTES:
                with path.open("rb") as file:
                    exchanges |= summary(load(file), status.st_mtime)
    return exchanges


class _Plain(pickle.Unpickler):
    """A dump holds dictionaries, lists, numbers and text: whatever would run code is refused."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"{module}.{name} in a flight recorder's dump")


def load(file: BufferedReader) -> dict[str, Any]:
    content = _Plain(file).load()
    if not isinstance(content, dict):
        raise ValueError("a flight recorder's dump is a dictionary")
    return content


def summary(dump: dict[str, Any], at_s: float) -> dict[str, Exchanges]:
    """Return group -> exchanges of a dump that was written at `at_s` seconds of the rank's clock."""
    entries = [entry for entry in dump.get("entries", ()) if not entry.get("is_p2p")]
    groups = dict[str, list[dict[str, Any]]]()
    for entry in entries:
        groups.setdefault(entry["process_group"][0], []).append(entry)
    failed_rows = _last_of_threads(entry for entry in entries if _by_gloo(entry))
    exchanges = {
        name: _exchanges(rows, dump.get("pg_status", {}), [id(row) for row in failed_rows], at_s)
        for name, rows in groups.items()
    }
    # A member that has never entered an exchange of a group has no entry of it.
    group_names = [name for name in dump.get("pg_config", {}) if name]
    exchanges |= {name: Exchanges(0, -1, 0) for name in group_names if name not in exchanges}
    waiting_first = sorted(exchanges, key=lambda name: (exchanges[name].waited_s is None, -exchanges[name].enqueued))
    return {name: exchanges[name] for name in waiting_first[:_MOST_GROUPS]}


def _exchanges(
    rows: list[dict[str, Any]], statuses: dict[str, dict[str, int]], failed_ids: list[int], at_s: float
) -> Exchanges:
    newest = max(rows, key=lambda row: row["collective_seq_id"])
    status = statuses.get(str(newest["pg_id"]), {})
    enqueued_seq = max(newest["collective_seq_id"], status.get("last_enqueued_collective", -1))
    started_seq = status.get("last_started_collective", -1)
    completed_seq = max(0, status.get("last_completed_collective", 0))
    if _by_gloo(newest):
        # Gloo notes an exchange as completed also when it fails. The newest of a thread is the one that failed.
        waits = id(newest) in failed_ids
        completed_seq, row = enqueued_seq - waits, newest
    else:
        waits = enqueued_seq > completed_seq
        row = next((row for row in rows if row["collective_seq_id"] > completed_seq), newest)
    if not waits:
        return Exchanges(enqueued_seq, started_seq, completed_seq)
    waited_s = max(0.0, at_s - row["time_created_ns"] / 1e9)
    return Exchanges(enqueued_seq, started_seq, completed_seq, round(waited_s, 3), row.get("timeout_ms", 0) / 1e3)


def _by_gloo(entry: dict[str, Any]) -> bool:
    return str(entry["profiling_name"]).startswith("gloo:")


def _last_of_threads(entries: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    newest_entries = dict[Any, dict[str, Any]]()
    for entry in entries:
        thread = entry.get("thread_id")
        if thread not in newest_entries or entry["time_created_ns"] >= newest_entries[thread]["time_created_ns"]:
            newest_entries[thread] = entry
    return list(newest_entries.values())
