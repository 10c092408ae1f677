"""A DeepSpeed checkpoint engine whose `save` only copies to the host and whose `load` executes nothing."""

from __future__ import annotations

import collections
import copy
import errno
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
from torch import Tensor

from trainer.builtin.checkpoint.files import open_regular
from trainer.builtin.checkpoint.frozen_weights import frozen_file, joined, split
from trainer.errors import first_line, limit_error, storage_error

# DeepSpeed's state holds these besides tensors and plain values; a load constructs nothing else.
ALLOWED = (LossScaler, DynamicLossScaler, ZeroStageEnum, fragment_address)
# For good: leaving torch's `safe_globals` in one thread removes its list in all threads, and several read shards. The
# list concerns restricted loads only, and all loads here are restricted.
torch.serialization.add_safe_globals(list(ALLOWED))


def _by_value(member: ZeroStageEnum, protocol: int) -> tuple[type[ZeroStageEnum], tuple[int]]:
    return type(member), (member.value,)


# As Python 3.11.4 and later do by themselves. Before, as in Debian 12, an enumeration is pickled as a call of
# `getattr`, which no reader allows: each checkpoint would be refused.
ZeroStageEnum.__reduce_ex__ = _by_value

_ZIP = b"PK\x03\x04"


class CopyStream:
    """A stream for a save's copies to the host: they run beside the next micro batches on the accelerator.

    CUDA keeps the order. The copies begin after all that was computed before them, the next update of the weights
    begins after the copies, and whoever writes the host's buffers to a disk waits for them in its own thread.
    """

    def __init__(self) -> None:
        self._stream: Any = None
        self._end: Any = None
        """Event after the last copy of the newest save; None before the first."""
        self._held: Any = None
        """The optimizer whose updates wait."""

    def copy(self, buffer: Tensor, tensor: Tensor) -> Tensor:
        """Copy a tensor into a buffer of the host; one on an accelerator, beside what is computed there."""
        if not tensor.is_cuda:
            return buffer.copy_(tensor)
        self._stream = self._stream or torch.cuda.Stream()
        # Before each copy: DeepSpeed makes some of a state's tensors while it hands them over.
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            buffer.copy_(tensor, non_blocking=True)
        tensor.record_stream(self._stream)  # nobody else gets its memory before
        return buffer

    def end(self, optimizer: torch.optim.Optimizer | None) -> None:
        """Let the updates of `optimizer` wait for the copies so far. None: the current stream waits at once."""
        if self._stream is None:
            return
        self._end = self._stream.record_event(torch.cuda.Event(blocking=True))
        if optimizer is None:
            self._hold()
        elif optimizer is not self._held:
            self._held = optimizer
            optimizer.register_step_pre_hook(self._hold)

    def wait(self) -> None:
        """Wait on the host until the buffers are filled."""
        if self._end is not None:
            self._end.synchronize()

    def _hold(self, *_: Any) -> None:
        torch.cuda.current_stream().wait_event(self._end)


@dataclass(frozen=True)
class Snapshot:
    """State on the host, and the path to write it to."""

    path: Path
    state: Any
    is_frozen: bool = False
    """Its tensors do not train: they are the engine's own, not copies, and the same in each save."""


class HostBuffers(dict[tuple[str, int], torch.Tensor]):
    """Host memory by file and tensor number, pinned for GPU tensors. The next save reuses it: fresh pages cost more
    than the copy into them."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()

    def like(self, name: str, ordinal: int, tensor: torch.Tensor) -> torch.Tensor:
        """Return the buffer for this tensor; allocate one and touch every page if there is none of its shape."""
        with self._lock:
            buffer = self.get((name, ordinal))
            if buffer is None or buffer.shape != tensor.shape or buffer.dtype != tensor.dtype:
                buffer = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=tensor.is_cuda)
                self[name, ordinal] = buffer.zero_()
            return buffer


class HostCopyEngine(CheckpointEngine):
    """Collects the state that DeepSpeed passes for one save; the caller writes the snapshots."""

    def __init__(
        self,
        verify: Callable[[Path, BufferedReader], None],
        use_mmap: bool = False,
        frozen: frozenset[str] = frozenset(),
    ) -> None:
        """`use_mmap`: as in `load_safely`; for files on this node's tier, which nobody removes or changes. `frozen`:
        names of weights that do not train, which go into files of their own."""
        super().__init__()
        self.name = "HostCopyEngine"
        self.copy_s = 0.0
        """Seconds of copying in the last save, without DeepSpeed's gathering of its state; of an accelerator's tensors
        those in which the copies are put into their stream."""
        self._verify, self._mapped, self._frozen = verify, use_mmap, frozen
        self._snapshots: list[Snapshot] = []
        self._foreseen: list[tuple[str, int, torch.Tensor]] | None = None
        self.buffers, self.copies = HostBuffers(), CopyStream()

    def collect(self, engine: Any, root: Path, tag: str) -> list[Snapshot]:
        """Return the state of a save; training waits for this part only. What lies on an accelerator is on the host
        after `copies.wait`, and the next update waits for it by itself."""
        assert engine.checkpoint_engine is self, "what is handed over would go elsewhere"
        self._snapshots, self.copy_s = [], 0.0
        hand_over(engine, root, tag)
        self.copies.end(getattr(engine.optimizer, "optimizer", engine.optimizer))
        snapshots, self._snapshots = self._snapshots, []
        return snapshots

    def foresee(self, engine: Any) -> Callable[[], None]:
        """Return a function that allocates, beside the training, the buffers for a save of this engine."""
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
        """Copy now: training will change the tensors."""
        name, foreseen, start_s = Path(path).name, self._foreseen, time.monotonic()

        def to_host(tensor: torch.Tensor, ordinal: int) -> torch.Tensor:
            if foreseen is not None:
                foreseen.append((name, ordinal, tensor))
                return tensor
            return self.copies.copy(self.buffers.like(name, ordinal, tensor), tensor)

        trainable, frozen = split(state_dict, name, self._frozen)
        self._snapshots.append(Snapshot(Path(path), _HostCopy(to_host).of(trainable)))
        if frozen is not None and foreseen is None:
            tensors = _HostCopy(lambda tensor, ordinal: tensor).of(frozen)
            self._snapshots.append(Snapshot(Path(path).with_name(frozen_file(name)), tensors, is_frozen=True))
        self.copy_s += time.monotonic() - start_s

    def commit(self, info: CheckpointCommitInfo | None) -> bool:
        self.copies.wait()
        return True

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Do nothing: the writer makes folders durably and may have to make room; the loop's thread uses no disk."""

    def load(self, path: str, map_location: Any = None) -> Any:
        """Verify and load one open file, even if its name is replaced meanwhile."""
        with open_regular(Path(path)) as file:
            self._verify(Path(path), file)
            file.seek(0)
            state = load_safely(file, self._mapped)
        return joined(state, Path(path), lambda frozen: self.load(str(frozen)))

    def preserves_storage_sharing(self) -> bool:
        return False


def hand_over(engine: Any, root: Path, tag: str) -> None:
    """Pass the state to the checkpoint engine as DeepSpeed 0.19.8's `save_checkpoint` does, without its barriers,
    folders and tag check: the loop makes all ranks save at the same step, and none waits for another."""
    optimizer = engine.optimizer
    if hasattr(optimizer, "checkpoint_event_prologue"):
        optimizer.checkpoint_event_prologue()
    engine._save_checkpoint(str(root), tag)
    if engine.save_zero_checkpoint:
        engine._save_zero_checkpoint(str(root), tag)
    if hasattr(optimizer, "checkpoint_event_epilogue"):
        optimizer.checkpoint_event_epilogue()


def load_safely(file: BufferedReader, use_mmap: bool = False) -> Any:
    """Deserialise onto the CPU through torch's restricted unpickler, which executes nothing.

    `use_mmap`: tensors use the file's pages, which its digest brought into memory; a copy to a device is then the only
    copy. Raises `StorageError` for any type outside `ALLOWED` and for files that torch did not write.
    """
    # By descriptor, so that it is the open file even if its name is replaced. Torch maps only its newer format.
    use_mmap = use_mmap and file.peek(len(_ZIP))[: len(_ZIP)] == _ZIP
    source: Any = f"/proc/self/fd/{file.fileno()}" if use_mmap else file
    try:
        return torch.load(source, map_location="cpu", weights_only=True, mmap=use_mmap)
    except Exception as error:
        detail = f"{file.name}: {first_line(error)[:300]}"
        raise storage_error(error, "a shard cannot be loaded safely", detail, "use another copy of it") from error


def forbidden(file: BufferedReader) -> str:
    """Return what a shard holds that must not be loaded, from its bytes alone; empty for nothing. Raises the error of a
    disk, or a limit's, which says nothing of the bytes."""
    try:
        names = torch.serialization.get_unsafe_globals_in_checkpoint(file)
    except Exception as error:
        if (refused := limit_error(error, file.name)) is not None:
            raise refused from error
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
            raise
        return f"not a file of torch's: {first_line(error)[:200]}"
    return f"it would construct {', '.join(sorted(names))}" if names else ""


class _HostCopy:
    """Deep copy of a state whose tensors go through `place`; references to one tensor stay references to one."""

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
