"""Common functions of EC2 resources: describe by ID, tag specifications, deletion that waits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from infra.rehearsal.plugins.aws.call import Call
from infra.rehearsal.plugins.aws.tags import tag_list, tag_map


@dataclass(frozen=True)
class Ec2Kind:
    noun: str
    """The API's noun in function names: `route_table`."""
    plural: str = ""
    id_field: str = ""
    ids_field: str = ""
    tag_type: str = ""

    @property
    def title(self) -> str:
        return "".join(word.capitalize() for word in self.noun.split("_"))

    def create(self, call: Call, **request: Any) -> dict[str, Any]:
        """Create the resource and return the API's description."""
        answer = getattr(call.client(), f"create_{self.noun}")(**request, **self.tagged(call))
        call.id = answer[self.title][self._id_field]
        return dict(answer[self.title])

    def tagged(self, call: Call) -> dict[str, Any]:
        tags = tag_list(call.tags)
        kind = self.tag_type or self.noun.replace("_", "-")
        return {"TagSpecifications": [{"ResourceType": kind, "Tags": tags}]} if tags else {}

    def describe(self, call: Call) -> dict[str, Any] | None:
        plural = self.plural or self.noun + "s"
        ask = getattr(call.client(), f"describe_{plural}")
        answer = call.or_none(lambda: ask(**{self.ids_field or self._id_field + "s": [call.id]}))
        found = answer["".join(word.capitalize() for word in plural.split("_"))] if answer else []
        return {**found[0], "Tags": tag_map(found[0].get("Tags") or [])} if found else None

    def delete(self, call: Call) -> None:
        ask = getattr(call.client(), f"delete_{self.noun}")
        call.destroy(lambda: ask(**{self._id_field: call.id}))
        call.wait_gone(lambda: self.describe(call), f"{self.noun} {call.id} to go")

    @property
    def _id_field(self) -> str:
        return self.id_field or self.title + "Id"


def retag(call: Call, fresh: dict[str, str], stale: list[str]) -> None:
    client = call.client("ec2")
    if stale:
        client.delete_tags(Resources=[call.id], Tags=[{"Key": key} for key in stale])
    if fresh:
        client.create_tags(Resources=[call.id], Tags=tag_list(fresh))
