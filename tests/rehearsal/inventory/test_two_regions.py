"""Two regions of one account: IAM knows none, so what a campaign has there must survive its namesake elsewhere."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from infra.aws.account import Account
from infra.aws.namesakes import refuse_namesake
from infra.bake.foundation import foundation
from infra.campaign import teardown
from infra.cli.end.orphans import orphans_command
from infra.console.progress import Progress
from infra.engine.engine import Engine
from infra.errors import UserError
from infra.inventory import Evidence, certify, orphans, sweep
from infra.kinds import kind_of_type
from infra.plan.plan import make_plan
from infra.plan.survey import survey
from infra.preview import preview
from infra.preview.read_only import look_at_stacks, read_only_context
from infra.record.events import Stage
from infra.record.payloads.stages import StageFinished, StageStarted
from infra.record.store import CampaignStore
from infra.session.context import Context
from infra.session.session import opened
from infra.spec.campaign import Spec
from infra.spec.names import BUILD_NETWORK, CAMPAIGN_TAG, EXPIRES_TAG, FOUNDATION_STACK, REGION_TAG, Names, buckets
from infra.stack.access import policies
from infra.stack.network import build_network
from tests.worlds.campaign_site import CampaignSite, camp

HOME, FAR = "us-east-1", "us-west-2"
PAST = "2026-01-01T00:00:00Z"


@pytest.fixture(scope="module")
def camped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CampaignSite]:
    with camp(tmp_path_factory.mktemp("camp")) as one:
        yield one


@pytest.fixture
def roles(camped: CampaignSite) -> Iterator[Any]:
    """Makes roles; what is left of them goes."""
    iam, made = camped.client("iam"), set[str]()

    def make(name: str, **tags: str) -> str:
        marks = [{"Key": key, "Value": value} for key, value in tags.items()]
        iam.create_role(
            RoleName=name,
            AssumeRolePolicyDocument=policies.trust(policies.EC2, policies.AccountPlace("123456789012", HOME)),
            Tags=marks,
        )
        made.add(name)
        return name

    yield make
    for name in made & names_of(camped):
        iam.delete_role(RoleName=name)


def names_of(camped: CampaignSite) -> set[str]:
    return {role["RoleName"] for role in camped.client("iam").list_roles()["Roles"]}


def marks(campaign: str, region: str | None = None) -> dict[str, str]:
    return {CAMPAIGN_TAG: campaign, EXPIRES_TAG: PAST} | ({REGION_TAG: region} if region else {})


def spec_of(camped: CampaignSite, campaign: str, region: str) -> Spec:
    changes = {"campaign": campaign, "region": region, "zone": f"{region}a"}
    return Spec.model_validate(camped.spec.model_dump(mode="json", exclude_none=True) | changes)


@contextmanager
def driven(camped: CampaignSite, campaign: str, region: str) -> Iterator[Context]:
    spec = spec_of(camped, campaign, region)
    with opened(spec, make_plan(spec, survey(spec)), Console(file=camped.said, width=240), None) as context:
        yield context


@pytest.mark.nightly
def test_what_a_namesake_elsewhere_cleans_up_is_its_own_only(camped: CampaignSite, roles: Any) -> None:
    """Both began before either had a role, which the refusal of a namesake cannot prevent."""
    own = Names("twin")
    with driven(camped, "twin", HOME), driven(camped, "twin", FAR) as far:
        before = roles(own.role("node"), **marks("twin", FAR))
        certify.note_baseline(far)
        living, mine = roles(own.role("archive"), **marks("twin", HOME)), roles(own.role("guard"), **marks("twin", FAR))
        untold = roles(own.role("steward"), **marks("twin"))
        left = {one.thing.id: one for one in sweep.look(far).left if one.kind == "role"}
        assert {name: one.evidence for name, one in left.items()} == {mine: Evidence.TAG, untold: Evidence.UNPLACED}
        assert sweep.remove_left(far) == (f"role {mine}",), "without asking: what its region's tag proves"
        assert {before, living, untold} <= names_of(camped) and mine not in names_of(camped)
        assert left[untold].removable, "after a yes"
        found = certify.look_through(
            far.account, far.names, "", far.spec.account, (), certify.knowledge(far.store, far.names)
        )
        assert f"role {untold}" in found.found and not {f"role {before}", f"role {living}"} & set(found.found)


@pytest.mark.nightly
def test_an_upload_of_the_namesakes_archive_goes_on(camped: CampaignSite) -> None:
    s3 = camped.client("s3")
    with driven(camped, "upload", HOME) as home, driven(camped, "upload", FAR) as far:
        key = f"{home.names.state_prefix}part"
        upload_id = s3.create_multipart_upload(Bucket=home.buckets.state, Key=key)["UploadId"]
        assert sweep.remove_left(far) == ()
        assert [upload["UploadId"] for upload in s3.list_multipart_uploads(Bucket=home.buckets.state)["Uploads"]] == [
            upload_id
        ]
        assert len(sweep.remove_left(home)) == 1, "at home it bills, and goes"


def test_the_freeze_of_a_namesake_is_not_lifted(camped: CampaignSite, roles: Any) -> None:
    iam, role = camped.client("iam"), roles("ci-that-buys")
    document = policies.document([{"Effect": "Deny", "Action": "ec2:RunInstances", "Resource": "*"}])
    made = [iam.create_policy(PolicyName=f"bivouac_freeze_{region}", PolicyDocument=document) for region in (HOME, FAR)]
    money = {"money": {"budget_usd": 100, "freeze_roles": [role, "never-made"]}}
    with driven(camped, "frozen", HOME) as home, driven(camped, "frozen", FAR) as far:
        for one in made:
            iam.attach_role_policy(RoleName=role, PolicyArn=one["Policy"]["Arn"])
        for context, left in ((far, [f"bivouac_freeze_{HOME}"]), (home, [])):
            spec = Spec.model_validate(context.spec.model_dump(mode="json") | money)
            teardown._unfreeze(replace(context, spec=spec))
            attached = iam.list_attached_role_policies(RoleName=role)["AttachedPolicies"]
            assert [one["PolicyName"] for one in attached] == left
    for one in made:
        iam.delete_policy(PolicyArn=one["Policy"]["Arn"])


def test_orphans_are_judged_where_they_belong(camped: CampaignSite, roles: Any) -> None:
    bucket = buckets(camped.spec.account, FAR).state
    with driven(camped, "cared", HOME), driven(camped, "keeps-the-bucket", FAR):
        living = roles("bivouac-cared-archive", **marks("cared", HOME))
        untold = roles("bivouac-old-node", **marks("old"))
        mine = roles("bivouac-gone-node", **marks("gone", FAR))
        store = CampaignStore(camped.client("s3"), bucket, "recorded", "test")
        early = roles("bivouac-recorded-node", **marks("recorded"))
        CampaignStore(Account(FAR).client("s3"), bucket, "recorded", "test").append(StageStarted(stage="bake"))
        out = StringIO()
        assert orphans_command(FAR, True, True, Console(file=out, width=200)) == 0
        document = json.loads(out.getvalue())
        assert document["removed"] == [f"role {mine}"] and {living, untold, early} <= names_of(camped)
        why = {one["id"]: one["why"] for one in document["elsewhere"]}
        assert f"it is of {HOME}" in why[living] and f"--region {HOME}" in why[living]
        assert "neither a tag nor a record tells its region" in why[untold] and early in why
        assert store.region == HOME
        home = orphans.look(orphans.keeper(Account(HOME), Progress(Console(file=StringIO()))))
        assert "its driver lives" in {one.campaign: one.why for one in home.cared_for}["cared"]


def test_a_role_without_a_region_is_the_records_that_covers_its_birth(camped: CampaignSite, roles: Any) -> None:
    with driven(camped, "covers", HOME) as context:
        context.store.append(StageStarted(stage=Stage.PROVISION))
        mine = roles("bivouac-covers-node", **marks("covers"))
        context.store.append(StageFinished(stage=Stage.TEARDOWN, seconds=1.0, outputs={}))
    seen = orphans.look(orphans.keeper(Account(HOME), Progress(Console(file=StringIO()))))
    assert [orphan.left.thing.id for orphan in seen.orphans if orphan.owner.campaign == "covers"] == [mine]


@pytest.mark.parametrize(
    ("tags", "seen", "cure"),
    [
        (marks("taken", HOME), f"of campaign taken in {HOME}", f"`bivouac down taken --region {HOME}`"),
        (marks("taken", FAR), f"of campaign taken in {FAR}", f"--orphans --region {FAR}"),
        (marks("taken"), "an unknown region", "--region REGION"),
        ({}, "without a campaign's tag", "another name"),
    ],
    ids=["elsewhere", "here", "of no told region", "nobody's"],
)
def test_a_name_that_iam_has_already_is_refused_before_anything_is_recorded(
    camped: CampaignSite, roles: Any, tags: dict[str, str], seen: str, cure: str
) -> None:
    roles(Names("taken").role("steward"), **tags)
    spec = spec_of(camped, "taken", FAR)
    with pytest.raises(UserError) as asked:
        refuse_namesake(Account(FAR), "taken")
    assert seen in str(asked.value.seen) and cure in str(asked.value.cure)
    with pytest.raises(UserError, match="IAM roles hold for all regions"), driven(camped, "taken", FAR):
        pass
    with pytest.raises(UserError, match="IAM roles hold for all regions"):
        preview.preview(read_only_context(spec, make_plan(spec, survey(spec)), Console(file=StringIO())))
    store = CampaignStore(Account(FAR).client("s3"), buckets(spec.account, FAR).state, "taken", "")
    assert store.get_json("spec.json") is None


def test_a_campaign_that_has_begun_is_not_refused_for_roles_of_its_own(camped: CampaignSite, roles: Any) -> None:
    with driven(camped, "continued", HOME):
        pass
    roles(Names("continued").role("node"), **marks("continued", HOME))
    with driven(camped, "continued", HOME) as context:
        assert context.spec.campaign == "continued"


@pytest.mark.parametrize("kind", ["role:Role", "policy:Policy", "instanceProfile:InstanceProfile"])
def test_no_creation_is_adopted_out_of_another_region(camped: CampaignSite, roles: Any, kind: str) -> None:
    iam, name = camped.client("iam"), "bivouac-adopted-node"
    tags = [{"Key": key, "Value": value} for key, value in marks("adopted", HOME).items()]
    if kind == "role:Role":
        roles(name, **marks("adopted", HOME))
    elif kind == "policy:Policy":
        document = policies.document([{"Effect": "Deny", "Action": "ec2:RunInstances", "Resource": "*"}])
        iam.create_policy(PolicyName=name, PolicyDocument=document, Tags=tags)
    else:
        iam.create_instance_profile(InstanceProfileName=name, Tags=tags)
    find: Any = kind_of_type(f"aws:iam/{kind}").find
    for region, count in ((HOME, 1), (FAR, 0), (None, 0)):
        assert len(find(Account(region or HOME), {"name": name, "tags": marks("adopted", region)})) == count
    assert find(Account(HOME), {"name": "bivouac-none", "tags": {}}) == []


@pytest.mark.nightly
def test_each_region_has_its_foundation_and_an_older_one_keeps_its_names(
    camped: CampaignSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    def up(context: Context) -> str:
        return foundation(
            context, Engine(context, camped.folder / context.account.region)
        ).build_network_instance_profile

    with driven(camped, "first", HOME) as home, driven(camped, "second", FAR) as far:
        with monkeypatch.context() as earlier:
            earlier.setattr(build_network, "builder_role", lambda _: BUILD_NETWORK)
            earlier.setattr(build_network, "builder_guard_role", lambda _: f"{BUILD_NETWORK}_guard")
            assert up(home) == BUILD_NETWORK
        (seen,) = look_at_stacks(home, names=(FOUNDATION_STACK,))
        assert seen.resources > 10 and seen.planned == () and seen.drifted == ()
        assert up(far) == f"{BUILD_NETWORK}_{FAR}"
        (seen,) = look_at_stacks(far, names=(FOUNDATION_STACK,))
        assert seen.planned == () and seen.drifted == ()
    expected = {BUILD_NETWORK, f"{BUILD_NETWORK}_guard", f"{BUILD_NETWORK}_{FAR}", f"{BUILD_NETWORK}_guard_{FAR}"}
    assert {name for name in names_of(camped) if name.startswith(BUILD_NETWORK)} == expected
