"""`bivouac down` of a campaign: asked with what is at stake, refused without a terminal, harmless once all is over."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from io import StringIO

import pytest
from rich.console import Console

from infra.cli.end.consent import stakes
from infra.record.events import Stage
from infra.record.payloads.attempts import AttemptLaunched
from infra.record.payloads.stages import StageFinished, StageStarted
from infra.record.payloads.training import ArchiveVerified
from infra.record.store import LIVE, CampaignStore
from infra.spec.names import CAMPAIGN_TAG, buckets
from tests.root import ROOT
from tests.terminal import on_terminal
from tests.waiting import HUNG_S
from tests.worlds.campaign_site import CampaignSite, camp

DOWN = [sys.executable, "-m", "infra.cli.main", "down", "drilled"]
FIGURES = {"at": datetime.now(UTC).isoformat(), "attempt": 1, "step": 30, "steps": 100, "loss": 2.5,
           "committed_step": 20, "spent_usd": 1.5, "usd_per_hour": 2.0, "why": "training"}  # fmt: skip


@pytest.fixture
def camped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CampaignSite]:
    """A campaign that trains, with a NAT gateway that bills."""
    with camp(tmp_path_factory.mktemp("asked")) as one, pytest.MonkeyPatch.context() as patch:
        patch.setenv("BIVOUAC_SITE", "in-process")
        patch.setenv("COLUMNS", "300")
        with one.opened() as context:
            context.store.append(StageStarted(stage=Stage.PROVISION))
            context.store.append(AttemptLaunched(attempt=1, jobset="attempt-1", committed_step=20))
            context.store.put_json(LIVE, FIGURES)
        ec2 = one.client("ec2")
        vpc = ec2.create_vpc(CidrBlock="10.9.0.0/16")["Vpc"]["VpcId"]
        subnet = ec2.create_subnet(VpcId=vpc, CidrBlock="10.9.1.0/24")["Subnet"]["SubnetId"]
        address = ec2.allocate_address(Domain="vpc")["AllocationId"]
        tags = [{"ResourceType": "natgateway", "Tags": [{"Key": CAMPAIGN_TAG, "Value": "drilled"}]}]
        ec2.create_nat_gateway(SubnetId=subnet, AllocationId=address, TagSpecifications=tags)
        yield one


def record(camped: CampaignSite) -> dict[str, str]:
    bucket = buckets(camped.spec.account, camped.world.region).state
    return {one["Key"]: one["ETag"] for one in camped.client("s3").list_objects_v2(Bucket=bucket)["Contents"]}


def piped(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*DOWN, *options], stdin=subprocess.DEVNULL, capture_output=True, text=True, cwd=ROOT, timeout=HUNG_S
    )


def shown(camped: CampaignSite, abandon: bool) -> dict[str, str]:
    bucket = buckets(camped.spec.account, camped.world.region).state
    store = CampaignStore(camped.client("s3"), bucket, "drilled", "test")
    return dict(stakes(store, camped.spec, abandon, Console(file=StringIO())))


def test_what_is_at_stake_follows_the_record(camped: CampaignSite) -> None:
    newest = "1 attempts, newest checkpoint known: step 20, no verified archive"
    trains = shown(camped, abandon=False)
    assert trains["drilled"] == "on rehearsal: in provision; driver none"
    assert trains["training"] == "step 30 of 100, committed step 20"
    assert trains["stands"].startswith("bills now: 0.0") and "NAT gateway" in trains["stands"]
    per_hour = Decimal(trains["stands"].split()[2])
    assert abs(Decimal(trains["keeping"].split()[0]) - 24 * per_hour) <= 24 * Decimal("0.005"), trains
    assert trains["lost"] == f"what is not committed; the rest is archived first, or nothing is torn down: {newest}"
    assert shown(camped, abandon=True)["lost"] == f"all that is not archived: {newest}"
    with camped.opened() as context:
        context.store.append(ArchiveVerified(manifest="s3://a/m.json", step=20, identity=context.identity))
    assert shown(camped, abandon=True)["lost"] == "nothing: the archive has it"


def test_what_could_not_be_looked_at_costs_at_least_so_much_and_not_nothing(camped: CampaignSite) -> None:
    fault = {"service": "ec2", "action": "DescribeInstances", "code": "UnauthorizedOperation", "status": 403}
    camped.ask("faults", add=[{**fault, "message": "no", "times": None}])
    trains = shown(camped, abandon=False)
    camped.ask("faults", clear=True)
    assert "could not look for GPU nodes" in trains["stands"] and trains["keeping"].startswith("at least ")


def test_a_checkpoint_that_the_steward_has_told_of_is_known_before_its_attempt_ends(camped: CampaignSite) -> None:
    with camped.opened() as context:
        context.store.put_json(LIVE, FIGURES | {"committed_step": 29})
    trains = shown(camped, abandon=True)
    assert trains["training"] == "step 30 of 100, committed step 29"
    assert trains["lost"] == (
        "all that is not archived: 1 attempts, newest checkpoint known: step 29, no verified archive"
    )


def test_without_a_yes_nothing_is_touched_and_a_person_sees_what_is_at_stake(camped: CampaignSite) -> None:
    before = record(camped)
    code, said = on_terminal(DOWN, "n\n", os.environ, ROOT)
    assert code == 64 and "nothing was changed" in said, said
    for words in ("bills now: 0.0", "USD a day", "step 30 of 100", "archived first", "Tear it down? [y/N]"):
        assert words in said, said
    code, said = on_terminal([*DOWN, "--abandon"], "y\n", os.environ, ROOT)
    assert code == 64 and "Type its name to lose that [drilled]" in said, said
    assert "all that is not archived: 1 attempts, newest checkpoint known: step 20" in said
    for options in ((), ("--json",)):
        refused = piped(*options)
        assert refused.returncode == 64 and "nobody can answer" in refused.stdout + refused.stderr
    assert record(camped) == before


def test_of_a_campaign_that_is_over_nothing_is_changed_and_nobody_is_asked(camped: CampaignSite) -> None:
    with camped.opened() as context:
        for stage in (Stage.TEARDOWN, Stage.CERTIFY, Stage.REPORT):
            context.store.append(StageFinished(stage=stage, seconds=1.0, outputs={}))
    before = record(camped)
    done = piped("--json")
    assert done.returncode == 73 and "is over and stays as it is" in done.stderr, "it trained and has no checkpoint"
    assert json.loads(done.stdout)["ended"] is True and record(camped) == before
    bucket = buckets(camped.spec.account, camped.world.region).state
    store = CampaignStore(camped.client("s3"), bucket, "drilled", "test")
    store.append(StageStarted(stage=Stage.CERTIFY))
    assert not store.state().over, "a certificate that is being made again may find something"
    assert piped().returncode == 64
