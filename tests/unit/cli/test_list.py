"""`bivouac list`: rehearsals of this machine and campaigns of the account, side by side."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import httpx2
import pytest
from typer.testing import CliRunner

from infra.aws.account import Account
from infra.cli.look.list import _age
from infra.cli.main import app
from infra.record.events import Stage
from infra.record.payloads.stages import StageStarted
from infra.record.store import CampaignStore
from infra.spec.names import buckets
from tests.example import example_spec


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without credentials, on which a rehearsal was killed."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("BIVOUAC_CACHE", str(tmp_path))
    monkeypatch.setenv("BIVOUAC_RESULTS", str(tmp_path / "results"))
    folder = tmp_path / "sites" / "default" / "campaigns"
    folder.mkdir(parents=True)
    (folder / "tried.json").write_text("{}")
    return tmp_path


@pytest.fixture
def account(alone: Path, moto_server: str, monkeypatch: pytest.MonkeyPatch) -> Account:
    for name, value in {"ENDPOINT_URL": moto_server, "ACCESS_KEY_ID": "a", "SECRET_ACCESS_KEY": "b"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    # Another test of this process may have left its campaigns.
    httpx2.post(f"{moto_server}/moto-api/reset", timeout=None).raise_for_status()
    return Account("us-east-1")


def listed() -> dict[str, list[dict[str, object]]]:
    done = CliRunner().invoke(app, ["list", "--json"])
    assert done.exit_code == 0, done.output
    return dict(json.loads(done.stdout))


def test_without_credentials_the_rehearsals_are_listed_and_that_aws_was_not_asked(alone: Path) -> None:
    found = listed()
    assert [(campaign["campaign"], campaign["stage"]) for campaign in found["campaigns"]] == [
        ("tried", "its site does not run: bivouac down tried")
    ]
    assert found["aws"] == "AWS was not asked: there are no credentials"
    words = CliRunner().invoke(app, ["list"]).stdout
    assert "tried" in words and "AWS was not asked" in words


def test_the_accounts_campaigns_have_owner_stage_and_bill_and_unreadable_ones_hide_none(
    account: Account,
) -> None:
    spec = example_spec()
    s3, where = account.client("s3"), buckets(account.identity()["Account"], "us-east-1").state
    s3.create_bucket(Bucket=where)
    store = CampaignStore(s3, where, spec.campaign, "test")
    store.put_json("spec.json", json.loads(spec.model_dump_json()))
    store.append(StageStarted(stage=Stage.PROVISION))
    s3.put_object(Bucket=where, Key="campaigns/broken/spec.json", Body=b"{}")
    s3.put_object(Bucket=where, Key="campaigns/garbled/spec.json", Body=b"\xff[")
    s3.put_object(Bucket=where, Key=f"campaigns/{spec.campaign}/events/other/000000.json", Body=b"\xff[")
    campaigns = {str(campaign["campaign"]): campaign for campaign in listed()["campaigns"]}
    assert set(campaigns) == {"tried", "broken", "garbled", spec.campaign}
    assert all("its record cannot be read" in str(campaigns[name]["stage"]) for name in ("broken", "garbled"))
    told = campaigns[spec.campaign]
    assert (told["owner"], told["stage"]) == (spec.owner, "in provision") and isinstance(told["spent_usd"], float)


def test_a_rehearsal_whose_status_is_an_error_hides_no_other(alone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("infra.cli.look.list.target.rehearsals", lambda: {"tried": True, "tired": True})
    answers = iter(['{"ok": false, "error": {}}', "[]"])
    monkeypatch.setattr(
        "infra.cli.look.list.subprocess.run", lambda *_, **__: SimpleNamespace(stdout=next(answers), returncode=70)
    )
    assert {str(campaign["stage"]).partition(":")[0] for campaign in listed()["campaigns"]} == {
        "its status cannot be read"
    }


def test_an_age_is_told_to_the_minute() -> None:
    begun = datetime.now(UTC) - timedelta(hours=3, minutes=5, seconds=20)
    assert _age(begun) == _age(begun.isoformat()) == "3h5m" and _age(None) == ""
