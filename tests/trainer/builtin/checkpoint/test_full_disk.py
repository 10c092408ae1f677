"""A tier that is full: room is made once, then the save fails with what was seen; what was committed stays."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.drills.parts.storage_gang import Camp, Orders, run_attempt

pytestmark = pytest.mark.inside
TWO_FIT, ONE_FITS, NONE_FITS = "size=5m", "size=3m", "size=1m"
FEW_INODES = {"local": "size=64m,nr_inodes=9", "shared": "size=64m,nr_inodes=12"}
SHARD_BYTES = 2 * 2**20


def fill(root: Path, tier: str, options: str) -> dict[str, Any]:
    """Return what one attempt says that fills a tier on a tiny tmpfs, and the next one; `options` are the mount's."""
    camp = Camp(root, 1, 1)
    full = root / ("shared" if tier == "shared" else "local-0")
    full.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(full)], check=True)
    codes = run_attempt(camp, Orders(1, (10, 20, 30, 40), padding_bytes=SHARD_BYTES))
    first = {
        "codes": codes,
        "ended": camp.events(1, "ended"),
        "reclaimed": camp.events(1, "reclaimed"),
        "announced": [(e["tier"], e["step"]) for e in camp.events(1, "committed")],
        "committed": {name: [m.step for m in tier.committed()] for name, tier in camp.every_tier().items()},
    }
    codes = run_attempt(camp, Orders(2, padding_bytes=SHARD_BYTES))
    after = {"codes": codes, "restored": camp.events(2, "restored"), "ended": camp.events(2, "ended")}
    left = [str(path) for path in root.rglob("*.partial")]
    return {"path": str(full), "first": first, "after": after, "left": left}


@pytest.mark.parametrize("tier", ["local", "shared"])
@pytest.mark.nightly
def test_a_tier_that_holds_two_checkpoints_but_not_three_is_relieved_of_the_oldest(tier: str, tmp_path: Path) -> None:
    seen = fill(tmp_path, tier, TWO_FIT)
    assert seen["first"]["codes"] == [0], seen
    assert {event["tier"] for event in seen["first"]["reclaimed"]} == {tier}
    assert {steps[0] for steps in seen["first"]["committed"].values()} == {40}
    assert seen["after"]["restored"][0]["step"] == 40 and seen["after"]["restored"][0]["sound"] and not seen["left"]


@pytest.mark.parametrize("tier", ["local", "shared"])
@pytest.mark.parametrize("what", ["space", "inodes"])
def test_a_tier_without_room_for_a_second_checkpoint_ends_with_74_and_keeps_the_first(
    tier: str, what: str, tmp_path: Path
) -> None:
    seen = fill(tmp_path, tier, ONE_FITS if what == "space" else FEW_INODES[tier])
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


def test_a_tier_without_room_for_any_checkpoint_commits_nothing_and_says_so(tmp_path: Path) -> None:
    seen = fill(tmp_path, "local", NONE_FITS)
    assert seen["first"]["codes"] == [74] and seen["first"]["announced"] == []
    assert all(not steps for steps in seen["first"]["committed"].values())
