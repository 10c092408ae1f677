"""A strict site: late where AWS is late, listings in short pages, and quotas that hold."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from botocore.exceptions import ClientError

from infra.aws.account import every
from infra.rehearsal.aws.ec2.quotas import OVERRIDES
from infra.rehearsal.aws.strict import lag
from infra.rehearsal.aws.strict.settings import Delay
from infra.rehearsal.aws.world import InstanceLaunch, LaunchRefused, World
from infra.rehearsal.plugins.aws.package import AwsPackage
from infra.rehearsal.plugins.package import Request
from infra.session.session import campaigns
from tests.rehearsal.aws_account import Account, code_of, emulated, make_role, make_user, signed_in

pytestmark = pytest.mark.usefixtures("answers_as_modelled")

LONG = Delay(60.0, 60.0)
NEVER = Delay(0.0, 0.0)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Nothing is said of strictness: that is the default."""
    with emulated(tmp_path_factory.mktemp("site")) as made:
        yield made


@pytest.fixture
def delays(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Set one delay by name, until the test ends."""
    for name in ("KNOWN", "TAGGED", "INDEXED", "COUNTS"):
        monkeypatch.setattr(lag, name, NEVER)
    return lambda name, delay: monkeypatch.setattr(lag, name, delay)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A call lets two minutes pass for what is not known yet."""
    passed = [0.0]
    monkeypatch.setattr(lag, "now", lambda: time.monotonic() + passed[0])

    def pass_by() -> None:
        passed[0] += 120.0

    return pass_by


@pytest.fixture
def quota(world: World) -> Iterator[Any]:
    path = world.work / "aws" / OVERRIDES
    path.parent.mkdir(exist_ok=True)
    yield lambda **values: path.write_text(json.dumps({key.replace("_", "-"): one for key, one in values.items()}))
    path.unlink(missing_ok=True)


@pytest.mark.parametrize(
    ("service", "operation", "member", "asked"),
    [
        ("ec2", "describe_subnets", "Subnets", {"Filters": [{"Name": "state", "Values": ["available"]}]}),
        ("iam", "list_users", "Users", {}),
        ("logs", "describe_log_groups", "logGroups", {}),
        ("sns", "list_topics", "Topics", {}),
        ("kms", "list_keys", "Keys", {}),
        ("ecr", "describe_repositories", "repositories", {}),
        ("scheduler", "list_schedule_groups", "ScheduleGroups", {}),
    ],
)
def test_a_listing_comes_in_pages_whatever_its_service_speaks(
    aws: Account, world: World, service: str, operation: str, member: str, asked: dict[str, Any]
) -> None:
    makers: dict[str, Callable[[str], Any]] = {
        "logs": lambda name: aws.logs.create_log_group(logGroupName=name),
        "iam": lambda name: aws.iam.create_user(UserName=name),
        "sns": lambda name: aws.sns.create_topic(Name=name),
        "kms": lambda name: aws.kms.create_key(),
        "ecr": lambda name: aws.ecr.create_repository(repositoryName=name),
        "scheduler": lambda name: aws.scheduler.create_schedule_group(Name=name),
    }
    for number in range(3) if service in makers else ():
        makers[service](f"paged-{number}")
    client = getattr(aws, service)
    first = getattr(client, operation)(**asked).get(member) or ()
    found = list(every(client, operation, member, **asked))
    assert len(first) < len(found) and len(found) >= 3
    keys = [json.dumps(one, sort_keys=True, default=str) for one in found]
    assert len(set(keys)) == len(keys)
    soft = {"logs": "groups", "ecr": "repositories"}.get(service)
    if soft:
        assert len(found) == len(getattr(world.backend(service), soft))


def test_a_name_is_answered_at_once_and_a_token_of_nobody_is_refused(aws: Account) -> None:
    subnets = [one["SubnetId"] for one in every(aws.ec2, "describe_subnets", "Subnets")]
    assert len(aws.ec2.describe_subnets(SubnetIds=subnets)["Subnets"]) == len(subnets)
    assert code_of(lambda: aws.ec2.describe_subnets(NextToken="mine")) == "InvalidNextToken"


def test_a_page_holds_no_more_than_was_asked_for(aws: Account) -> None:
    found = list(every(aws.ec2, "describe_subnets", "Subnets"))
    pages = aws.ec2.get_paginator("describe_subnets").paginate(PaginationConfig={"PageSize": 5})
    assert len(aws.ec2.describe_subnets(MaxResults=5)["Subnets"]) < len(found)
    assert sum(len(page["Subnets"]) for page in pages) == len(found)


def test_what_goes_between_two_pages_hides_nothing_else(aws: Account) -> None:
    for number in range(6):
        aws.logs.create_log_group(logGroupName=f"going-{number}")
    asked = {"logGroupNamePrefix": "going-"}
    pages = iter(aws.logs.get_paginator("describe_log_groups").paginate(**asked))
    seen = [group["logGroupName"] for group in next(pages)["logGroups"]]
    aws.logs.delete_log_group(logGroupName="going-0")
    seen += [group["logGroupName"] for page in pages for group in page["logGroups"]]
    assert {f"going-{number}" for number in range(1, 6)} <= set(seen)


def test_all_campaigns_are_listed_however_many_there_are(aws: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    """As S3 has its pages, of a thousand."""
    monkeypatch.setattr("infra.rehearsal.aws.strict.pages.S3_PAGE", 1000)
    world = aws.world
    own = signed_in(monkeypatch, world)
    world.backend("s3").create_bucket("many", "us-east-1")
    names = [f"c{number:04}" for number in range(1001)]
    for name in names:
        world.backend("s3").put_object("many", f"campaigns/{name}/spec.json", b"{}")
    with pytest.MonkeyPatch.context() as patch:
        # A record is looked at one by one; here only which there are is of interest.
        patch.setattr("infra.session.session.CampaignStore.get_json", lambda *_: {})
        assert campaigns(own, "many") == names


def test_what_ec2_has_just_made_is_not_found_and_then_is(aws: Account, delays: Any, clock: Any) -> None:
    delays("KNOWN", LONG)
    vpc = aws.ec2.create_vpc(CidrBlock="10.50.0.0/16")["Vpc"]["VpcId"]
    assert code_of(lambda: aws.ec2.describe_vpcs(VpcIds=[vpc])) == "InvalidVpcID.NotFound"
    subnet = {"VpcId": vpc, "CidrBlock": "10.50.1.0/24"}
    assert code_of(lambda: aws.ec2.create_subnet(**subnet)) == "InvalidVpcID.NotFound"
    assert vpc not in [one["VpcId"] for one in every(aws.ec2, "describe_vpcs", "Vpcs")]
    clock()
    assert vpc in [one["VpcId"] for one in every(aws.ec2, "describe_vpcs", "Vpcs")]
    assert aws.ec2.describe_vpcs(VpcIds=[vpc])["Vpcs"][0]["VpcId"] == vpc
    aws.ec2.delete_vpc(VpcId=vpc)


def test_tags_come_later_than_what_they_are_on(aws: Account, delays: Any, clock: Any) -> None:
    delays("TAGGED", LONG)
    tags = [{"ResourceType": "security-group", "Tags": [{"Key": "late", "Value": "yes"}]}]
    vpc = next(every(aws.ec2, "describe_vpcs", "Vpcs"))["VpcId"]
    made = aws.ec2.create_security_group(GroupName="late", Description="late", VpcId=vpc, TagSpecifications=tags)
    by_tag = {"Filters": [{"Name": "tag:late", "Values": ["yes"]}]}
    (shown,) = aws.ec2.describe_security_groups(GroupIds=[made["GroupId"]])["SecurityGroups"]
    assert not shown.get("Tags") and not list(every(aws.ec2, "describe_security_groups", "SecurityGroups", **by_tag))
    clock()
    (shown,) = every(aws.ec2, "describe_security_groups", "SecurityGroups", **by_tag)
    assert shown["Tags"] == [{"Key": "late", "Value": "yes"}]


def test_the_tagging_service_lists_last(aws: Account, delays: Any, clock: Any) -> None:
    delays("INDEXED", LONG)
    made = aws.ecr.create_repository(repositoryName="indexed", tags=[{"Key": "indexed", "Value": "yes"}])
    arn, asked = made["repository"]["repositoryArn"], {"TagFilters": [{"Key": "indexed"}]}

    def listed() -> list[str]:
        found = every(aws.resourcegroupstaggingapi, "get_resources", "ResourceTagMappingList", **asked)
        return [one["ResourceARN"] for one in found]

    assert listed() == []
    clock()
    assert listed() == [arn]


def test_a_new_role_is_assumed_by_no_service_at_first(aws: Account, delays: Any, clock: Any) -> None:
    delays("COUNTS", LONG)
    role = make_role(
        aws, "young-scheduler", "scheduler.amazonaws.com", {"Effect": "Allow", "Action": "ec2:*", "Resource": "*"}
    )
    target = {
        "Arn": "arn:aws:scheduler:::aws-sdk:ec2:terminateInstances",
        "RoleArn": role,
        "Input": '{"InstanceIds": ["i-1"]}',
    }
    asked = {"Name": "young", "ScheduleExpression": "at(2030-01-01T00:00:00)", "FlexibleTimeWindow": {"Mode": "OFF"}}
    assert code_of(lambda: aws.scheduler.create_schedule(Target=target, **asked)) == "ValidationException"
    clock()
    assert aws.scheduler.create_schedule(Target=target, **asked)["ScheduleArn"]


def test_a_new_instance_profile_is_not_taken_at_first(aws: Account, world: World, delays: Any, clock: Any) -> None:
    delays("COUNTS", LONG)
    aws.iam.create_instance_profile(InstanceProfileName="young")
    image = next(image for image in world.backend("ec2").amis if image.startswith("ami-"))
    asked = {"ImageId": image, "MinCount": 1, "MaxCount": 1, "InstanceType": "m5.large"}
    profile = {"Name": "young"}
    with pytest.raises(ClientError, match="Invalid IAM Instance Profile") as refused:
        aws.ec2.run_instances(IamInstanceProfile=profile, **asked)
    assert refused.value.response["Error"]["Code"] == "InvalidParameterValue"
    clock()
    assert aws.ec2.run_instances(IamInstanceProfile=profile, **asked)["Instances"]


def test_a_permission_counts_later_whether_it_comes_or_goes(world: World, delays: Any, clock: Any) -> None:
    key = make_user(world, "slow", {"Effect": "Allow", "Action": "sts:GetCallerIdentity", "Resource": "*"})
    user, operator = Account(world, *key), Account(world, *world.operator_key)
    delays("COUNTS", LONG)
    granted = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "sns:*", "Resource": "*"}]}
    operator.iam.put_user_policy(UserName="slow", PolicyName="sns", PolicyDocument=json.dumps(granted))

    def may() -> bool:
        try:
            return bool(user.sns.list_topics())
        except ClientError as error:
            assert "not authorized" in str(error)
            return False

    assert not may()
    clock()
    assert may()
    operator.iam.delete_user_policy(UserName="slow", PolicyName="sns")
    assert may()
    clock()
    assert not may()


def test_no_vpc_more_than_the_quota_leaves(aws: Account, world: World, delays: Any, quota: Any) -> None:
    there = len(world.backend("ec2").vpcs)
    quota(L_F678F1CE=there + 1)
    vpc = aws.ec2.create_vpc(CidrBlock="10.60.0.0/16")["Vpc"]["VpcId"]
    assert code_of(lambda: aws.ec2.create_vpc(CidrBlock="10.61.0.0/16")) == "VpcLimitExceeded"
    aws.ec2.delete_vpc(VpcId=vpc)


def test_each_source_of_a_rule_counts(aws: Account, delays: Any, quota: Any) -> None:
    vpc = next(every(aws.ec2, "describe_vpcs", "Vpcs"))["VpcId"]
    group = aws.ec2.create_security_group(GroupName="ruled", Description="ruled", VpcId=vpc)["GroupId"]
    quota(L_0EA8095F=3)

    def allow(*cidrs: str) -> Any:
        rule = {"IpProtocol": "tcp", "FromPort": 1, "ToPort": 2, "IpRanges": [{"CidrIp": cidr} for cidr in cidrs]}
        return aws.ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=[rule])

    allow("10.0.0.0/24", "10.0.1.0/24")
    assert code_of(lambda: allow("10.0.2.0/24", "10.0.3.0/24")) == "RulesPerSecurityGroupLimitExceeded"
    allow("10.0.2.0/24")


def test_addresses_routes_and_gateways_are_counted(aws: Account, world: World, delays: Any, quota: Any) -> None:
    vpc = next(every(aws.ec2, "describe_vpcs", "Vpcs"))["VpcId"]
    quota(L_0263D0A3=1, L_A4707A72=1, L_93826ACB=1)
    aws.ec2.allocate_address(Domain="vpc")
    assert code_of(lambda: aws.ec2.allocate_address(Domain="vpc")) == "AddressLimitExceeded"
    gateway = aws.ec2.create_internet_gateway()["InternetGateway"]["InternetGatewayId"]
    assert code_of(lambda: aws.ec2.create_internet_gateway()) == "InternetGatewayLimitExceeded"
    aws.ec2.attach_internet_gateway(InternetGatewayId=gateway, VpcId=vpc)
    table = aws.ec2.create_route_table(VpcId=vpc)["RouteTable"]["RouteTableId"]
    way = {"RouteTableId": table, "GatewayId": gateway}
    aws.ec2.create_route(DestinationCidrBlock="192.0.2.0/24", **way)
    more = "198.51.100.0/24"
    assert code_of(lambda: aws.ec2.create_route(DestinationCidrBlock=more, **way)) == "RouteLimitExceeded"


def test_the_interface_endpoints_of_a_vpc_are_counted(aws: Account, delays: Any, quota: Any) -> None:
    vpc, service = aws.ec2.create_vpc(CidrBlock="10.62.0.0/16")["Vpc"]["VpcId"], "com.amazonaws.us-east-1."
    place = {"VpcId": vpc, "CidrBlock": "10.62.1.0/24", "AvailabilityZone": "us-east-1a"}
    where = {"VpcId": vpc, "SubnetIds": [aws.ec2.create_subnet(**place)["Subnet"]["SubnetId"]]}
    quota(L_29B6F2EB=1)
    aws.ec2.create_vpc_endpoint(VpcId=vpc, ServiceName=f"{service}s3", VpcEndpointType="Gateway")

    def reach(name: str) -> Any:
        return aws.ec2.create_vpc_endpoint(ServiceName=service + name, VpcEndpointType="Interface", **where)

    reach("ecr.api")
    assert code_of(lambda: reach("ec2")) == "VpcEndpointLimitExceeded"


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({}, "VcpuLimitExceeded"),
        ({"market": "spot"}, "MaxSpotInstanceCountExceeded"),
        ({"capacity_reservation_id": "cr-1"}, ""),
        ({"market": "capacity-block"}, ""),
        ({"instance_type": "m7i.large"}, ""),
    ],
)
def test_vcpus_of_a_family_are_counted_for_what_is_bought_only(
    world: World, quota: Any, changes: dict[str, Any], code: str
) -> None:
    quota(L_417A185B=191, L_C4BD4855=191)
    launch = InstanceLaunch(**({"instance_type": "p5.48xlarge", "zone": "us-east-1a", "image_id": "ami-1"} | changes))
    refused = ""
    try:
        for hook in world.launch_hooks[-1:]:
            hook(launch)
    except LaunchRefused as error:
        refused = error.code
    assert refused == code


def test_the_plugin_waits_until_aws_shows_and_takes_what_was_made(
    aws: Account, world: World, delays: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    signed_in(monkeypatch, world)
    for name in ("KNOWN", "TAGGED", "COUNTS"):
        delays(name, Delay(0.3, 0.3))
    package = AwsPackage()
    package.configure({"region": "us-east-1"})

    def make(token: str, **inputs: Any) -> tuple[str, dict[str, Any]]:
        inputs = {"region": "us-east-1", **inputs} if ":iam/" not in token else inputs
        checked, failures = package.check(Request(urn="", type=token, name="late", inputs=inputs))
        assert not failures
        return package.create(Request(urn="", type=token, name="late", inputs=checked))

    tags = {"Name": "late"}
    vpc, shown = make("aws:ec2/vpc:Vpc", cidrBlock="10.77.0.0/16", tags=tags)
    assert shown["arn"].endswith(vpc) and shown["tagsAll"] == shown["tags"] == tags
    subnet, _ = make("aws:ec2/subnet:Subnet", vpcId=vpc, cidrBlock="10.77.1.0/24", tags=tags)
    gateway, shown = make("aws:ec2/internetGateway:InternetGateway", vpcId=vpc, tags=tags)
    assert shown["vpcId"] == vpc
    table, _ = make("aws:ec2/routeTable:RouteTable", vpcId=vpc, tags=tags)
    make("aws:ec2/routeTableAssociation:RouteTableAssociation", routeTableId=table, subnetId=subnet)
    make("aws:ec2/route:Route", routeTableId=table, destinationCidrBlock="0.0.0.0/0", gatewayId=gateway)
    address, shown = make("aws:ec2/eip:Eip", domain="vpc", tags=tags)
    assert shown["publicIp"]
    nat, shown = make("aws:ec2/natGateway:NatGateway", allocationId=address, subnetId=subnet, tags=tags)
    assert shown["publicIp"] and nat.startswith("nat-")
    principal = {"Service": "scheduler.amazonaws.com"}
    allowed = {"Effect": "Allow", "Principal": principal, "Action": "sts:AssumeRole"}
    trust = {"Version": "2012-10-17", "Statement": [allowed]}
    _, role = make("aws:iam/role:Role", name="plugged", assumeRolePolicy=json.dumps(trust))
    target = {"arn": "arn:aws:scheduler:::aws-sdk:ec2:terminateInstances", "roleArn": role["arn"],
              "input": '{"InstanceIds": ["i-1"]}'}  # fmt: skip
    when = {"scheduleExpression": "at(2030-01-01T00:00:00)", "flexibleTimeWindow": {"mode": "OFF"}}
    assert make("aws:scheduler/schedule:Schedule", name="plugged", target=target, **when)[0] == "default/plugged"
