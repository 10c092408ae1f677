"""The copies of a campaign come back to its tier, byte for byte; a damaged one is refused."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from infra.errors import PermanentError
from tests.rehearsal.archive.copy_site import CAMPAIGN, LARGE, PREFIX, commit, copies, on_tier, spoil
from tests.rehearsal.archive.copy_site import site as site
from trainer.contract import COMMITTED_NAME, step_folder


def sent(site: SimpleNamespace, *steps: int) -> dict[int, dict[str, bytes]]:
    """Step -> its files, all copied; then the file system is lost."""
    held = {}
    for step in steps:
        folder = commit(site, step)
        held[step] = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        copies(site, above=step - 1).send()
    shutil.rmtree(site.root)
    return held


def test_the_newest_copy_comes_back_byte_for_byte_to_a_new_file_system(site: SimpleNamespace) -> None:
    held = sent(site, 20, 40)
    told = copies(site).fetch()
    assert (told["step"], told["refused"]) == (40, [])
    assert on_tier(site) == {40: held[40]}


def lose_shard(site: SimpleNamespace) -> None:
    site.s3.delete_object(Bucket=site.name, Key=f"{PREFIX}/{step_folder(40)}/attempt-0001/large.pt")


def break_manifest(site: SimpleNamespace) -> None:
    key = f"{PREFIX}/{step_folder(40)}/{COMMITTED_NAME}"
    body = site.s3.get_object(Bucket=site.name, Key=key)["Body"].read()
    site.s3.put_object(Bucket=site.name, Key=key, Body=body.replace(b'"position": ', b'"position": 1'))


@pytest.mark.parametrize(
    "damage",
    [lambda site: spoil(site, 40), lambda site: spoil(site, 40, "large.pt"), lose_shard, break_manifest],
    ids=["a small shard", "a large shard", "a shard is lost", "the manifest"],
)
def test_a_damaged_copy_is_refused_and_the_one_before_is_taken(
    site: SimpleNamespace, damage: Callable[[SimpleNamespace], Any]
) -> None:
    held = sent(site, 20, 40)
    damage(site)
    told = copies(site).fetch()
    assert told["step"] == 20 and len(told["refused"]) == 1 and told["refused"][0].startswith(step_folder(40))
    assert on_tier(site) == {20: held[20]}
    assert not (site.root / CAMPAIGN / step_folder(40)).exists()


def test_where_no_copy_is_sound_nothing_looks_committed(site: SimpleNamespace) -> None:
    sent(site, 20, 40)
    spoil(site, 20)
    spoil(site, 40)
    with pytest.raises(PermanentError, match="no copy in S3 is sound"):
        copies(site).fetch()
    assert on_tier(site) == {}


def test_a_damaged_step_on_the_tier_is_made_whole_by_its_copy(site: SimpleNamespace) -> None:
    folder = commit(site, 40)
    whole = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    copies(site).send()
    (folder / "attempt-0001/large.pt").write_bytes(LARGE.swapcase())
    copies(site).fetch()
    assert on_tier(site) == {40: whole}
