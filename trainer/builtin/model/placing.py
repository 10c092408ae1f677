"""A model on the devices of one node, for an evaluation: whole on the first, else its layers one after the other.

Each layer computes where it lies and what it computes there is what it computes on one device: nothing is added up over
devices, so the loss does not depend on their number.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn

from trainer.builtin.model.building import Model, blocks_of
from trainer.errors import ConfigError

FOR_WEIGHTS = 0.8
"""Part of a device's free memory that weights may take; one layer's activations and the scores get the rest."""


def place(model: Model, devices: Sequence[torch.device], free: Sequence[int]) -> torch.device:
    """Move the model to the devices, of which `free` has the bytes; return the one that takes its input.

    Raises `ConfigError` if all of them together have no room for it.
    """
    room, first_device = [int(FOR_WEIGHTS * free_bytes) for free_bytes in free], devices[0]
    if bytes_of(model) <= room[0]:
        model.to(first_device)
        return first_device
    layers = blocks_of(model)
    index, layer_modules = 0, {id(module) for layer in layers for module in layer.modules()}
    room[0] -= bytes_of(model) - sum(map(bytes_of, layers))
    for layer in layers:
        while index < len(room) and bytes_of(layer) > room[index]:
            index += 1
        if index == len(room) or room[0] < 0:
            raise _no_room(model, free)
        room[index] -= bytes_of(layer)
        _bind(layer, devices[index])
    _move([module for module in model.modules() if id(module) not in layer_modules], first_device)
    layers[-1].register_forward_hook(lambda layer, inputs, output: _on_device(output, first_device))
    return first_device


def local_devices() -> tuple[list[torch.device], list[int]]:
    """Return this node's devices and the free bytes of each; of a CPU's memory the kernel is the judge."""
    if not torch.cuda.is_available():
        return [torch.device("cpu")], [2**63]
    devices = [torch.device("cuda", index) for index in range(torch.cuda.device_count())]
    return devices, [torch.cuda.mem_get_info(device)[0] for device in devices]


def bytes_of(module: nn.Module) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in (*module.parameters(), *module.buffers()))


def _bind(layer: nn.Module, device: torch.device) -> None:
    """Move a layer to a device, and what it is given each time."""
    _move(layer.modules(), device)
    layer.register_forward_pre_hook(
        lambda layer, arguments, keywords: (_on_device(arguments, device), _on_device(keywords, device)),
        with_kwargs=True,
    )


def _move(modules: Iterable[nn.Module], device: torch.device) -> None:
    """Move what modules themselves hold; a tied parameter stays one."""
    replacements = dict[nn.Parameter, nn.Parameter]()
    for module in modules:
        for name, parameter in module._parameters.items():
            if parameter is not None:
                if parameter not in replacements:
                    replacements[parameter] = nn.Parameter(
                        parameter.detach().to(device), requires_grad=parameter.requires_grad
                    )
                module._parameters[name] = replacements[parameter]
        for name, buffer in module._buffers.items():
            module._buffers[name] = None if buffer is None else buffer.to(device)


def _on_device(value: Any, device: torch.device) -> Any:
    if isinstance(value, tuple | list):
        return type(value)(_on_device(item, device) for item in value)
    if isinstance(value, dict):
        return {name: _on_device(item, device) for name, item in value.items()}
    return value.to(device) if hasattr(value, "to") else value  # a tensor, or FlexAttention's mask


def _no_room(model: nn.Module, free: Sequence[int]) -> ConfigError:
    description = (
        f"weights of {bytes_of(model) / 2**30:.1f} GiB, {sum(free) / 2**30:.1f} GiB free on {len(free)} devices"
    )
    cure = "evaluate on a node with more devices; nothing is evaluated by several nodes together"
    return ConfigError("the model does not fit the devices of one node", description, cure)
