"""Low-rank adapters beside the frozen matrices of a named model, by `peft`: Hu et al. 2021, "LoRA", arXiv 2106.09685.

Only a model with adapters imports `peft`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor, nn

from trainer.builtin.model.named import PREFIX, NamedModel, layers_of
from trainer.contract import LoraConfig
from trainer.errors import ConfigError

_NAME = "default"
"""The adapters' name in `peft`, which is part of their tensors' names here and of none in its files."""
_BASE = ".base_layer"
"""Part of the names of frozen tensors that have an adapter."""
FOLDER = "adapter"
"""Of an export, beside the merged model: `from_pretrained` would add what lies in the same folder once more."""


def adapt(model: NamedModel, config: LoraConfig) -> None:
    """Freeze the model and put new adapters into it, which change nothing yet: their B is 0.

    Raises `ConfigError` for targets that the model does not have.
    """
    matrices = {
        name.rpartition(".")[2]
        for layer in layers_of(model.network)
        for name, module in layer.named_modules()
        if isinstance(module, nn.Linear)
    }
    chosen_names = matrices if config.targets == "all-linear" else set(config.targets)
    if unknown := sorted(chosen_names - matrices):
        raise ConfigError("the model has no such matrices", f"{unknown}", f"take of {', '.join(sorted(matrices))}")
    import_peft().inject_adapter_in_model(_peft_config(config, chosen_names), model.network, _NAME)
    model.requires_grad_(False)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(is_adapter(name))


def import_peft() -> Any:
    import peft

    return peft


def is_adapter(name: str) -> bool:
    return f".{_NAME}." in name


def merge(weights: dict[str, Tensor], config: LoraConfig) -> dict[str, Tensor]:
    """Return a plain model's tensors: each adapter is added to its matrix in float32, and the sum rounded once."""
    tensors = {name.replace(_BASE, ""): tensor for name, tensor in weights.items() if not is_adapter(name)}
    for name, up_matrix in weights.items():
        if f".lora_B.{_NAME}." in name:
            target = name.replace(f".lora_B.{_NAME}", "")
            down = weights[name.replace("lora_B", "lora_A")]
            change = (config.alpha / config.rank) * (up_matrix.float() @ down.float())
            tensors[target] = (tensors[target].float() + change).to(tensors[target].dtype)
    return tensors


def write_adapters(weights: dict[str, Tensor], config: LoraConfig, base: str, folder: Path) -> None:
    """Write the adapters alone, in `peft`'s form, into a new folder. `base`: the name of the model that they change."""
    adapter_weights = {name: tensor.contiguous() for name, tensor in weights.items() if is_adapter(name)}
    folder.mkdir()
    peft_weights = {
        f"base_model.model.{name.removeprefix(PREFIX).replace(f'.{_NAME}.', '.')}": weight
        for name, weight in adapter_weights.items()
    }
    save_file(peft_weights, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    targets = {name.partition(".lora_")[0].rpartition(".")[2] for name in adapter_weights}
    _peft_config(config, targets, base).save_pretrained(str(folder))


def _peft_config(config: LoraConfig, targets: set[str], base: str | None = None) -> Any:
    return import_peft().LoraConfig(
        r=config.rank,
        lora_alpha=config.alpha,
        lora_dropout=config.dropout,
        target_modules=sorted(targets),
        task_type="CAUSAL_LM",
        base_model_name_or_path=base,
        inference_mode=base is not None,
    )
