"""A trace on demand: of so many steps, while the rank goes on, and an end that is told when the rank has none."""

from __future__ import annotations

import gzip
import json
import threading
from pathlib import Path

import pytest
import torch

from trainer.builtin.heartbeat import Heartbeat, Outcome
from trainer.builtin.watch.profile import Profiler, ask, request_of, trace_of


def test_a_request_gives_a_trace_of_so_many_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    profiler = Profiler(tmp_path, 3)
    request_of(tmp_path, 3).write_text("2")
    for step in range(1, 5):
        profiler.step_begins(step)
        with torch.profiler.record_function(f"step {step}"):
            torch.ones(4).sum()
    names = {
        event.get("name") for event in json.loads(gzip.decompress(trace_of(tmp_path, 3).read_bytes()))["traceEvents"]
    }
    assert {"step 1", "step 2"} <= names and "step 3" not in names
    assert json.loads(capsys.readouterr().out)["steps"] == 2
    assert not request_of(tmp_path, 3).exists(), "one request is one trace"


def test_who_asks_hears_the_path_when_the_rank_has_written_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Heartbeat(tmp_path, 0)
    asking = threading.Thread(target=ask, args=(tmp_path, 0, 1))
    asking.start()
    profiler, step = Profiler(tmp_path, 0), 0
    while asking.is_alive():
        profiler.step_begins(step := step + 1)
    assert str(trace_of(tmp_path, 0)) in capsys.readouterr().out


def test_a_rank_that_has_ended_leaves_nobody_waiting(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Heartbeat(tmp_path, 0).beat(outcome=Outcome(exit_code=0, reason="done"))
    assert ask(tmp_path, 0, 1) == 69
    assert "ended before it wrote a trace: done" in capsys.readouterr().err
