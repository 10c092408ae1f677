"""Frozen weights beside adapters, apart from what trains: in a file of their own that later steps link.

Each step's manifest names that file, so a step is whole by itself, and a file goes with the last step that has it. A
state tells by `NAMES` that tensors of it lie in the other file; whoever reads a state puts them back.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn

from trainer.contract.checkpoint import FROZEN

READ_BACK_EVERY = 10
"""Saves after which a node reads the one file that all its steps link: a digest of 140 GB takes a disk a minute."""
NAMES = "bivouac_names"
"""Key of a state: names of all its tensors in their order."""
_MODULE, _FRAGMENTS = "module", "frozen_param_fragments"
"""Keys of DeepSpeed's states: tensors by name, and under ZeRO 3 a rank's parts of frozen ones."""
_STATES = "_model_states.pt"


def frozen_names(module: nn.Module) -> frozenset[str]:
    """Return the names of the parameters that do not train."""
    return frozenset(name for name, parameter in module.named_parameters() if not parameter.requires_grad)


def frozen_file(states: str) -> str:
    """Return the name of the file beside a file of states."""
    return FROZEN + states.replace(_STATES, ".pt")


def split(state: Any, file: str, names: frozenset[str]) -> tuple[Any, Any]:
    """Return a state of DeepSpeed's without the frozen tensors, and these; None where it has none."""
    if not names or not file.endswith(_STATES) or names.isdisjoint(state.get(_MODULE) or ()):
        return state, None
    module = state[_MODULE]
    frozen: dict[str, Any] = {_MODULE: {name: module[name] for name in module if name in names}}
    trainable = {**state, NAMES: list(module)}
    trainable[_MODULE] = OrderedDict((name, tensor) for name, tensor in module.items() if name not in names)
    if state.get(_FRAGMENTS):
        frozen[_FRAGMENTS], trainable[_FRAGMENTS] = state[_FRAGMENTS], None
    return trainable, frozen


def joined(state: Any, path: Path, read: Callable[[Path], Any]) -> Any:
    """Return a state with its frozen tensors, which `read` reads from the file beside `path`, in the first order."""
    if not isinstance(state, dict) or NAMES not in state:
        return state
    frozen = read(path.with_name(frozen_file(path.name)))
    full_state = {**state, **frozen}
    tensors = {**state[_MODULE], **frozen[_MODULE]}
    full_state[_MODULE] = OrderedDict((name, tensors[name]) for name in full_state.pop(NAMES))
    return full_state
