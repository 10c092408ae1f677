"""DeepSpeed's checkpoint engine as we need it: `save` only copies to the host, `load` executes nothing."""

from __future__ import annotations

import collections
import copy
import threading
import time
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


class HostBuffers(dict[tuple[str, int], torch.Tensor]):
    """Host memory by file and the tensor's place in it: pinned where the tensor is on a GPU, and used again by the
    next save, since fresh pages cost more than the copy into them."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()

    def like(self, name: str, ordinal: int, tensor: torch.Tensor) -> torch.Tensor:
        """The buffer for a tensor of this shape; made, with every page touched, where there is none yet."""
        with self._lock:
            buffer = self.get((name, ordinal))
            if buffer is None or buffer.shape != tensor.shape or buffer.dtype != tensor.dtype:
                buffer = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=tensor.is_cuda)
                self[name, ordinal] = buffer.zero_()
            return buffer


class HostCopyEngine(CheckpointEngine):
    """Collects what DeepSpeed hands over for one save; the caller takes the snapshots and writes them elsewhere."""

    def __init__(self, verify: Callable[[Path, BufferedReader], None], mapped: bool = False) -> None:
        """`mapped`: as of `load_safely`; for files of a tier of this node, which nobody takes away or writes to."""
        super().__init__()
        self.name = "HostCopyEngine"
        self.copy_s = 0.0
        """Of the last save: what copying took, without DeepSpeed's gathering of its state."""
        self._verify, self._mapped = verify, mapped
        self._snapshots: list[Snapshot] = []
        self._foreseen: list[tuple[str, int, torch.Tensor]] | None = None
        self.buffers = HostBuffers()

    def collect(self, engine: Any, root: Path, tag: str) -> list[Snapshot]:
        """The state of a save, copied to the host: the only part of it for which training waits."""
        assert engine.checkpoint_engine is self, "what is handed over would go elsewhere"
        self._snapshots, self.copy_s = [], 0.0
        hand_over(engine, root, tag)
        self.commit(None)
        taken, self._snapshots = self._snapshots, []
        return taken

    def foresee(self, engine: Any) -> Callable[[], None]:
        """What makes, beside the training, the buffers that a save of this engine will fill."""
        assert engine.checkpoint_engine is self, "what is handed over would go elsewhere"
        foreseen: list[tuple[str, int, torch.Tensor]] = []
        self._foreseen = foreseen
        try:
            hand_over(engine, Path(), "")
        finally:
            self._foreseen, self._snapshots = None, []

        def make() -> None:
            for name, ordinal, tensor in foreseen:
                self.buffers.like(name, ordinal, tensor)

        return make

    def create(self, info: CheckpointCommitInfo) -> None:
        self._snapshots = []

    def save(self, state_dict: Any, path: str) -> None:
        """Copy now, since the tensors are live."""
        name, foreseen, started = Path(path).name, self._foreseen, time.monotonic()

        def to_host(tensor: torch.Tensor, ordinal: int) -> torch.Tensor:
            if foreseen is not None:
                foreseen.append((name, ordinal, tensor))
                return tensor
            return self.buffers.like(name, ordinal, tensor).copy_(tensor, non_blocking=True)

        self._snapshots.append(Snapshot(Path(path), _HostCopy(to_host).of(state_dict)))
        self.copy_s += time.monotonic() - started

    def commit(self, info: CheckpointCommitInfo | None) -> bool:
        # Not `is_available`: without a GPU that looks for the driver's library anew each time, 7 ms.
        if torch.cuda.is_initialized():
            started = time.monotonic()
            torch.cuda.synchronize()
            self.copy_s += time.monotonic() - started
        return True

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """The writer makes folders, durably and with room made first; the loop's thread touches no disk."""

    def load(self, path: str, map_location: Any = None) -> Any:
        """The very file that `verify` has read is loaded, whatever comes to lie under its name meanwhile."""
        with open_regular(Path(path)) as file:
            self._verify(Path(path), file)
            file.seek(0)
            return load_safely(file, self._mapped)

    def preserves_storage_sharing(self) -> bool:
        return False


def hand_over(engine: Any, root: Path, tag: str) -> None:
    """What DeepSpeed 0.19.8's `save_checkpoint` gives its checkpoint engine, without the barriers, the folders and the
    check of the tag around it: all ranks save at the same step by the loop's own agreement, and none waits for another.
    """
    optimizer = engine.optimizer
    if hasattr(optimizer, "checkpoint_event_prologue"):
        optimizer.checkpoint_event_prologue()
    engine._save_checkpoint(str(root), tag)
    if engine.save_zero_checkpoint:
        engine._save_zero_checkpoint(str(root), tag)
    if hasattr(optimizer, "checkpoint_event_epilogue"):
        optimizer.checkpoint_event_epilogue()


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
    """A deep copy of a state whose tensors go through `place`; tensors that were one stay one."""

    def __init__(self, place: Callable[[torch.Tensor, int], torch.Tensor]) -> None:
        self._place = place
        self._seen: dict[int, torch.Tensor] = {}

    def of(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            if id(value) not in self._seen:
                self._seen[id(value)] = self._place(value.detach(), len(self._seen))
            return self._seen[id(value)]
        if isinstance(value, collections.OrderedDict):
            return collections.OrderedDict((key, self.of(item)) for key, item in value.items())
        if isinstance(value, dict):
            return {key: self.of(item) for key, item in value.items()}
        if type(value) in (list, tuple):
            return type(value)(self.of(item) for item in value)
        return copy.deepcopy(value)
