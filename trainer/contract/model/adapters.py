"""What cannot be trained with adapters or with dropout, and what a replay cannot tell."""

from __future__ import annotations

from trainer.contract.model.layout import Trouble
from trainer.contract.model.shape import matrices
from trainer.contract.training import ModelConfig, ParallelConfig, WatchConfig


def adapter_trouble(model: ModelConfig, parallel: ParallelConfig, warm: bool) -> Trouble | None:
    """Return why adapters are refused. `warm`: the model starts from given weights."""
    lora = model.lora
    if lora is None:
        return None
    if not model.name or model.is_function:
        finding, cure = model.name or "the small decoder", "name a model of the catalogue or a folder"
        return Trouble("model.lora", "needs a model by name or folder", finding, cure)
    if not warm:
        cure = "write training.init_from, or leave lora out"
        return Trouble("model.lora", "would train beside weights that know nothing", "no training.init_from", cure)
    if parallel.tensor > 1:
        finding, cure = f"parallel.tensor {parallel.tensor}", "write 1; with zero_stage 3 frozen weights are spread too"
        return Trouble(
            "model.lora", "cannot be dealt out: AutoTP replaces the matrices that have adapters", finding, cure
        )
    return None


def dropout_trouble(model: ModelConfig, watch: WatchConfig) -> Trouble | None:
    """Return why dropout is refused: what the watch computes a second time would drop other values, and differ."""
    looks = [name for name in ("replay_every", "precision_every") if getattr(watch, name)]
    drops = {f"model.config.{name}": value for name, value in model.config.items() if name.endswith("dropout")}
    if model.lora is not None:
        drops["model.lora.dropout"] = model.lora.dropout
    dropout = next(((field, value) for field, value in drops.items() if value), None)
    if dropout is None or not looks:
        return None
    finding = f"dropout {dropout[1]:g}, watch.{looks[0]} {getattr(watch, looks[0])}"
    return Trouble(dropout[0], "makes each replay differ from what it repeats", finding, f"write 0, or {looks[0]}: 0")


def replay_trouble(watch: WatchConfig) -> Trouble | None:
    """Return why a replay may name no node: two runs of one sound GPU may differ."""
    if watch.replay != "quarantine" or watch.replay_kernels == "deterministic":
        return None
    cure = "write log, or replay_kernels: deterministic"
    return Trouble("watch.replay", "would replace sound nodes", "quarantine, with watch.replay_kernels training", cure)


def unknown_targets(model: ModelConfig) -> list[str]:
    """Return names of `lora.targets` that the model does not have."""
    if model.lora is None or model.lora.targets == "all-linear" or model.is_function:
        return []
    return sorted(set(model.lora.targets) - set(matrices(model)))
