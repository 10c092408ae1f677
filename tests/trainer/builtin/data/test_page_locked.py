"""Batches for a GPU lie in page-locked memory before the loop asks for them."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from trainer.builtin.data.feed import Batch, Feed, Share, placement_for


class Rows:
    """A reader whose sequences say their position."""

    manifest = SimpleNamespace(train=())

    def stored(self, positions: range) -> Any:
        return np.array([[position] * 3 for position in positions], dtype=np.uint16)

    def digests(self, positions: range, rows: Any) -> list[int]:
        return [0] * len(positions)


def test_each_batch_is_placed_by_the_reading_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.builtin.data.feed.is_masked", lambda manifest: False)
    threads, placed = set[str](), list[Batch]()

    def place(batch: Batch) -> Batch:
        threads.add(threading.current_thread().name)
        threads.add(Path(f"/proc/self/task/{threading.get_native_id()}/comm").read_text().strip())
        placed.append(batch.copy())
        return placed[-1]

    with Feed(Rows(), Share(4, 2, 1, 0), 0, 8, 2, place=place) as feed:  # type: ignore[arg-type]
        batches = [batch for _ in range(2) for batch in feed.next().micro_batches]
    assert [batch[:, 0].tolist() for batch in batches] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert all(batch is other for batch, other in zip(batches, placed, strict=True)) and threads == {"data-feed"}


def test_pages_are_locked_for_the_rank_s_own_gpu_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, batch = list[object](), np.arange(6).reshape(2, 3)

    def lock(tensor: torch.Tensor) -> torch.Tensor:
        calls.append("lock")
        return tensor.clone()

    monkeypatch.setattr(torch.cuda, "set_device", calls.append)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lock)
    assert placement_for(torch.device("cpu"))(batch) is batch and calls == []
    there = placement_for(torch.device("cuda", 3))(batch)
    assert calls == [torch.device("cuda", 3), "lock"]
    assert there is not batch and np.array_equal(there, batch)
