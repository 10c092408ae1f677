"""The emulated AWS as a server: requests are answered whole while it removes what has ended."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

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
