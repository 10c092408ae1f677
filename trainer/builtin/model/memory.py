"""Peak memory of one rank, by part, before it is bought: `python -m trainer.builtin.model.memory` answers its input,
`{"config": TrainConfig, "world_size": N}`.

One micro batch runs forward and backward on fake tensors, which have shapes and no data: torch's own tracker sees what
is alive at the peak. `real_masks` and `use_kernels` keep them on the path that real tensors take. What DeepSpeed
holds beside it follows from the stage; the terms were read off the allocations of real engines, and
`tests/trainer/test_memory.py` holds them against new ones.
"""

from __future__ import annotations

import json
import math
import sys
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.utils.hooks import RemovableHandle

from trainer.builtin.model.adapters import adapt
from trainer.builtin.model.building import Model, blocks_of, build, parameter_count
from trainer.builtin.model.compiled import compile_layers, recompute_outside
from trainer.builtin.model.compiled_memory import CompiledMemTracker, allocating
from trainer.builtin.model.named import NamedModel
from trainer.builtin.model.recompute import rows_at_once
from trainer.builtin.model.tensor import dealt_out, rules_of
from trainer.contract import GRADIENT_BUCKET, Layout, ModelConfig, TrainConfig
from trainer.contract.model.zero_sizes import LIVE_PARAMETERS, zero_sizes

OPTIMIZER_BYTES = 12
"""float32 weights, Adam's first and second moments: 4 bytes each, per parameter."""
_PROBED = 8
"""Layers of the probe; a deeper model takes for each further layer what the probe's last ones take."""
_DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


@dataclass(frozen=True)
class Footprint:
    """Bytes of one rank. `peak` is the larger of the two moments that can be one."""

    weights: int
    optimizer: int
    gathered: int
    """With ZeRO stage 3: parameters of other ranks, and DeepSpeed's buffers. Parameters are given back before the
    update; what stays is in `update` too."""
    accumulated: int
    """Gradients that are kept from one micro batch of a step to the next."""
    micro_batch: int
    """Activations at their peak, with the gradients and their buffer that are alive then."""
    update: int
    """Gradients in float32 and copies while the optimizer works."""
    host: int = 0
    """In the node's memory, with the optimizer's states there. No part of `peak`."""

    @property
    def peak(self) -> int:
        return self.weights + self.optimizer + max(self.gathered + self.accumulated + self.micro_batch, self.update)


def footprint(config: TrainConfig, world_size: int, overlaps: bool = False) -> Footprint:
    """Return the bytes that the fullest rank of `world_size` needs at once. `overlaps`: on accelerators, where
    gradients are exchanged beside the backward pass, and norms and attention between documents are one kernel each."""
    size, stage = _DTYPES[config.precision].itemsize, config.zero_stage
    sum_size, reduce_size = (4 if config.sums_in_float32(kind) else size for kind in ("accumulate", "reduce"))
    zero = {name: zero_size.value for name, zero_size in zero_sizes(config.zero, config.model).items()}
    with FakeTensorMode():
        full_model = _model(config, _layers(config.model))
        parameter_total, count = parameter_count(full_model), parameter_count(full_model, trainable_only=True)
        largest = max(parameter.numel() for parameter in full_model.parameters() if parameter.requires_grad)
        small = sum(
            parameter.numel()
            for parameter in full_model.parameters()
            if parameter.numel() <= zero["persistence_threshold"]
        )
    layout = Layout.of(config.parallel, world_size)
    # ZeRO spreads over the ranks that hold equal matrices.
    spread = world_size // layout.tensor
    largest_bucket = zero["reduce_bucket"] if stage == 3 else GRADIENT_BUCKET
    part, bucket = math.ceil(count / spread), min(count, largest_bucket)
    accumulates = config.global_batch > config.micro_batch * layout.data
    away = config.optimizer.offload == "cpu"
    # Of the gradients stage 3 keeps this rank's part from the start, and stage 2 from one micro batch to the next.
    partition_gradients = sum_size * part if stage == 3 or (stage == 2 and accumulates) else 0
    # Stage 2 keeps them on the device all the same where it sums in another format than that of the weights.
    kept_away = partition_gradients if away and (stage == 3 or sum_size == size) else 0
    device_gradients = partition_gradients - kept_away
    update = (size + 4) * count if not stage else 0 if away else (2 * sum_size + 4) * part
    if reduce_size != size and stage < 3:
        # At the end of the backward pass: gradients, the buffer of those on their way, and two copies of it.
        update = max(update, (size * count if stage < 2 else sum_size * part) + (2 * size + reduce_size) * bucket)
    stage_3_gradients = reduce_size * bucket + device_gradients if stage == 3 else 0
    # Stage 3 brings a bucket's part of gradients that are kept away back to the accelerator, beside what it adds
    # (`partition_grads` in stage3.py). Where both are one memory, it does not.
    returned_bytes = 2 * min(kept_away, sum_size * math.ceil(bucket / spread)) if stage == 3 and overlaps else 0
    # Seen, not explained: a rank that shares sequences has its scores once more.
    positions = config.micro_batch * config.model.context // layout.sequence
    rows = min(rows_at_once(config.model.vocabulary), positions)
    scores = 4 * rows * config.model.vocabulary if layout.sequence > 1 else 0
    buffers = bucket * (2 if overlaps and stage == 2 else 1) if stage in (1, 2) else 0
    deep = _deep(config, spread, buffers, accumulates, overlaps)
    if config.watch.replay_every and stage == 2 and layout.sequence == layout.tensor == 1:
        # A replay keeps all gradients to its end, as stage 1 does, and exchanges none.
        deep = max(deep, _deep(config.model_copy(update={"zero_stage": 1}), spread, 0, False, overlaps))
    # Large parameters that are live, small ones in a second copy, and with hpZ a node's copy of all.
    gathered_parameters = min(parameter_total, LIVE_PARAMETERS) + small
    gathered_parameters += math.ceil(parameter_total / zero["hpz_ranks"]) if zero["hpz_ranks"] > 1 else 0
    return Footprint(
        weights=size * (math.ceil(parameter_total / spread) if stage == 3 else parameter_total),
        optimizer=0 if away else OPTIMIZER_BYTES * (part if stage else count),
        gathered=stage_3_gradients + size * gathered_parameters if stage == 3 else 0,
        accumulated=size * count if stage < 2 and accumulates else device_gradients if stage == 2 else 0,
        micro_batch=deep + size * largest * away + returned_bytes + scores,
        update=stage_3_gradients + update,
        host=_host(config, part, largest, kept_away) if away else 0,
    )


def _host(config: TrainConfig, part: int, largest: int, host_gradients: int) -> int:
    """Return what lies in the node's memory: the optimizer's states, the gradients in float32 that the update reads,
    those that are kept, and with stages 1 and 2 the new weights and a buffer on their way."""
    size = _DTYPES[config.precision].itemsize
    return (OPTIMIZER_BYTES + 4) * part + host_gradients + (size * (part + largest) if config.zero_stage < 3 else 0)


def _deep(config: TrainConfig, spread: int, bucket: int, accumulates: bool, kernels: bool) -> int:
    """Return the peak of one micro batch through all layers; those beyond the probe's take what its last ones take."""
    layers, stride = _layers(config.model), config.recompute.every
    probe = math.ceil(_PROBED / stride) * stride
    ask = partial(_probe_peak, config, spread=spread, bucket=bucket, accumulates=accumulates, kernels=kernels)
    if layers <= probe + stride:
        return ask(layers)
    probe_peak, longer_peak = ask(probe), ask(probe + stride)
    return longer_peak + (longer_peak - probe_peak) * math.ceil((layers - probe - stride) / stride)


def _layers(model: ModelConfig) -> int:
    return int(model.config.get("num_hidden_layers", model.layers))


def _probe_peak(config: TrainConfig, layers: int, spread: int, bucket: int, accumulates: bool, kernels: bool) -> int:
    """Return the peak of all that is alive besides weights, in a model of so many layers. `spread`: ranks that hold
    equal matrices. `kernels`: norms and attention between documents are those of an accelerator. A rank that shares
    sequences has all positions of some heads in attention: as much as its positions of all heads."""
    gradients, buffers = list[torch.Tensor](), list[torch.Tensor]()

    def exchange(parameter: torch.Tensor) -> None:
        assert parameter.grad is not None
        if not buffers:  # DeepSpeed makes it when the first gradient comes, after those of the loss
            buffers.append(torch.empty(bucket, dtype=_DTYPES[config.precision]))
        if config.zero_stage == 1 and not accumulates:
            return  # stage 1 exchanges them at the end
        if config.zero_stage in (1, 2):
            gradients.append(parameter.grad.flatten()[::spread].clone())
        parameter.grad = None

    with FakeTensorMode():
        blockwise = kernels and bool(config.model.name) and config.model.document_attention
        if blockwise:  # no mask of all pairs is made, and positions alone would ask for one
            plain = config.model.model_copy(update={"document_attention": False, "reset_positions": False})
            config = config.model_copy(update={"model": plain})
        model = _model(config, layers)
        is_compiled = config.compile == "layers"
        if kernels:
            use_kernels(model, blockwise, is_compiled)
        if is_compiled:
            compile_layers(model, config.recompute, allocating())
        length = config.model.context // config.parallel.sequence
        tokens = torch.zeros(config.micro_batch, length + 1, dtype=torch.long)
        if config.zero_stage or accumulates:
            for weight in filter(lambda weight: weight.requires_grad, model.parameters()):
                weight.register_post_accumulate_grad_hook(exchange)
        tracker, no_hooks = CompiledMemTracker(), OrderedDict[int, Any]()
        for weight in model.parameters():
            if not weight.requires_grad:
                # It hooks into each parameter's gradient, and a frozen one has none.
                tracker._param_to_grad_hook_handles[weight] = (RemovableHandle(no_hooks), RemovableHandle(no_hooks))
        tracker.track_external(model, tokens)
        with tracker, real_masks() if isinstance(model, NamedModel) else nullcontext():
            if config.zero_stage == 1 and accumulates:  # it stays from one micro batch to the next
                buffers.append(torch.empty(bucket, dtype=_DTYPES[config.precision]))
            loss = model(tokens)
            loss.backward()
            buffers.clear()
        (snapshot,) = tracker.get_tracker_snapshot("peak").values()
    parts = {str(kind).rpartition(".")[2]: size for kind, size in snapshot.items()}
    return int(parts["Total"] - parts["PARAM"] - parts["BUFFER"])


def _model(config: TrainConfig, layers: int) -> Model:
    """Return the model with so many layers, its weights in the computation's type and as a rank has them."""
    shape: dict[str, Any] = {"layers": layers}
    if config.model.config:
        values = config.model.config | {"num_hidden_layers": layers}
        if kinds := values.get("layer_types"):
            values["layer_types"] = kinds[:layers]
        shape = {"config": values}
    model = build(config.model.model_copy(update=shape), recompute_outside(config), bare=True)
    if config.model.lora is not None:
        assert isinstance(model, NamedModel), "checked when the configuration was read"
        # `peft` moves what it makes, and fake tensors cannot be moved.
        with unset_fake_temporarily(), torch.device("meta"):
            adapt(model, config.model.lora)
    rules = rules_of(model) if config.parallel.tensor > 1 else ()
    replacements = dict[nn.Parameter, nn.Parameter]()
    for place, module in model.named_modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                # Not `model.to`, which swaps tensors: fake ones cannot be swapped. A tied one stays one.
                if parameter not in replacements:
                    shard = dealt_out(f"{place}.{name}", parameter, rules, config.parallel.tensor)
                    fake = torch.empty(shard.shape, dtype=_DTYPES[config.precision])
                    replacements[parameter] = nn.Parameter(fake, requires_grad=parameter.requires_grad)
                module._parameters[name] = replacements[parameter]
    return model


def main() -> None:
    request = json.load(sys.stdin)
    prediction = footprint(TrainConfig.model_validate(request["config"]), request["world_size"], overlaps=True)
    print(json.dumps(asdict(prediction) | {"peak": prediction.peak}))


_BLOCKWISE = "predicted-blockwise"
"""Our name among the attention functions of `transformers`; it has no mask function there, so no mask is built."""


@contextmanager
def real_masks() -> Iterator[None]:
    """Let `transformers` choose the attention mask as for real tensors.

    It takes fake ones for packed documents: it would build a mask of all pairs of positions, and repeat the key heads,
    which no mask shares. Our positions count on, or a mask of ours comes with them.
    """
    from transformers import masking_utils

    original = masking_utils.find_packed_sequence_indices
    masking_utils.find_packed_sequence_indices = lambda *positions, **named_positions: None
    try:
        yield
    finally:
        masking_utils.find_packed_sequence_indices = original


def use_kernels(model: Model, blockwise: bool, is_compiled: bool = False) -> None:
    """Replace in a fake model what an accelerator computes by one kernel: RMSNorm and, if `blockwise`, FlexAttention.

    Fake tensors take the processor's path: an RMSNorm whose parts all keep their results, and all pairs' scores.
    `is_compiled`: the layers' norms become parts of other kernels.
    """
    fused = {module for block in blocks_of(model) for module in block.modules()} if is_compiled else set()
    for module in model.modules():
        if type(module) is nn.RMSNorm and module not in fused:
            # Its kernel keeps the input and a number per row, as LayerNorm's does.
            norm = partial(F.layer_norm, normalized_shape=module.normalized_shape, weight=module.weight)
            module.forward = norm  # type: ignore[method-assign]
    if blockwise and isinstance(model, NamedModel):
        from transformers import AttentionInterface

        AttentionInterface.register(_BLOCKWISE, _attend_blockwise)
        model.network.set_attn_implementation(_BLOCKWISE)


def _attend_blockwise(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **keywords: Any
) -> tuple[Tensor, None]:
    """Keep what FlexAttention keeps: query, key, value, result, and one float32 per row, as flash attention does.

    `transformers` repeats key heads for it where the number of heads is no power of two (`flex_attention_forward`).
    """
    from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward

    heads = query.shape[1]
    if heads & (heads - 1):
        key, value = (repeat_kv(tensor, heads // tensor.shape[1]) for tensor in (key, value))
    mixture: tuple[Tensor, None] = sdpa_attention_forward(module, query, key, value, None, **keywords)
    return mixture


if __name__ == "__main__":
    main()
