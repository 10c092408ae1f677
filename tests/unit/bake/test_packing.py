"""Wheel and tools of the images are packed beside AWS's works, where it is sure that they are needed."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from infra.bake import bake
from infra.errors import PermanentError

IMAGE: Any = SimpleNamespace(digest="sha256:0")
BASES = bake.Bases(IMAGE, IMAGE)


@pytest.fixture
def packed(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Folders into which something was packed."""
    folders: list[Path] = []

    def pack(work: Path) -> bake.Packed:
        folders.append(work)
        return bake.Packed(work, work / "our.whl", work / "tools.zip")

    monkeypatch.setattr(bake, "_pack", pack)
    monkeypatch.setattr(bake, "inputs_digest", lambda *_: "c" * 64)
    return folders


def context(body: bytes | None) -> Any:
    keys = {bake.manifest_key("c" * 64): body}
    return SimpleNamespace(store=SimpleNamespace(get=keys.get))


@pytest.mark.parametrize(("body", "force"), [(None, False), (b"{}", True)], ids=["new", "by force"])
def test_what_is_surely_baked_is_packed_once_before_anybody_asks(
    packed: list[Path], body: bytes | None, force: bool
) -> None:
    with bake.packing(context(body), BASES, force):
        pass
    assert len(packed) == 1
    with bake.packing(context(body), BASES, force) as package:
        assert package() == package() and package().wheel == packed[1] / "our.whl"
    assert len(packed) == 2


def test_sources_that_change_meanwhile_are_packed_anew_and_name_the_images(
    packed: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    with bake.packing(context(None), BASES) as package:
        monkeypatch.setattr(bake, "inputs_digest", lambda *_: "d" * 64)
        package()
    assert len(packed) == 2 and packed[1] != packed[0]


def test_images_that_are_known_are_packed_only_when_their_registry_has_lost_them(packed: list[Path]) -> None:
    with bake.packing(context(b"{}"), BASES) as package:
        assert not packed
        package()
    assert len(packed) == 1


def test_a_wheel_that_cannot_be_built_ends_the_bake_when_it_is_asked_for(
    packed: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: Path) -> bake.Packed:
        raise PermanentError("the wheel could not be built", seen="no", cure="mend it")

    monkeypatch.setattr(bake, "_pack", refuse)
    with bake.packing(context(None), BASES) as package, pytest.raises(PermanentError, match="could not be built"):
        package()
