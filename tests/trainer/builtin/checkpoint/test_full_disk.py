"""A tier that is full: room is made once, then the save fails with what was seen; what was committed stays."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.root import ROOT
from tests.waiting import HUNG_S

TWO_FIT, ONE_FITS, NONE_FITS = "size=5m", "size=3m", "size=1m"
FEW_INODES = {"local": "size=64m,nr_inodes=9", "shared": "size=64m,nr_inodes=12"}
SCENARIOS = [
    *((tier, options) for tier in ("local", "shared") for options in (TWO_FIT, ONE_FITS, FEW_INODES[tier])),
    ("local", NONE_FITS),
]
Seen = dict[str, Any]


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Seen]:
    """All scenarios in one process, since torch takes long to import."""
    inner = [
        sys.executable,
        "-m",
        "tests.trainer.builtin.checkpoint.inside_full_disk",
        str(tmp_path_factory.mktemp("full")),
        json.dumps(SCENARIOS),
    ]
    command, environment = ["unshare", "-Urm", *inner], os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=HUNG_S)
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(zip(SCENARIOS, json.loads(done.stdout.splitlines()[-1]), strict=True))


@pytest.mark.parametrize("tier", ["local", "shared"])
@pytest.mark.nightly
def test_a_tier_that_holds_two_checkpoints_but_not_three_is_relieved_of_the_oldest(
    tier: str, filled: dict[tuple[str, str], Seen]
) -> None:
    seen = filled[tier, TWO_FIT]
    assert seen["first"]["codes"] == [0], seen
    assert {event["tier"] for event in seen["first"]["reclaimed"]} == {tier}
    assert {steps[0] for steps in seen["first"]["committed"].values()} == {40}
    assert seen["after"]["restored"][0]["step"] == 40 and seen["after"]["restored"][0]["sound"] and not seen["left"]


@pytest.mark.parametrize("tier", ["local", "shared"])
@pytest.mark.parametrize("what", ["space", "inodes"])
def test_a_tier_without_room_for_a_second_checkpoint_ends_with_74_and_keeps_the_first(
    tier: str, what: str, filled: dict[tuple[str, str], Seen]
) -> None:
    seen = filled[tier, ONE_FITS if what == "space" else FEW_INODES[tier]]
    assert seen["first"]["codes"] == [74], seen
    detail = seen["first"]["ended"][0]["detail"]
    assert f"the {tier} tier is full" in detail and "MiB needed" in detail and "inodes free" in detail
    assert seen["path"] in detail
    assert 10 in seen["first"]["committed"]["shared" if tier == "shared" else "local-0"]
    newest = max(step for _, step in seen["first"]["announced"])
    # A step may be committed on the nodes while the full tier ends the attempt, before it is announced.
    committed = {step for steps in seen["first"]["committed"].values() for step in steps if step >= newest}
    (restored,) = seen["after"]["restored"]
    assert restored["sound"] and restored["step"] == max(committed), (committed, seen["after"])
    assert not seen["left"], "the next attempt has tidied up"


def test_a_tier_without_room_for_any_checkpoint_commits_nothing_and_says_so(
    filled: dict[tuple[str, str], Seen],
) -> None:
    seen = filled["local", NONE_FITS]
    assert seen["first"]["codes"] == [74] and seen["first"]["announced"] == []
    assert all(not steps for steps in seen["first"]["committed"].values())
