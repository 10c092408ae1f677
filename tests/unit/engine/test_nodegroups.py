"""Which of a cluster's instances still have to end, by their state."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from infra.engine.nodegroups import living_instances
from infra.spec.names import Names

TAG = "eks:cluster-name"
LIVES = {
    "pending": True,
    "running": True,
    "shutting-down": False,  # it ends, and no longer bills
    "terminated": False,
    "stopping": True,  # it can be started again, and its volumes bill
    "stopped": True,
}
"""All states that an instance has (EC2's API reference, InstanceState), and whether it has to be ended."""


class Ec2:
    """Instances in pages of one; a filter keeps what has one of its values, and all filters must."""

    def __init__(self, *instances: tuple[str, str, str]) -> None:
        """Each: id, state, name of its cluster."""
        self.instances = instances

    def get_paginator(self, operation: str) -> Any:
        assert operation == "describe_instances"
        return SimpleNamespace(paginate=self._pages)

    def _pages(self, Filters: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        for id, state, cluster in self.instances:
            facts = {"instance-state-name": state, f"tag:{TAG}": cluster}
            if all(facts[one["Name"]] in one["Values"] for one in Filters):
                yield {"Reservations": [{"Instances": [{"InstanceId": id}]}]}


def living(*instances: tuple[str, str, str]) -> list[str]:
    account: Any = SimpleNamespace(client={"ec2": Ec2(*instances)}.__getitem__)
    return living_instances(account, Names("train"))


@pytest.mark.parametrize("state", LIVES)
def test_an_instance_has_to_be_ended_unless_it_ends_already(state: str) -> None:
    assert living(("i-1", state, "bivouac-train")) == (["i-1"] if LIVES[state] else [])


def test_another_clusters_instances_are_not_ours_and_every_page_is_read() -> None:
    running = [(f"i-{number}", "running", cluster) for number, cluster in enumerate(
        ("bivouac-train", "bivouac-train-2", "payroll", "bivouac-train"))]  # fmt: skip
    assert living(*running) == ["i-0", "i-3"]
