"""The golden export is the trainer's model: `transformers` computes the same logits from it, and nothing is lost."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import transformers

from tests.manifests import manifest_of, seal, shard_at
from tests.trainer.warm import run_module
from trainer.builtin.checkpoint.convert.export import export, rename_tensors
from trainer.builtin.model import Transformer
from trainer.contract import ModelConfig, TrainConfig, attempt_folder, step_folder
from trainer.errors import ConfigError, StorageError

STEP = 7


def checkpoint_of(model: torch.nn.Module, config: TrainConfig, root: Path) -> Path:
    """A committed checkpoint folder as the trainer leaves it, with the model's states alone."""
    folder = root / step_folder(STEP)
    states = folder / attempt_folder(1) / "mp_rank_00_model_states.pt"
    states.parent.mkdir(parents=True)
    torch.save({"module": model.state_dict()}, states)
    manifest = manifest_of(STEP, (shard_at(states),), campaign=config.campaign, data_digest=config.data.manifest_digest)
    seal(folder, manifest)
    return folder


@pytest.fixture(scope="module")
def model(config: TrainConfig) -> Transformer:
    torch.manual_seed(3)
    model = Transformer(config.model).eval()
    for parameter in model.parameters():
        if parameter.dim() < 2:  # a gain of one would hide a norm in the wrong place
            torch.nn.init.normal_(parameter, 1.0, 0.2)
    return model


@pytest.fixture(scope="module")
def folder(model: Transformer, config: TrainConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoint_of(model, config, tmp_path_factory.mktemp("tier"))


@pytest.mark.parametrize("shard_bytes", [pytest.param(10**9, marks=pytest.mark.nightly), 60_000])
def test_transformers_computes_the_same_logits_from_the_export(
    shard_bytes: int, folder: Path, model: Transformer, config: TrainConfig, data: Path, tmp_path: Path
) -> None:
    """Within 1e-5 of logits of size 1: queries, keys and values are one matrix product here and three there, whose
    sums a matrix library may add up in another order."""
    files = export(folder, config, data, tmp_path / "out", shard_bytes)
    assert ("model.safetensors.index.json" in files) == (shard_bytes == 60_000)
    llama = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32).eval()
    tokens = torch.randint(0, config.model.vocabulary, (3, config.model.context))
    with torch.no_grad():
        ours, theirs = model.logits(tokens), llama(tokens).logits
    assert ours.abs().max() > 0.1
    assert torch.allclose(ours, theirs, rtol=0, atol=1e-5), (ours - theirs).abs().max()


def test_the_tokenizer_and_its_end_come_with_it(folder: Path, config: TrainConfig, data: Path, tmp_path: Path) -> None:
    export(folder, config, data, tmp_path / "out")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer.decode(tokenizer("abc def").input_ids) == "abc def"
    generation = json.loads((tmp_path / "out/generation_config.json").read_text())
    assert tokenizer.eos_token_id == generation["eos_token_id"] == 0


def test_the_same_checkpoint_gives_the_same_bytes(
    folder: Path, config: TrainConfig, data: Path, tmp_path: Path
) -> None:
    for name in ("one", "two"):
        export(folder, config, data, tmp_path / name)
    for path in (tmp_path / "one").iterdir():
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes(), path.name


def test_one_process_evaluates_and_exports_the_same_bytes_as_an_export_alone(
    folder: Path, config: TrainConfig, data: Path, tmp_path: Path
) -> None:
    """An export that fails, here for a folder that is there already, leaves the loss that was printed before it."""
    (tmp_path / "train.json").write_text(config.model_dump_json())
    arguments = ["--checkpoint", str(folder), "--data", str(data)]
    arguments += ["--config", str(tmp_path / "train.json"), "--export", str(tmp_path / "beside")]
    export(folder, config, data, tmp_path / "alone")
    for code in (0, 1):
        process = run_module("trainer.builtin.evaluate", *arguments, folder=tmp_path)
        assert process.returncode == code, process.stderr
        assert json.loads(process.stdout.splitlines()[-1])["step"] == STEP
    files = sorted(path for path in (tmp_path / "alone").rglob("*") if path.is_file())
    assert [path.read_bytes() for path in files] == [
        (tmp_path / "beside" / path.relative_to(tmp_path / "alone")).read_bytes() for path in files
    ]


def test_a_damaged_checkpoint_is_not_exported(
    model: Transformer, config: TrainConfig, data: Path, tmp_path: Path
) -> None:
    folder = checkpoint_of(model, config, tmp_path)
    states = next(folder.glob("attempt-*/*.pt"))
    content = bytearray(states.read_bytes())
    content[len(content) // 2] ^= 1
    states.write_bytes(content)
    with pytest.raises(StorageError, match="not whole"):
        export(folder, config, data, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_tensor_that_llama_does_not_know_is_refused() -> None:
    with pytest.raises(ConfigError, match="a tensor that Llama does not have"):
        rename_tensors({"blocks.0.attention.bias": torch.zeros(2)})


def test_every_tensor_of_the_model_has_its_place() -> None:
    small = Transformer(ModelConfig(layers=2, width=32, heads=2, context=16, vocabulary=300))
    tensors = rename_tensors(dict(small.state_dict()))
    assert sum(t.numel() for t in tensors.values()) == sum(p.numel() for p in small.parameters())
