"""What the operations of a computation return, and which of them ask the device for an answer."""

from __future__ import annotations

from typing import Any

from torch import Tensor, ops
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_WAITING = (ops.aten._local_scalar_dense.default, ops.aten.nonzero.default, ops.aten.masked_select.default)
"""On a GPU the process waits in these for all work before: a number for Python, or a size that the values decide."""


class Operations(TorchDispatchMode):
    """Notes the bytes of the largest tensor that an operation returns, and the operations that wait for the device."""

    def __init__(self) -> None:
        super().__init__()
        self.largest, self.waits = 0, list[str]()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        sizes = [leaf.numel() * leaf.element_size() for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        self.largest = max([self.largest, *sizes])
        if function in _WAITING:
            self.waits.append(str(function))
        return result
