"""What a campaign stands on, with every option set, through the real engine: made, used, changed, destroyed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from infra.bake import foundation
from infra.campaign import provision, teardown
from infra.cli.prepare.addons import addons_command
from infra.engine import adoption
from infra.engine.engine import Engine
from infra.engine.state_copy import stored_state
from infra.errors import UserError
from infra.inventory import certify, survey
from infra.kinds import KINDS, kind_of_type
from infra.plan import catalogue
from infra.record.events import Stage
from infra.record.payloads.outputs import ProvisionOutput
from infra.session.context import Context
from infra.session.session import ensure_bucket
from infra.spec.campaign import Spec
from infra.spec.names import FOUNDATION_STACK, NOTICES
from infra.stack.settings import Keeping
from tests.rehearsal.aws_account import until
from tests.worlds.account_site import resize
from tests.worlds.campaign_site import CampaignSite, camp

pytestmark = pytest.mark.nightly

CI = "ci-driver"
OPTIONS: dict[str, Any] = {
    "money": {"budget_usd": 100, "deadline": "4h", "freeze_roles": [CI]},
    "storage": {
        "shared": {"metadata_iops": 6000, "compression": "LZ4", "efa": True, "capacity_gib": 19200},
        "local": {"layout": "RAID0"},
        "archive": {"storage_class": "GLACIER_IR", "move_after": "14d", "lock_for": "30d"},
    },
    "encryption": {"customer_key": True},
    "addons": {"prometheus": True, "kueue": True, "efa": "dra"},
    "nodes": {"count": 2, "instance_type": "p5.48xlarge", "ranks_per_node": 1},
}
CHARTS = {"jobset", "nvidia-device-plugin", "dcgm-exporter", "kueue", "kube-prometheus-stack", "aws-dranet"}
ADD_ONS = {
    "vpc-cni", "kube-proxy", "eks-pod-identity-agent", "coredns", "aws-fsx-csi-driver", "eks-node-monitoring-agent",
}  # fmt: skip


def driver_vpc(camped: CampaignSite) -> dict[str, Any]:
    """The VPC in which the driver's own machine stands."""
    ec2 = camped.client("ec2")
    vpc = ec2.create_vpc(CidrBlock="10.7.0.0/16")["Vpc"]["VpcId"]
    table = ec2.create_route_table(VpcId=vpc)["RouteTable"]["RouteTableId"]
    return {"vpc_id": vpc, "cidr": "10.7.0.0/16", "route_table_ids": [table]}


@pytest.fixture(scope="module")
def camped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CampaignSite]:
    with camp(tmp_path_factory.mktemp("camp"), **OPTIONS) as one:
        trust = {"Effect": "Allow", "Action": "sts:AssumeRole", "Principal": {"Service": "ec2.amazonaws.com"}}
        document = json.dumps({"Version": "2012-10-17", "Statement": [trust]})
        one.client("iam").create_role(RoleName=CI, AssumeRolePolicyDocument=document)
        network = {"api_endpoint": "private", "driver_vpc": driver_vpc(one), "egress": "endpoints"}
        one.spec = Spec.model_validate(one.spec.model_dump(mode="json") | {"network": network})
        yield one


@pytest.fixture(scope="module")
def context(camped: CampaignSite) -> Iterator[Context]:
    with camped.opened() as one:
        one.outputs[Stage.PROVISION] = provision.run(one)
        yield one


def kept(camped: CampaignSite, kind: str) -> dict[str, Any]:
    return {"Bucket": f"bivouac-{kind}-{camped.world.account}-{camped.world.region}"}


def test_everything_is_encrypted_with_one_key_of_the_customers(camped: CampaignSite, context: Context) -> None:
    key = camped.client("kms").describe_key(KeyId="alias/bivouac")["KeyMetadata"]["Arn"]
    s3, names = camped.client("s3"), camped.names
    for kind in ("state", "data", "archive"):
        (rule,) = s3.get_bucket_encryption(**kept(camped, kind))["ServerSideEncryptionConfiguration"]["Rules"]
        assert rule["ApplyServerSideEncryptionByDefault"]["KMSMasterKeyID"] == key and rule["BucketKeyEnabled"]
    cluster = camped.client("eks").describe_cluster(name=names.cluster)["cluster"]
    assert cluster["encryptionConfig"] == [{"resources": ["secrets"], "provider": {"keyArn": key}}]
    (system,) = camped.client("fsx").describe_file_systems()["FileSystems"]
    assert system["KmsKeyId"] == key
    templates = camped.client("ec2").describe_launch_template_versions(LaunchTemplateName=names.gpu_group)
    (disk,) = templates["LaunchTemplateVersions"][0]["LaunchTemplateData"]["BlockDeviceMappings"]
    assert disk["Ebs"]["KmsKeyId"] == key
    (group,) = camped.client("logs").describe_log_groups(logGroupNamePrefix=names.log_group)["logGroups"]
    assert group["kmsKeyId"] == key
    assert camped.client("kms").get_key_rotation_status(KeyId=key)["KeyRotationEnabled"]
    latest = (stored_state(context.store, names.stack) or {})["checkpoint"]["latest"]
    assert latest["secrets_providers"]["type"] == "cloud" and key in latest["secrets_providers"]["state"]["url"]


NAT_ONLY = {"aws:ec2/natGateway:NatGateway", "aws:ec2/eip:Eip"}
"""Of campaigns with a way out: found in `test_adoption`."""


def test_each_kind_that_a_killed_engine_made_is_found_by_what_its_state_holds(
    camped: CampaignSite, context: Context
) -> None:
    """The stored inputs are as the real plugin writes them: its own notes in every map, and only what was given."""
    found, wanted, engine = dict[str, str](), dict[str, str](), Engine(context, context.results / "pulumi")
    for name in (FOUNDATION_STACK, context.names.stack):
        deployment = engine.stack(name, {}).export_stack().deployment or {}
        for resource in deployment["resources"]:
            if kind_of_type(resource["type"]).find is None:
                continue
            assert all(
                "__defaults" in noted
                for noted in (resource["inputs"], resource["inputs"].get("tags", resource["inputs"]))
            )
            half = {key: value for key, value in resource.items() if key not in ("id", "outputs")}
            others = [resource for resource in deployment["resources"] if resource is not resource]
            cut = {"resources": others, "pending_operations": [{"type": "creating", "resource": half}]}
            wanted[resource["urn"]] = resource["id"]
            found |= adoption.adoptable(context.account, camped.names.cluster, cut)
    assert found == wanted
    kinds = {urn.split("::")[2].split("$")[-1] for urn in found}
    assert kinds == {kind.type for kind in KINDS if kind.find} - NAT_ONLY, (
        "a kind that nothing here makes needs a test of its own"
    )


def test_what_lives_and_only_the_tagging_service_lists_is_found(camped: CampaignSite, context: Context) -> None:
    tagged_things = list(survey.tagged_things(context.account))
    kinds = {one.id.split(":")[2] + "/" + one.id.split(":", 5)[5].split("/")[0] for one in tagged_things}
    eks = ("nodegroup", "addon", "access-entry", "podidentityassociation")
    assert {f"eks/{kind}" for kind in eks} | {"ec2/security-group-rule", "fsx/association"} <= kinds
    assert not [one for one in tagged_things if one.doubt and "bivouac:campaign" in one.tags]


def test_the_archive_locks_and_moves_what_comes_into_it(camped: CampaignSite, context: Context) -> None:
    s3, archive = camped.client("s3"), kept(camped, "archive")
    lock = s3.get_object_lock_configuration(**archive)["ObjectLockConfiguration"]
    assert {"Mode": "GOVERNANCE", "Days": 30}.items() <= lock["Rule"]["DefaultRetention"].items()
    rules = {rule["ID"]: rule for rule in s3.get_bucket_lifecycle_configuration(**archive)["Rules"]}
    moving = rules["class-of-drilled"]
    assert moving["Filter"] == {"Prefix": "campaigns/drilled/"}
    assert moving["Transitions"] == [{"Days": 14, "StorageClass": "GLACIER_IR"}]
    assert "abort-incomplete-uploads" in rules


def test_the_file_system_is_as_the_spec_says(camped: CampaignSite, context: Context) -> None:
    (system,) = camped.client("fsx").describe_file_systems()["FileSystems"]
    lustre = system["LustreConfiguration"]
    assert (system["StorageCapacity"], lustre["EfaEnabled"]) == (19200, True)
    assert lustre["MetadataConfiguration"] == {"Mode": "USER_PROVISIONED", "Iops": 6000}
    assert lustre["DataCompressionType"] == "LZ4"


def test_add_ons_and_charts_are_those_of_the_spec_and_pods_claim_all_efa_devices(
    camped: CampaignSite, context: Context
) -> None:
    eks, objects = camped.client("eks"), camped.plane().api.objects
    addons = eks.list_addons(clusterName=camped.names.cluster)["addons"]
    assert set(addons) == ADD_ONS
    states = {eks.describe_addon(clusterName=camped.names.cluster, addonName=one)["addon"]["status"] for one in addons}
    assert states == {"ACTIVE"}
    kinds = [document for document in objects.values()]
    releases = {kind["metadata"]["labels"]["name"] for kind in kinds
                if kind["kind"] == "Secret" and kind["metadata"].get("labels", {}).get("owner") == "helm"}  # fmt: skip
    assert releases == CHARTS, "never the device plugin beside the DRA driver"
    (claim,) = [kind for kind in kinds if kind["kind"] == "ResourceClaimTemplate"]
    (request,) = claim["spec"]["spec"]["devices"]["requests"]
    item = catalogue.instance_type(camped.spec.nodes.instance_type)
    assert request["exactly"]["count"] == item.efa_interfaces == 32
    repairs = {
        name: eks.describe_nodegroup(clusterName=camped.names.cluster, nodegroupName=name)["nodegroup"][
            "nodeRepairConfig"
        ]["enabled"]
        for name in (camped.names.gpu_group, camped.names.system_group)
    }
    assert repairs == {camped.names.gpu_group: False, camped.names.system_group: True}


def test_a_private_endpoint_is_reached_through_the_drivers_network_and_by_nobody_else(
    camped: CampaignSite, context: Context
) -> None:
    ec2 = camped.client("ec2")
    vpc = camped.client("eks").describe_cluster(name=camped.names.cluster)["cluster"]["resourcesVpcConfig"]
    assert vpc["endpointPrivateAccess"] and not vpc["endpointPublicAccess"]
    (peering,) = ec2.describe_vpc_peering_connections()["VpcPeeringConnections"]
    assert peering["Status"]["Code"] == "active"
    driver = camped.spec.network.driver_vpc
    assert driver is not None
    (table,) = ec2.describe_route_tables(RouteTableIds=list(driver.route_table_ids))["RouteTables"]
    ways = {route["DestinationCidrBlock"]: route.get("VpcPeeringConnectionId") for route in table["Routes"]}
    assert ways[camped.spec.network.cidr] == peering["VpcPeeringConnectionId"]
    rules = ec2.describe_security_group_rules(
        Filters=[{"Name": "group-id", "Values": [vpc["clusterSecurityGroupId"]]}]
    )["SecurityGroupRules"]
    doors = [rule for rule in rules if not rule["IsEgress"] and rule.get("CidrIpv4")]
    assert [(door["CidrIpv4"], door["FromPort"]) for door in doors] == [("10.7.0.0/16", 443)]


def test_a_spent_budget_alarms_its_topic_and_freezes_the_roles_that_the_spec_names(
    camped: CampaignSite, context: Context
) -> None:
    name, topic = camped.names.prefix, context.names.alarms
    first = camped.ask("spent", budget=name, usd=85)
    assert [(one["to"].endswith(topic), one["per_cent"], one["error"]) for one in first["sent"]] == [(True, 80, None)]
    iam = camped.client("iam")
    assert not iam.list_attached_role_policies(RoleName=CI)["AttachedPolicies"]
    second = camped.ask("spent", budget=name, usd=101)
    assert [action["Status"] for action in second["actions"]] == ["EXECUTION_SUCCESS"], second
    attached = iam.list_attached_role_policies(RoleName=CI)["AttachedPolicies"]
    assert [one["PolicyName"] for one in attached] == ["bivouac_freeze_us-east-1"]


def test_a_second_up_and_a_refresh_change_nothing(context: Context) -> None:
    engine = Engine(context, context.results / "pulumi")
    digest = ProvisionOutput.of(context.outputs).data_digest
    for stack, settings in (
        (FOUNDATION_STACK, foundation.foundation_settings(context.store, context.spec)),
        (context.names.stack, foundation.campaign_settings(context, digest)),
    ):
        opened = engine.stack(stack, settings.to_config())
        refreshed = opened.refresh().summary.resource_changes or {}
        assert {kind for kind, count in refreshed.items() if count} == {"same"}, (stack, refreshed)
        if stack == FOUNDATION_STACK:
            continue  # its program is small, and each engine's start costs seconds
        planned = opened.preview().change_summary
        assert {str(kind) for kind, count in planned.items() if count} == {"same"}, (stack, planned)


def test_what_may_change_changes_in_place_and_nothing_is_replaced(camped: CampaignSite, context: Context) -> None:
    """The engine's word alone: what a driver refuses on a living campaign is another matter."""
    document = camped.spec.model_dump(mode="json")
    document["money"]["budget_usd"] = 150
    document["nodes"]["count"] = 3
    document["storage"]["shared"] |= {"metadata_iops": 12000, "compression": "NONE"}
    document["addons"]["prometheus"] = False
    settings = foundation.campaign_settings(context, ProvisionOutput.of(context.outputs).data_digest)
    later = settings.deadline + timedelta(hours=1)
    changed = settings.model_copy(update={"spec": Spec.model_validate(document), "deadline": later})
    opened = Engine(context, context.results / "pulumi").stack(context.names.stack, changed.to_config())
    counts: dict[str, int] = {
        kind: count for kind, count in (opened.up().summary.resource_changes or {}).items() if count
    }
    # The later deadline is in everything's tags; the chart goes with its namespace.
    assert set(counts) == {"same", "update", "delete"} and counts["delete"] == 2 and counts["update"] > 25, counts
    (system,) = camped.client("fsx").describe_file_systems()["FileSystems"]
    assert system["LustreConfiguration"]["MetadataConfiguration"]["Iops"] == 12000
    assert system["LustreConfiguration"]["DataCompressionType"] == "NONE"
    names, account = camped.names, camped.spec.account
    (budget,) = camped.client("budgets").describe_budgets(AccountId=account)["Budgets"]
    assert float(budget["BudgetLimit"]["Amount"]) == 150
    schedule = camped.client("scheduler").get_schedule(Name=names.schedule)
    assert schedule["ScheduleExpression"] == f"at({later.astimezone(UTC):%Y-%m-%dT%H:%M:%S})"
    group = {"clusterName": names.cluster, "nodegroupName": names.gpu_group}
    assert camped.client("eks").describe_nodegroup(**group)["nodegroup"]["scalingConfig"]["maxSize"] == 4
    wanted = {"Key": "bivouac:expires", "Value": f"{later.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"}
    (vpc,) = [vpc for vpc in camped.client("ec2").describe_vpcs()["Vpcs"] if vpc["CidrBlock"] == "10.42.0.0/16"]
    assert wanted in vpc["Tags"] and wanted in system["Tags"]
    again = opened.preview().change_summary
    assert {str(kind) for kind, count in again.items() if count} == {"same"}, again


def test_the_deadline_sets_the_gpu_nodes_to_zero_by_itself_and_as_its_own_role(
    camped: CampaignSite, context: Context
) -> None:
    eks, scheduler, names = camped.client("eks"), camped.client("scheduler"), camped.names
    group = {"clusterName": names.cluster, "nodegroupName": names.gpu_group}
    resize(eks, **group, scalingConfig={"minSize": 0, "maxSize": 3, "desiredSize": 2})
    # EKS refuses a second update while the first is under way.
    until(lambda: eks.describe_nodegroup(**group)["nodegroup"]["status"] == "ACTIVE")
    schedule = scheduler.get_schedule(Name=names.schedule)
    soon = datetime.now(UTC) + timedelta(seconds=1)
    kept = ("FlexibleTimeWindow", "Target", "Description", "ScheduleExpressionTimezone")
    scheduler.update_schedule(
        Name=names.schedule,
        ScheduleExpression=f"at({soon:%Y-%m-%dT%H:%M:%S})",
        **{key: schedule[key] for key in kept},
    )
    until(lambda: eks.describe_nodegroup(**group)["nodegroup"]["scalingConfig"]["desiredSize"] == 0)
    told = camped.world.work / "aws" / "schedule-runs.jsonl"
    # It is written once the call has come back.
    until(lambda: told.exists() and told.read_text().endswith("\n"))
    fired = [json.loads(line) for line in told.read_text().splitlines()]
    assert [one["error"] for one in fired] == [None] and names.schedule in fired[0]["schedule"]


def test_a_state_bucket_of_a_stranger_is_refused(camped: CampaignSite, context: Context) -> None:
    bucket = kept(camped, "state")["Bucket"]
    ensure_bucket(context.account, bucket, context.spec.account)
    with pytest.raises(UserError, match="see that account 999999999999 owns it"):
        ensure_bucket(context.account, bucket, "999999999999")


def test_the_builds_of_add_ons_are_compared_with_what_eks_offers(
    camped: CampaignSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    eks, out = camped.client("eks"), StringIO()
    build = eks.describe_addon_versions(addonName="vpc-cni")["addons"][0]["addonVersions"][0]["addonVersion"]
    pins = {"vpc-cni": build, "coredns": "v0.0.1-eksbuild.1"}
    addons = catalogue.addons()
    pinned = tuple(
        one.model_copy(update={"versions": {"1.36": pins[one.name]} if one.name in pins else {}}) for one in addons
    )
    monkeypatch.setattr(catalogue, "addons", lambda: pinned)
    assert addons_command("1.36", camped.world.region, False, Console(file=out, width=200)) == 2
    rows = {line.split()[0]: line for line in out.getvalue().splitlines() if line.strip()}
    assert "no longer offered" in rows["coredns"] and "not pinned" in rows["kube-proxy"]
    assert "offered" not in rows["vpc-cni"] and "not pinned" not in rows["vpc-cni"]
    assert 'coredns: versions: {"1.36": v1' in out.getvalue() and "vpc-cni: versions" not in out.getvalue()


def test_another_campaign_that_asks_for_less_takes_nothing_away(camped: CampaignSite, context: Context) -> None:
    plain = camped.spec.model_dump(mode="json")
    plain |= {"campaign": "other", "encryption": {}, "storage": {}}
    settings = foundation.foundation_settings(context.store, Spec.model_validate(plain))
    assert settings.keeping == foundation.foundation_settings(context.store, camped.spec).keeping
    assert settings.keeping.lock_days == 30 and settings.keeping.own_key
    more = settings.keeping.merge(Keeping(lock_days=90))
    assert more.lock_days == 90 and more.classes == settings.keeping.classes


def test_teardown_lifts_the_freeze_and_leaves_nothing_but_what_is_the_foundations(
    camped: CampaignSite, context: Context
) -> None:
    camped.ask("tagging", stale_tags_s=3600)
    teardown.run(context, abandon=True)
    shown = {arn.split(":")[2] for arn in camped.ask("tagging")["stale_tags"]}
    assert shown >= {"eks", "ec2", "fsx"}, "the tagging service goes on showing what is gone"
    assert not camped.client("iam").list_attached_role_policies(RoleName=CI)["AttachedPolicies"]
    certify.run(context)
    certificate = context.state().certificate
    assert certificate is not None and certificate.clean, certificate
    assert [topic["TopicArn"].split(":")[5] for topic in camped.client("sns").list_topics()["Topics"]] == [NOTICES]
    assert camped.client("kms").describe_key(KeyId="alias/bivouac")["KeyMetadata"]["KeyState"] == "Enabled"
