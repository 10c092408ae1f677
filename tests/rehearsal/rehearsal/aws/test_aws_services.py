"""FSx, ECR and SSM of the emulated AWS, seen as product code sees them: boto3 over HTTP, IAM switched on."""

from __future__ import annotations

import hashlib
import json
import urllib.error
import urllib.request
from datetime import datetime
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import ClientError

from infra.rehearsal.aws.fsx import systems
from infra.rehearsal.aws.world import World
from tests.rehearsal.acting import OPERATOR, policy
from tests.rehearsal.aws_account import (
    Account,
    LocalMachine,
    code_of,
    launch,
    make_user,
    pitch_lustre,
    until,
)

pytestmark = pytest.mark.usefixtures("answers_as_modelled")


def describe_lustre(aws: Account, file_system_id: str) -> dict[str, Any]:
    return aws.fsx.describe_file_systems(FileSystemIds=[file_system_id])["FileSystems"][0]


@pytest.fixture(scope="module")
def lustre(aws: Account, network: SimpleNamespace) -> dict[str, Any]:
    created = pitch_lustre(aws, network)
    assert created["Lifecycle"] == "CREATING"
    until(lambda: describe_lustre(aws, created["FileSystemId"])["Lifecycle"] == "AVAILABLE")
    return describe_lustre(aws, created["FileSystemId"])


def test_a_file_system_becomes_available_with_all_that_a_mount_needs(
    world: World, lustre: dict[str, Any], network: SimpleNamespace
) -> None:
    assert lustre["DNSName"] == f"{lustre['FileSystemId']}.fsx.us-east-1.amazonaws.com"
    assert lustre["LustreConfiguration"]["MountName"]
    assert (lustre["VpcId"], lustre["SubnetIds"]) == (network.vpc, [network.subnet])
    assert lustre["FileSystemTypeVersion"] == "2.15"
    assert isinstance(lustre["CreationTime"], datetime)
    assert lustre["Tags"] == [{"Key": "bivouac:campaign", "Value": "k2"}]
    assert (world.fsx_root / lustre["FileSystemId"]).is_dir()


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"StorageCapacity": 3600}, "BadRequest"),
        ({"LustreConfiguration": {"DeploymentType": "PERSISTENT_2", "PerUnitStorageThroughput": 200}}, "BadRequest"),
        ({"LustreConfiguration": {"DeploymentType": "SCRATCH_2", "PerUnitStorageThroughput": 125}}, "BadRequest"),
        (
            {
                "LustreConfiguration": {
                    "DeploymentType": "PERSISTENT_2",
                    "PerUnitStorageThroughput": 1000,
                    "EfaEnabled": True,
                    "MetadataConfiguration": {"Mode": "AUTOMATIC"},
                }
            },
            "BadRequest",
        ),
        ({"SecurityGroupIds": ["sg-0123456789abcdef0"]}, "InvalidNetworkSettings"),
        ({"SubnetIds": ["subnet-0123456789abcdef0"]}, "InvalidNetworkSettings"),
    ],
)
def test_a_file_system_that_aws_would_refuse_is_refused(
    aws: Account, network: SimpleNamespace, changes: dict[str, Any], code: str
) -> None:
    assert code_of(lambda: pitch_lustre(aws, network, **changes)) == code


def test_a_security_group_without_the_lustre_port_is_refused(aws: Account, network: SimpleNamespace) -> None:
    group = aws.ec2.create_security_group(GroupName="closed", Description="closed", VpcId=network.vpc)["GroupId"]
    assert code_of(lambda: pitch_lustre(aws, network, SecurityGroupIds=[group])) == "InvalidNetworkSettings"


def test_a_deleted_file_system_takes_its_interfaces_along_and_is_not_found(
    world: World, aws: Account, network: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(systems, "DELETION_S", 5.0)
    doomed = pitch_lustre(aws, network)
    by_id = [{"Name": "network-interface-id", "Values": doomed["NetworkInterfaceIds"]}]
    assert aws.ec2.describe_network_interfaces(Filters=by_id)["NetworkInterfaces"][0]["Status"] == "in-use"
    assert aws.fsx.delete_file_system(FileSystemId=doomed["FileSystemId"])["Lifecycle"] == "DELETING"
    assert describe_lustre(aws, doomed["FileSystemId"])["Lifecycle"] == "DELETING"
    until(lambda: not aws.ec2.describe_network_interfaces(Filters=by_id)["NetworkInterfaces"])
    assert code_of(lambda: describe_lustre(aws, doomed["FileSystemId"])) == "FileSystemNotFound"
    until(lambda: not (world.fsx_root / doomed["FileSystemId"]).exists())


def test_fsx_links_a_bucket_only_for_who_could_read_and_write_it(
    world: World, aws: Account, lustre: dict[str, Any]
) -> None:
    """By the guide's words; and the operator's own policies are enough for the data bucket, and for no other."""
    data, theirs = "bivouac-data-123456789012-us-east-1", "payroll"
    for bucket in (data, theirs):
        aws.s3.create_bucket(Bucket=bucket)
    statements = [one for name in OPERATOR for one in policy(name)["Statement"]]
    operator = Account(world, *make_user(world, "linker", *statements))
    tags = [{"Key": "bivouac:campaign", "Value": "k2"}]

    def link(bucket: str) -> Any:
        return operator.fsx.create_data_repository_association(
            FileSystemId=lustre["FileSystemId"], FileSystemPath=f"/{bucket}", DataRepositoryPath=f"s3://{bucket}/a/",
            Tags=tags,
        )["Association"]  # fmt: skip

    with pytest.raises(ClientError, match=r"has s3:Get\*, s3:List\* and s3:PutObject"):
        link(theirs)
    linked = link(data)["AssociationId"]
    aws.fsx.delete_data_repository_association(AssociationId=linked, DeleteDataInFileSystem=True)


def test_an_association_imports_objects_and_a_task_exports_files(
    world: World, aws: Account, lustre: dict[str, Any]
) -> None:
    aws.s3.create_bucket(Bucket="corpus")
    aws.s3.put_object(Bucket="corpus", Key="tokens/a/shard-0.bin", Body=b"zero")
    request = {
        "FileSystemId": lustre["FileSystemId"],
        "FileSystemPath": "/data",
        "DataRepositoryPath": "s3://corpus/tokens/",
        "BatchImportMetaDataOnCreate": True,
        "S3": {"AutoImportPolicy": {"Events": ["NEW", "CHANGED", "DELETED"]}},
    }
    association = aws.fsx.create_data_repository_association(**request)["Association"]
    assert association["Lifecycle"] == "CREATING"

    def lifecycle() -> str:
        ids = [association["AssociationId"]]
        described = aws.fsx.describe_data_repository_associations(AssociationIds=ids)
        return described["Associations"][0]["Lifecycle"]

    until(lambda: lifecycle() == "AVAILABLE")
    data = world.fsx_root / lustre["FileSystemId"] / "data"
    assert (data / "a" / "shard-0.bin").read_bytes() == b"zero"
    assert code_of(lambda: aws.fsx.create_data_repository_association(**request)) == "BadRequest"
    aws.s3.put_object(Bucket="corpus", Key="tokens/a/shard-1.bin", Body=b"one")
    until(lambda: (data / "a" / "shard-1.bin").exists())
    aws.fsx.delete_data_repository_association(AssociationId=association["AssociationId"], DeleteDataInFileSystem=True)
    until(lambda: not aws.fsx.describe_data_repository_associations()["Associations"])


def test_policies_can_name_a_file_system(world: World, aws: Account, lustre: dict[str, Any]) -> None:
    allowed = {"Effect": "Allow", "Action": "fsx:*", "Resource": lustre["ResourceARN"]}
    narrow = Account(world, *make_user(world, "narrow", allowed))
    tag = [{"Key": "seen", "Value": "yes"}]
    narrow.fsx.tag_resource(ResourceARN=lustre["ResourceARN"], Tags=tag)
    assert tag[0] in aws.fsx.list_tags_for_resource(ResourceARN=lustre["ResourceARN"])["Tags"]
    other = lustre["ResourceARN"].rsplit("/", 1)[0] + "/fs-0123456789abcdef0"
    assert code_of(lambda: narrow.fsx.tag_resource(ResourceARN=other, Tags=tag)) == "AccessDeniedException"
    assert code_of(lambda: aws.fsx.tag_resource(ResourceARN=other, Tags=tag)) == "ResourceNotFound"


def upload(aws: Account, repository: str, content: bytes, digest: str | None = None) -> str:
    digest = digest or f"sha256:{hashlib.sha256(content).hexdigest()}"
    started = aws.ecr.initiate_layer_upload(repositoryName=repository)["uploadId"]
    part = {"repositoryName": repository, "uploadId": started, "layerPartBlob": content}
    aws.ecr.upload_layer_part(partFirstByte=0, partLastByte=len(content) - 1, **part)
    aws.ecr.complete_layer_upload(repositoryName=repository, uploadId=started, layerDigests=[digest])
    return digest


def manifest(config: str, layers: list[dict[str, Any]]) -> str:
    described = {"mediaType": "application/vnd.oci.image.config.v1+json", "digest": config, "size": 2}
    media_type = "application/vnd.oci.image.manifest.v1+json"
    return json.dumps({"schemaVersion": 2, "mediaType": media_type, "config": described, "layers": layers})


def base_image(aws: Account) -> dict[str, Any]:
    found = aws.ecr.batch_get_image(repositoryName="bivouac/base", imageIds=[{"imageTag": "host"}])["images"][0]
    return json.loads(found["imageManifest"])


def test_an_image_pushed_on_the_base_comes_back_by_digest_byte_for_byte(aws: Account) -> None:
    aws.ecr.create_repository(repositoryName="bivouac/trainer")
    host_layer = base_image(aws)["layers"][0]
    assert host_layer["mediaType"] == "application/vnd.bivouac.host.layer.v1"
    layer = upload(aws, "bivouac/trainer", b"a tar of the wheel")
    config = upload(aws, "bivouac/trainer", b"{}")
    top = {"mediaType": "application/vnd.oci.image.layer.v1.tar", "digest": layer, "size": 18}
    text = manifest(config, [host_layer, top])
    pushed = aws.ecr.put_image(repositoryName="bivouac/trainer", imageManifest=text, imageTag="one")["image"]
    digest = pushed["imageId"]["imageDigest"]
    assert digest == f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
    pulled = aws.ecr.batch_get_image(repositoryName="bivouac/trainer", imageIds=[{"imageDigest": digest}])
    assert pulled["images"][0]["imageManifest"] == text
    url = aws.ecr.get_download_url_for_layer(repositoryName="bivouac/trainer", layerDigest=layer)["downloadUrl"]
    with urllib.request.urlopen(url) as answer:
        assert answer.read() == b"a tar of the wheel"
    with pytest.raises(urllib.error.HTTPError):
        urllib.request.urlopen(url.partition("?")[0])
    known = aws.ecr.batch_check_layer_availability(repositoryName="bivouac/trainer", layerDigests=[layer])
    assert known["layers"][0]["layerAvailability"] == "AVAILABLE"
    buckets = [bucket["Name"] for bucket in aws.s3.list_buckets()["Buckets"]]
    assert not [name for name in buckets if name.startswith("prod-")]


def test_a_moved_tag_leaves_the_former_image_reachable_by_digest(aws: Account) -> None:
    aws.ecr.create_repository(repositoryName="moving")
    digests = []
    for content in (b"[1]", b"[2]"):
        text = manifest(upload(aws, "moving", content), [])
        put = aws.ecr.put_image(repositoryName="moving", imageManifest=text, imageTag="latest")
        digests.append(put["image"]["imageId"]["imageDigest"])
    ids = [{"imageDigest": digest} for digest in digests]
    assert len(aws.ecr.batch_get_image(repositoryName="moving", imageIds=ids)["images"]) == 2
    latest = aws.ecr.batch_get_image(repositoryName="moving", imageIds=[{"imageTag": "latest"}])["images"]
    assert [image["imageId"]["imageDigest"] for image in latest] == [digests[1]]
    absent = aws.ecr.batch_get_image(repositoryName="moving", imageIds=[{"imageTag": "absent"}])
    assert absent["failures"][0]["imageId"] == {"imageTag": "absent"}
    assert code_of(lambda: aws.ecr.delete_repository(repositoryName="moving")) == "RepositoryNotEmptyException"
    aws.ecr.delete_repository(repositoryName="moving", force=True)


def test_the_registry_refuses_what_does_not_match_its_digest(aws: Account) -> None:
    aws.ecr.create_repository(repositoryName="strict")
    wrong = f"sha256:{'0' * 64}"
    assert code_of(lambda: upload(aws, "strict", b"content", wrong)) == "InvalidLayerException"
    text = manifest(wrong, [])
    request = {"repositoryName": "strict", "imageManifest": text, "imageTag": "x"}
    assert code_of(lambda: aws.ecr.put_image(**request)) == "LayersNotFoundException"
    assert code_of(lambda: aws.ecr.put_image(**request, imageDigest=wrong)) == "ImageDigestDoesNotMatchException"


@pytest.fixture(scope="module")
def managed(world: World, aws: Account) -> str:
    """An instance whose agent is registered."""
    principal = {"Effect": "Allow", "Principal": {"Service": "ec2.amazonaws.com"}, "Action": "sts:AssumeRole"}
    trust = json.dumps({"Version": "2012-10-17", "Statement": [principal]})
    aws.iam.create_role(RoleName="builder", AssumeRolePolicyDocument=trust)
    policy = "arn:aws:iam::aws:policy/AmazonSSMManagedInstanceCore"
    aws.iam.attach_role_policy(RoleName="builder", PolicyArn=policy)
    aws.iam.create_instance_profile(InstanceProfileName="builder")
    aws.iam.add_role_to_instance_profile(InstanceProfileName="builder", RoleName="builder")
    return launch(world, IamInstanceProfile={"Name": "builder"})


def run_command(aws: Account, instance_id: str, *commands: str, **parameters: list[str]) -> dict[str, Any]:
    request = {"InstanceIds": [instance_id], "DocumentName": "AWS-RunShellScript"}
    command = aws.ssm.send_command(Parameters={"commands": list(commands), **parameters}, **request)["Command"]

    def ended() -> dict[str, Any] | None:
        try:
            seen = aws.ssm.get_command_invocation(CommandId=command["CommandId"], InstanceId=instance_id)
        except aws.ssm.exceptions.InvocationDoesNotExist:
            return None
        return seen if seen["Status"] not in ("Pending", "InProgress") else None

    return until(ended)


def test_a_command_runs_in_the_machine_and_reports_its_end(aws: Account, managed: str) -> None:
    listed = aws.ssm.describe_instance_information()["InstanceInformationList"]
    assert [(one["InstanceId"], one["PingStatus"]) for one in listed] == [(managed, "Online")]
    done = run_command(aws, managed, "echo out", "echo err >&2", "pwd", workingDirectory=["/usr"])
    assert (done["Status"], done["ResponseCode"]) == ("Success", 0)
    assert (done["StandardOutputContent"], done["StandardErrorContent"]) == ("out\n/usr\n", "err\n")
    failed = run_command(aws, managed, "exit 3")
    assert (failed["Status"], failed["ResponseCode"]) == ("Failed", 3)
    late = run_command(aws, managed, "sleep 5", executionTimeout=["1"])
    assert (late["Status"], late["StatusDetails"]) == ("TimedOut", "Execution Timed Out")
    long = run_command(aws, managed, "yes | head -c 50000")
    assert len(long["StandardOutputContent"]) == 24_000


def test_an_instance_without_the_agent_s_permission_or_dead_takes_no_command(
    world: World, aws: Account, managed: str
) -> None:
    bare = launch(world)
    request = {"DocumentName": "AWS-RunShellScript", "Parameters": {"commands": ["true"]}}
    assert code_of(lambda: aws.ssm.send_command(InstanceIds=[bare], **request)) == "InvalidInstanceId"
    machine = world.machines[managed]
    assert isinstance(machine, LocalMachine)
    machine.up = False
    assert code_of(lambda: aws.ssm.send_command(InstanceIds=[managed], **request)) == "InvalidInstanceId"
    machine.up = True


@pytest.mark.parametrize("variant", ["nvidia", "standard"])
def test_the_parameter_of_an_eks_image_names_an_image_that_exists(aws: Account, variant: str) -> None:
    root = f"/aws/service/eks/optimized-ami/1.36/amazon-linux-2023/x86_64/{variant}/recommended"
    image_id = aws.ssm.get_parameter(Name=f"{root}/image_id")["Parameter"]["Value"]
    image = aws.ec2.describe_images(ImageIds=[image_id])["Images"][0]
    assert variant in image["Name"]
    assert aws.ec2.describe_images(Owners=["self"])["Images"] == []
    assert aws.ec2.describe_snapshots(OwnerIds=["self"])["Snapshots"] == []


def test_a_notification_of_a_budget_takes_one_topic_and_no_second(aws: Account) -> None:
    topics = [{"SubscriptionType": "SNS", "Address": f"arn:aws:sns:us-east-1:123456789012:{n}"} for n in ("a", "b")]
    alarm = {"NotificationType": "ACTUAL", "ComparisonOperator": "GREATER_THAN", "Threshold": 80.0}
    budget = {
        "BudgetName": "alarmed",
        "BudgetLimit": {"Amount": "1", "Unit": "USD"},
        "TimeUnit": "ANNUALLY",
        "BudgetType": "COST",
    }

    def make(subscribers: list[dict[str, str]]) -> Any:
        told = [{"Notification": alarm, "Subscribers": subscribers}]
        return aws.budgets.create_budget(AccountId="123456789012", Budget=budget, NotificationsWithSubscribers=told)

    assert code_of(lambda: make(topics)) == "CreationLimitExceededException"
    make(topics[:1])
    aws.budgets.delete_budget(AccountId="123456789012", BudgetName="alarmed")
