"""Somebody who only rehearses mistypes a name."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from infra import target
from infra.cli.records import record_of
from infra.errors import UserError
from infra.spec.campaign import load
from tests.root import ROOT


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own, and no credentials."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("BIVOUAC_CACHE", str(tmp_path))
    return tmp_path


def test_credentials_are_looked_at_before_tools_are_fetched(alone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BIVOUAC_SITE", raising=False)
    monkeypatch.setattr(target, "have_engine", lambda: pytest.fail("it fetched Pulumi's engine"))
    spec = load(ROOT / "infra/campaigns/p5-32-nodes.yaml").spec
    with pytest.raises(UserError, match="no AWS credentials"):
        target.enter_for(spec, lambda _: None)


def test_a_mistyped_name_is_told_with_the_rehearsals_that_are_here(alone: Path) -> None:
    folder = alone / "sites" / "default" / "campaigns"
    folder.mkdir(parents=True)
    (folder / "rehearsal.json").write_text("{}")
    with pytest.raises(UserError) as caught:
        record_of("rehaersal", "us-east-1")
    assert "no rehearsal of this name" in caught.value.what
    assert caught.value.seen == "rehaersal; rehearsals on this machine: rehearsal"
    assert "AWS_PROFILE" in (caught.value.cure or "")
