"""A model that `transformers` builds from its configuration, with our loss, recomputation and documents.

Importing `transformers` takes seconds, so only such a model does.
"""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainer.builtin.model.documents import bounds, mask_of, split
from trainer.builtin.model.recompute import recompute_function
from trainer.builtin.model.sequence import Spread, shared_loss, use_in_transformers
from trainer.contract import ModelConfig, RecomputeConfig
from trainer.errors import ConfigError

PREFIX = "network."
"""Beginning of the tensors' names in a checkpoint; what follows is their name in Hugging Face's files."""
_CAUSAL = "causal"
"""Our name among the attention functions of `transformers`."""
_OTHER_SCORES = ("final_logit_softcapping", "logits_scaling", "logit_scale")
"""Settings of models whose scores are not the last states times the output layer."""


class NamedModel(nn.Module):
    """Maps token ids (batch, context + 1) to the mean next-token loss in nats, of those tokens that count."""

    def __init__(self, config: ModelConfig, recompute: RecomputeConfig | None = None, draw: bool = True) -> None:
        super().__init__()
        self.config = config
        self.spread: Spread | None = None
        self.network: Any = network_of(config)
        attention = self.network.config._attn_implementation
        self._blockwise, self._causal = attention == "flex_attention", attention == _CAUSAL
        for number, layer in enumerate(layers_of(self.network)):
            _recompute(layer, recompute or RecomputeConfig(), number)
        (self.initialize if draw else self.renew_rotations)()

    def forward(self, sequences: Tensor) -> Tensor:
        inputs, targets = split(sequences)
        hidden, weight = self._hidden(inputs), self.network.get_output_embeddings().weight
        return shared_loss(hidden.flatten(0, 1), weight, targets, self.spread)

    def share_sequences(self, spread: Spread) -> None:
        """Compute a part of each sequence on each rank of a group."""
        self.spread = spread
        use_in_transformers(self.network, spread)

    def logits(self, tokens: Tensor) -> Tensor:
        """Return the scores of every next token, shape (batch, length, vocabulary)."""
        return F.linear(self._hidden(tokens), self.network.get_output_embeddings().weight)

    def _hidden(self, tokens: Tensor) -> Tensor:
        document, position = bounds(tokens, self.config)
        is_plain = document is None and self._causal
        mask = None if is_plain else mask_of(document, position, tokens, self._blockwise)
        if self.spread:
            if position is None:
                position = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
            tokens, position = self.spread.part(tokens), self.spread.part(position)
        inputs = {"input_ids": tokens, "attention_mask": mask, "position_ids": position, "use_cache": False}
        hidden: Tensor = self.network.base_model(**inputs).last_hidden_state
        return hidden

    def initialize(self, gather: Callable[[Tensor], AbstractContextManager[Any]] = nullcontext) -> None:
        """Draw new weights and compute the rotation table. `gather` makes a parameter whole that is spread over ranks.

        Both are computed in float32 whatever the parameters' type, so that they are equal with every ZeRO stage.
        """
        self.renew_rotations()
        deviation = getattr(self.network.config, "initializer_range", 0.02)
        for name, parameter in self.named_parameters():
            with gather(parameter), torch.no_grad():
                if name.endswith("bias"):
                    parameter.zero_()
                elif parameter.dim() < 2:
                    parameter.fill_(1.0)
                else:
                    parameter.copy_(torch.empty(parameter.shape).normal_(std=deviation))

    def renew_rotations(self) -> None:
        """Compute the rotations' frequencies again, on the parameters' device: ZeRO 3 makes every new tensor in the
        parameters' type."""
        device = self.network.get_output_embeddings().weight.device
        for module in self.network.modules():
            if hasattr(module, "original_inv_freq"):
                fresh = type(module)(module.config)
                for name, buffer in fresh.named_buffers():
                    setattr(module, name, buffer.to(device))

    def _apply(self, function: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        """Keep the rotations' frequencies in float32, as `transformers` does: `model.to(bfloat16)` would round them."""
        float_buffers = {name: buffer for name, buffer in self.named_buffers() if buffer.dtype == torch.float32}
        super()._apply(function, recurse)
        for name, exact in float_buffers.items():
            owner, _, leaf = name.rpartition(".")
            buffers = self.get_submodule(owner)._buffers
            cast_buffer = buffers[leaf]
            if cast_buffer is not None and cast_buffer.dtype != exact.dtype:
                buffers[leaf] = exact.to(cast_buffer.device)
        return self


def network_of(config: ModelConfig) -> Any:
    """Return the model without drawn weights. Raises `ConfigError` if there is no such model."""
    transformers = import_transformers()
    from huggingface_hub.errors import StrictDataclassError
    from transformers.initialization import no_init_weights

    blockwise = config.document_attention and torch.cuda.is_available()
    attention = "flex_attention" if blockwise else "sdpa"
    if config.is_function:
        network = _function(config.name)(config)
        if isinstance(network, transformers.PreTrainedModel):
            network.set_attn_implementation(attention)
    else:
        # `transformers` writes into nested values.
        values = copy.deepcopy(config.config)
        try:
            model_config = transformers.AutoConfig.for_model(values.pop("model_type"), **values)
            if attention == "sdpa" and _sees_all_before(model_config, config.context):
                attention = _register_causal(transformers)
            with no_init_weights():
                network = transformers.AutoModelForCausalLM.from_config(
                    model_config, attn_implementation=attention, dtype=torch.float32
                )
            # What is left out with the drawing of weights.
            network.tie_weights()
        except (KeyError, TypeError, ValueError, StrictDataclassError) as error:
            raise ConfigError("transformers cannot build this model", f"{config.name}: {error}") from error
    _refuse_unfit(config, network)
    return network


def _sees_all_before(model_config: Any, context: int) -> bool:
    """Return whether each layer's attention is the plain causal one for sequences of `context` tokens."""
    window = getattr(model_config, "sliding_window", None)
    other_kinds = set(getattr(model_config, "layer_types", None) or ()) - {"full_attention"}
    is_chunked = getattr(model_config, "attention_chunk_size", None) is not None
    return not other_kinds and not is_chunked and (window is None or window >= context)


def _register_causal(transformers: Any) -> str:
    """Return torch's attention under a name for which `transformers` makes no mask. Before it makes one, it looks in
    each forward pass whether positions begin anew, and waits for the device to answer. Without a mask, attention is
    causal."""
    transformers.AttentionInterface.register(_CAUSAL, transformers.AttentionInterface()["sdpa"])
    return _CAUSAL


def import_transformers() -> Any:
    """Import `transformers` and what it imports lazily. The agent does so once before it forks the ranks."""
    import transformers
    import transformers.models.auto.modeling_auto
    import transformers.models.llama.modeling_llama

    return transformers


def _function(name: str) -> Callable[[ModelConfig], Any]:
    module, _, function = name.partition(":")
    try:
        factory: Callable[[ModelConfig], Any] = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        cure = "put it into the trainer image: the project's code and what the base image installs"
        raise ConfigError("there is no such function", f"{name}: {error}", cure) from error
    return factory


def _refuse_unfit(config: ModelConfig, network: Any) -> None:
    if not hasattr(network, "get_output_embeddings") or not hasattr(network, "base_model"):
        description = f"{config.name} returned a {type(network).__name__}"
        raise ConfigError("this is no model of transformers", description, "return an AutoModelForCausalLM's class")
    output = network.get_output_embeddings()
    if output is None or getattr(output, "bias", None) is not None:
        raise ConfigError("the model has no plain output layer", config.name, "return a causal language model")
    if settings := [name for name in _OTHER_SCORES if getattr(network.config, name, None) not in (None, 1.0)]:
        raise ConfigError("the model's scores are not hidden states x output layer", f"{config.name}: {settings}")
    window = getattr(network.config, "sliding_window", None)
    if (config.document_attention or config.reset_positions) and window is not None and window < config.context:
        description = f"{config.name}: a window of {window}, a context of {config.context}"
        raise ConfigError("documents are not kept apart in a sliding window", description, "shorten the context")
    if len(output.weight) != config.vocabulary and not hasattr(output.weight, "ds_shape"):
        description = f"model.vocabulary {config.vocabulary}, output layer {len(output.weight)}"
        raise ConfigError("the model has another vocabulary", description, "correct model.vocabulary")


def layers_of(network: Any) -> list[Any]:
    from transformers.modeling_layers import GradientCheckpointingLayer

    return [module for module in network.modules() if isinstance(module, GradientCheckpointingLayer)]


def _recompute(layer: Any, config: RecomputeConfig, number: int) -> None:
    checkpointing = recompute_function(config, number)
    layer.gradient_checkpointing = checkpointing is not None
    layer._gradient_checkpointing_func = checkpointing
