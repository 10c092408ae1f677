"""The wrapper of Megatron-LM's `pretrain`, over the loop's own order of calls, with the signatures of two releases.

Megatron-LM itself asks for CUDA. The signatures and calls below are those of `megatron/training/training.py`: of
core_v0.10.0 (7ee599a, lines 833, 1122, 1226 and 1489 to 1539) and core_v0.19.0 (5be9626, lines 2568 and 3230). In all
releases between, and in d98e8a6 of August 2026, these parameters have the same names.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from tests.root import ROOT

OLD = """
def training_log(loss_dict, total_loss_dict, learning_rate, decoupled_learning_rate, iteration,
                 loss_scale, report_memory_flag, skipped_iter,
                 grad_norm, params_norm, num_zeros_in_grad):
    seen.append(('log', iteration))
def log(iteration):
    training_log({LOSS: torch.tensor([1 / iteration])}, {}, 1e-4, None, iteration, 1.0, True, 0, 0.5, None, None)
"""
NEW = """
def training_log(loss_dict, total_loss_dict, learning_rate, iteration, loss_scale, report_memory_flag, skipped_iter,
                 grad_norm, params_norm, num_zeros_in_grad, max_attention_logit, pg_collection=None,
                 is_first_iteration=False, seqlen_squared_sum_in_batch=None, total_real_tokens_in_batch=None):
    seen.append(('log', iteration))
def log(iteration):
    training_log({LOSS: torch.tensor(1 / iteration)}, {}, 1e-4, iteration, 1.0, True, 0, 0.5, None, 0, None,
                 pg_collection=None, is_first_iteration=iteration == 1)
"""
LOOP = """
def save_checkpoint_and_time(iteration, model, optimizer, opt_param_scheduler, num_floating_point_operations_so_far,
                             checkpointing_context, non_persistent_ckpt=False, train_data_iterator=None):
    seen.append(('save', iteration, model, optimizer, opt_param_scheduler, num_floating_point_operations_so_far,
                 checkpointing_context, non_persistent_ckpt, train_data_iterator))
def checkpoint_and_decide_exit(model, optimizer, opt_param_scheduler, iteration,
                               num_floating_point_operations_so_far, checkpointing_context, train_data_iterator):
    seen.append(('decide', iteration))
    return False
def pretrain(last, each):
    iteration = 0
    while iteration < last:
        iteration += 1
        args.consumed_train_samples += 8
        log(iteration)
        each(iteration)
        should_exit = checkpoint_and_decide_exit('model', 'optimizer', 'scheduler', iteration, 10.0 * iteration,
                                                 'context', 'data')
        if should_exit:
            break
    return iteration
"""


@pytest.fixture(params=[OLD, NEW], ids=["0.10", "0.19"])
def training(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A `megatron.training.training` of this release; the client and its adapters can be imported."""
    args = SimpleNamespace(
        log_interval=2, pipeline_model_parallel_size=1, consumed_train_samples=0, seq_length=16, save="here"
    )
    module: Any = ModuleType("megatron.training.training")
    module.__dict__.update(torch=torch, LOSS="lm loss", args=args, seen=[], get_args=lambda: args)
    exec(request.param + LOOP, module.__dict__)
    package: Any = ModuleType("megatron.training")
    package.training = module
    monkeypatch.setitem(sys.modules, "megatron.training", package)
    monkeypatch.syspath_prepend(str(ROOT / "trainer/client"))
    yield module
    for name in ("bivouac_megatron", "bivouac"):
        sys.modules.pop(name, None)


def told(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "told-0.jsonl").read_text().splitlines()]


def test_each_step_is_told_and_the_loss_where_megatron_logs_it(
    training: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BIVOUAC_RUN", str(tmp_path))
    pretrain = importlib.import_module("bivouac_megatron").pretrain
    assert pretrain(4, lambda step: None) == 4
    assert told(tmp_path) == [
        {"step": 1, "tokens": 128},
        {"step": 2, "loss": 0.5, "tokens": 256},
        {"step": 3, "tokens": 384},
        {"step": 4, "loss": 0.25, "tokens": 512},
    ]
    assert training.seen == [(what, step) for step in range(1, 5) for what in ("log", "decide")], "and all goes on"


def test_asked_to_stop_it_saves_at_that_step_with_all_that_a_save_needs_and_ends(
    training: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BIVOUAC_RUN", str(tmp_path))
    wrapper = importlib.import_module("bivouac_megatron")
    wrapper.watch(training)  # twice is once
    asked: list[Any] = []

    def each(step: int) -> None:
        asked.append((tmp_path / "asks").exists())
        if step == 3:
            (tmp_path / "stop").touch()

    assert wrapper.pretrain(9, each) == 3
    assert asked == [False, True, True], "the supervisor knows that it asks"
    saved = ("save", 3, "model", "optimizer", "scheduler", 30.0, "context", False, "data")
    assert training.seen[-2:] == [("log", 3), saved]
    assert [one["step"] for one in told(tmp_path)] == [1, 2, 3]


def test_a_job_that_saves_nothing_ends_all_the_same(
    training: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BIVOUAC_RUN", str(tmp_path))
    training.args.save = None
    (tmp_path / "stop").touch()
    assert importlib.import_module("bivouac_megatron").pretrain(9, lambda step: None) == 1
    assert training.seen == [("log", 1)]


def test_without_a_supervisor_it_is_megatrons_own(training: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BIVOUAC_RUN", raising=False)
    before = training.training_log, training.checkpoint_and_decide_exit
    assert importlib.import_module("bivouac_megatron").pretrain(2, lambda step: None) == 2
    assert (training.training_log, training.checkpoint_and_decide_exit) == before


def test_the_loss_of_a_pipelines_last_stage_reaches_the_first(
    training: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BIVOUAC_RUN", str(tmp_path))
    training.args.pipeline_model_parallel_size, training.LOSS = 2, "not on this stage"
    wrapper, sent = importlib.import_module("bivouac_megatron"), []
    net = SimpleNamespace(get_world_size=lambda: 8, get_backend=lambda: "gloo", is_initialized=lambda: False)
    net.broadcast = lambda figure, src: (sent.append(src), figure.fill_(0.75))
    monkeypatch.setattr(wrapper, "dist", net)
    wrapper.pretrain(3, lambda step: None)
    assert sent == [7] and [one.get("loss") for one in told(tmp_path)] == [None, 0.75, None]
