"""The site that the tests of this folder share inside."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.worlds.nodelet_site import NodeletSite, emulated


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeletSite]:
    with emulated(tmp_path_factory.mktemp("site")) as world:
        nodelet_site = NodeletSite(world)
        nodelet_site.pitch()
        yield nodelet_site


@pytest.fixture(scope="session")
def image(site: NodeletSite) -> str:
    return site.push()
