"""The predicted memory of a rank: asked of the trainer's own model in a process of its own, and kept in the cache."""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Iterator
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from infra import folders
from infra.plan.catalogue import InstanceType
from infra.plan.estimates import sizing
from infra.plan.estimates.zero import resolve_zero
from infra.plan.facts import MemoryCure, MemoryPrediction
from infra.plan.layout import ranks_per_node
from infra.spec.campaign import Spec
from infra.spec.training import Training
from trainer import contract
from trainer.contract import Layout, TrainConfig, WatchConfig
from trainer.contract.model.shape import shape_of

RESERVED_GIB = 2.5
"""CUDA's context, NCCL's and cuBLAS' buffers. A guess: no GPU was measured."""
FRAGMENTED = 0.05
"""Part of the memory that the allocator cannot use. A guess likewise."""
_ASKED_FROM = 0.25
"""Part of the accelerator from which on the rough size is worth the seconds of an exact one."""
_KEPT_PER_TOKEN = 34
"""Bytes of activations per token, layer and unit of width in 16 bits with flash attention: Korthikanti et al. 2022,
"Reducing Activation Recomputation in Large Transformer Models", section 4.1."""

_PREDICTED_BY = (
    "model", "steps", "global_batch", "micro_batch", "zero_stage", "precision", "optimizer", "gradients", "recompute",
    "parallel",
)  # fmt: skip
"""Fields of the training on which its memory depends."""


def usable_bytes(instance: InstanceType) -> int:
    return int((instance.accelerator_memory_gib * (1 - FRAGMENTED) - RESERVED_GIB) * sizing.GIB)


def is_close(spec: Spec, instance: InstanceType | None) -> bool:
    """Return whether the model may not fit by a rough size: only then the exact one is worth its seconds."""
    training = spec.training
    if training is None or instance is None or training.model.is_function:
        return False
    world = ranks_per_node(spec, instance.accelerators) * spec.nodes.count
    rough = sizing.static_bytes_per_rank(
        training.model, training.precision, world, training.zero_stage, training.optimizer.offload == "cpu"
    )
    # Ranks that share matrices have embedding, output layer and most activations whole: nothing is divided for them.
    shape = shape_of(training.model)
    activations = _KEPT_PER_TOKEN * training.micro_batch * training.model.context * shape.width * shape.layers
    rough += activations // training.parallel.sequence
    return rough > _ASKED_FROM * usable_bytes(instance)


def predict_memory(spec: Spec, instance: InstanceType) -> MemoryPrediction:
    """Return the memory of the fullest rank, and what of the spec would make it fit if it does not."""
    training, world = spec.built_in[0], ranks_per_node(spec, instance.accelerators) * spec.nodes.count
    if find_spec("torch") is None:
        return MemoryPrediction(trouble="this needs the extra trainer: pip install 'bivouac[trainer]'")
    usable = usable_bytes(instance)
    try:
        parts, peak = _footprint(spec, instance, training, world)
        cures = list[MemoryCure]()
        for words, variant in _changes(training, world) if peak > usable else ():
            cures.append(MemoryCure(words=words, peak=_footprint(spec, instance, variant, world)[1]))
            if cures[-1].peak <= usable:
                break
    except subprocess.CalledProcessError as error:
        return MemoryPrediction(trouble=(error.stderr.strip().splitlines() or [str(error)])[-1])
    return MemoryPrediction(parts=parts, peak=peak, usable=usable, cures=tuple(cures))


def _changes(training: Training, world: int) -> Iterator[tuple[str, Training]]:
    """Yield changes of the spec that need less memory, the one that costs the least time first."""
    policies = ("none", "selective", "full")
    now, stage = policies.index(training.recompute.policy), training.zero_stage
    for policy in policies[now + 1 :]:
        yield f"training.recompute: {{policy: {policy}}}", _with_policy(training, policy=policy)
    smaller = [size for size in (training.micro_batch // 2, 1) if 0 < size < training.micro_batch]
    for size in dict.fromkeys(smaller):
        if training.global_batch % (size * Layout.of(training.parallel, world).data) == 0:
            yield f"training.micro_batch: {size}", training.model_copy(update={"micro_batch": size})
    highest_stage = 3 if training.parallel.tensor == 1 else 2
    for higher_stage in range(stage + 1, highest_stage + 1):
        yield f"training.zero_stage: {higher_stage}", training.model_copy(update={"zero_stage": higher_stage})
    all_of_it = _with_policy(training, policy="full").model_copy(update={"zero_stage": highest_stage})
    yield f"training.zero_stage: {highest_stage} and training.recompute: {{policy: full}}", all_of_it
    if Layout.of(training.parallel, world).splits:
        return
    away = all_of_it.model_copy(update={"optimizer": training.optimizer.model_copy(update={"offload": "cpu"})})
    yield "training.zero_stage: 3, training.recompute: {policy: full} and training.optimizer: {offload: cpu}", away


def _with_policy(training: Training, policy: str) -> Training:
    return training.model_copy(update={"recompute": training.recompute.model_copy(update={"policy": policy})})


def _footprint(spec: Spec, instance: InstanceType, training: Training, world: int) -> tuple[dict[str, int], int]:
    """Return bytes by part, and their peak. Raises `CalledProcessError`."""
    nodes = spec.nodes.count
    config = TrainConfig(
        campaign="any",
        zero=resolve_zero(training, instance, nodes, world // nodes),
        **{name: getattr(training, name) for name in _PREDICTED_BY},
        # Of the watch, a replay alone needs memory; other settings would only miss the cache.
        watch=WatchConfig(replay_every=training.watch.replay_every),
    )
    request = json.dumps({"config": config.model_dump(mode="json"), "world_size": world})
    place = folders.cache_root() / "memory" / f"{hashlib.sha256(_predictor() + request.encode()).hexdigest()}.json"
    if not place.is_file():
        command = folders.own_module("trainer.builtin.model.memory")
        process = subprocess.run(command, input=request, capture_output=True, text=True, check=True)
        folders.keep(place, process.stdout, lambda _: None)
        sizes = dict(json.loads(process.stdout))
    else:
        sizes = dict(json.loads(place.read_bytes()))
    return {name: size for name, size in sizes.items() if name not in ("peak", "host")}, sizes["peak"]


def _predictor() -> bytes:
    """Return the versions and the code that a kept prediction depends on."""
    code = Path(contract.__file__).parent.parent
    sources = sorted([*(code / "model").glob("*.py"), *(code / "contract").glob("*.py")])
    versions = [f"{name} {version(name)}" for name in ("torch", "transformers")]
    return b"\0".join([*(source.encode() for source in versions), *(source.read_bytes() for source in sources)])
