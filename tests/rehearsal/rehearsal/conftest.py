"""A machine without tools, for the tests of what brings them."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache on a machine that has neither the tools nor Go."""
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    monkeypatch.setattr("infra.toolchain.build.USUAL_GO", tmp_path / "no-go")
    return tmp_path / "cache" / "bin"
