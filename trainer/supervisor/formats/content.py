"""What the bytes of a checkpoint tell without being executed: whether a file is whole, and its step.

`torch.save` writes a zip whose directory comes last (2.13, `_save`: `data.pkl` first, then the storages; the C++ writer
ends the archive when it is closed). The pickle is read by its opcodes (`pickletools.genops`): nothing is imported or
called. A safetensors file begins with the sizes of all that follows.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickletools
import struct
import zipfile
from pathlib import Path
from typing import Any, Callable

WHOLE, PARTIAL, UNCLEAR = "whole", "partial", "unclear"
_STEPS = (
    "global_step", "global_steps", "step", "steps", "step_count", "iteration", "iter_num", "iter", "num_updates",
    "current_step", "num_steps", "n_iter",
)  # fmt: skip
"""Keys under which scripts and frameworks keep the step, the surest first: Lightning and Hugging Face `global_step`,
DeepSpeed `global_steps`, litgpt `step_count`, Megatron `iteration`, nanoGPT `iter_num`, fairseq `num_updates`."""
_LARGEST_PICKLE, _LARGEST_JSON = 16 * 2**20, 64 * 2**20
_MOST_NOTES = 20_000
_notes: dict[tuple[str, Path], tuple[tuple[int, int, int], Any]] = {}
"""What a file has told, by its identity, size and time of change: a file that has not changed is not read again."""


def _noted(kind: str, path: Path, read: Callable[[Path], Any]) -> Any:
    """Return what `read` finds in a file, from the last time if the file has not changed. Raises `OSError`."""
    now = os.stat(str(path))
    version, key = (now.st_ino, now.st_size, now.st_mtime_ns), (kind, path)
    note = _notes.get(key)
    if note is None or note[0] != version:
        if len(_notes) >= _MOST_NOTES:
            _notes.clear()
        _notes[key] = note = (version, read(path))
    return note[1]


def state(path: Path) -> str:
    """Return `WHOLE` or `PARTIAL` for a file that shows it, `UNCLEAR` for any other one that has content."""
    try:
        return str(_noted("state", path, _state))
    except OSError:
        return PARTIAL


def _state(path: Path) -> str:
    with path.open("rb") as file:
        start = file.read(8)
    if not start:
        return PARTIAL
    if start[:4] == b"PK\x03\x04":
        return WHOLE if zipfile.is_zipfile(str(path)) else PARTIAL
    if path.suffix == ".safetensors":
        header = _safetensors(path)
        ends = [row["data_offsets"][1] for name, row in (header or {}).items() if name != "__metadata__"]
        size = 8 + struct.unpack("<Q", start)[0] + max(ends, default=0) if header is not None else -1
        return WHOLE if size == path.stat().st_size else PARTIAL
    if path.suffix == ".json":
        return WHOLE if _json(path) is not None else PARTIAL
    return UNCLEAR


def is_json(path: Path) -> bool:
    return json_of(path) is not None


def json_of(path: Path) -> Any | None:
    """Return the content of a JSON file, None for one that is not whole."""
    with contextlib.suppress(OSError):
        return _noted("json", path, _json)
    return None


def _json(path: Path) -> Any | None:
    try:
        content = json.loads(path.read_bytes()) if path.stat().st_size <= _LARGEST_JSON else None
    except (ValueError, RecursionError):
        return None
    if isinstance(content, dict):  # the rest, such as a log of all steps, would be kept in memory
        return {key: value for key, value in content.items() if isinstance(value, (int, str)) or key == "weight_map"}
    return content


def step_in(path: Path) -> int | None:
    """Return the step that a file's content names at its top level, None if it names none."""
    with contextlib.suppress(OSError):
        return _noted("step", path, _step)  # type: ignore[no-any-return]
    return None


def _step(path: Path) -> int | None:
    values: dict[str, Any] = {}
    if path.suffix == ".json":
        content = _json(path)
        values = content if isinstance(content, dict) else {}
    elif path.suffix == ".safetensors":
        metadata = (_safetensors(path) or {}).get("__metadata__")
        pairs = metadata.items() if isinstance(metadata, dict) else ()
        values = {key: int(value) for key, value in pairs if isinstance(value, str) and value.isdecimal()}
    else:
        values = _pickled(_pickle_of(path))
    steps = (values[key] for key in _STEPS if type(values.get(key)) is int and 0 <= values[key] < 10**12)
    return next(steps, None)


def _safetensors(path: Path) -> dict[str, Any] | None:
    """Return the header of a safetensors file, None if it is none: 8 bytes with its length, then JSON."""
    with path.open("rb") as file:
        start = file.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
        if not 0 < length <= _LARGEST_JSON:
            return None
        try:
            header = json.loads(file.read(length))
        except (ValueError, RecursionError):
            return None
    return header if isinstance(header, dict) else None


def _pickle_of(path: Path) -> bytes:
    """Return the pickle that describes a file's objects, without its tensors; empty for one that has none."""
    try:
        with zipfile.ZipFile(str(path)) as archive:
            for info in archive.infolist():
                if info.filename.endswith("data.pkl") and info.file_size <= _LARGEST_PICKLE:
                    return archive.read(info)
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, ValueError):
        pass  # no zip, or none of torch's
    with path.open("rb") as file:
        if file.read(1) == b"\x80" and path.stat().st_size <= _LARGEST_PICKLE:
            return b"\x80" + file.read()
    return b""


_MARK: Any = object()


def _pickled(pickled: bytes) -> dict[str, int]:
    """Return the whole numbers at the top level of a pickled dictionary, by their names. Opcodes are only read."""
    stack: list[Any] = []
    memo: dict[Any, Any] = {}
    try:
        for code, argument, _ in pickletools.genops(pickled):
            if code.name == "STOP":
                break
            _follow(code, argument, stack, memo)
        top = stack[-1] if stack else None
    except (ValueError, IndexError, KeyError, RecursionError, OverflowError):
        return {}
    return top if isinstance(top, dict) else {}


def _follow(code: Any, argument: Any, stack: list[Any], memo: dict[Any, Any]) -> None:
    """Do to `stack` what one opcode does, with None for each object that is no text, whole number or dictionary."""
    if code.name in ("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"):
        memo[len(memo) if argument is None else int(argument)] = stack[-1]
        return
    if code.name in ("GET", "BINGET", "LONG_BINGET"):
        stack.append(memo[int(argument)])
        return
    if code.name == "MARK":
        stack.append(_MARK)
        return
    taken: list[Any] = []
    slots = [slot.name for slot in code.stack_before]
    if "mark" in slots:
        while (value := stack.pop()) is not _MARK:
            taken.insert(0, value)
        slots = slots[: slots.index("mark")]
    below = [stack.pop() for _ in slots]
    if code.name in ("SETITEM", "SETITEMS"):
        target, items = (below[-1], taken) if code.name == "SETITEMS" else (below[2], [below[1], below[0]])
        if isinstance(target, dict):
            pairs = zip(items[::2], items[1::2])
            target.update((key, value) for key, value in pairs if isinstance(key, str) and type(value) is int)
        stack.append(target)
    elif code.name == "BUILD":
        stack.append(below[-1])
    elif code.name in ("EMPTY_DICT", "DICT", "REDUCE", "NEWOBJ"):  # what is called may be an `OrderedDict`
        stack.append({})
    elif code.stack_after:
        known = type(argument) in (int, str) and not code.stack_before
        stack.extend([argument if known else None] * len(code.stack_after))
