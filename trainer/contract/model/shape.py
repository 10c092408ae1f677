"""Parameters of a model by formula, from the values of its configuration. Pure; no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trainer.contract.model.layout import Heads
from trainer.contract.training import ModelConfig

_GATED = ("llama", "mistral", "qwen2", "qwen3")
"""Kinds (`model_type`) with this formula: pre-norm RMSNorm, grouped queries, a gated feed-forward part of three
matrices. Source: their modeling files in `transformers`."""
_NEEDED = (
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "max_position_embeddings",
)  # fmt: skip


@dataclass(frozen=True)
class Shape:
    """Sizes that the number of parameters follows from."""

    vocabulary: int
    layers: int
    width: int
    hidden: int
    """Width of the feed-forward part."""
    queries: int
    """Width of all heads together."""
    keys: int
    """Width of all keys, and of all values."""
    tied: bool
    """Embedding and output layer are one matrix."""
    small: int
    """Gains and biases of a layer."""

    @property
    def embedding(self) -> int:
        return self.vocabulary * self.width

    @property
    def block(self) -> int:
        attention = 2 * self.width * self.queries + 2 * self.width * self.keys
        return attention + 3 * self.width * self.hidden + self.small

    @property
    def parameters(self) -> int:
        return self.embedding * (1 if self.tied else 2) + self.layers * self.block + self.width

    @property
    def formula(self) -> str:
        """The calculation: embeddings + layers x (attention + feed-forward + gains and biases) + last gain."""
        if self.queries == self.keys == self.width:
            attention = f"4 x {self.width}^2"
        else:
            attention = f"2 x {self.width} x {self.queries} + 2 x {self.width} x {self.keys}"
        small = f"2 x {self.width}" if self.small == 2 * self.width else str(self.small)
        return (
            f"{'' if self.tied else '2 x '}{self.vocabulary} x {self.width} + {self.layers} x ({attention}"
            f" + 3 x {self.width} x {self.hidden} + {small}) + {self.width}"
        )


def shape_of(model: ModelConfig) -> Shape:
    """Return the sizes of a model whose parameters are not given."""
    if model.config:
        return _of_config(model.config)
    width, hidden = model.width, feed_forward_width(model.width)
    return Shape(model.vocabulary, model.layers, width, hidden, width, width, True, 2 * width)


def feed_forward_width(width: int) -> int:
    """Return SwiGLU's hidden width: 8/3 of the residual width, rounded up to a multiple of 32, as in the trainer."""
    return 32 * -(-8 * width // 96)


def parameters(model: ModelConfig) -> int:
    return model.parameters if model.parameters is not None else shape_of(model).parameters


def parameters_formula(model: ModelConfig) -> str:
    return "spec: training.model.parameters" if model.parameters is not None else shape_of(model).formula


@dataclass(frozen=True)
class Work:
    """What a token costs: operations follow from it (Chowdhery et al. 2022, "PaLM", appendix B)."""

    used: int
    """Parameters that each token is multiplied with: all but the embedding, whose use as the output layer counts."""
    layers: int
    queries: int
    """Width of all heads together."""
    block: int
    """Parameters of one layer."""
    output: int
    """Parameters of the output layer."""
    adapters: int | None = None
    """Parameters of the adapters, beside which all others are frozen; None: there are none."""

    def flop(self, context: int) -> int:
        """Return those of a token, forward and backward: 6 N + 12 layers x width of all heads x context. Frozen
        parameters have no gradient: 4 N."""
        weights = 6 * self.used if self.adapters is None else 4 * self.used + 6 * self.adapters
        return weights + 12 * self.layers * self.queries * context


def work_of(model: ModelConfig) -> Work:
    """Return it. Nothing tells a given number's embedding from the rest of it, so there N is all, spread evenly."""
    if model.parameters is not None:
        return Work(model.parameters, model.layers, model.width, model.parameters // model.layers, 0)
    shape = shape_of(model)
    weights = shape.parameters - (0 if shape.tied else shape.embedding)
    adapters = None if model.lora is None else adapter_parameters(model)
    return Work(weights, shape.layers, shape.queries, shape.block, shape.embedding, adapters)


def matrices(model: ModelConfig) -> dict[str, tuple[int, int]]:
    """Return the matrices of a layer: name -> inputs and outputs. Each kind of model with a formula has these."""
    shape = shape_of(model)
    width, hidden, queries, keys = shape.width, shape.hidden, shape.queries, shape.keys
    return {
        "q_proj": (width, queries), "k_proj": (width, keys), "v_proj": (width, keys), "o_proj": (queries, width),
        "gate_proj": (width, hidden), "up_proj": (width, hidden), "down_proj": (hidden, width),
    }  # fmt: skip


def adapter_parameters(model: ModelConfig) -> int:
    """Return the number: rank x (inputs + outputs) of each matrix that has an adapter."""
    lora = model.lora
    if lora is None or model.is_function:  # a function's model with adapters is refused
        return 0
    shapes = matrices(model)
    targets = shapes if lora.targets == "all-linear" else set(lora.targets) & set(shapes)
    return lora.rank * shape_of(model).layers * sum(sum(shapes[name]) for name in targets)


def trained_parameters(model: ModelConfig) -> int:
    return parameters(model) if model.lora is None else adapter_parameters(model)


def _of_config(config: dict[str, Any]) -> Shape:
    kind, width, heads = config["model_type"], config["hidden_size"], config["num_attention_heads"]
    head = head_width(config)
    hidden, queries, keys = config["intermediate_size"], heads * head, key_heads(config) * head
    small = 2 * width
    if kind == "qwen2":  # it has biases of queries, keys and values, whatever its configuration says
        small += queries + 2 * keys
    elif kind != "mistral" and config.get("attention_bias"):
        small += queries + 2 * keys + width
    if kind == "llama" and config.get("mlp_bias"):
        small += 2 * hidden + width
    if kind == "qwen3":
        small += 2 * head
    is_tied = bool(config.get("tie_word_embeddings", False))
    return Shape(config["vocab_size"], config["num_hidden_layers"], width, hidden, queries, keys, is_tied, small)


def head_width(config: dict[str, Any]) -> int:
    """Return the width of a head; Qwen3's default is 128, that of the others follows from width and heads."""
    if config.get("head_dim"):
        return int(config["head_dim"])
    return 128 if config["model_type"] == "qwen3" else int(config["hidden_size"] // config["num_attention_heads"])


def key_heads(config: dict[str, Any]) -> int:
    """Return the number of key heads, with the defaults of `transformers`' configuration classes."""
    if config.get("num_key_value_heads") is not None:
        return int(config["num_key_value_heads"])
    absent = "num_key_value_heads" not in config
    default = {"mistral": 8, "qwen2": 32, "qwen3": 32}.get(config["model_type"])
    return default if absent and default is not None else int(config["num_attention_heads"])


def sliding_window(config: dict[str, Any]) -> int | None:
    """Return the window of the attention; `transformers` gives Mistral one of 4096 where nothing is said."""
    if config["model_type"] == "mistral":
        window = config.get("sliding_window", 4096)
    else:
        window = config.get("sliding_window") if config.get("use_sliding_window") else None
    return int(window) if window else None


def heads_of(model: ModelConfig) -> Heads | None:
    """Return what of a model is dealt out to ranks; None for a function's model, which only the trainer knows."""
    if model.is_function:
        return None
    if not model.config:
        return Heads(model.heads, model.heads, feed_forward_width(model.width))
    config = model.config
    return Heads(config["num_attention_heads"], key_heads(config), config["intermediate_size"], sliding_window(config))


def refuse_unknown(config: dict[str, Any]) -> None:
    """Raise `ValueError` for a configuration that has no formula here."""
    kind = config.get("model_type")
    if kind not in _GATED:
        kinds = ", ".join(_GATED)
        raise ValueError(
            f"has model_type {kind!r}, whose size is not known here; take one of {kinds}, "
            "or give `package.module:function` and `parameters`"
        )
    wrong = [name for name in _NEEDED if not isinstance(config.get(name), int) or config[name] < 1]
    if wrong:
        raise ValueError(f"its configuration lacks {', '.join(wrong)}; give whole numbers in `config`")
    for name in ("num_key_value_heads", "head_dim"):
        if (number := config.get(name)) is not None and (not isinstance(number, int) or number < 1):
            raise ValueError(f"{name} is {number!r}; give a whole number above 0")
    if config["num_attention_heads"] % key_heads(config):
        finding = f"{config['num_attention_heads']} heads, {key_heads(config)} key heads"
        raise ValueError(f"{finding}; make num_attention_heads a multiple of num_key_value_heads")
