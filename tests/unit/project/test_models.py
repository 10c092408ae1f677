"""Models are built at their first use: without this test, one that cannot be built would show only then."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import import_module

from pydantic import BaseModel

from tests.root import ROOT
from trainer.contract.frozen import Frozen

_DEFINES = re.compile(r"^class \w+\((?:Frozen|Section|Payload|PrintedPayload)\b", re.MULTILINE)


def _models(base: type[BaseModel]) -> Iterator[type[BaseModel]]:
    for model in base.__subclasses__():
        yield model
        yield from _models(model)


def test_every_model_of_the_product_can_be_built() -> None:
    for path in sorted([*ROOT.glob("infra/**/*.py"), *ROOT.glob("trainer/**/*.py")]):
        if _DEFINES.search(path.read_text("utf-8")):
            import_module(".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"))
    models = {model for model in _models(Frozen) if model.__module__.startswith(("infra.", "trainer."))}
    assert len(models) > 150
    broken = [model.__qualname__ for model in models if model.model_rebuild(raise_errors=False) is False]
    assert broken == []
