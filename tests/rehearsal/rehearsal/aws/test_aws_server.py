"""The emulated AWS as a server: requests are answered whole while it removes what has ended, and as moto would."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from moto.core.serialize import ResponseSerializer
from moto.ec2.models.core import TaggedEC2Resource

from infra.rehearsal.aws import lookups, operations
from infra.rehearsal.aws.world import World
from tests.rehearsal.aws_account import Account

REMOVED_MEANWHILE_S = 0.5
"""The reader pauses this long in the middle of the dictionary, or until the removal has happened."""


class Paused(dict[str, Any]):
    """A dictionary whose reader stops after the first value until `removed` is set, or for half a second."""

    def __init__(self, content: dict[str, Any]) -> None:
        super().__init__(content)
        self.reached, self.removed = threading.Event(), threading.Event()

    def values(self) -> Iterator[Any]:  # type: ignore[override]
        for value in super().values():
            yield value
            self.reached.set()
            self.removed.wait(REMOVED_MEANWHILE_S)


def test_a_listing_is_answered_while_the_scheduler_removes_what_it_lists(world: World, aws: Account) -> None:
    ec2 = world.backend("ec2")
    volumes = [aws.ec2.create_volume(AvailabilityZone="us-east-1a", Size=1)["VolumeId"] for _ in range(2)]
    ec2.volumes = paused = Paused(ec2.volumes)

    def remove() -> None:
        paused.reached.wait()
        with world.lock:  # as all work of the scheduler does
            paused.pop(volumes[0])
        paused.removed.set()

    remover = threading.Thread(target=remove)
    remover.start()
    try:
        volume_ids = {volume["VolumeId"] for volume in aws.ec2.describe_volumes()["Volumes"]}
    finally:
        remover.join()
        ec2.volumes = dict(paused)
    assert set(volumes) <= volume_ids
    assert {volume["VolumeId"] for volume in aws.ec2.describe_volumes()["Volumes"]} == volume_ids - {volumes[0]}


def test_quick_lookups_answer_as_moto_does(
    aws: Account, world: World, network: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = list(world.backend("ec2").amis)[:9]
    aws.ec2.create_tags(Resources=[network.vpc, network.subnet], Tags=[{"Key": "looked", "Value": "at"}])
    tagged = [{"Name": "tag:looked", "Values": ["at"]}]

    def answers() -> list[dict[str, Any]]:
        found = [
            aws.ec2.describe_vpcs(Filters=tagged),
            aws.ec2.describe_subnets(Filters=tagged),
            aws.ec2.describe_security_groups(GroupIds=[network.group]),
            aws.ec2.describe_images(ImageIds=images),
            aws.ec2.describe_instance_types(InstanceTypes=["p5.48xlarge"]),
            aws.iam.list_users(),
            aws.sts.get_caller_identity(),
        ]
        return [{name: value for name, value in answer.items() if name != "ResponseMetadata"} for answer in found]

    quick = answers()
    for owner, name, lookup in (
        (TaggedEC2Resource, "get_tags", lookups._tags),
        (ResponseSerializer, "get_value", lookups._member),
    ):
        key = (owner, name, f"{lookup.__module__}.{lookup.__qualname__}")
        assert key in operations._around
        monkeypatch.setitem(operations._around, key, lambda moto, *words: moto(*words))
    assert quick == answers()
    assert quick[0]["Vpcs"][0]["Tags"] == [{"Key": "looked", "Value": "at"}] and len(quick[3]["Images"]) == 9
