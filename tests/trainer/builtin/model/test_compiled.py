"""Compiled layers train as those that are not, are compiled once for all, and lie on the disk for the next process."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from tests.root import ROOT
from tests.trainer.builtin.model.families import config_of
from trainer.builtin import engine
from trainer.builtin.config import load_config
from trainer.builtin.model import blocks_of
from trainer.contract import TrainConfig
from trainer.errors import ConfigError

PROGRAM = """
import os, sys
from pathlib import Path
import torch
import torch._inductor.codegen.cpp, torch._inductor.compile_fx
from torch._dynamo.utils import counters
from trainer.builtin.model import build
from trainer.builtin.model.compiled import compile_layers, keep_kernels, recompute_outside, uncompiled
from trainer.contract import TrainConfig

def compare(config):
    results = []
    tokens = torch.randint(0, 320, (2, 33), generator=torch.Generator().manual_seed(1))
    for compiles in (False, True):
        torch.manual_seed(3)
        model = build(config.model, recompute_outside(config) if compiles else config.recompute)
        names = [name for name, _ in model.named_parameters()]
        if compiles:
            compile_layers(model, config.recompute)
        assert [name for name, _ in model.named_parameters()] == names == list(dict(model.named_parameters()))
        loss = model(tokens)
        loss.backward()
        results.append((loss.detach(), [parameter.grad for parameter in model.parameters()]))
    (plain, plain_gradients), (compiled, gradients) = results
    torch.testing.assert_close(compiled, plain, rtol=1e-5, atol=0)
    for gradient, plain_gradient in zip(gradients, plain_gradients, strict=True):
        torch.testing.assert_close(gradient, plain_gradient, rtol=1e-3, atol=1e-6)
    assert counters["stats"]["unique_graphs"] == 1, "one for all layers"
    with uncompiled(config), torch.no_grad():
        assert torch.equal(model(tokens), plain), "an evaluation computes as one process does that compiles nothing"
    assert counters["stats"]["unique_graphs"] == 1
    print(sum(counts for name, counts in counters["aot_autograd"].items() if name == "autograd_cache_hit"), flush=True)
    os._exit(0)

torch.set_num_threads(1)
keep_kernels(Path(sys.argv[1]))
for config in map(TrainConfig.model_validate_json, sys.argv[2:]):
    build(config.model, config.recompute)  # it imports the family's module
    pid = os.fork()
    if not pid:
        compare(config)
    if os.waitpid(pid, 0)[1]:
        print("failed", flush=True)
"""
"""Each configuration has a process of its own, which shares imports alone: they take 5 s."""


def config(**settings: Any) -> TrainConfig:
    return TrainConfig(campaign="c", model=config_of("llama"), steps=1, global_batch=2, compile="layers", **settings)


@pytest.fixture(scope="module")
def graphs_on_disk(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """How many graphs lay on the disk for each of three processes, one after the other: `full` twice, and `selective`.

    One folder for all, since what the compiler learns of this processor takes as long as to compile the layers.
    """
    settings = [config(recompute={"policy": policy}).model_dump_json() for policy in ("full", "full", "selective")]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TORCHINDUCTOR")}
    # Without vector instructions, which take three compilations to look for, and in the process itself: half the time.
    environment |= {"TORCHINDUCTOR_VEC_ISA_OK": "0", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    command = [sys.executable, "-c", PROGRAM, str(tmp_path_factory.mktemp("kept")), *settings]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "failed" not in done.stdout, done.stderr[-3000:]
    return done.stdout.split()


def test_compiled_layers_compute_what_they_did_and_the_next_process_compiles_nothing(graphs_on_disk: list[str]) -> None:
    assert graphs_on_disk[:2] == ["0", "1"]


def test_a_compiled_layer_keeps_its_products_and_computes_the_rest_again(graphs_on_disk: list[str]) -> None:
    assert graphs_on_disk[2:] == ["0"]


@pytest.mark.parametrize("choice", ["none", "layers"])
def test_an_engine_gets_compiled_layers_where_the_spec_asks_for_them(
    choice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = list[Any]()

    def initialize(model: Any, **_: object) -> NoReturn:
        models.append(model)
        raise InterruptedError

    deepspeed = SimpleNamespace(
        initialize=initialize, zero=SimpleNamespace(GatheredParameters=lambda tensor, modifier_rank: nullcontext())
    )
    monkeypatch.setattr(engine, "import_deepspeed", lambda: deepspeed)
    with pytest.raises(InterruptedError):
        engine.build_engine(config().model_copy(update={"compile": choice}), 1)
    compiled = [hasattr(layer.forward, "_torchdynamo_orig_callable") for layer in blocks_of(models[0])]
    assert compiled == [choice == "layers"] * 2


@pytest.mark.parametrize(
    "settings",
    [
        {"zero_stage": 3},
        {"parallel": {"sequence": 2}},
        {"watch": {"precision_every": 5}},
    ],
    ids=lambda settings: next(iter(settings)),
)
def test_what_works_within_a_layer_is_refused(settings: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "train.json").write_text(config(**settings).model_dump_json())
    with pytest.raises(ConfigError, match=r"training\.compile makes one piece of each layer"):
        load_config(tmp_path / "train.json")
