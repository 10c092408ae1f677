"""A campaign's tiers on this disk, and what restoring from them tells."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from trainer.builtin.checkpoint import restore, room, search
from trainer.builtin.checkpoint.tiers import Tiers, campaign_tiers


@pytest.fixture
def tiers(tmp_path: Path) -> Tiers:
    return campaign_tiers(tmp_path / "local", tmp_path / "shared", "tiny")


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # no power fails here, and a busy disk takes its time
    for module in (restore, search, room):
        monkeypatch.setattr(module, "emit", lambda event, **fields: rows.append({"event": event, **fields}))
    return rows
