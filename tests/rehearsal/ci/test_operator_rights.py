"""The written policies under infra/ci, enforced by the emulated AWS: what each is enough for, and what it is not."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import boto3
import pytest
import yaml
from botocore import xform_name
from botocore.exceptions import ClientError
from botocore.session import get_session
from rich.console import Console

from infra.bake.foundation import foundation
from infra.campaign import provision, teardown
from infra.campaign.stages import StageStep, run_step
from infra.cli.end.sweep import sweep_command
from infra.cli.prepare.block import buy_command, offers_command
from infra.inventory import certify
from infra.preview import preview
from infra.preview.read_only import read_only_context
from infra.record.events import Stage
from infra.rehearsal.aws.iam.actions import ACTIONS, PREFIXES
from infra.rehearsal.aws.iam.policies import like
from infra.session.context import Context
from infra.spec.campaign import Spec
from infra.stack.rules import broken
from tests.rehearsal.acting import BUYER, CI, FOUNDER, OPERATOR, VIEWER, acting, as_reader, policy
from tests.rehearsal.aws_account import code_of
from tests.rehearsal.engine.test_drift import said
from tests.rehearsal.stack.test_sections import CI as FROZEN
from tests.rehearsal.stack.test_sections import OPTIONS, driver_vpc
from tests.root import ROOT
from tests.worlds.campaign_site import CampaignSite, camp

pytestmark = pytest.mark.usefixtures("answers_as_modelled")

DENIED = {"AccessDenied", "AccessDeniedException", "UnauthorizedOperation"}
DRIVER_TAG = [{"Key": "bivouac:driver", "Value": "true"}]


@pytest.fixture(scope="module")
def camped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CampaignSite]:
    """An account in which an administrator has marked the driver's network, and made a role to be frozen."""
    with camp(tmp_path_factory.mktemp("operator"), **OPTIONS) as one, pytest.MonkeyPatch.context() as patch:
        patch.setenv("BIVOUAC_SITE", "in-process")
        trust = {"Effect": "Allow", "Action": "sts:AssumeRole", "Principal": {"Service": "ec2.amazonaws.com"}}
        document = json.dumps({"Version": "2012-10-17", "Statement": [trust]})
        one.client("iam").create_role(RoleName=FROZEN, AssumeRolePolicyDocument=document)
        driver = driver_vpc(one)
        one.client("ec2").create_tags(Resources=[driver["vpc_id"], *driver["route_table_ids"]], Tags=DRIVER_TAG)
        network = {"api_endpoint": "private", "driver_vpc": driver, "egress": "endpoints"}
        one.spec = Spec.model_validate(one.spec.model_dump(mode="json") | {"network": network})
        yield one


@pytest.fixture(scope="module")
def founded(camped: CampaignSite) -> CampaignSite:
    """An account that the founder has set up."""
    with acting(camped, *FOUNDER), camped.opened() as context:
        foundation(context)
    return camped


@pytest.fixture(scope="module")
def provisioned(founded: CampaignSite) -> CampaignSite:
    """By the operator, who comes by the foundation again and finds nothing to change."""
    with acting(founded, *OPERATOR), founded.opened() as context:
        run_step(context, StageStep(Stage.PROVISION, "by the operator", provision.run))
    return founded


@pytest.mark.nightly
def test_the_operators_policies_are_enough_to_make_all_of_the_ground(provisioned: CampaignSite) -> None:
    assert provisioned.client("eks").list_clusters()["clusters"] == [provisioned.names.cluster]
    assert "the AWS budget counts this campaign from now on" in provisioned.said.getvalue()


@pytest.mark.nightly
def test_the_pull_requests_role_previews_a_campaign_whose_state_a_customers_key_encrypts(
    provisioned: CampaignSite,
) -> None:
    def seen() -> Any:
        context = read_only_context(provisioned.spec, provisioned.plan, Console(file=StringIO()))
        return preview.preview(context, look_inside=False)

    keyless = acting(provisioned, "preview-role", without="ReadTheRecordUnderACustomersKey")
    with keyless, pytest.raises(ClientError, match="kms:Decrypt"):
        seen()
    with as_reader(provisioned):
        found = seen()
    assert len(found.looks) == 2 and not found.refused and not broken(found.findings), found.findings


def refusals(camped: CampaignSite) -> dict[str, Callable[[], Any]]:
    """What the operator has no business with, each as a call."""

    def of(service: str) -> Any:
        session = boto3.Session(region_name=camped.world.region)
        return session.client(service, endpoint_url=camped.world.endpoint_url)

    admin = camped.client
    stranger = admin("ec2").create_vpc(CidrBlock="10.99.0.0/16")["Vpc"]["VpcId"]
    admin("s3").create_bucket(Bucket="payroll")
    trust = json.dumps({"Version": "2012-10-17", "Statement": []})
    lustre = f"arn:aws:fsx:{camped.world.region}:{camped.world.account}:file-system/fs-0123456789abcdef0"
    archive = f"bivouac-archive-{camped.world.account}-{camped.world.region}"
    limit = f"arn:aws:iam::{camped.world.account}:policy/bivouac_boundary_{camped.world.region}"
    mark = [{"Key": "bivouac:campaign", "Value": "drilled"}]
    mine = camped.names.role("node")
    role = admin("iam").get_role(RoleName=mine)["Role"]["Arn"]
    image = admin("ec2").describe_images()["Images"][0]["ImageId"]
    full = "arn:aws:iam::aws:policy/AdministratorAccess"
    return {
        "another's network": lambda: of("ec2").delete_vpc(VpcId=stranger),
        "a way into another's network": lambda: of("ec2").create_subnet(VpcId=stranger, CidrBlock="10.99.1.0/24"),
        "another's network made one's own": lambda: of("ec2").create_tags(
            Resources=[stranger], Tags=[{"Key": "bivouac:campaign", "Value": "drilled"}]
        ),
        "an instance without a mark": lambda: of("ec2").run_instances(
            ImageId=image, MinCount=1, MaxCount=1, InstanceType="p5.48xlarge"
        ),
        "a capacity block": lambda: of("ec2").purchase_capacity_block(
            CapacityBlockOfferingId="cb-0123456789abcdef0", InstancePlatform="Linux/UNIX"
        ),
        "another's bucket": lambda: of("s3").delete_bucket(Bucket="payroll"),
        "what was archived": lambda: of("s3").delete_object(Bucket=archive, Key="campaigns/drilled/x"),
        "another's file system made one's own": lambda: of("fsx").tag_resource(ResourceARN=lustre, Tags=mark),
        "another's file system": lambda: of("fsx").delete_file_system(FileSystemId=lustre.rpartition("/")[2]),
        "the archive's versions": lambda: of("s3").put_bucket_versioning(
            Bucket=archive, VersioningConfiguration={"Status": "Suspended"}
        ),
        "the archive's policy": lambda: of("s3").delete_bucket_policy(Bucket=archive),
        "the archive's life": lambda: of("s3").delete_bucket_lifecycle(Bucket=archive),
        "the archive's lock": lambda: of("s3").put_object_lock_configuration(
            Bucket=archive, ObjectLockConfiguration={"ObjectLockEnabled": "Enabled"}
        ),
        "a version of what was archived": lambda: of("s3").delete_object(
            Bucket=archive, Key="campaigns/drilled/x", VersionId="1", BypassGovernanceRetention=True
        ),
        "something among what was archived": lambda: of("s3").put_object(Bucket=archive, Key="campaigns/drilled/x"),
        "a role beyond the boundary": lambda: of("iam").create_role(
            RoleName="bivouac-drilled-more", AssumeRolePolicyDocument=trust
        ),
        "whom a role trusts": lambda: of("iam").update_assume_role_policy(RoleName=mine, PolicyDocument=trust),
        "a role's boundary": lambda: of("iam").delete_role_permissions_boundary(RoleName=mine),
        "another boundary": lambda: of("iam").put_role_permissions_boundary(RoleName=mine, PermissionsBoundary=full),
        "what the boundary says": lambda: of("iam").create_policy_version(
            PolicyArn=limit, PolicyDocument=trust, SetAsDefault=True
        ),
        "a policy of its own": lambda: of("iam").create_policy(
            PolicyName="bivouac-drilled-freeze", PolicyDocument=trust
        ),
        "whose a role is": lambda: of("iam").tag_role(RoleName=mine, Tags=mark),
        "a role of another name": lambda: of("iam").create_role(RoleName="mine", AssumeRolePolicyDocument=trust),
        "all rights for a role": lambda: of("iam").attach_role_policy(RoleName=mine, PolicyArn=full),
        "a role lent to another service": lambda: of("eks").create_cluster(
            name="bivouac-other", roleArn=FROZEN_ARN.format(camped.world.account), resourcesVpcConfig={}
        ),
        "a cluster of another name": lambda: of("eks").create_cluster(
            name="other", roleArn=role, resourcesVpcConfig={}
        ),
        "a user": lambda: of("iam").create_user(UserName="me"),
        "another's budget": lambda: of("budgets").delete_budget(AccountId=camped.world.account, BudgetName="company"),
        "another's schedule": lambda: of("scheduler").delete_schedule(Name="backup"),
        "a parameter that may be secret": lambda: of("ssm").get_parameter(Name="/payroll/password"),
    }


FROZEN_ARN = f"arn:aws:iam::{{}}:role/{FROZEN}"


@pytest.mark.nightly
def test_the_operator_may_not_touch_what_is_not_bivouacs(provisioned: CampaignSite) -> None:
    calls = refusals(provisioned)
    with acting(provisioned, *OPERATOR):
        got = {name: code_of(call) for name, call in calls.items()}
    assert {name: code for name, code in got.items() if code not in DENIED} == {}


@pytest.mark.nightly
def test_the_operators_policies_are_enough_to_end_it_and_to_prove_it(provisioned: CampaignSite) -> None:
    with acting(provisioned, *OPERATOR), provisioned.opened() as context:
        run_step(context, StageStep(Stage.TEARDOWN, "by the operator", lambda one: teardown.run(one, abandon=True)))
        run_step(context, StageStep(Stage.CERTIFY, "by the operator", certify.run))
    certificate = certificate_of(context)
    assert certificate["clean"], certificate
    with acting(provisioned, *OPERATOR):
        code, text = said(sweep_command, "drilled", provisioned.world.region, True, False)
    assert code == 0, text


def certificate_of(context: Context) -> dict[str, Any]:
    certificate = context.state().certificate
    assert certificate is not None and not certificate.could_not_look, certificate
    return certificate.data()


@pytest.mark.nightly
def test_a_block_is_bought_by_its_own_policy_and_by_no_other(founded: CampaignSite, tmp_path: Path) -> None:
    """`provisioned` is not needed: a block is bought before anything else of a campaign stands."""
    camped = founded
    spec = camped.spec.model_dump(mode="json", exclude_unset=True)
    spec |= {"campaign": "buyer", "nodes": {"count": 2, "instance_type": "p5.48xlarge", "capacity": "capacity-block"}}
    spec["training"]["global_batch"] = 128
    spec["money"] = {"budget_usd": 100000, "deadline": "4h"}
    path = tmp_path / "campaign.yaml"
    path.write_text(yaml.safe_dump(spec))
    _, text = said(offers_command, path, [], False, True)
    offering = next(choice["id"] for choice in json.loads(text)["choices"] if choice["capacity"] == "capacity-block"
                    and choice["zone"] == camped.spec.zone)  # fmt: skip
    with acting(camped, *OPERATOR), pytest.raises(Exception, match="PurchaseCapacityBlock"):
        said(buy_command, path, offering, True, False)
    with acting(camped, *BUYER):
        code, text = said(buy_command, path, offering, True, False)
    assert code == 0 and "is bought" in text


MOST = 6144
"""Characters without white space of one managed policy; a role takes ten of them."""
LOOKS = ("BatchGet", "Describe", "Get", "List", "View")


def test_the_policies_fit_into_what_iam_takes_and_name_what_they_change() -> None:
    assert {str(path.relative_to(CI).with_suffix("")) for path in (CI / "operator").glob("*.json")} == set(OPERATOR)
    for name in (*FOUNDER, *BUYER, *VIEWER, "preview-role"):
        document = policy(name)
        assert len(json.dumps(document, separators=(",", ":"))) <= MOST, name
        for one in document["Statement"]:
            actions = [one["Action"]] if isinstance(one["Action"], str) else one["Action"]
            wild = [action for action in actions if "*" in action]
            assert all(action.partition(":")[2].startswith(LOOKS) for action in wild), wild
            changing = {action for action in actions if not action.partition(":")[2].startswith(LOOKS)}
            if one["Resource"] == "*" and "Condition" not in one:
                assert changing <= {"ce:UpdateCostAllocationTagsStatus"}, changing
    assert sum(one["Effect"] == "Deny" for name in OPERATOR for one in policy(name)["Statement"]) == 5


SERVICES = ("autoscaling", "budgets", "ce", "cloudwatch", "codebuild", "ec2", "ecr", "eks", "elb", "elbv2", "events",
            "fsx", "iam", "kms", "logs", "pricing", "resourcegroupstaggingapi", "s3", "scheduler", "service-quotas",
            "sns", "ssm", "sts")  # fmt: skip
OTHERWISE = {
    "create_bucket": "the founder's",
    "delete_bucket": "the founder's",
    "list_object_versions": "of the archive's role, in its pods",
    "start_build": "the steward's and the schedule's",
    "publish": "a method of ours, no topic's",
    "purchase_capacity_block": "the buyer's",
    "reboot_instances": "the steward's alone, in a role of its own",
    "verify": "a method of ours, no key's",
}
"""Names in the driver's code that the operator's policies leave out, each with its reason."""


def operations() -> dict[str, set[str]]:
    """Method of a boto3 client -> the permissions that it may mean."""
    loaded = get_session()
    found = dict[str, set[str]]()
    for service in SERVICES:
        model = loaded.get_service_model(service)
        signing = str(model.metadata.get("signingName", model.metadata["endpointPrefix"]))
        prefix = PREFIXES.get(signing, signing)
        for name in model.operation_names:
            action = f"{prefix}:{ACTIONS.get(signing, {}).get(name, name)}"
            found.setdefault(xform_name(name), set()).add(action)
    return found


def named_in(code: Path) -> set[str]:
    """Attributes that are called, and whole words in quotation marks: paginators, waiters and tables of calls."""
    seen = set[str]()
    for node in ast.walk(ast.parse(code.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            seen.add(node.func.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier():
            seen.add(node.value)
    return seen


def test_every_call_of_the_drivers_code_is_in_the_operators_policies() -> None:
    """Also those of bake, repair and sweep that no test above comes by."""
    known, patterns = operations(), [
        action
        for name in OPERATOR
        for one in policy(name)["Statement"]
        for action in ([one["Action"]] if isinstance(one["Action"], str) else one["Action"])
    ]  # fmt: skip
    others = tuple(ROOT / "infra" / part for part in ("rehearsal", "providers", "steward"))  # in roles of their own
    code = [path for path in (ROOT / "infra").rglob("*.py") if not any(path.is_relative_to(one) for one in others)]
    code += (ROOT / "playbooks/plugins").rglob("*.py")
    names = {word: path.name for path in code if path.exists() for word in named_in(path) if word in known}
    assert len(names) > 100, names
    missing = {
        word: place
        for word, place in names.items()
        if word not in OTHERWISE and not any(like(p, action, True) for action in known[word] for p in patterns)
    }
    assert missing == {}
