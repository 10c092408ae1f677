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

from infra.bake.foundation import campaign_settings
from infra.campaign import provision
from infra.campaign.stages import StageStep, run_step
from infra.cli.look.status import status_command
from infra.cli.run.preview import preview_command
from infra.cli.run.repair import repair_command
from infra.engine.engine import Engine
from infra.errors import LeaseHeld, LeaseLost, UserError
from infra.preview.read_only import data_digest, other_spec, read_only_context
from infra.record.events import Stage
from infra.record.lease import LeaseRecord
from infra.record.payloads.attempts import AttemptLaunched
from tests.rehearsal.acting import as_reader
from tests.rehearsal.engine.changes_by_hand import HANDS, desired, mutations
from tests.worlds.campaign_site import CampaignSite, camp

VIEWER = "arn:aws:iam::123456789012:user/eve"
HOOK = "https://hooks.example.com/services/T0/B0/hush-hush"
SECRET_FORMS = (
    r"-----BEGIN [A-Z ]*PRIVATE KEY",
    r"client-(key|certificate)-data",
    r"k8s-aws-v1\.[A-Za-z0-9_-]{20}",  # an EKS token
    r"X-Amz-(Signature|Security-Token)=",  # a presigned URL
    r"\b(AKIA|ASIA)[A-Z0-9]{12,}",
    r"4dabf18193072939515e22adb298388d",  # Pulumi's mark of an encrypted value: the state's passphrase is empty
    r'(?i)"[a-z_-]*(password|passwd|secret_?(access_?)?key|session_?token|bearer)[a-z_-]*"\s*:\s*"[^"]+"',
)


def secrets_in(text: str, known: tuple[str, ...]) -> list[str]:
    """Forms of a secret, and known secrets, that stand in a text."""
    return [form for form in SECRET_FORMS if re.search(form, text)] + [one for one in known if one in text]


@pytest.fixture(scope="module")
def camped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CampaignSite]:
    webhook, people = {"secret": "bivouac_webhook/team"}, [{"principal": VIEWER, "role": "viewer"}]
    lair = camp(tmp_path_factory.mktemp("Lager mit Lücke"), access=people, notify={"webhook": webhook})
    with lair as one, pytest.MonkeyPatch.context() as patch:
        patch.setenv("BIVOUAC_SITE", "in-process")
        one.client("iam").create_user(UserName="eve")
        one.client("secretsmanager").create_secret(Name=webhook["secret"], SecretString=HOOK)
        yield one


def said(command: Any, *arguments: Any, **more: Any) -> tuple[int, str]:
    out = StringIO()
    return command(*arguments, Console(file=out, width=300), **more), out.getvalue()


def spec_file(camped: CampaignSite, folder: Path, **changes: Any) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / "campaign.yaml"
    document = camped.spec.model_dump(mode="json", exclude_unset=True)
    path.write_text(yaml.safe_dump(document | changes))
    return path


@pytest.mark.nightly
def test_a_preview_of_a_campaign_never_begun_prices_it_and_creates_nothing(
    camped: CampaignSite, tmp_path: Path
) -> None:
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
def provisioned(camped: CampaignSite) -> CampaignSite:
    with camped.opened() as context:
        run_step(context, StageStep(Stage.PROVISION, "drill", provision.run))
        context.store.append(AttemptLaunched(attempt=1, jobset="attempt-1", committed_step=-1))
    return camped


@pytest.mark.nightly
def test_nothing_that_a_campaign_keeps_in_its_state_bucket_holds_a_secret(provisioned: CampaignSite) -> None:
    """The engine's states with their histories, what the driver recorded, and what it gave the engine."""
    s3, bucket = provisioned.client("s3"), f"bivouac-state-{provisioned.world.account}-{provisioned.world.region}"
    keys = [one["Key"] for one in s3.list_objects_v2(Bucket=bucket)["Contents"]]
    keys = [key for key in keys if not key.startswith("closer/")]  # this clone's own code, packed
    texts = {key: s3.get_object(Bucket=bucket, Key=key)["Body"].read().decode() for key in keys}
    states = [key for key in keys if key.startswith(".pulumi/stacks/") and key.endswith(".json")]
    assert {Path(key).stem for key in states} == {provisioned.names.stack, "foundation"}
    assert all(len(json.loads(texts[key])["checkpoint"]["latest"]["resources"]) > 10 for key in states)
    own = texts[f".pulumi/stacks/bivouac/{provisioned.names.stack}.json"]
    assert "bivouac_webhook/team" in own, "the name, not the address"
    known = (*provisioned.world.operator_key, HOOK)
    assert {key: found for key, text in texts.items() if (found := secrets_in(text, known))} == {}


@pytest.mark.parametrize(
    "text",
    [
        '{"data": "-----BEGIN RSA PRIVATE KEY-----\\nMIIE"}',
        '{"kubeconfig": "users: [{user: {client-key-data: LS0t}}]"}',
        '{"token": "k8s-aws-v1.aHR0cHM6Ly9zdHMudXMtZWFzdC0x"}',
        '{"url": "https://b.s3.amazonaws.com/x?X-Amz-Signature=abc"}',
        '{"id": "AKIAIOSFODNN7EXAMPLE"}',
        '{"4dabf18193072939515e22adb298388d": "1b47061264138c4ac30d75fd1eb44270", "ciphertext": "v1:x"}',
        '{"masterPassword": "hunter22"}',
        '{"aws_secret_access_key": "x"}',
        f'{{"address": "{HOOK}"}}',
    ],
)
def test_a_secret_of_each_form_would_be_found(text: str) -> None:
    assert secrets_in(text, (HOOK,)) and not secrets_in('{"secret": "bivouac_webhook", "kmsKeyId": "arn:x"}', (HOOK,))


@pytest.mark.nightly
def test_a_viewer_has_an_entry_in_its_namespace_and_looks_with_the_previews_rights(
    provisioned: CampaignSite,
) -> None:
    eks, cluster = provisioned.client("eks"), provisioned.names.cluster
    policies = eks.list_associated_access_policies(clusterName=cluster, principalArn=VIEWER)["associatedAccessPolicies"]
    assert [(one["policyArn"].rpartition("/")[2], one["accessScope"]) for one in policies] == [
        ("AmazonEKSViewPolicy", {"type": "namespace", "namespaces": ["campaign"]})
    ]
    with as_reader(provisioned), mutations(provisioned) as heard:
        code, text = said(status_command, "drilled", provisioned.spec.region, False)
    assert code == 0 and not heard and "provision" in text, text


@pytest.mark.nightly
def test_the_record_says_who_began_a_stage(provisioned: CampaignSite) -> None:
    with provisioned.opened() as context:
        events = [event for event in context.store.events() if event.kind == "stage.started"]
    assert [(event.data["stage"], event.data["who"]) for event in events] == [
        ("provision", f"arn:aws:iam::{provisioned.world.account}:user/operator")
    ]


@pytest.mark.nightly
def test_every_change_by_hand_is_explained_while_a_driver_lives_and_nothing_is_touched(
    provisioned: CampaignSite,
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
def test_repair_waits_for_no_living_driver_but_says_how_to_go_on(provisioned: CampaignSite) -> None:
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
def test_an_up_that_would_replace_the_file_system_is_refused_by_name_of_the_property(
    provisioned: CampaignSite,
) -> None:
    shared = provisioned.spec.storage.shared
    assert shared is not None
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
def test_another_spec_is_refused_with_the_fields_that_differ(provisioned: CampaignSite) -> None:
    """What a preview of such a campaign finds besides is in tests/drills/drift.py."""
    money = provisioned.spec.money.model_copy(update={"budget_usd": Decimal(77)})
    spec = provisioned.spec.model_copy(update={"money": money})
    other = other_spec(read_only_context(spec, provisioned.plan, Console(file=StringIO())))
    assert other is not None and "money.budget_usd: 60 -> 77" in str(other)
    assert other_spec(read_only_context(provisioned.spec, provisioned.plan, Console(file=StringIO()))) is None


def test_a_look_may_not_mutate(camped: CampaignSite) -> None:
    with pytest.raises(LeaseLost):
        read_only_context(camped.spec, camped.plan, Console(file=StringIO())).guard()
