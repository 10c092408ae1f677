"""What cannot be trained with adapters."""

from __future__ import annotations

from trainer.contract.layout import Trouble
from trainer.contract.shape import matrices
from trainer.contract.training import ModelConfig, ParallelConfig, WatchConfig


def adapter_trouble(model: ModelConfig, parallel: ParallelConfig, watch: WatchConfig, warm: bool) -> Trouble | None:
    """Return why adapters are refused. `warm`: the model starts from given weights."""
    lora = model.lora
    if lora is None:
        return None
    if not model.name or model.is_function:
        seen, cure = model.name or "the small decoder", "name a model of the catalogue or a folder"
        return Trouble("model.lora", "needs a model by name or folder", seen, cure)
    if not warm:
        cure = "write training.init_from, or leave lora out"
        return Trouble("model.lora", "would train beside weights that know nothing", "no training.init_from", cure)
    if parallel.tensor > 1:
        seen, cure = f"parallel.tensor {parallel.tensor}", "write 1; with zero_stage 3 frozen weights are spread too"
        return Trouble("model.lora", "cannot be dealt out: AutoTP replaces the matrices that have adapters", seen, cure)
    if lora.dropout and watch.replay_every:
        seen = f"dropout {lora.dropout:g}, watch.replay_every {watch.replay_every}"
        cure = "write dropout: 0, or replay_every: 0"
        return Trouble("model.lora.dropout", "makes each replay differ from what it repeats", seen, cure)
    return None


def unknown_targets(model: ModelConfig) -> list[str]:
    """Return names of `lora.targets` that the model does not have."""
    if model.lora is None or model.lora.targets == "all-linear" or model.is_function:
        return []
    return sorted(set(model.lora.targets) - set(matrices(model)))
