"""The driver's own repair of a lost file system, through the real engine and plugins, with the operator's rights."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from infra.bake.foundation import foundation
from infra.campaign import provision
from infra.campaign.repairs import lost_storage
from infra.campaign.repairs.lost_storage import StorageWatch
from infra.campaign.repairs.repair import id_of
from infra.campaign.stages import StageStep, run_step
from infra.record.events import Stage
from infra.record.payloads.attempts import AttemptLaunched
from infra.record.payloads.checkpoints import CheckpointCopied
from infra.spec import waits
from tests.rehearsal.acting import FOUNDER, OPERATOR, acting
from tests.rehearsal.engine.changes_by_hand import lose_file_system
from tests.waiting import until
from tests.worlds.campaign_site import CampaignSite, camp

pytestmark = pytest.mark.nightly


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CampaignSite]:
    with camp(tmp_path_factory.mktemp("lost")) as camped, pytest.MonkeyPatch.context() as patch:
        patch.setenv("BIVOUAC_SITE", "in-process")
        with acting(camped, *FOUNDER), camped.opened() as context:
            foundation(context)
        with acting(camped, *OPERATOR), camped.opened() as context:
            run_step(context, StageStep(Stage.PROVISION, "by the operator", provision.run))
            context.store.append(AttemptLaunched(attempt=1, jobset="attempt-1", committed_step=20))
            context.store.append(CheckpointCopied(step=20))
        yield camped


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The watch's clock, which goes on only when told to."""
    namespace = SimpleNamespace(now=0.0)
    monkeypatch.setattr(lost_storage, "time", SimpleNamespace(monotonic=lambda: namespace.now))
    return namespace


def test_a_second_change_by_hand_is_a_persons_to_judge_and_the_loss_alone_is_the_drivers(
    training: CampaignSite, clock: SimpleNamespace
) -> None:
    ec2 = training.client("ec2")
    with acting(training, *OPERATOR), training.opened() as context:
        watch, before = StorageWatch(context), id_of(context.store, context.names.stack)
        assert watch.look() == ""
        lose_file_system(training)
        until(lambda: not training.client("fsx").describe_file_systems()["FileSystems"], "it is gone")
        gpu = [{"Name": "tag:bivouac:campaign", "Values": ["drilled"]}]
        subnet = ec2.describe_subnets(Filters=gpu)["Subnets"][0]
        name = next(tag for tag in subnet["Tags"] if tag["Key"] == "Name")
        ec2.create_tags(Resources=[subnet["SubnetId"]], Tags=[{"Key": "Name", "Value": "mine"}])
        clock.now += 60
        assert watch.look() == f"FSx says that file system {before} does not exist"
        clock.now += waits.LOST_FILE_SYSTEM.seconds
        assert "was changed by hand too" in watch.look()
        assert context.state().replacements == 0 and id_of(context.store, context.names.stack) == before

        ec2.create_tags(Resources=[subnet["SubnetId"]], Tags=[name])
        clock.now += 60
        assert watch.look() == ""
        after = id_of(context.store, context.names.stack)
        state = context.state()
        assert after != before and state.replacements == 1 and state.lost is None
        (system,) = training.client("fsx").describe_file_systems()["FileSystems"]
        assert (system["FileSystemId"], system["Lifecycle"]) == (after, "AVAILABLE")
        clock.now += 600
        assert watch.look() == "", "the new one is watched"
