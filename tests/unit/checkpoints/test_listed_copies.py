"""`bivouac checkpoints list` shows the interval copies in S3: step, age, size, and whether every byte was read back."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import boto3
import httpx2
import pytest
from rich.console import Console

from infra.aws.account import Account
from infra.cli.data import checkpoints as commands
from infra.record.identity import claim_identity
from infra.record.payloads.checkpoints import CheckpointCopied
from infra.record.store import CampaignStore
from infra.spec import names
from tests.unit.steward.seeing.test_tiers_seen import CAMPAIGN, commit
from trainer.contract import step_folder

REGION = "us-east-1"


class CopiedCampaign:
    def __init__(self, folder: Path) -> None:
        account = Account(REGION)
        where = names.buckets(account.identity()["Account"], REGION)
        self.s3, self.bucket, self.folder = boto3.client("s3", region_name=REGION), where.archive, folder
        for bucket in (where.state, where.archive):
            self.s3.create_bucket(Bucket=bucket)
        self.store = CampaignStore(account.client("s3"), where.state, CAMPAIGN, "test")
        self.identity = claim_identity(self.store, is_adopted=False).identity
        self.store.put_json("spec.json", {})

    def copy(self, step: int, *, told: bool = True) -> None:
        """As the steward's Job and then the steward leave it."""
        commit(self.folder, step, ("a.pt", "b.pt"))
        for path in (self.folder / CAMPAIGN / step_folder(step)).rglob("*"):
            if path.is_file():
                below = path.relative_to(self.folder / CAMPAIGN)
                self.s3.upload_file(str(path), self.bucket, f"copies/{CAMPAIGN}/{self.identity}/{below}")
        if told:
            self.store.append(CheckpointCopied(step=step))

    def listed(self, *, as_json: bool) -> Any:
        out = io.StringIO()
        assert commands.list_command(CAMPAIGN, REGION, as_json, Console(file=out, width=160)) == 0
        return json.loads(out.getvalue()) if as_json else out.getvalue()


@pytest.fixture
def camp(moto_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CopiedCampaign:
    for name, value in {"ENDPOINT_URL": moto_server, "ACCESS_KEY_ID": "a", "SECRET_ACCESS_KEY": "b"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    httpx2.post(f"{moto_server}/moto-api/reset", timeout=None).raise_for_status()
    return CopiedCampaign(tmp_path)


def test_a_copy_that_the_record_read_back_has_its_age_and_an_unknown_is_not_verified(
    camp: CopiedCampaign,
) -> None:
    camp.copy(20)
    camp.copy(40, told=False)
    rows = camp.listed(as_json=True)
    assert [(row["tier"], row["step"], row["committed"], row["bytes"]) for row in rows] == [
        ("copy", 40, True, 10), ("copy", 20, True, 10),
    ]  # fmt: skip
    (event,) = camp.store.events()
    assert [row["read_back_at"] for row in rows] == [None, event.at.isoformat().replace("+00:00", "Z")]
    text = camp.listed(as_json=False)
    assert re.search(r"40\s+copy\s+not verified", text) and re.search(r"20\s+copy\s+read back \d.* ago", text)
    assert f"bivouac checkpoints restore s3://{camp.bucket}/copies/{CAMPAIGN}/{camp.identity} FOLDER" in text


def test_a_copy_that_has_lost_a_shard_since_is_not_called_verified(camp: CopiedCampaign) -> None:
    camp.copy(20)
    key = f"copies/{CAMPAIGN}/{camp.identity}/{step_folder(20)}/attempt-0001/b.pt"
    camp.s3.delete_object(Bucket=camp.bucket, Key=key)
    (row,) = camp.listed(as_json=True)
    assert row["read_back_at"] is None and "1 of 2 shards are not here" in row["why"]
    assert "not verified: 1 of 2 shards are not here" in camp.listed(as_json=False)


def test_a_campaign_without_copies_says_nothing_of_them(camp: CopiedCampaign) -> None:
    assert camp.listed(as_json=True) == [] and "copies" not in camp.listed(as_json=False)
