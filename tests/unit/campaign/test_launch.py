"""Launch insists on an image whose content is written down."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import boto3
import pytest

from infra.bake.bake import ImageManifest, manifest_key
from infra.bake.node_image import RECORD, NodeImage, insist, refuse_incomplete
from infra.bake.node_image import manifest_key as node_manifest_key
from infra.campaign.launch import steward_config
from infra.errors import PermanentError, UserError
from infra.record.events import Stage
from infra.record.store import CampaignStore
from infra.spec.names import Names
from tests.example import example_spec

IMAGE = "123456789012.dkr.ecr.us-east-1.amazonaws.com/bivouac/trainer@sha256:" + "a" * 64


@pytest.fixture
def store(state_s3: Any) -> CampaignStore:
    return CampaignStore(state_s3, "state", "c", "driver")


def context(store: CampaignStore) -> Any:
    bake = {"image": IMAGE, "manifest": manifest_key("inputs"), "code": "inputs"}
    return SimpleNamespace(spec=example_spec(), plan=None, store=store, outputs={Stage.BAKE: bake})


def manifest(image: str) -> bytes:
    return (
        ImageManifest(
            image=image, inputs_digest="inputs", base="b", base_digest="d", base_packages={}, layer_packages={}
        )
        .model_dump_json()
        .encode()
    )


def test_an_image_without_its_manifest_is_refused(store: CampaignStore) -> None:
    with pytest.raises(UserError, match="no manifest"):
        steward_config(context(store))


def test_a_manifest_of_another_image_is_no_manifest(store: CampaignStore) -> None:
    store.put(manifest_key("inputs"), manifest(IMAGE.replace("a" * 64, "b" * 64)))
    with pytest.raises(UserError, match="no manifest"):
        steward_config(context(store))


NAMES = Names("c")


def node_image_of(ami: str) -> NodeImage:
    return NodeImage(
        ami=ami,
        snapshots=(),
        inputs_digest="nodes",
        base_ami="ami-base",
        base="base",
        versions={},
        applied=("efa",),
        not_applied={},
        machine={},
        baked_at=datetime(2026, 11, 21, tzinfo=UTC),
    )


def launched(ami: str, group: str) -> str:
    marks = [{"ResourceType": "instance", "Tags": [{"Key": "eks:nodegroup-name", "Value": group}]}]
    ec2 = boto3.client("ec2", region_name="us-east-1")
    made = ec2.run_instances(ImageId=ami, MinCount=1, MaxCount=1, InstanceType="p5.48xlarge", TagSpecifications=marks)
    return str(made["Instances"][0]["InstanceId"])


def test_nodes_are_not_trained_on_while_their_image_has_no_manifest(store: CampaignStore) -> None:
    ec2 = boto3.client("ec2", region_name="us-east-1")
    with pytest.raises(UserError, match=r"no manifest; .*cure: bake it"):
        insist(store, NAMES, ec2)
    store.put_json(RECORD, {"ami": "ami-1", "manifest": node_manifest_key("nodes")})
    with pytest.raises(UserError, match=r"no manifest; .*nodes\.json"):
        insist(store, NAMES, ec2)


def test_a_node_of_another_image_is_named(store: CampaignStore) -> None:
    ec2 = boto3.client("ec2", region_name="us-east-1")
    baked, other = [image["ImageId"] for image in ec2.describe_images()["Images"][:2]]
    store.put_json(RECORD, {"ami": baked, "manifest": node_manifest_key("nodes")})
    store.put(node_manifest_key("nodes"), node_image_of(baked).model_dump_json().encode())
    launched(baked, NAMES.gpu_group)
    launched(other, NAMES.system_group)
    assert insist(store, NAMES, ec2).ami == baked
    strange = launched(other, NAMES.gpu_group)
    with pytest.raises(UserError, match=rf"{strange}: {other}; baked: {baked}"):
        insist(store, NAMES, ec2)


def test_nodes_held_against_their_hardware_get_no_incomplete_image() -> None:
    missing = {"efa": "no dnf on this machine (debian12)", "nccl": "no accelerator of NVIDIA"}
    with pytest.raises(PermanentError, match=r"incomplete; seen: no dnf .*: efa;"):
        refuse_incomplete(example_spec(), missing)
    refuse_incomplete(example_spec(), {"nccl": "no accelerator of NVIDIA"})
    refuse_incomplete(example_spec(preflight={"profile": "this-machine"}), missing)
    small = example_spec(preflight={}, rehearsal={}, target="rehearsal")
    assert small.preflight.profile is None
    refuse_incomplete(small, missing)
