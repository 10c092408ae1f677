"""Image references, as Docker reads them."""

from __future__ import annotations

import pytest

from infra.spec.image_reference import ImageReference
from tests.tables import Table

TABLE = Table(__file__)

DIGEST = "sha256:" + "a" * 64


@TABLE.cases
def test_a_reference_has_registry_repository_and_tag_or_digest(text: str, name: str, which: str, endpoint: str) -> None:
    found = ImageReference.parse(text)
    assert (found.name, found.which, found.endpoint, found.ecr) == (name, which, endpoint, None)


@pytest.mark.parametrize(
    "text", ["", "python", "Python:3", "a//b:c", "https://nvcr.io/a:b", f"a@{DIGEST[:-1]}", "a:b c", "a:" + "x" * 129]
)
def test_what_names_no_image_or_no_version_of_it_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is no image reference|needs a tag"):
        ImageReference.parse(text)


def test_an_ecr_registry_has_an_account_and_a_region() -> None:
    text = "763104351884.dkr.ecr.us-west-2.amazonaws.com/pytorch-training:2.9-gpu"
    assert ImageReference.parse(text).ecr == ("763104351884", "us-west-2")
    assert ImageReference.parse("public.ecr.aws/a/b:c").ecr is None
