"""Loading and checking of the training configuration."""

from __future__ import annotations

import hashlib
from pathlib import Path

from pydantic import ValidationError

from trainer.contract import (
    Layout,
    TrainConfig,
    adapter_trouble,
    compile_trouble,
    dropout_trouble,
    replay_trouble,
)
from trainer.errors import ConfigError, unread


def load_config(path: Path) -> TrainConfig:
    """Read `/config/train.json`. Raises `ConfigError` that names every wrong field."""
    try:
        content = path.read_bytes()
    except OSError as error:
        fact = f"{path}: {error.strerror}"
        raise unread(error, ConfigError("there is no training configuration", fact, "mount the config map")) from error
    try:
        config = TrainConfig.model_validate_json(content)
    except ValidationError as error:
        rows = [f"{'.'.join(map(str, item['loc'])) or '(file)'}: {item['msg']}" for item in error.errors()]
        raise ConfigError("the training configuration is not valid", "; ".join(rows), f"correct {path.name}") from error
    _check(config)
    return config


def check_world(config: TrainConfig, world_size: int) -> int:
    """Return micro batches per rank and step. Raises `ConfigError` when the global batch does not divide evenly."""
    layout = Layout.of(config.parallel, world_size)
    samples_per_pass = config.micro_batch * layout.data
    if not samples_per_pass or config.global_batch % samples_per_pass:
        raise ConfigError(
            "the global batch is not a multiple of micro_batch x data-parallel ranks",
            f"global_batch {config.global_batch}, micro_batch {config.micro_batch}, {world_size} ranks"
            f"{f': {layout.parts()}' if layout.splits else ''}",
            f"set global_batch to a multiple of {samples_per_pass}",
        )
    return config.global_batch // samples_per_pass


def computes_together(config: TrainConfig) -> bool:
    """Return whether all ranks must compute a batch, the same one, for one loss: with ZeRO stage 3 and with tensor
    parallelism no rank holds whole weights, and with sequence parallelism none has room for a whole sequence."""
    return config.zero_stage == 3 or Layout.of(config.parallel, 1).splits


def config_digest(config: TrainConfig) -> str:
    return hashlib.sha256(config.model_dump_json().encode()).hexdigest()


def _check(config: TrainConfig) -> None:
    model = config.model
    if not model.name and model.width % (2 * model.heads):
        raise ConfigError(
            "rotary positions need an even width per head",
            f"model.width {model.width}, model.heads {model.heads}",
            f"make model.width a multiple of {2 * model.heads}",
        )
    trouble = adapter_trouble(model, config.parallel, bool(config.init_from)) or dropout_trouble(model, config.watch)
    trouble = trouble or replay_trouble(config.watch)
    if config.compile == "layers":
        trouble = trouble or compile_trouble(config.zero_stage, config.parallel, config.watch)
    if trouble is not None:
        raise ConfigError(f"training.{trouble.field} {trouble.message}", trouble.seen, trouble.cure)
    if config.precision not in ("float32", "bfloat16"):
        raise ConfigError("unknown precision", config.precision, "use float32 or bfloat16")
