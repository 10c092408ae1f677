"""DeepSpeed's part of a layout: its settings for tensor parallelism, and its groups for sequence parallelism."""

from __future__ import annotations

import os
from typing import Any

import torch.distributed as dist

from trainer.builtin.model.building import Model
from trainer.builtin.model.named import NamedModel
from trainer.builtin.model.sequence import Spread
from trainer.builtin.model.tensor import rules_of
from trainer.builtin.model.transformer import swiglu_width
from trainer.contract import Heads, Layout, TrainConfig, Trouble, layout_trouble, model_trouble
from trainer.errors import ConfigError


def check_layout(config: TrainConfig, world_size: int) -> Layout:
    """Return the layout. Raises `ConfigError` for one that cannot be."""
    per_node = int(os.environ.get("LOCAL_WORLD_SIZE", world_size))
    _refuse(layout_trouble(config.parallel, world_size, per_node, config.zero_stage))
    return Layout.of(config.parallel, world_size)


def check_model(config: TrainConfig, model: Model) -> None:
    """Raise `ConfigError` for a model that cannot be dealt out as the layout says."""
    if Layout.of(config.parallel, 1).splits:
        _refuse(model_trouble(config.parallel, _heads(model), config.model.context))


def _refuse(trouble: Trouble | None) -> None:
    if trouble is not None:
        raise ConfigError(f"training.{trouble.field} {trouble.message}", trouble.seen, trouble.cure)


def _heads(model: Model) -> Heads:
    if not isinstance(model, NamedModel):
        return Heads(model.config.heads, model.config.heads, swiglu_width(model.config.width))
    values = model.network.config
    queries = int(values.num_attention_heads)
    keys = getattr(values, "num_key_value_heads", None)
    hidden = getattr(values, "intermediate_size", None)
    window = getattr(values, "sliding_window", None)
    return Heads(queries, int(keys or queries), int(hidden or 4 * values.hidden_size), window)


def tensor_settings(layout: Layout, model: Model) -> dict[str, Any]:
    """Return the section for AutoTP: our rules, by which checkpoints become whole again, and none of its guesses."""
    if layout.tensor == 1:
        return {}
    rules = [rule.for_deepspeed() for rule in rules_of(model)]
    partition = {"use_default_specs": False, "layer_specs": rules}
    return {"tensor_parallel": {"autotp_size": layout.tensor, "partition_config": partition}}


def process_groups(layout: Layout) -> Any:
    """Return DeepSpeed's module of groups, with ours in it; None where all ranks compute different data."""
    if layout.tensor > 1:
        from deepspeed.utils import groups

        groups._init_tp_mesh_device(tensor_model_parallel_size=layout.tensor)
        return groups
    if layout.sequence > 1:
        from deepspeed.runtime.sequence_parallel import parallel_state_sp

        if parallel_state_sp._SEQUENCE_PARALLEL_GROUP is None:
            parallel_state_sp.initialize_sequence_parallel(layout.sequence)
        return _SequenceGroups(parallel_state_sp)
    return None


class _SequenceGroups:
    """DeepSpeed 0.19.8's groups of Ulysses, which share no matrices. Its module calls them groups of model parallelism
    too: gradient norms and universal checkpoints would take their ranks for parts of tensors."""

    def __init__(self, module: Any) -> None:
        self._module = module
        self._alone = dist.new_group([dist.get_rank()], use_local_synchronization=True)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._module, name)

    def get_model_parallel_rank(self) -> int:
        return 0

    def get_model_parallel_world_size(self) -> int:
        return 1

    def get_model_parallel_group(self) -> Any:
        return self._alone

    get_tensor_model_parallel_rank = get_model_parallel_rank
    get_tensor_model_parallel_world_size = get_model_parallel_world_size
    get_tensor_model_parallel_group = get_model_parallel_group


def spread_of(groups: Any, zero_stage: int) -> Spread:
    """Return this rank's place. With ZeRO stage 3 DeepSpeed 0.19.8 divides a sum over all ranks by all ranks (in
    `__avg_scatter_grads`), with the other stages by those that read different sequences."""
    rank, ranks = groups.get_sequence_parallel_rank(), groups.get_sequence_parallel_world_size()
    return Spread(groups.get_sequence_parallel_group(), rank, ranks, averaged=zero_stage == 3)


def save_every_part(engine: Any, layout: Layout) -> None:
    """Make each node save the model states of a whole tensor-parallel group. DeepSpeed 0.19.8 lets the first rank of a
    node save, where nodes save on their own disks: the other ranks' parts of the matrices would be missing."""
    if layout.tensor > 1:
        engine.save_non_zero_checkpoint = int(os.environ["LOCAL_RANK"]) < layout.tensor
