"""Storage, identity, doors, add-ons and guard over the graph, with every option set and with none."""

from __future__ import annotations

import base64
import email
import json
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infra import catalogue
from infra.actions.gang import Gang, jobset
from infra.catalogue import InstanceType, instance_type, instance_types
from infra.checks import Level
from infra.components.key import key_policy
from infra.components.lustre import EFA_CONNECTIONS, boot_script, efa_interfaces, file_system
from infra.components.settings import FoundationSettings, Keeping, StorageClass
from infra.errors import UserError
from infra.ground import ENDPOINT_SERVICES
from infra.lifecycle import adoption
from infra.names import buckets
from infra.program import program
from infra.rehearsal.aws import fsx_rules
from infra.rehearsal.aws.operations import AwsError
from infra.rehearsal.providers.aws.catalogue import RESOURCES
from infra.spec import SharedStorage
from tests.example import example_spec
from tests.graph.engine import ACCOUNT, Graph, build, campaign_graph

KEY = f"arn:aws:kms:us-east-1:{ACCOUNT}:key/11111111-2222-3333-4444-555555555555"
DRIVER = {"vpc_id": "vpc-0123456789abcdef0", "cidr": "10.7.0.0/16", "route_table_ids": ["rtb-0123456789abcdef0"]}


@pytest.fixture(scope="module")
def full() -> Graph:
    """Every option of the ground."""
    spec = example_spec(
        network={"api_endpoint": "private", "driver_vpc": DRIVER},
        storage={"shared": {"metadata_iops": "automatic", "efa": True, "capacity_gib": 19200}},
        encryption={"customer_key": True, "key_arn": KEY},
        addons={"prometheus": True, "kueue": True},
        money={"alarm_email": "someone@example.com", "freeze_roles": ["ci"]},
    )
    return campaign_graph(spec, key_arn=KEY)


# --- storage ---

TIERS = (None, 50, 125, 200, 250, 500, 750, 1000)
SOLD = [("PERSISTENT_2", tier) for tier in TIERS] + [("SCRATCH_2", None), ("SCRATCH_2", 200)]
"""With SCRATCH_2 a spec is refused that names a tier it does not have, though nothing of it would reach FSx."""
CAPACITIES = st.one_of(st.sampled_from([1200, 2400, 4800, 9600, 19200, 38400, 76800]), st.integers(1, 100_000))
IOPS = st.one_of(st.none(), st.just("automatic"), st.sampled_from([1500, 3000, 6000, 12000, 18000, 192000, 204000]))


@given(
    capacity=CAPACITIES,
    sold=st.sampled_from(SOLD),
    efa=st.booleans(),
    iops=IOPS,
)
@settings(max_examples=400, deadline=None)
def test_a_file_system_passes_the_check_exactly_when_fsx_would_make_it(
    capacity: int, sold: tuple[str, int | None], efa: bool, iops: Any
) -> None:
    """Two codings of the same rules, ours of the spec and the emulation's of the request, against each other."""
    deployment, tier = sold
    shared = {"capacity_gib": capacity, "throughput_mbs_per_tib": tier, "deployment": deployment, "efa": efa}
    spec = example_spec(storage={"shared": {**shared, "metadata_iops": iops}})
    ours = not list(lustre_findings(spec.storage.shared))
    assert ours == fsx_accepts(spec.storage.shared), spec.storage.shared


def lustre_findings(shared: SharedStorage) -> Iterator[str]:
    """Errors of the rules about the file system itself."""
    from infra.checks import storage
    from infra.checks.finding import Case

    class Facts:
        instance = instance_type("p5.48xlarge")

    case = Case(example_spec(storage={"shared": shared.model_dump()}), Facts(), None)  # type: ignore[arg-type]
    for rule in (
        storage.lustre_throughput_is_a_tier,
        storage.lustre_capacity_is_a_step,
        storage.lustre_efa_is_possible,
        storage.lustre_metadata_is_for_sale,
    ):
        yield from (draft.message for draft in rule(case) if draft.level is Level.ERROR)


def fsx_accepts(shared: SharedStorage) -> bool:
    wanted = file_system(shared)
    lustre = {
        "DeploymentType": wanted["deployment_type"],
        "PerUnitStorageThroughput": wanted.get("per_unit_storage_throughput"),
        "EfaEnabled": wanted.get("efa_enabled", False),
    }
    if configuration := wanted.get("metadata_configuration"):
        lustre["MetadataConfiguration"] = {key.capitalize(): value for key, value in configuration.items()}
    request = {"StorageCapacity": wanted["storage_capacity"], "StorageType": wanted["storage_type"],
               "FileSystemTypeVersion": wanted["file_system_type_version"]}  # fmt: skip
    try:
        fsx_rules.check_lustre(request, {key: value for key, value in lustre.items() if value is not None})
    except AwsError:
        return False
    return True


@pytest.mark.parametrize("item", instance_types(), ids=lambda item: item.name)
@pytest.mark.parametrize("nodes", [1, 64, 1024])
def test_what_a_node_does_at_boot_is_sound_shell_and_within_the_file_systems_connections(
    item: InstanceType, nodes: int
) -> None:
    script = boot_script(SharedStorage(efa=item.efa_interfaces > 0, capacity_gib=19200), item, nodes)
    assert efa_interfaces(item, nodes) * nodes <= EFA_CONNECTIONS
    if script is not None:
        assert script.startswith("#!/bin/bash\n")
        assert subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True).stderr == ""
    many = item.vcpus > 64
    assert ("ksocklnd credits=2560" in (script or "")) == many


def test_the_efa_devices_that_speak_to_lustre_lie_apart(tmp_path: Any) -> None:
    """The script itself, with a machine of 32 devices made of folders."""
    item, devices = instance_type("p5.48xlarge"), tmp_path / "infiniband"
    (tmp_path / "efa").mkdir()
    for number in range(32):
        (devices / f"rdmap{number:02d}" / "device").mkdir(parents=True)
        (devices / f"rdmap{number:02d}" / "device" / "driver").symlink_to(tmp_path / "efa")
    script = boot_script(SharedStorage(efa=True, tune_clients=False, capacity_gib=19200), item, 4)
    assert script is not None
    inner = script.split("<<'END'\n")[1].split("END\n")[0].replace("/sys/class/infiniband", str(devices))
    fakes = 'ip() { echo default via 10.0.0.1 dev eth0; }\nmodprobe() { :; }\nlnetctl() { echo "lnetctl $*"; }\n'
    ran = subprocess.run(["bash"], input=fakes + inner, text=True, capture_output=True)
    assert ran.returncode == 0, ran.stderr
    used = [line.split()[6] for line in ran.stdout.splitlines() if line.startswith("lnetctl net add --net efa")]
    assert used == [f"rdmap{number:02d}" for number in range(0, 32, 4)]
    assert "lnetctl net add --net tcp --if eth0" in ran.stdout or "net tcp" in ran.stdout
    (devices / "rdmap31" / "device" / "driver").unlink()
    (devices / "rdmap31" / "device" / "driver").symlink_to(tmp_path)
    few = inner.replace("wanted=8", "wanted=32")
    assert subprocess.run(["bash"], input=fakes + few, text=True, capture_output=True).returncode == 1


def test_the_boot_script_stands_beside_the_node_configuration(full: Graph) -> None:
    text = base64.b64decode(full.one("LaunchTemplate", "gpu-nodes").inputs["userData"]).decode()
    kinds = [part.get_content_type() for part in email.message_from_string(text).walk()]
    assert kinds == ["multipart/mixed", "application/node.eks.aws", "text/x-shellscript"]
    system = base64.b64decode(full.one("LaunchTemplate", "system-nodes").inputs["userData"]).decode()
    assert "shellscript" not in system, "the system node mounts nothing fast"


def foundation_with(**keeping: Any) -> Graph:
    settings = FoundationSettings(account=ACCOUNT, region="us-east-1", keeping=Keeping(**keeping))
    return build(program, settings.to_config())


def test_a_locked_archive_is_under_governance_and_only_the_archive() -> None:
    graph = foundation_with(lock_days=30)
    (lock,) = graph.of("BucketObjectLockConfiguration")
    assert lock.inputs["rule"] == {"defaultRetention": {"mode": "GOVERNANCE", "days": 30}}
    assert lock.inputs["bucket"] == buckets(ACCOUNT, "us-east-1").archive
    assert not foundation_with().of("BucketObjectLockConfiguration")


def test_each_campaigns_class_is_a_rule_of_its_own_part_of_the_archive() -> None:
    graph = foundation_with(classes=(StorageClass(campaign="big", name="GLACIER_IR", after_days=7),))
    rules = graph.one("BucketLifecycleConfiguration", "archive").inputs["rules"]
    assert rules[1]["filter"] == {"prefix": "campaigns/big/"}
    assert rules[1]["transitions"] == [{"days": 7, "storageClass": "GLACIER_IR"}]
    assert "transitions" not in str(graph.one("BucketLifecycleConfiguration", "data").inputs)


def test_the_foundations_key_rotates_outlives_its_stack_and_encrypts_every_bucket() -> None:
    graph = foundation_with(own_key=True)
    key = graph.one("Key", "key")
    assert key.inputs["enableKeyRotation"] is True
    encrypted = graph.of("BucketServerSideEncryptionConfiguration")
    assert len(encrypted) == 3
    for node in encrypted:
        (rule,) = node.inputs["rules"]
        assert rule["applyServerSideEncryptionByDefault"]["sseAlgorithm"] == "aws:kms"
        assert rule["bucketKeyEnabled"] is True, "without it every object is a request to KMS"
    assert graph.outputs["key_arn"]


def test_a_customers_key_reaches_everything_that_holds_data(full: Graph) -> None:
    assert full.one("LustreFileSystem", "shared").inputs["kmsKeyId"] == KEY
    secrets = full.one("Cluster", "cluster").inputs["encryptionConfig"]
    assert secrets == {"provider": {"keyArn": KEY}, "resources": ["secrets"]}
    assert full.one("LogGroup", "logs").inputs["kmsKeyId"] == KEY
    for template in full.of("LaunchTemplate"):
        (disk,) = template.inputs["blockDeviceMappings"]
        assert disk["ebs"]["kmsKeyId"] == KEY and disk["ebs"]["encrypted"] == "true"


def test_the_keys_policy_lets_in_services_of_this_account_and_nobody_from_outside() -> None:
    for statement in key_policy(ACCOUNT, "us-east-1")["Statement"]:
        principal = statement["Principal"]
        if principal == {"AWS": "*"}:
            assert statement["Condition"]["StringEquals"] == {"kms:CallerAccount": ACCOUNT}
            assert ":role/aws-service-role/" in statement["Condition"]["ArnLike"]["aws:PrincipalArn"]
        else:
            assert principal in ({"AWS": f"arn:aws:iam::{ACCOUNT}:root"}, {"Service": "logs.us-east-1.amazonaws.com"})


# --- identity ---

_S3_FOLDER = {"s3:GetObject", "s3:PutObject", "s3:ListBucket"}
_KEY_USE = {"kms:Decrypt", "kms:GenerateDataKey"}
ALLOWED = {
    "archive": _S3_FOLDER
    | _KEY_USE
    | {
        "s3:AbortMultipartUpload",
        "s3:GetObjectVersion",
        "s3:ListBucketMultipartUploads",
        "s3:ListMultipartUploadParts",
    },
    "budget": {"iam:AttachRolePolicy", "iam:DetachRolePolicy"},
    "builder": _S3_FOLDER
    | _KEY_USE
    | {
        "ecr:BatchCheckLayerAvailability",
        "ecr:BatchGetImage",
        "ecr:CompleteLayerUpload",
        "ecr:DescribeImages",
        "ecr:GetAuthorizationToken",
        "ecr:GetDownloadUrlForLayer",
        "ecr:InitiateLayerUpload",
        "ecr:PutImage",
        "ecr:UploadLayerPart",
        "s3:DeleteObject",
    },
    "cluster": {"kms:Decrypt", "kms:DescribeKey", "kms:Encrypt", "kms:ListGrants"},
    "guard": {"eks:UpdateNodegroupConfig"},
    "steward": _S3_FOLDER
    | _KEY_USE
    | {
        "autoscaling:DescribeAutoScalingGroups",
        "autoscaling:DescribeScalingActivities",
        "autoscaling:TerminateInstanceInAutoScalingGroup",
        "ec2:DescribeInstanceStatus",
        "ec2:DescribeInstances",
        "eks:DescribeNodegroup",
        "eks:UpdateNodegroupConfig",
    },
}
"""Role -> all that its own statements may hold. A new action is written here by whoever can say why."""
TO_EVERYTHING = {
    "autoscaling:DescribeAutoScalingGroups": "the API knows no resource for it",
    "autoscaling:DescribeScalingActivities": "the API knows no resource for it",
    "ec2:DescribeInstanceStatus": "the API knows no resource for it",
    "ec2:DescribeInstances": "the API knows no resource for it",
    "ecr:GetAuthorizationToken": "a token is the registry's, not a repository's",
}
MANAGED = {
    "cluster": {"AmazonEKSClusterPolicy"},
    "node": {"AmazonEKSWorkerNodePolicy", "AmazonEKS_CNI_Policy", "AmazonEC2ContainerRegistryPullOnly"},
    "builder": {"AmazonSSMManagedInstanceCore"},
}


def held(graph: Graph) -> list[tuple[str, dict[str, Any]]]:
    return [(n.name, one) for n in graph.of("RolePolicy") for one in json.loads(n.inputs["policy"])["Statement"]]


@pytest.mark.parametrize("which", ["campaign", "full"])
def test_every_statement_holds_only_what_its_role_is_allowed(which: str, request: pytest.FixtureRequest) -> None:
    graph: Graph = request.getfixturevalue(which)
    statements = held(graph)
    assert len(statements) >= 8 and {role for role, _ in statements} <= set(ALLOWED)
    for role, one in statements:
        assert one["Effect"] == "Allow"
        assert set(one["Action"]) <= ALLOWED[role], f"{role}: {set(one['Action']) - ALLOWED[role]}"
        if "*" in one["Resource"]:
            assert set(one["Action"]) <= set(TO_EVERYTHING), f"{role} may do {one['Action']} to everything"
        wide = [resource for resource in one["Resource"] if resource.count("*") > 2]
        assert not wide, f"{role}: {wide}"
    for role, expected in MANAGED.items():
        attached = {
            node.inputs["policyArn"].rpartition("/")[2]
            for node in graph.of("RolePolicyAttachment")
            if node.name.startswith(f"{role}-")
        }
        assert attached == expected


def test_everything_that_is_allowed_is_used_by_somebody(full: Graph) -> None:
    """A list that only grows would say nothing."""
    used: dict[str, set[str]] = {}
    for role, one in held(full):
        used.setdefault(role, set()).update(one["Action"])
    assert used == ALLOWED


def test_every_role_trusts_one_service_alone(full: Graph) -> None:
    trusted = {
        node.name: [one["Principal"]["Service"] for one in json.loads(node.inputs["assumeRolePolicy"])["Statement"]]
        for node in full.of("Role")
        if node.type.startswith("aws:")
    }
    assert trusted == {
        "archive": ["pods.eks.amazonaws.com"],
        "budget": ["budgets.amazonaws.com"],
        "builder": ["ec2.amazonaws.com"],
        "cluster": ["eks.amazonaws.com"],
        "guard": ["scheduler.amazonaws.com"],
        "node": ["ec2.amazonaws.com"],
        "steward": ["pods.eks.amazonaws.com"],
        "trainer": ["pods.eks.amazonaws.com"],
    }


def test_the_key_is_used_only_through_s3(full: Graph) -> None:
    for role, one in held(full):
        if role in ("steward", "archive", "builder") and any(action.startswith("kms:") for action in one["Action"]):
            assert one["Resource"] == [KEY]
            assert one["Condition"] == {"StringEquals": {"kms:ViaService": "s3.us-east-1.amazonaws.com"}}


def test_a_private_endpoint_has_a_way_from_the_driver_and_no_other(full: Graph, campaign: Graph) -> None:
    vpc = full.one("Cluster", "cluster").inputs["vpcConfig"]
    assert vpc["endpointPublicAccess"] is False and vpc["endpointPrivateAccess"] is True
    back, way = (
        full.one("Route", "driver-back").inputs,
        full.one("Route", f"driver-{DRIVER['route_table_ids'][0]}").inputs,
    )
    assert back["destinationCidrBlock"] == "10.7.0.0/16" and way["destinationCidrBlock"] == "10.42.0.0/16"
    door = full.one("SecurityGroupIngressRule", "driver-api").inputs
    assert (door["securityGroupId"], door["cidrIpv4"], door["fromPort"]) == ("sg-cluster", "10.7.0.0/16", 443)
    assert not campaign.of("VpcPeeringConnection")
    some = campaign_graph(example_spec(network={"api_allowed_cidrs": ["203.0.113.0/24"]}))
    assert some.one("Cluster", "cluster").inputs["vpcConfig"]["publicAccessCidrs"] == ["203.0.113.0/24"]


def test_without_a_way_out_there_is_one_endpoint_for_each_service_in_the_nodes_zone() -> None:
    graph = campaign_graph(example_spec(network={"egress": "endpoints"}))
    made = {node.inputs["serviceName"].removeprefix("com.amazonaws.us-east-1.") for node in graph.of("VpcEndpoint")}
    assert made == {"s3", *ENDPOINT_SERVICES}
    assert all(n.inputs.get("privateDnsEnabled") for n in graph.of("VpcEndpoint") if n.name != "s3")


# --- add-ons ---


def releases(graph: Graph) -> dict[str, dict[str, Any]]:
    return {node.name: node.inputs for node in graph.of("Release")}


def test_a_campaign_has_the_charts_that_its_spec_asks_for(campaign: Graph, full: Graph) -> None:
    needed = {"jobset", "nvidia-device-plugin", "aws-efa-k8s-device-plugin"}
    assert set(releases(campaign)) == needed | {"dcgm-exporter"}
    assert set(releases(full)) == needed | {"dcgm-exporter", "kueue", "kube-prometheus-stack"}
    bare = campaign_graph(example_spec(addons={"dcgm_exporter": False, "node_monitoring": False}))
    assert set(releases(bare)) == needed
    assert "eks-node-monitoring-agent" not in {node.name for node in bare.of("Addon")}


def test_a_pinned_add_on_has_its_build_and_another_kubernetes_has_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    pins = {"1.36": "v1.23.1-eksbuild.1", "1.35": "v1.22.0-eksbuild.1"}
    known = catalogue.addons()
    pinned = tuple(one.model_copy(update={"versions": pins if one.name == "vpc-cni" else {}}) for one in known)
    monkeypatch.setattr(catalogue, "addons", lambda: pinned)
    for version, pin in pins.items():
        graph = campaign_graph(example_spec(kubernetes=version))
        assert graph.one("Addon", "vpc-cni").inputs["addonVersion"] == pin
        assert "addonVersion" not in graph.one("Addon", "coredns").inputs


def test_every_chart_is_pinned_and_none_can_leave_a_bill_behind() -> None:
    for chart in catalogue.charts():
        assert chart.version and not chart.version.startswith(("v", "^", "~", ">"))
        assert chart.chart.startswith("oci://") != bool(chart.repository)
        text = json.dumps(chart.values)
        assert "LoadBalancer" not in text and "volumeClaimTemplate" not in text, chart.name
        assert '"persistence": {"enabled": true' not in text, chart.name


def test_without_a_way_out_every_chart_pulls_from_the_mirror() -> None:
    mirror = "123456789012.dkr.ecr.us-east-1.amazonaws.com/mirror"
    addons = {"image_mirror": mirror, "prometheus": True, "kueue": True}
    graph = campaign_graph(example_spec(network={"egress": "endpoints"}, addons=addons))
    assert len(releases(graph)) == 6
    for name, inputs in releases(graph).items():
        assert mirror in json.dumps(inputs["values"]), f"{name} would be pulled from a public registry"
    assert releases(graph)["aws-efa-k8s-device-plugin"]["values"]["image"] == {
        "repository": f"{mirror}/eks/aws-efa-k8s-device-plugin"
    }
    assert mirror not in json.dumps([chart.values for chart in catalogue.charts()]), "the catalogue itself is untouched"


def test_eks_repairs_the_system_node_and_never_a_gpu_node(campaign: Graph) -> None:
    repairs = {n.name: n.inputs["nodeRepairConfig"]["enabled"] for n in campaign.of("NodeGroup")}
    assert repairs == {"gpu-nodes": False, "system-nodes": True}, "GPU nodes are the steward's"
    agent = campaign.one("Addon", "eks-node-monitoring-agent")
    assert campaign.comes_after(agent, campaign.one("NodeGroup", "system-nodes"))


@pytest.mark.parametrize("way", ["device-plugin", "dra"])
def test_one_alone_hands_out_efa_devices_and_pods_ask_that_one(way: str) -> None:
    graph = campaign_graph(example_spec(addons={"efa": way}))
    plugin, driver = "aws-efa-k8s-device-plugin" in releases(graph), "aws-dranet" in releases(graph)
    assert (plugin, driver) == (way == "device-plugin", way == "dra")
    assert releases(graph)["nvidia-device-plugin"]["values"]["mofedEnabled"] is False
    gang = Gang(
        name="a1", campaign="example", attempt=1, image="i@sha256:0", code_digest="c", nodes=4, ranks_per_node=8,
        accelerators=8, efa_interfaces=32, efa_by_claim=way == "dra", command=("run",), config_map="m",
        grace_seconds=60,
    )  # fmt: skip
    pod = jobset(gang)["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    resources = pod["containers"][0]["resources"]
    if way == "device-plugin":
        assert resources["limits"]["vpc.amazonaws.com/efa"] == "32" and "resourceClaims" not in pod
        assert not graph.of("ResourceClaimTemplate")
        return
    (claim,) = graph.of("ResourceClaimTemplate")
    (request,) = claim.inputs["spec"]["spec"]["devices"]["requests"]
    assert request["exactly"] == {
        "deviceClassName": releases(graph)["aws-dranet"]["values"]["deviceClass"]["name"],
        "allocationMode": "ExactCount",
        "count": 32,
    }
    assert "vpc.amazonaws.com/efa" not in resources["limits"] and resources["claims"] == [{"name": "efa"}]
    assert pod["resourceClaims"] == [{"name": "efa", "resourceClaimTemplateName": claim.inputs["metadata"]["name"]}]


def test_a_queue_never_holds_what_has_no_queues_name(full: Graph) -> None:
    text = releases(full)["kueue"]["values"]["managerConfig"]["controllerManagerConfigYaml"]
    assert "manageJobsWithoutQueueName: false" in text


# --- guard ---


def test_every_campaign_has_a_budget_that_tells_a_topic(campaign: Graph, full: Graph) -> None:
    for graph, mails in ((campaign, []), (full, ["someone@example.com"])):
        budget = graph.one("Budget", "budget").inputs
        assert budget["limitAmount"] == "10000"
        assert budget["costFilters"] == [{"name": "TagKeyValue", "values": ["user:bivouac:campaign$example"]}]
        assert [one["threshold"] for one in budget["notifications"]] == [80, 100]
        for one in budget["notifications"]:
            assert one["subscriberSnsTopicArns"] and one.get("subscriberEmailAddresses", []) == mails
    (statement,) = json.loads(campaign.one("Topic", "alarms").inputs["policy"])["Statement"]
    assert statement["Principal"] == {"Service": "budgets.amazonaws.com"}
    assert statement["Condition"] == {"StringEquals": {"aws:SourceAccount": ACCOUNT}}


def test_a_spent_budget_freezes_the_named_roles_and_lets_them_tear_down(campaign: Graph, full: Graph) -> None:
    assert not campaign.of("BudgetAction") and not campaign.of("Policy")
    action = full.one("BudgetAction", "freeze").inputs
    assert action["approvalModel"] == "AUTOMATIC" and action["actionThreshold"]["actionThresholdValue"] == 100
    assert action["definition"]["iamActionDefinition"]["roles"] == ["ci"]
    (denial,) = json.loads(full.one("Policy", "freeze").inputs["policy"])["Statement"]
    assert denial["Effect"] == "Deny" and "ec2:RunInstances" in denial["Action"]
    ends = ("Delete", "Terminate", "Cancel", "Release", "Describe", "List", "Get", "UpdateNodegroupConfig")
    assert not [action for action in denial["Action"] if any(word in action for word in ends)]
    (may,) = [one for role, one in held(full) if role == "budget"]
    assert may["Condition"]["ArnEquals"]["iam:PolicyARN"].endswith(":policy/bivouac-example-freeze")


def test_gpu_nodes_come_after_both_guards_and_fall_before_them(campaign: Graph) -> None:
    gpu = campaign.one("NodeGroup", "gpu-nodes")
    for kind, name in (("Schedule", "deadline"), ("Budget", "budget"), ("Topic", "alarms")):
        assert campaign.comes_after(gpu, campaign.one(kind, name)), name


def test_a_chart_for_an_unknown_accelerator_is_refused_with_its_cure() -> None:
    from infra.components.workloads import wanted_charts

    with pytest.raises(UserError, match=r"charts\.yaml"):
        wanted_charts(instance_type("trn2.48xlarge"))


def test_every_type_of_the_programs_is_in_the_reviewed_table_and_survives_a_kill_in_its_creation(full: Graph) -> None:
    foundation = foundation_with(own_key=True, lock_days=30)
    nat = campaign_graph(example_spec())
    used = {n.type for graph in (full, nat, foundation) for n in graph.custom if n.type.startswith("aws:")}
    assert len(used) >= 38
    assert used <= set(RESOURCES), used - set(RESOURCES)
    covered = set(adoption.FINDERS) | set(adoption.REMOVERS) | set(adoption.MADE_OVER)
    assert used <= covered, f"a killed engine would leave a second one: {used - covered}"
