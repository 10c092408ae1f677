"""Drift on a campaign in process: the real engine, plugins and program against the emulated AWS."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from infra.bake.keeping import campaign_settings
from infra.campaign import provision
from infra.campaign.stages import Step, run_step
from infra.cli.look.status import status_command
from infra.cli.run.preview import preview_command
from infra.cli.run.repair import repair_command
from infra.engine.engine import Engine
from infra.errors import LeaseHeld, LeaseLost, UserError
from infra.preview.looking import data_digest, looking, other_spec
from infra.record.events import Kind, Stage
from infra.record.lease import LeaseRecord
from tests.rehearsal.acting import as_reader
from tests.rehearsal.campaign_world import Camp, camp
from tests.rehearsal.engine.drift_cases import HANDS, desired, mutations


@pytest.fixture(scope="module")
def camped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Camp]:
    with camp(tmp_path_factory.mktemp("Lager mit Lücke")) as one, pytest.MonkeyPatch.context() as patch:
        patch.setenv("BIVOUAC_SITE", "in-process")
        yield one


def said(command: Any, *arguments: Any, **more: Any) -> tuple[int, str]:
    out = StringIO()
    return command(*arguments, Console(file=out, width=300), **more), out.getvalue()


def spec_file(camped: Camp, folder: Path, **changes: Any) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / "campaign.yaml"
    document = camped.spec.model_dump(mode="json", exclude_unset=True)
    path.write_text(yaml.safe_dump(document | changes))
    return path


@pytest.mark.nightly
def test_a_preview_of_a_campaign_never_begun_prices_it_and_creates_nothing(camped: Camp, tmp_path: Path) -> None:
    with mutations(camped) as heard, as_reader(camped):
        code, text = said(preview_command, spec_file(camped, tmp_path), False)
    assert code == 2 and not heard, text
    assert "error" not in text and "the whole internet" in text, "rules see values not known yet"
    assert re.search(r"campaign-drilled: \d{2,3} to create", text) and "+ LustreFileSystem shared" in text
    lines = {line.name: line for line in camped.plan.cost}
    month = lines["FSx for Lustre"].usd_per_hour * 730
    assert any(f"{month:+,.2f}" in line and "FSx for Lustre" in line for line in text.splitlines())
    assert not camped.client("eks").list_clusters()["clusters"] and not camped.client("s3").list_buckets()["Buckets"]


@pytest.fixture(scope="module")
def provisioned(camped: Camp) -> Camp:
    with camped.opened() as context:
        run_step(context, Step(Stage.PROVISION, "drill", provision.run))
        context.store.append(Kind.ATTEMPT_LAUNCHED, attempt=1, jobset="attempt-1", committed_step=None)
    return camped


@pytest.mark.nightly
def test_every_change_by_hand_is_seen_and_explained_while_a_driver_lives_and_nothing_is_touched(
    provisioned: Camp,
) -> None:
    camped, taken = provisioned, [hand for hand in HANDS if hand.name != "schedule disabled"]
    for hand in taken:
        hand.act(camped)
    desired(camped, 0)
    objects = json.dumps(list(map(str, camped.plane().api.objects)))
    with camped.opened():
        with mutations(camped) as heard:
            code, text = said(status_command, "drilled", camped.spec.region, False, refresh=True)
        # The living driver itself only renews its lease.
        assert [one for one in heard if "leases/driver" not in one[2]] == []
    assert code == 2 and objects == json.dumps(list(map(str, camped.plane().api.objects)))
    for hand in taken:
        rows = [part for part in text.split("\n    ") if hand.title in part.split(":")[0]]
        assert rows and f"{hand.verb} by hand" in text, (hand.name, text)
        assert hand.word in text, (hand.name, text)
    assert text.count(" by hand") == len(taken), "nothing else is called drift"
    assert "desiredSize" not in text


@pytest.mark.nightly
def test_repair_waits_for_no_living_driver_but_says_how_to_go_on(provisioned: Camp) -> None:
    with provisioned.opened() as context:
        other = context.lease.holder.model_copy(update={"host": "elsewhere", "boot_id": "another"})
        record = LeaseRecord(holder=other, renewed_at=datetime.now(UTC), ttl_s=60)
    key = context.lease.key
    provisioned.client("s3").put_object(Bucket=context.store.bucket, Key=key, Body=record.model_dump_json().encode())
    with pytest.raises(LeaseHeld) as held:
        said(repair_command, "drilled", provisioned.spec.region, True)
    assert "Ctrl-C" in (held.value.cure or "")
    provisioned.client("s3").delete_object(Bucket=context.store.bucket, Key=key)


@pytest.mark.nightly
def test_an_up_that_would_replace_the_file_system_is_refused_by_name_of_the_property(provisioned: Camp) -> None:
    shared = provisioned.spec.storage.shared
    other = provisioned.spec.model_copy(
        update={
            "storage": provisioned.spec.storage.model_copy(
                update={"shared": shared.model_copy(update={"deployment": "SCRATCH_2", "throughput_mbs_per_tib": None})}
            )
        }
    )
    with provisioned.opened() as context:
        settings = campaign_settings(context, data_digest(context)).model_copy(update={"spec": other})
        engine = Engine(context, context.results / "pulumi")
        stack = engine.stack(context.names.stack, settings.to_config())
        with mutations(provisioned) as heard, pytest.raises(UserError, match="would be replaced") as refused:
            engine.up(stack)
        assert not [one for one in heard if one[0] not in ("s3",)]
        assert "LustreFileSystem shared" in str(refused.value) and "deploymentType" in str(refused.value)
        assert "bivouac down drilled" in (refused.value.cure or "")


@pytest.mark.nightly
def test_another_spec_is_refused_with_the_fields_that_differ(provisioned: Camp) -> None:
    """What a preview of such a campaign finds besides is in tests/drills/drift.py."""
    money = provisioned.spec.money.model_copy(update={"budget_usd": Decimal(77)})
    spec = provisioned.spec.model_copy(update={"money": money})
    other = other_spec(looking(spec, provisioned.plan, Console(file=StringIO())))
    assert other is not None and "money.budget_usd: 60 -> 77" in str(other)
    assert other_spec(looking(provisioned.spec, provisioned.plan, Console(file=StringIO()))) is None


def test_a_look_may_not_mutate(camped: Camp) -> None:
    with pytest.raises(LeaseLost):
        looking(camped.spec, camped.plan, Console(file=StringIO())).guard()
