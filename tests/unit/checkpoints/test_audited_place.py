"""`bivouac data audit` takes for a campaign what `bivouac checkpoints` takes for one."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from infra import target
from infra.checkpoints.find import is_campaign
from infra.cli.data.commands import data
from infra.errors import UserError


@pytest.mark.parametrize("place", ["./nowhere", "gone/checkpoints", "s3://bucket/prefix", "notes.txt", "kept"])
def test_what_is_a_place_is_never_looked_for_as_a_campaign(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    (tmp_path / "notes.txt").write_text("a file, and no campaign")
    (tmp_path / "kept").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    entered: list[str] = []
    monkeypatch.setattr(target, "enter_where", entered.append)
    answer = CliRunner().invoke(data, ["audit", place])
    assert not is_campaign(place) and not entered
    assert isinstance(answer.exception, UserError), answer.output
    lacking = "no committed checkpoint lies there" if place == "kept" else "there is no such folder"
    assert answer.exception.what == lacking and place in str(answer.exception.seen)


def test_a_name_that_no_file_has_is_a_campaigns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, "/dev/null")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("BIVOUAC_RESULTS", str(tmp_path / "results"))
    entered: list[str] = []
    monkeypatch.setattr(target, "enter_where", entered.append)
    answer = CliRunner().invoke(data, ["audit", "example"])
    assert entered == ["example"] and isinstance(answer.exception, UserError)
    assert "credentials" in answer.exception.what
