"""Two accounts may have campaigns of one name: what is kept of them here lies apart."""

from __future__ import annotations

from pathlib import Path

import pytest

from infra.errors import UserError
from infra.folders import kept_results, results_folder

FIRST, SECOND = "111111111111", "222222222222"


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BIVOUAC_RESULTS", str(tmp_path))
    return tmp_path


def keep(account: str, region: str) -> Path:
    folder = results_folder("train", account, region)
    folder.mkdir(parents=True)
    return folder


def test_two_accounts_and_two_regions_with_one_name_share_no_folder(root: Path) -> None:
    folders = {keep(account, region) for account in (FIRST, SECOND) for region in ("us-east-1", "us-west-2")}
    assert len(folders) == 4 and results_folder("train", FIRST, "us-east-1") == root / f"{FIRST}-us-east-1" / "train"


def test_a_name_alone_finds_what_is_kept_of_it_first_of_all_in_its_region() -> None:
    here = keep(FIRST, "us-east-1")
    assert kept_results("train", "us-west-2") == here, "the only one"
    there = keep(FIRST, "us-west-2")
    assert (kept_results("train", "us-east-1"), kept_results("train", "us-west-2")) == (here, there)


def test_a_name_that_two_accounts_kept_is_told_with_both_places() -> None:
    folders = keep(FIRST, "us-east-1"), keep(SECOND, "us-east-1")
    with pytest.raises(UserError) as refused:
        kept_results("train", "us-east-1")
    assert all(str(folder) in str(refused.value) for folder in folders)


def test_a_name_that_nobody_kept_has_no_folder_and_no_other_results_are_taken_for_it(root: Path) -> None:
    (root / "drills" / "train").mkdir(parents=True)
    assert not kept_results("train", "us-east-1").exists() and not kept_results("../drills/train", "x").exists()
