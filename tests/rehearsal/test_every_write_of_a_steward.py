"""A steward killed before each of its writes, in turn: the next one finishes, and the campaign comes out the same."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from aws_fakes import fake_site
from steward_world import GANG_OF, Camp, Fuse, steward_camp
from test_steward_killed import _pitch

from infra.names import Names
from infra.steward import steward as steward_module

ONCE = ("training.finished", "archive.verified", "nodes.at-zero")
QUICK = 3
"""So many kills of each story here; BIVOUAC_EVERY_WRITE=1 takes every write."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Camp]:
    with fake_site(tmp_path_factory.mktemp("site")) as site, pytest.MonkeyPatch.context() as patch:
        key, secret = site.world.operator_key
        patch.setenv("AWS_ENDPOINT_URL", site.world.endpoint_url)
        patch.setenv("AWS_ACCESS_KEY_ID", key)
        patch.setenv("AWS_SECRET_ACCESS_KEY", secret)
        shared = tmp_path_factory.mktemp("shared")
        patch.setattr(steward_module, "SHARED_CHECKPOINTS", str(shared))
        with steward_camp(site, shared, lambda s, name: _pitch(s, Names(name)), **HOLDS) as camp:
            yield camp


HOLDS: dict[str, Any] = {"campaign": "fused", "on_stop": "hold", "hold_for": "1s"}
STORIES: dict[str, tuple[int, ...]] = {
    "a crash, a restart, done": (1, 0),
    "a user error, a hold, its end": (64,),
}


def story_of(camp: Camp, ends: tuple[int, ...], at: int | None) -> Fuse:
    """The whole story with a kill before write `at`, and then as many stewards as it takes."""
    camp.ends = ends
    camp.forget()
    fuse = Fuse(at)
    if not camp.steward(fuse):
        assert camp.steward(Fuse()), "the second steward finishes"
    return fuse


def outcome(camp: Camp) -> dict[str, Any]:
    state, kinds = camp.state(), Counter(camp.kinds())
    return {
        "outcome": state.outcome,
        "attempts": [(a["attempt"], a.get("failure"), a["committed_step"]) for a in state.attempts],
        "ended once each": [kinds["attempt.launched"], kinds["attempt.ended"]],
        "held": kinds["held"],
        "once": {kind: kinds[kind] for kind in ONCE},
        "closed": state.closed,
        "older jobs": len({name for _, plural, _, name in camp.api.objects if plural == "jobsets"}) > 1,
        "nodes": len(camp.site.alive()) > GANG_OF,
    }


@pytest.mark.parametrize("story", STORIES)
def test_a_steward_killed_before_any_of_its_writes_is_followed_by_one_that_finishes(made: Camp, story: str) -> None:
    whole = story_of(made, STORIES[story], None)
    undisturbed = outcome(made)
    assert undisturbed["once"] == dict.fromkeys(ONCE, 1) and undisturbed["closed"]
    writes = range(len(whole.writes))
    for at in writes if "BIVOUAC_EVERY_WRITE" in os.environ else writes[1 :: max(1, len(writes) // QUICK)]:
        story_of(made, STORIES[story], at)
        assert outcome(made) == undisturbed, f"killed before write {at}, {whole.writes[at]}"
