"""What the bytes of a checkpoint tell without being executed: whether a file is whole, and its step.

`torch.save` writes a zip whose directory comes last (2.13, `_save`: `data.pkl` first, then the storages; the C++ writer
ends the archive when it is closed). The pickle is read by its opcodes (`pickletools.genops`): nothing is imported or
called. A safetensors file begins with the sizes of all that follows.
"""

from __future__ import annotations

import json
import os
import pickletools
import re
import struct
import zipfile
from pathlib import Path
from typing import Any, Callable

WHOLE, PARTIAL, UNCLEAR = "whole", "partial", "unclear"
_STEPS = (
    "global_step", "global_steps", "step", "step_count", "iteration", "iter_num", "iter", "num_updates", "current_step",
    "ss_steps",
)  # fmt: skip
"""Keys under which scripts and frameworks keep the step, the surest first: Lightning and Hugging Face `global_step`,
DeepSpeed `global_steps`, litgpt `step_count`, Megatron `iteration`, nanoGPT `iter_num`, fairseq `num_updates`, kohya's
scripts `current_step` and `ss_steps`. Not `steps` and `num_steps`: the length of a run has these names too."""
_OF_SETTINGS = re.compile(r"arg|conf|cfg|param|setting|option|flag", re.I)
"""In the name of a JSON file: its numbers are what somebody has asked for."""
_END_OF_INDEX = bytes.fromhex("57fb808b247547db")
"""The last bytes of TensorFlow's index of a checkpoint, a table as LevelDB's."""
_SERIALIZED = re.compile(rb"PK\x03\x04|\x80[\x02-\x05]|(?:[\x81-\x8f]|\xde..|\xdf....)[\xa0-\xbf\xd9-\xdb]", re.DOTALL)
"""The first bytes of a zip of `torch.save`, of a pickle, and of a dictionary of msgpack whose first key is a text."""
_LARGEST_PICKLE, _LARGEST_JSON = 16 * 2**20, 64 * 2**20
_MOST_NOTES = 20_000
_notes: dict[tuple[str, Path], tuple[tuple[int, int, int], Any]] = {}
"""What a file has told, by its identity, size and time of change: a file that has not changed is not read again."""


def _read_once(kind: str, path: Path, read: Callable[[Path], Any]) -> Any:
    """Return what `read` finds in a file, from the last time if the file has not changed; None for one that is gone,
    and for one whose bytes are not what its name says."""
    try:
        now = os.stat(str(path))
        version, note = (now.st_ino, now.st_size, now.st_mtime_ns), _notes.get((kind, path))
        if note is None or note[0] != version:
            if len(_notes) >= _MOST_NOTES:
                _notes.clear()
            _notes[kind, path] = note = (version, _read(path, read))
        return note[1]
    except OSError:
        return None


def _read(path: Path, read: Callable[[Path], Any]) -> Any:
    try:
        return read(path)
    except OSError:
        raise
    except Exception:  # whatever the job's bytes make a reader raise: they tell nothing, and sealing goes on
        return None


def state(path: Path) -> str:
    """Return `WHOLE` or `PARTIAL` for a file that shows it, `UNCLEAR` for any other one that has content."""
    return _read_once("state", path, _state) or PARTIAL


def is_ended(path: Path) -> bool:
    """Return whether a pickle has its last byte; True for anything else. torch before 2.3 wrote DCP's `.metadata` in
    place."""
    return bool(_read_once("end", path, _is_ended))


def _is_ended(path: Path) -> bool:
    with path.open("rb") as file:
        start = file.read(1)
        file.seek(-1, os.SEEK_END)
        return start != b"\x80" or file.read(1) == b"."  # STOP


def _state(path: Path) -> str:
    with path.open("rb") as file:
        start = file.read(8)
        if path.suffix == ".index" and path.stat().st_size >= 8:
            file.seek(-8, os.SEEK_END)
            return WHOLE if file.read(8) == _END_OF_INDEX else PARTIAL
    if start[:4] == b"PK\x03\x04":
        return WHOLE if zipfile.is_zipfile(str(path)) else PARTIAL
    if path.suffix == ".safetensors":
        ends = (row["data_offsets"][1] for name, row in _safetensors(path).items() if name != "__metadata__")
        size = 8 + struct.unpack("<Q", start)[0] + max(ends, default=0)
        return WHOLE if size == path.stat().st_size else PARTIAL
    return UNCLEAR if start else PARTIAL


def is_serialized(path: Path) -> bool:
    """Return whether a file begins as files of state do that need no ending of their own."""
    return bool(_read_once("serialized", path, _is_serialized))


def _is_serialized(path: Path) -> bool:
    with path.open("rb") as file:
        return bool(_SERIALIZED.match(file.read(8)))


def json_of(path: Path) -> dict[str, Any] | None:
    """Return the whole numbers of a JSON file, and an index's map of weights; None for a file that is not whole."""
    return _read_once("json", path, _json)  # type: ignore[no-any-return]


def _json(path: Path) -> dict[str, Any]:
    content = json.loads(path.read_bytes()) if path.stat().st_size <= _LARGEST_JSON else {}
    return {key: value for key, value in dict(content).items() if type(value) is int or key == "weight_map"}


def step_in(path: Path) -> int | None:
    """Return the step that a file's content names at its top level, None if it names none."""
    values = _read_once("values", path, _values) or {}
    steps = (values[key] for key in _STEPS if key in values and 0 <= values[key] < 10**12)
    return next(steps, None)


def names_number(path: Path, number: int) -> bool:
    """Return whether a file's content names a step, or has a number of a name as its `steps`, as HiFi-GAN's."""
    return step_in(path) is not None or (_read_once("values", path, _values) or {}).get("steps") == number


def has_iteration_alone(path: Path) -> bool:
    """Return whether `iteration` is all that a file's content says of its step."""
    return {"iteration"} == set(_STEPS) & set(_read_once("values", path, _values) or {})


def counts_epochs(path: Path, number: int) -> bool:
    """Return whether a file's content names an epoch and no step: the number in its name is the epoch's."""
    return not names_number(path, number) and "epoch" in (_read_once("values", path, _values) or {})


def _values(path: Path) -> dict[str, int]:
    """Return the whole numbers at the top level of a file's content, by their names."""
    if path.suffix == ".json":
        return {} if _OF_SETTINGS.search(path.name) else json_of(path) or {}
    if path.suffix == ".safetensors":
        metadata = _safetensors(path).get("__metadata__", {})
        return {key: int(value) for key, value in metadata.items() if value.isdecimal()}
    return _pickled_numbers(_pickle_of(path))


def _safetensors(path: Path) -> dict[str, Any]:
    """Return the header of a safetensors file: 8 bytes with its length, then JSON."""
    with path.open("rb") as file:
        length = struct.unpack("<Q", file.read(8))[0]
        return dict(json.loads(file.read(length))) if length <= _LARGEST_JSON else {}


def _pickle_of(path: Path) -> bytes:
    """Return the pickle that describes a file's objects, without its tensors; empty for one that has none."""
    with path.open("rb") as file:
        start = file.read(2)
        if start[:1] == b"\x80" and path.stat().st_size <= _LARGEST_PICKLE:
            return start + file.read()
    if start != b"PK":
        return b""
    with zipfile.ZipFile(str(path)) as archive:
        names = (info for info in archive.infolist() if info.filename.endswith("data.pkl"))
        info = next(names, None)
        return archive.read(info) if info is not None and info.file_size <= _LARGEST_PICKLE else b""


_MARK: Any = object()


def _pickled_numbers(pickle_bytes: bytes) -> dict[str, int]:
    """Return the whole numbers at the top level of a pickled dictionary, by their names. Opcodes are only read."""
    stack: list[Any] = [{}]
    memo: dict[Any, Any] = {}
    for code, argument, _ in pickletools.genops(pickle_bytes) if pickle_bytes else ():
        if code.name != "STOP":
            _follow(code, argument, stack, memo)
    return stack[-1] if isinstance(stack[-1], dict) else {}


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
    marked_values: list[Any] = []
    slots = [slot.name for slot in code.stack_before]
    if "mark" in slots:
        while (value := stack.pop()) is not _MARK:
            marked_values.insert(0, value)
        slots = slots[: slots.index("mark")]
    operands = [stack.pop() for _ in slots]
    if code.name in ("SETITEM", "SETITEMS"):
        target, items = (
            (operands[-1], marked_values) if code.name == "SETITEMS" else (operands[2], [operands[1], operands[0]])
        )
        if isinstance(target, dict):
            pairs = zip(items[::2], items[1::2])
            target.update((key, value) for key, value in pairs if isinstance(key, str) and type(value) is int)
        stack.append(target)
    elif code.name == "BUILD":
        stack.append(operands[-1])
    elif code.name in ("EMPTY_DICT", "DICT", "REDUCE", "NEWOBJ"):  # what is called may be an `OrderedDict`
        stack.append({})
    elif code.stack_after:
        is_plain = type(argument) in (int, str) and not code.stack_before
        stack.extend([argument if is_plain else None] * len(code.stack_after))
