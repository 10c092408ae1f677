"""`python -m trainer.builtin.checkpoint.convert.export`: export a checkpoint's model for `transformers`.

The trainer's small decoder has Llama's architecture, so its export renames and splits tensors; a named model is one of
`transformers` already. No number changes: the result is read again and compared with the checkpoint bit for bit. Only
adapters do: they are added to their matrices, and written beside the model as they are.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from trainer.builtin.checkpoint.convert.weights import load_weights, verified_manifest
from trainer.builtin.config import load_config
from trainer.builtin.data.held_out import end_of_document
from trainer.builtin.data.reader import load_manifest
from trainer.builtin.model import NORM_EPSILON, ROTARY_BASE, swiglu_width
from trainer.builtin.model.adapters import FOLDER, merge, write_adapters
from trainer.builtin.model.named import PREFIX, network_of
from trainer.contract import DATA_MOUNT, TOKENIZER_NAME, Chat, DataManifest, TrainConfig
from trainer.contract.model.tokenizer import first_token, padding, token_numbers
from trainer.errors import ConfigError, StorageError, TrainerError

Targets = Callable[[str], list[str]]
SHARD_BYTES = 5 * 10**9
"""Largest size of a file of weights; a larger tensor has a file of its own."""
_WHOLE = {
    "embedding.weight": "model.embed_tokens.weight",
    "norm.weight": "model.norm.weight",
}
_OF_BLOCK = {
    "attention_norm.weight": ("input_layernorm.weight",),
    "attention.project_in.weight": tuple(f"self_attn.{part}_proj.weight" for part in "qkv"),
    "attention.project_out.weight": ("self_attn.o_proj.weight",),
    "feed_forward_norm.weight": ("post_attention_layernorm.weight",),
    "feed_forward.project_in.weight": ("mlp.gate_proj.weight", "mlp.up_proj.weight"),
    "feed_forward.project_out.weight": ("mlp.down_proj.weight",),
}


def export(checkpoint: Path, config: TrainConfig, data: Path, dest: Path, shard_bytes: int = SHARD_BYTES) -> list[str]:
    """Verify a checkpoint folder and write its model into the new folder `dest`. Return the files' names.

    Raises `StorageError` when the checkpoint is not whole, `ConfigError` when the configuration is of another model.
    """
    manifest = verified_manifest(checkpoint, config.campaign, config.identity)
    form = _form_of(config)
    all_weights = load_weights(checkpoint, manifest, config.model)
    lora = config.model.lora
    plain = all_weights if lora is None else merge(all_weights, lora)
    weights = {name: tensor for name, tensor in plain.items() if name not in form.tied}
    tensors = rename_tensors(weights, form.targets)
    data_manifest = load_manifest(data, manifest.data_digest)
    dest.mkdir(parents=True)
    _write_weights(tensors, dest, shard_bytes)
    _compare(weights, dest, form.targets)
    if lora is not None:
        write_adapters(all_weights, lora, config.model.name, dest / FOLDER)
    tokenizer = (data / TOKENIZER_NAME).read_bytes()
    end = end_of_document(data_manifest, tokenizer)
    dtype = str(next(iter(tensors.values())).dtype).removeprefix("torch.")
    # `transformers` reads the newer `dtype` first: what the weights came in says nothing of what they are now.
    config_fields = {name: value for name, value in form.config.items() if name != "dtype"} | {"torch_dtype": dtype}
    model_config = config_fields if config.model.name else llama_config(config, end[0], dtype)
    numbers = token_numbers(tokenizer) | {end[1]: end[0]}
    tokens = _tokens(data_manifest, tokenizer, numbers, end[1])
    token_ids = {f"{name}_id": numbers.get(token or "") for name, token in tokens.items()}
    _write_json(dest / "config.json", model_config | token_ids)
    stops = sorted({end[0], token_ids["eos_token_id"] or end[0]})
    generation = token_ids | {"eos_token_id": stops if len(stops) > 1 else end[0], "do_sample": True}
    _write_json(dest / "generation_config.json", generation)
    chat = data_manifest.parameters.chat
    _write_json(dest / "tokenizer_config.json", _tokenizer_config(config, tokens, chat))
    (dest / TOKENIZER_NAME).write_bytes(tokenizer)
    return sorted(path.relative_to(dest).as_posix() for path in dest.rglob("*") if path.is_file())


@dataclass(frozen=True)
class _Form:
    """How the model's tensors are named in Hugging Face's files."""

    targets: Targets
    """A tensor's name -> the names of its pieces."""
    tied: frozenset[str] = frozenset()
    """Names of tensors that are another one's memory; the files have them once."""
    config: dict[str, Any] = field(default_factory=dict)


def _form_of(config: TrainConfig) -> _Form:
    model = config.model
    if not model.name:
        return _Form(_in_llama)
    with torch.device("meta"):
        network = network_of(model)
    settings = json.loads(network.config.to_json_string()) if model.is_function else model.config
    return _Form(
        lambda name: [name.removeprefix(PREFIX)],
        frozenset(PREFIX + name for name in network.all_tied_weights_keys),
        {**settings, "architectures": [type(network).__name__]},
    )


def llama_config(config: TrainConfig, end: int, dtype: str) -> dict[str, Any]:
    """Return `config.json` of a Llama model with the trainer's shapes; old and new versions find the rotary base."""
    model = config.model
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": model.vocabulary,
        "hidden_size": model.width,
        "intermediate_size": swiglu_width(model.width),
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.heads,
        "head_dim": model.width // model.heads,
        "hidden_act": "silu",
        "max_position_embeddings": model.context,
        "rms_norm_eps": NORM_EPSILON,
        "rope_theta": ROTARY_BASE,
        "rope_parameters": {"rope_type": "default", "rope_theta": ROTARY_BASE},
        "attention_bias": False,
        "attention_dropout": 0.0,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "initializer_range": 0.02,
        "bos_token_id": end,
        "eos_token_id": end,
        "torch_dtype": dtype,
        "use_cache": True,
    }


def _in_llama(name: str) -> list[str]:
    """Return the names that a tensor of the small decoder, or its pieces, have in Llama."""
    if name in _WHOLE:
        return [_WHOLE[name]]
    head, _, block_name = name.partition(".")
    number, _, inner = block_name.partition(".")
    if head == "blocks" and number.isdigit():
        return [f"model.layers.{number}.{target}" for target in _OF_BLOCK.get(inner, ())]
    return []


def rename_tensors(weights: dict[str, Tensor], targets_of: Targets = _in_llama) -> dict[str, Tensor]:
    """Rename and split tensors. Raises `ConfigError` for a tensor that has no place."""
    renamed_weights: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        targets = targets_of(name)
        if not targets:
            raise ConfigError("the model has a tensor that Llama does not have", name)
        for target, piece in zip(targets, tensor.chunk(len(targets)), strict=True):
            renamed_weights[target] = piece.contiguous()
    return renamed_weights


def _write_weights(tensors: dict[str, Tensor], dest: Path, shard_bytes: int) -> None:
    """Write one file, or several with an index if one would be larger than `shard_bytes`."""
    groups: list[dict[str, Tensor]] = [{}]
    for name in sorted(tensors):
        if groups[-1] and _bytes(groups[-1].values()) + tensors[name].nbytes > shard_bytes:
            groups.append({})
        groups[-1][name] = tensors[name]
    # `save_file` refuses views of larger tensors; these have their own memory.
    if len(groups) == 1:
        save_file(groups[0], dest / "model.safetensors", metadata={"format": "pt"})
        return
    places: dict[str, str] = {}
    for number, group in enumerate(groups, 1):
        file = f"model-{number:05d}-of-{len(groups):05d}.safetensors"
        save_file(group, dest / file, metadata={"format": "pt"})
        places |= dict.fromkeys(group, file)
    total = {"total_size": _bytes(tensors.values())}
    _write_json(dest / "model.safetensors.index.json", {"metadata": total, "weight_map": places})


def _compare(weights: dict[str, Tensor], folder: Path, targets_of: Targets) -> None:
    """Read the files again and compare them with the checkpoint's model."""
    file_tensors: dict[str, Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            file_tensors |= {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    wrong = [
        name
        for name, tensor in weights.items()
        if not torch.equal(tensor, torch.cat([file_tensors.pop(target) for target in targets_of(name)]))
    ]
    if wrong or file_tensors:
        raise StorageError("the exported weights are not the checkpoint's", wrong or sorted(file_tensors))


def _bytes(tensors: Any) -> int:
    return sum(tensor.nbytes for tensor in tensors)


def _tokenizer_config(config: TrainConfig, tokens: dict[str, str | None], chat: Chat | None) -> dict[str, Any]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": config.model.context,
        **{name: token for name, token in tokens.items() if token is not None},
        "clean_up_tokenization_spaces": False,
        **({"chat_template": chat.template} if chat else {}),
    }


def _tokens(manifest: DataManifest, tokenizer: bytes, numbers: dict[str, int], end: str) -> dict[str, str | None]:
    """Return the tokens that begin, end and pad a text by the data's own tokenizer: a base model's configuration has
    those of another one. A chat's are those that its template was given, none where that was empty."""
    if (chat := manifest.parameters.chat) is not None:
        return {
            "bos_token": chat.bos_token or None,
            "eos_token": chat.eos_token or end,
            "pad_token": padding(tokenizer),
        }
    begins = [token for token, number in numbers.items() if number == manifest.beginning_of_document]
    begins.append(first_token(tokenizer))
    return {
        "bos_token": next((token for token in begins if token in numbers), end),
        "eos_token": end,
        "pad_token": padding(tokenizer),
    }


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m trainer.builtin.checkpoint.convert.export", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--checkpoint", type=Path, required=True, help="a step folder with its manifest")
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--data", type=Path, default=Path(DATA_MOUNT))
    parser.add_argument("--out", type=Path, required=True, help="a folder that is not there yet")
    options = parser.parse_args()
    try:
        files = export(options.checkpoint, load_config(options.config), options.data, options.out)
    except TrainerError as error:
        print(error, file=sys.stderr)
        return int(error.exit_code)
    print(json.dumps({"exported": str(options.out), "files": files}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
