"""A stream of its own for a save's copies to the host: they run beside the next micro batches on the accelerator.

CUDA keeps the order. The copies begin after all that was computed before them, the next update of the weights begins
after the copies, and whoever writes the host's buffers to a disk waits for them in its own thread.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class CopyStream:
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
