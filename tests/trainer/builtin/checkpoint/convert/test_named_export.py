"""Hugging Face's weights come in and go out unchanged, and `transformers` computes the same from both."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers

from tests.trainer.builtin.checkpoint.convert.test_export import checkpoint_of
from tests.trainer.builtin.model.families import EACH, config_of
from tests.trainer.warm import NAMED
from tests.trainer.warm import warm as warm_process
from trainer.builtin.checkpoint.convert.export import _tokens, export
from trainer.builtin.checkpoint.convert.initial import take_weights
from trainer.builtin.data.prepare.prepare import make
from trainer.builtin.evaluate import evaluate
from trainer.builtin.model import NamedModel, build
from trainer.contract import Chat, LoraConfig, ModelConfig, Parameters, TrainConfig
from trainer.contract.model.tokenizer import token_numbers
from trainer.contract.recipe import Recipe, Source
from trainer.errors import ConfigError

DRAWS = """
import runpy, sys
sys.stdin = open(sys.argv.pop(1))
runpy.run_module("trainer.builtin.model.drawn", run_name="__main__", alter_sys=True)
"""


@pytest.fixture(scope="module")
def tokens() -> torch.Tensor:
    return torch.randint(0, 320, (2, 32), generator=torch.Generator().manual_seed(1))


def hugging_face(family: str, root: Path, shard: str = "5GB", **changes: Any) -> tuple[Any, Path]:
    """A model of `transformers`, with no gain of one, and the folder that it wrote."""
    config = transformers.AutoConfig.for_model(**{**config_of(family).config, "vocab_size": 512, **changes})
    torch.manual_seed(5)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    for parameter in model.parameters():
        if parameter.dim() < 2:
            torch.nn.init.normal_(parameter, 1.0, 0.2)
    model.save_pretrained(root, max_shard_size=shard)
    return model, root


def ours(family: str, **switches: Any) -> ModelConfig:
    model = config_of(family, **switches)
    return model.model_copy(update={"vocabulary": 512, "config": {**model.config, "vocab_size": 512}})


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    return {name: one for path in sorted(folder.glob("*.safetensors")) for name, one in load_file(path).items()}


def warm(family: str, folder: Path) -> NamedModel:
    model = build(ours(family))
    assert isinstance(model, NamedModel)
    take_weights(model, folder)
    return model.eval()


def test_drawn_weights_come_in_beside_adapters(tmp_path: Path) -> None:
    config = ours("llama", lora=LoraConfig(rank=2))
    (tmp_path / "model.json").write_text(config.model_dump_json())
    words = [str(tmp_path / "model.json"), str(tmp_path)]
    assert warm_process().start(DRAWS, words, dict(os.environ), log := tmp_path / "log", ahead=NAMED).wait() == 0, (
        log.read_text()
    )
    torch.manual_seed(7)
    model = build(config, bare=True)
    assert isinstance(model, NamedModel)
    before = {name: one.clone() for name, one in model.network.state_dict().items()}
    assert take_weights(model, tmp_path) == len(tensors(tmp_path)) > 10
    assert all(torch.equal(one, model.network.state_dict()[name]) for name, one in tensors(tmp_path).items())
    drawn = {name: one for name, one in tensors(tmp_path).items() if one.dim() == 2}
    assert not any(torch.equal(one, before[name]) for name, one in drawn.items())


@pytest.mark.parametrize("family", EACH)
@pytest.mark.parametrize("shard", ["60KB", pytest.param("5GB", marks=pytest.mark.nightly)])
def test_weights_come_in_and_go_out_bit_for_bit(
    family: str, shard: str, config: TrainConfig, data: Path, tokens: torch.Tensor, tmp_path: Path
) -> None:
    theirs, came = hugging_face(family, tmp_path / "in", shard)
    model = warm(family, came)
    config = config.model_copy(update={"model": ours(family)})
    folder = checkpoint_of(model, config, tmp_path / "tier")
    files = export(folder, config, data, went := tmp_path / "out", 10**9 if shard == "5GB" else 60_000)
    assert ("model.safetensors.index.json" in files) == (shard == "60KB")

    before, after = tensors(came), tensors(went)
    assert before.keys() == after.keys()
    assert all(torch.equal(one, after[name]) for name, one in before.items())
    again = transformers.AutoModelForCausalLM.from_pretrained(went, dtype=torch.float32).eval()
    with torch.no_grad():
        scores = theirs(tokens).logits
        assert scores.abs().max() > 0.1
        assert torch.equal(again(tokens).logits, scores)
        torch.testing.assert_close(model.logits(tokens), scores, rtol=1e-4, atol=1e-5)


def test_the_golden_checkpoint_of_a_named_model_is_evaluated(config: TrainConfig, data: Path, tmp_path: Path) -> None:
    _, came = hugging_face("llama", tmp_path / "in")
    config = config.model_copy(update={"model": ours("llama")})
    folder = checkpoint_of(warm("llama", came), config, tmp_path / "tier")
    answer = evaluate(folder, config, data)
    assert 5 < answer["evaluation_loss"] < 12


def test_the_configuration_goes_out_with_the_values_that_came_in(
    config: TrainConfig, data: Path, tmp_path: Path
) -> None:
    _, came = hugging_face("llama", tmp_path / "in")
    config = config.model_copy(update={"model": ours("llama")})
    export(checkpoint_of(warm("llama", came), config, tmp_path / "tier"), config, data, went := tmp_path / "out")
    one, other = (transformers.AutoConfig.from_pretrained(folder) for folder in (came, went))
    left_out = {"bos_token_id", "eos_token_id", "dtype", "transformers_version", "_name_or_path"}
    assert {k: v for k, v in one.to_dict().items() if k not in left_out} == {
        k: v for k, v in other.to_dict().items() if k not in left_out
    }
    assert json.loads((went / "config.json").read_text())["architectures"] == ["LlamaForCausalLM"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"rope_theta": 1234.0}, "rope_parameters"),
        ({"num_attention_heads": 8, "head_dim": 6}, "num_attention_heads"),
        ({"num_hidden_layers": 3}, "of another model"),
        ({"intermediate_size": 128}, "another shape"),
        ({"tie_word_embeddings": True}, "tie_word_embeddings: True there, False here"),
    ],
)
def test_weights_that_mean_another_model_are_refused(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    _, came = hugging_face("llama", tmp_path / "in", **changes)
    with pytest.raises(ConfigError, match=said):
        warm("llama", came)


def test_an_index_reads_nothing_outside_of_its_folder(tmp_path: Path) -> None:
    _, came = hugging_face("llama", tmp_path / "in", "60KB")
    index = json.loads((came / "model.safetensors.index.json").read_text())
    index["weight_map"]["model.norm.weight"] = "../elsewhere.safetensors"
    (came / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ConfigError, match="outside of its folder"):
        warm("llama", came)


def test_the_export_says_the_type_that_its_weights_have_and_not_the_one_they_came_in(
    config: TrainConfig, data: Path, tmp_path: Path
) -> None:
    _, came = hugging_face("llama", tmp_path / "in")
    known = ours("llama")
    said = known.model_copy(update={"config": known.config | {"dtype": "bfloat16"}})
    config = config.model_copy(update={"model": said})
    export(checkpoint_of(warm("llama", came), config, tmp_path / "tier"), config, data, went := tmp_path / "out")
    again = transformers.AutoModelForCausalLM.from_pretrained(went)
    assert all(torch.equal(one, again.state_dict()[name]) for name, one in tensors(went).items())


def test_the_ids_of_the_data_s_own_tokenizer_replace_those_of_the_base_model(
    config: TrainConfig, tmp_path: Path
) -> None:
    """`transformers` reads them from `config.json` where a pipeline has no generation configuration."""
    texts = tmp_path / "texts"
    texts.mkdir()
    for number in range(40):
        (texts / f"{number}.txt").write_text(f"document {number} of some words\n" * 20)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore[assignment]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=config.model.vocabulary, initial_alphabet=alphabet, show_progress=False,
        special_tokens=["<unused>", "<end>", "<begin>", "<pad>"],
    )  # fmt: skip
    tokenizer.train_from_iterator([f"document {number} of some words" for number in range(400)], trainer)
    begins = processors.TemplateProcessing(single="<begin> $A", special_tokens=[("<begin>", 2)])
    tokenizer.post_processor = begins  # type: ignore[assignment]
    tokenizer.enable_padding(pad_id=3, pad_token="<pad>")
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    recipe = Recipe(
        sources=(Source(location=str(texts)),), parameters=Parameters(held_out=0.2, seed=1),
        tokenizer=tmp_path / "tokenizer.json", end_of_document="<end>", beginning_of_document="<begin>",
    )  # fmt: skip
    make(recipe, tmp_path / "data", lambda stage, share: None, cores=1)
    digest = hashlib.sha256((tmp_path / "data/manifest.json").read_bytes()).hexdigest()
    _, came = hugging_face("llama", tmp_path / "in")
    config = config.model_copy(
        update={"model": ours("llama"), "data": config.data.model_copy(update={"manifest_digest": digest})}
    )
    folder = checkpoint_of(warm("llama", came), config, tmp_path / "tier")
    export(folder, config, tmp_path / "data", tmp_path / "out")
    for name in ("config.json", "generation_config.json"):
        document = json.loads((tmp_path / "out" / name).read_text())
        ids = [document[f"{token}_token_id"] for token in ("bos", "eos", "pad")]
        assert ids == [2, 1, 3], name
    read = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert (read.bos_token, read.eos_token, read.pad_token) == ("<begin>", "<end>", "<pad>")
    assert read("document 1").input_ids[0] == 2


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_tokens_of_a_chat_are_its_templates_and_those_of_text_may_be_in_the_vocabulary(kind: str) -> None:
    """Many a tokenizer has its first and last token in the model's vocabulary alone."""
    rows = ["<s>", "</s>", "<pad>", "a"]
    vocabulary: Any = {word: n for n, word in enumerate(rows)} if kind == "bpe" else [[word, 0.0] for word in rows]
    content = json.dumps({"model": {"vocab": vocabulary}, "added_tokens": [{"id": 4, "content": "<x>"}]}).encode()
    numbers = token_numbers(content)
    assert numbers == {"<s>": 0, "</s>": 1, "<pad>": 2, "a": 3, "<x>": 4}

    def named(begin: int | None, chat: Chat | None = None) -> dict[str, str | None]:
        manifest: Any = SimpleNamespace(beginning_of_document=begin, parameters=SimpleNamespace(chat=chat))
        return _tokens(manifest, content, numbers, "</s>")

    assert (named(0)["bos_token"], named(None)["bos_token"]) == ("<s>", "</s>")
    chat = Chat(template="{{ bos_token }}", bos_token="", eos_token="", context=8)
    assert (named(0, chat)["bos_token"], named(0, chat)["eos_token"]) == (None, "</s>"), "as it was trained"
    assert named(None, chat.model_copy(update={"bos_token": "<s>"}))["bos_token"] == "<s>"
