"""Wheel and tools of the images are packed beside AWS's works, where it is sure that they are needed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from infra.bake import bake
from infra.errors import PermanentError
from infra.record.payloads.outputs import BakeOutput
from infra.session.context import Context
from tests.waiting import HUNG_S

NONE: Any = None
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


def test_what_a_killed_driver_left_is_cleared_before_the_first_builder_of_a_bake(
    packed: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Later it would end the builders of this bake: they have the same name."""
    begun, cleared = threading.Barrier(2), list[bool]()
    nodes = SimpleNamespace(ami="ami-1", key="images/nodes/1.json", inputs_digest="1")

    def build(answer: Any) -> Any:
        assert cleared == [True], "it is cleared, once, before either begins"
        begun.wait(HUNG_S)
        return answer

    place = SimpleNamespace(model_dump=lambda: {})
    for name in ("find_base", "find_steward_base", "_job_image"):
        monkeypatch.setattr(bake, name, lambda *_: None)
    monkeypatch.setattr(bake, "Bases", lambda *_: BASES)
    monkeypatch.setattr(bake, "foundation", lambda _: place)
    monkeypatch.setattr(bake, "clear_leftovers", lambda _: cleared.append(True))
    monkeypatch.setattr(bake.node_image, "ensure", lambda *_: build((nodes, 900.0)))
    trainer = BakeOutput(manifest="m", image="i", steward_image="s", code="c", baked=True, builder_s=600.0)
    monkeypatch.setattr(bake, "our_images", lambda *_: build(trainer))
    progress: Any = SimpleNamespace(step=lambda text: None)
    store: Any = context(None).store
    output = bake.images(Context(NONE, NONE, NONE, "", NONE, store, NONE, progress, Path(), datetime.now(UTC)))
    assert output.baked and output.node_image is not None and output.node_image.ami == "ami-1"
    assert output.builder_s == 1500.0, "of both, though they stood beside each other"
    assert cleared == [True]


@pytest.mark.parametrize(("end", "removals"), [(KeyboardInterrupt(), 2), (PermanentError("a", seen="b", cure="c"), 1)])
def test_a_bake_that_is_halted_removes_the_image_that_nobody_will_record(
    monkeypatch: pytest.MonkeyPatch, end: BaseException, removals: int
) -> None:
    """Before the bake too, for a driver that was killed; and after one that failed, by the next bake."""
    removed = list[str]()

    @contextmanager
    def builder(*_: object) -> Iterator[None]:
        yield

    def fail(*_: object) -> None:
        raise end

    module = bake.node_image
    monkeypatch.setattr(module, "builder", builder)
    monkeypatch.setattr(module, "_bake", fail)
    monkeypatch.setattr(module, "find_base", lambda _: ("ami-0", "base"))
    monkeypatch.setattr(module, "inputs_digest", lambda *_: "d" * 64)
    monkeypatch.setattr(module, "stored_image", lambda *_: None)
    monkeypatch.setattr(module, "_forget_unfinished", lambda _, inputs: removed.append(inputs))
    spec, names = SimpleNamespace(image=SimpleNamespace(nodes="bake")), SimpleNamespace(builder_schedules=("a", "b"))
    site: Any = SimpleNamespace(spec=spec, names=names, store=None)
    with pytest.raises(type(end)):
        module.ensure(site, NONE)
    assert removed == ["d" * 64] * removals
