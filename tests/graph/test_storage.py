"""Storage over the graph: file system, its clients, buckets, keys."""

from __future__ import annotations

import base64
import email
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.plan.catalogue import InstanceType, instance_type, instance_types
from infra.plan.checks import Level
from infra.rehearsal.aws.fsx import fsx_rules
from infra.rehearsal.aws.operations import AwsError
from infra.spec.campaign import SharedStorage
from infra.spec.names import buckets
from infra.stack.access.key import key_policy
from infra.stack.lustre import EFA_CONNECTIONS, boot_script, client_script, efa_interfaces, file_system
from infra.stack.settings import StorageClass
from tests.example import example_spec
from tests.graph.engine import ACCOUNT, KEY, Graph, campaign_graph, foundation_with

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
    asked = spec.storage.shared
    assert asked is not None
    ours = not list(lustre_findings(asked))
    assert ours == fsx_accepts(asked), asked


def lustre_findings(shared: SharedStorage) -> Iterator[str]:
    """Errors of the rules about the file system itself."""
    from infra.plan.checks import storage
    from infra.plan.checks.finding import Case

    class Facts:
        instance = instance_type("p5.48xlarge")

    case = Case(example_spec(storage={"shared": shared.model_dump()}), Facts(), None)  # type: ignore[arg-type]
    for rule in (
        storage.lustre_throughput,
        storage.lustre_capacity,
        storage.lustre_efa,
        storage.lustre_metadata,
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
    assert kinds == ["multipart/mixed", "application/node.eks.aws", *["text/x-shellscript"] * 2], "huge pages, Lustre"
    assert boot_scripts(full, "system-nodes") == [client_script()], "its image comes without a client, and is not ours"


def boot_scripts(graph: Graph, template: str) -> list[str]:
    text = base64.b64decode(graph.one("LaunchTemplate", template).inputs["userData"]).decode()
    parts = email.message_from_string(text).walk()
    return [str(part.get_payload()) for part in parts if part.get_content_type() == "text/x-shellscript"]


@pytest.mark.parametrize("layout", ["RAID0", "RAID10"])
def test_the_nvme_disks_are_joined_as_the_spec_says(layout: str) -> None:
    graph = campaign_graph(example_spec(storage={"local": {"layout": layout}}))
    text = base64.b64decode(graph.one("LaunchTemplate", "gpu-nodes").inputs["userData"]).decode()
    assert f"strategy: {layout}\n" in text


def test_a_locked_archive_is_under_governance_and_only_the_archive() -> None:
    graph = foundation_with(lock_days=30)
    (lock,) = graph.of("BucketObjectLockConfiguration")
    assert lock.inputs["rule"] == {"defaultRetention": {"mode": "GOVERNANCE", "days": 30}}
    assert lock.inputs["bucket"] == buckets(ACCOUNT, "us-east-1").archive
    assert not foundation_with().of("BucketObjectLockConfiguration")


def test_each_campaigns_class_is_a_rule_of_its_own_part_of_the_archive() -> None:
    graph = foundation_with(classes=(StorageClass(campaign="big", name="GLACIER_IR", after_days=7),))
    rules = graph.one("BucketLifecycleConfiguration", "archive").inputs["rules"]
    assert rules[2]["filter"] == {"prefix": "campaigns/big/"}
    assert rules[2]["transitions"] == [{"days": 7, "storageClass": "GLACIER_IR"}]
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
