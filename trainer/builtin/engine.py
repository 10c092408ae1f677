"""The DeepSpeed engine: its creation and settings, and the learning rate: linear warm-up, then half a cosine."""

from __future__ import annotations

import logging
import math
import os
import warnings
from contextlib import nullcontext
from datetime import timedelta
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from trainer.builtin.config import check_world
from trainer.builtin.model import NamedModel, adapt, build, parameter_count, parameter_groups
from trainer.builtin.model.compiled import compile_layers, recompute_outside
from trainer.builtin.model.parallel import (
    check_layout,
    check_model,
    process_groups,
    save_every_part,
    spread_of,
    tensor_settings,
)
from trainer.contract import GRADIENT_BUCKET, LoraConfig, OptimizerConfig, TrainConfig
from trainer.contract.model.zero_sizes import zero_sizes
from trainer.errors import ConfigError, PeerLost
from trainer.events import emit
from trainer.place import generation

os.environ.setdefault("DEEPSPEED_LOG_LEVEL", "error")

_STAGE_3_NAMES = {
    "prefetch_bucket": "stage3_prefetch_bucket_size", "persistence_threshold": "stage3_param_persistence_threshold",
    "reduce_bucket": "reduce_bucket_size", "hpz_ranks": "zero_hpz_partition_size",
}  # fmt: skip


def has_gpu() -> bool:
    return torch.cuda.is_available()


def initialize_distributed(config: TrainConfig) -> None:
    """Join the gang named by torch's environment variables (`RANK`, `WORLD_SIZE`, `MASTER_ADDR`, ...)."""
    if config.watch.replay_every:
        # cuBLAS reads it at its start, and torch refuses deterministic kernels without it.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    deepspeed = import_deepspeed()
    backend = "nccl" if has_gpu() else "gloo"
    timeout = timedelta(seconds=config.collective_timeout_s)
    # The steward ends the attempt if a pod fails meanwhile.
    meeting = timedelta(seconds=config.start_timeout_s)
    if has_gpu():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    store, rank, world_size = next(torch.distributed.rendezvous("env://", timeout=meeting))
    # The store is the agents': keys of an earlier generation of ranks are still there.
    store = torch.distributed.PrefixStore(f"ranks-{generation()}", store)
    _meet(store, world_size, meeting)
    store.set_timeout(timeout)
    torch.distributed.init_process_group(
        backend=backend, timeout=timeout, store=store, rank=rank, world_size=world_size
    )
    deepspeed.init_distributed(dist_backend=backend, auto_mpi_discovery=False, timeout=timeout, verbose=False)


def _meet(store: torch.distributed.Store, world_size: int, meeting: timedelta) -> None:
    """Wait until every rank is there: on a fresh node, imports from a cold disk take longer than a step may."""
    if store.add("ranks-here", 1) == world_size:
        store.set("all-here", "")
    try:
        store.wait(["all-here"], meeting)
    except torch.distributed.DistStoreError as error:
        detail = f"{store.add('ranks-here', 0)} of {world_size} within {meeting}"
        raise PeerLost("not all ranks joined", detail, "look at the pods of this attempt") from error


def build_engine(config: TrainConfig, world_size: int, restores: bool = False) -> Any:
    """Return a DeepSpeed engine with a new model; the same seed gives the same weights on every rank.

    `restores`: a checkpoint with every weight follows. They are neither drawn nor taken from `init_from`, and are
    whatever the memory held. With ZeRO stage 3 each parameter is spread over the ranks as soon as it is made: no rank
    ever holds the whole model.
    """
    deepspeed = import_deepspeed()
    layout = check_layout(config, world_size)
    settings, groups = deepspeed_config(config, world_size), process_groups(layout)
    spread = deepspeed.zero.Init(config_dict_or_path=settings, mpu=groups) if config.zero_stage == 3 else nullcontext()
    with spread:
        model = build(config.model, recompute_outside(config), bare=True, draw=False)
    check_model(config, model)
    if layout.sequence > 1:
        model.share_sequences(spread_of(groups, config.zero_stage))
    torch.manual_seed(config.seed)
    gather_whole = partial(deepspeed.zero.GatheredParameters, modifier_rank=0)
    if restores or config.init_from:
        model.renew_rotations()
    else:
        model.initialize(gather_whole)
    if config.init_from and not restores:
        _start_from(config.init_from, model, gather_whole)
    if config.model.lora is not None:
        _adapt(model, config.model.lora, config.seed)
    if config.compile == "layers":
        compile_layers(model, config.recompute)
    optimizer = torch.optim.AdamW(
        parameter_groups(model, config.optimizer),
        fused=True,
        lr=config.optimizer.learning_rate,
        betas=(config.optimizer.beta1, config.optimizer.beta2),
    )
    zero, trainable = settings["zero_optimization"], parameter_count(model, trainable_only=True)
    zero["reduce_bucket_size"] = min(zero.get("reduce_bucket_size", GRADIENT_BUCKET), trainable)
    settings |= tensor_settings(layout, model)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=settings, mpu=groups)
    save_every_part(engine, layout)
    read_norm_once(engine)
    if config.zero_stage == 0 and config.precision == "float32":
        _keep_norm(engine, config.optimizer.clip)
    # It copies scripts beside the shards at every save, which delays the loop; no manifest names them.
    engine._copy_recovery_script = lambda _: None
    # It names them on rank 0 alone, so two nodes' files of equal weights would differ.
    engine._get_shared_params = partial(_tied_names, model)
    if config.zero_stage == 2:
        # It would write frozen weights twice into one file: with the model, and once more by themselves.
        engine._get_zero_frozen_param_attributes = lambda _: None
    return engine


def _keep_norm(engine: Any, clip: float) -> None:
    """Make DeepSpeed's step without ZeRO do in float32 what its other optimizers do: keep the gradient's norm, which it
    throws away, take another bound for one step, and leave the weights as they are where a gradient is no number."""
    from deepspeed.runtime.utils import clip_grad_norm_

    optimizer = engine.optimizer
    optimizer.clip_grad, optimizer.overflow = clip, False

    def clip_gradient() -> None:
        norm = clip_grad_norm_(engine.module.parameters(), optimizer.clip_grad, mpu=engine.mpu)
        optimizer._global_grad_norm = float(norm)
        optimizer.overflow = not math.isfinite(optimizer._global_grad_norm)
        if optimizer.overflow:
            engine.module.zero_grad(set_to_none=True)

    engine.clip_fp32_gradients = clip_gradient


def _tied_names(model: torch.nn.Module) -> dict[str, str]:
    """Return name -> the earlier name of the same parameter."""
    owners = dict[int, str]()
    names = [(name, owners.setdefault(id(leaf), name)) for name, leaf in model.named_parameters(remove_duplicate=False)]
    return {name: first_name for name, first_name in names if name != first_name}


def _start_from(folder: str, model: Any, gather_whole: Any) -> None:
    from trainer.builtin.checkpoint.convert.initial import take_weights

    if not isinstance(model, NamedModel):
        raise ConfigError("the small decoder starts from no weights", folder, "give training.model a name")
    rank = torch.distributed.get_rank()
    tensors = take_weights(model, Path(folder), gather_whole, rank)
    if rank == 0:
        emit("weights_taken", folder=folder, tensors=tensors)


def _adapt(model: Any, lora: LoraConfig, seed: int) -> None:
    """Add adapters, equal ones on every rank. From then on each rank has its own chance, for dropout."""
    torch.manual_seed(seed)
    adapt(model, lora)
    torch.manual_seed(seed + 1 + torch.distributed.get_rank())


def deepspeed_config(config: TrainConfig, world_size: int) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "train_batch_size": config.global_batch,
        "train_micro_batch_size_per_gpu": config.micro_batch,
        "gradient_accumulation_steps": check_world(config, world_size),
        "gradient_clipping": config.optimizer.clip,
        "steps_per_print": 2**31,
        "bf16": {"enabled": config.precision == "bfloat16"},
        # Stages 2 and 3 exchange gradients in each backward pass; a CPU has no streams to hide that on. Stage 1 does so
        # once a step, where a second buffer of gradients costs more than it hides. DeepSpeed's own default is True for
        # stage 3 alone (`overlap_comm_valid` in deepspeed/runtime/zero/config.py).
        "zero_optimization": {"stage": config.zero_stage, "overlap_comm": config.zero_stage >= 2 and has_gpu()},
        # Every node then saves the model states on its disk, not only the node of rank 0.
        "checkpoint": {"use_node_local_storage": True, "tag_validation": "Ignore"},
    }
    if config.zero_stage == 3:
        sizes = zero_sizes(config.zero, config.model)
        settings["zero_optimization"] |= {deepspeed: sizes[name].value for name, deepspeed in _STAGE_3_NAMES.items()}
    if config.precision == "bfloat16":
        if config.sums_in_float32("reduce"):
            settings["communication_data_type"] = "fp32"
        if config.sums_in_float32("accumulate"):
            settings["data_types"] = {"grad_accum_dtype": "fp32"}
    if config.optimizer.offload == "cpu":
        settings["zero_optimization"]["offload_optimizer"] = {"device": "cpu"}
        # Torch's AdamW has a vectorised update for CPUs too, and DeepSpeed's own would have to be compiled in the pod.
        settings["zero_force_ds_cpu_optimizer"] = False
    return settings


def import_deepspeed() -> Any:
    """Import DeepSpeed with less logging and without its compiler. The agent does so once before it forks the ranks."""
    import deepspeed
    from deepspeed.utils import logger

    logger.setLevel(logging.ERROR)
    # DeepSpeed calls deprecated names of torch's collectives, and each rank would warn at each start.
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\.distributed")
    # Training does not use this extension, and compiling it takes 40 s and leaves a lock behind when killed. Setting
    # the dict also skips the probes of all other extensions.
    deepspeed.ops.__compatible_ops__ = {"deepspeed_shm_comm": False}
    _import_muon_uncompiled()
    return deepspeed


def _import_muon_uncompiled() -> None:
    """Import DeepSpeed's Muon optimizer without compiling it (1.3 s): DeepSpeed needs only its type."""
    from deepspeed.runtime import compiler

    original_compile = compiler.compile
    compiler.compile = lambda *_, **__: lambda function: function
    try:
        import deepspeed.runtime.zero.muon.muon_optimizer  # noqa: F401
    finally:
        compiler.compile = original_compile


def learning_rate(step: int, steps: int, config: OptimizerConfig) -> float:
    """Return the rate of the 0-based optimizer step `step` out of `steps`."""
    if step < config.warmup_steps:
        return config.learning_rate * (step + 1) / config.warmup_steps
    part = min(1.0, (step - config.warmup_steps) / max(1, steps - config.warmup_steps))
    span = config.learning_rate - config.minimum_learning_rate
    return config.minimum_learning_rate + 0.5 * span * (1.0 + math.cos(math.pi * part))


_READ = "0.19.8"
"""The version of DeepSpeed whose `step` was read."""


def read_norm_once(engine: Any) -> None:
    """Let the gradient's norm alone decide whether the engine's optimizer takes a step. Every bit stays the same.

    `step` of DeepSpeed 0.19.8 (`stage_1_and_2.py`, `fp16/unfused_optimizer.py`) first reads each gradient for what is
    no number: a few kernels per parameter, or a wait. Then it takes the norm of all, which is no number either then,
    and refuses the step by that as well, where one rank has each parameter whole or in parts of its own. Stage 3 does
    the second alone in bfloat16. Stages 1 and 2 ask once more for each group of parameters that they scale.

    Optimizers with states in the node's memory keep their checks: they have no norm on the device. So do ranks that
    compute one model together: only the first of them has the replicated parameters in its norm, and another's broken
    gradient would be taken. Another version of DeepSpeed keeps its own way.
    """
    optimizer = engine.optimizer
    if engine.mp_world_size > 1 or version("deepspeed") != _READ:
        return
    if hasattr(optimizer, "overflow_checker") and not hasattr(optimizer, "averaged_gradients"):
        optimizer.overflow_checker.check = lambda: False
    if not getattr(optimizer, "check_grad_overflow", False) or optimizer.cpu_offload:
        return
    optimizer.check_overflow = lambda **_: None

    def scale(gradients: list[torch.Tensor], norm: torch.Tensor) -> None:
        """Do as `unscale_and_clip_grads` for a norm that `step` has found sound."""
        clip = torch.clamp((norm / optimizer.loss_scale + 1e-6) / optimizer.clip_grad, min=1.0)
        for gradient in gradients:
            gradient.data.mul_(1.0 / (clip * optimizer.loss_scale))

    optimizer.unscale_and_clip_grads = scale
