"""Copies of a save beside the training, on a card that this file plays: what waits in a stream runs when somebody
waits for it, and no sooner."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.trainer.builtin.checkpoint.committing import ranks_at
from trainer.builtin.checkpoint.deepspeed_engine import HostCopyEngine

RELEASED: list[str] = []


class Stream:
    """Work of a stream, put off for as long as the order of the card allows."""

    current: Any = None

    def __init__(self, late: bool = True) -> None:
        self.late, self.work = late, list[Callable[[], object]]()

    def run(self, work: Callable[[], object]) -> None:
        self.work.append(work)
        if not self.late:
            self.finish()

    def finish(self) -> None:
        while self.work:
            self.work.pop(0)()

    synchronize = finish

    def wait_stream(self, other: Stream) -> None:
        other.finish()

    def wait_event(self, event: Stream) -> None:
        event.finish()

    def record_event(self, event: object) -> Stream:
        return self


class OnCard(torch.Tensor):
    """A tensor that says that it is on a card; a copy from it takes place in the current stream."""

    is_cuda = True  # type: ignore[assignment]

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.Tensor.copy_:
            buffer, tensor = args[0], args[1]
            Stream.current.run(lambda: buffer.numpy().__setitem__(..., tensor.as_subclass(torch.Tensor).numpy()))
            return buffer
        return super().__torch_function__(function, types, args, kwargs or {})

    def record_stream(self, stream: Stream) -> None:  # type: ignore[override]
        RELEASED.append("after the stream")


@pytest.fixture(autouse=True)
def card(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    main, empty = Stream(late=False), torch.empty

    @contextmanager
    def of(stream: Stream) -> Iterator[None]:
        Stream.current = stream
        yield
        Stream.current = main

    def make(*size: Any, pin_memory: bool = False, **how: Any) -> torch.Tensor:
        return empty(*size, **how)

    Stream.current = main
    RELEASED.clear()
    monkeypatch.setattr(torch, "empty", make)
    for name, value in {
        "Stream": Stream,
        "stream": of,
        "current_stream": lambda: main,
        "Event": SimpleNamespace,
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    yield


class TrainedEngine:
    """An engine with one weight on the card, which its optimizer lowers by one a step."""

    save_zero_checkpoint = False

    def __init__(self, wrapped: bool = True) -> None:
        self.weight = torch.full((3,), 5.0).as_subclass(OnCard)
        inner = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.0)
        inner.register_step_post_hook(self._lower)
        self.optimizer = SimpleNamespace(optimizer=inner) if wrapped else inner
        self.inner = inner
        self.checkpoint_engine = HostCopyEngine(lambda path, file: None)

    def _lower(self, *_: Any) -> None:
        self.weight.as_subclass(torch.Tensor).sub_(1)

    def _save_checkpoint(self, root: str, tag: str) -> None:
        self.checkpoint_engine.save({"weight": self.weight}, f"{root}/{tag}/shard.pt")


@pytest.mark.parametrize("wrapped", [True, False])
def test_the_copies_run_beside_the_next_step_and_its_update_waits_for_them(wrapped: bool, tmp_path: Path) -> None:
    engine = TrainedEngine(wrapped)
    for saves in (1, 2):
        (snapshot,) = engine.checkpoint_engine.collect(engine, tmp_path, "attempt-0001")
        expected = [6.0 - saves] * 3
        assert snapshot.state["weight"].tolist() != expected, "nothing of the training waits for the copy"
        engine.inner.step()
        assert snapshot.state["weight"].tolist() == expected, "the update came after the copy"
        assert engine.weight.tolist() == [5.0 - saves] * 3 and len(RELEASED) == saves


def test_the_writer_waits_for_the_copies_and_the_loop_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rank = ranks_at(tmp_path, monkeypatch)()
    states = rank.engine.states

    def on_card(step: int) -> dict[str, Any]:
        return states(step) | {"shard.pt": {"weight": torch.full((3,), float(step)).as_subclass(OnCard)}}

    monkeypatch.setattr(rank.engine, "states", on_card)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.0)
    monkeypatch.setattr(rank.engine, "optimizer", optimizer)
    rank.commit(10)
    assert len(RELEASED) == 1
    (path,) = rank.tiers.local.folder(10).rglob("shard.pt")
    assert torch.load(path)["weight"].tolist() == [10.0] * 3
