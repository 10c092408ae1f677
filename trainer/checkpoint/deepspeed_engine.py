"""DeepSpeed's checkpoint engine as we need it: `save` only copies to the host, `load` executes nothing."""

from __future__ import annotations

import collections
import copy
from collections.abc import Callable
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any

import torch
from deepspeed.runtime.checkpoint_engine.checkpoint_engine import CheckpointCommitInfo, CheckpointEngine
from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler, LossScaler
from deepspeed.runtime.zero.config import ZeroStageEnum
from deepspeed.utils.tensor_fragment import fragment_address

from trainer.checkpoint.files import open_regular
from trainer.errors import StorageError

# What DeepSpeed's own state holds besides tensors and plain values; nothing else is ever constructed on load.
ALLOWED = (LossScaler, DynamicLossScaler, ZeroStageEnum, fragment_address)
# For good: torch's `safe_globals` takes its list away from all threads when one leaves it, and shards are looked at
# side by side. It matters to restricted loads alone, and there are no others here.
torch.serialization.add_safe_globals(list(ALLOWED))

_ZIP = b"PK\x03\x04"


@dataclass(frozen=True)
class Snapshot:
    """State on the host, and where it is to be written."""

    path: Path
    state: Any


class HostCopyEngine(CheckpointEngine):
    """Collects what DeepSpeed hands over for one save; the caller takes the snapshots and writes them elsewhere."""

    def __init__(self, verify: Callable[[Path, BufferedReader], None]) -> None:
        super().__init__()
        self.name = "HostCopyEngine"
        self._verify = verify
        self._snapshots: list[Snapshot] = []
        self._buffers: dict[tuple[str, int], torch.Tensor] = {}

    def create(self, info: CheckpointCommitInfo) -> None:
        self._snapshots = []

    def save(self, state_dict: Any, path: str) -> None:
        """Copy now, since the tensors are live; the buffers are pinned and used again by the next save."""
        self._snapshots.append(Snapshot(Path(path), _HostCopy(Path(path).name, self._buffers).of(state_dict)))

    def commit(self, info: CheckpointCommitInfo) -> bool:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return True

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """The writer makes folders, durably and with room made first; the loop's thread touches no disk."""

    def take(self) -> list[Snapshot]:
        taken, self._snapshots = self._snapshots, []
        return taken

    def load(self, path: str, map_location: Any = None) -> Any:
        """The very file that `verify` has read is loaded, whatever comes to lie under its name meanwhile."""
        with open_regular(Path(path)) as file:
            self._verify(Path(path), file)
            file.seek(0)
            return load_safely(file, mapped=True)

    def preserves_storage_sharing(self) -> bool:
        return False


def load_safely(file: BufferedReader, mapped: bool = False) -> Any:
    """Deserialise onto the CPU through torch's restricted unpickler.

    `mapped`: tensors are the file's own pages, which were in memory anyhow since its digest was computed; what is
    copied to a device is then copied once. Raises `StorageError` for any type outside `ALLOWED` and for what torch did
    not write; nothing is executed.
    """
    # By descriptor: the very file that is open, whatever comes to lie under its name. Torch maps only its newer format.
    mapped = mapped and file.peek(len(_ZIP))[: len(_ZIP)] == _ZIP
    source: Any = f"/proc/self/fd/{file.fileno()}" if mapped else file
    try:
        return torch.load(source, map_location="cpu", weights_only=True, mmap=mapped)
    except Exception as error:
        seen = f"{file.name}: {str(error).splitlines()[0][:300]}"
        raise StorageError("a shard cannot be loaded safely", seen, "use another copy of it") from error


def forbidden(file: BufferedReader) -> str:
    """What in a shard must not be loaded, told from its bytes alone; empty when there is nothing."""
    try:
        names = torch.serialization.get_unsafe_globals_in_checkpoint(file)
    except Exception as error:
        return f"not a file of torch's: {str(error).splitlines()[0][:200]}"
    return f"it would construct {', '.join(sorted(names))}" if names else ""


class _HostCopy:
    """A deep copy of a state whose tensors land in reused host buffers; tensors that were one stay one."""

    def __init__(self, name: str, buffers: dict[tuple[str, int], torch.Tensor]) -> None:
        self._name, self._buffers = name, buffers
        self._seen: dict[int, torch.Tensor] = {}

    def of(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            if id(value) not in self._seen:
                self._seen[id(value)] = self._copy(value.detach(), len(self._seen))
            return self._seen[id(value)]
        if isinstance(value, collections.OrderedDict):
            return collections.OrderedDict((key, self.of(item)) for key, item in value.items())
        if isinstance(value, dict):
            return {key: self.of(item) for key, item in value.items()}
        if type(value) in (list, tuple):
            return type(value)(self.of(item) for item in value)
        return copy.deepcopy(value)

    def _copy(self, tensor: torch.Tensor, ordinal: int) -> torch.Tensor:
        buffer = self._buffers.get((self._name, ordinal))
        if buffer is None or buffer.shape != tensor.shape or buffer.dtype != tensor.dtype:
            buffer = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=tensor.is_cuda)
            self._buffers[self._name, ordinal] = buffer
        return buffer.copy_(tensor, non_blocking=True)
