"""Somebody who only rehearses mistypes a name."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from infra.cli.records import record_of
from infra.errors import UserError


def test_a_mistyped_name_is_told_with_the_rehearsals_that_are_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("BIVOUAC_CACHE", str(tmp_path))
    folder = tmp_path / "sites" / "default" / "campaigns"
    folder.mkdir(parents=True)
    (folder / "rehearsal.json").write_text("{}")
    with pytest.raises(UserError) as caught:
        record_of("rehaersal", "us-east-1")
    assert "no rehearsal of this name" in caught.value.what
    assert caught.value.seen == "rehaersal; rehearsals on this machine: rehearsal"
    assert "AWS_PROFILE" in (caught.value.cure or "")
