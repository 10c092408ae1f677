"""`bivouac down` on a machine that never drove a campaign has Pulumi's engine before it asks anybody to stop."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from infra.cli.end import down
from infra.errors import PermanentError
from infra.record.events import CampaignState


def test_an_engine_that_cannot_be_had_is_told_before_a_living_driver_is_asked_to_stop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Any] = []
    store = SimpleNamespace(put_json=lambda *given: asked.append(given), state=CampaignState)

    def none_here() -> None:
        raise PermanentError("pulumi cannot be installed", seen="no Go", cure="install it")

    monkeypatch.setattr(down, "record_of", lambda campaign, region: store)
    monkeypatch.setattr(down, "stored_spec", lambda store: SimpleNamespace(target="aws"))
    monkeypatch.setattr(down.target, "have_engine", none_here)
    with pytest.raises(PermanentError, match="pulumi"):
        down.down_command("train", "us-east-1", False, Console(), consent=True)
    assert not asked
