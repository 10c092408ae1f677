"""A checkpoint that cannot be read is not passed over for an older one: the audit would prove another training."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from infra.data.audit import newest_checkpoint
from tests.manifests import manifest_of, seal
from trainer.contract import step_folder


def test_the_newest_checkpoint_is_audited_or_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for step in (10, 20):
        (tmp_path / step_folder(step)).mkdir()
        seal(tmp_path / step_folder(step), manifest_of(step, ()))
    (tmp_path / step_folder(30)).mkdir()
    (tmp_path / step_folder(30) / "manifest.json").write_text("{")
    assert newest_checkpoint(tmp_path)[1].step == 20
    real = Path.read_bytes

    def refuse(path: Path) -> Any:
        if step_folder(20) in str(path):
            raise OSError(errno.EIO, "Input/output error", str(path))
        return real(path)

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(OSError, match="Input/output error"):
        newest_checkpoint(tmp_path)
