"""Updates of clusters, node groups and add-ons, each under the cluster that they are part of."""

from __future__ import annotations

from typing import Any

from infra.rehearsal.aws.eks.clusters import EksResponse, find
from infra.rehearsal.aws.operations import AwsError, Parameters, add_operations
from infra.rehearsal.aws.world import World

PARTS = ("nodegroupName", "addonName")


def install(world: World) -> None:
    def describe_update(params: Parameters) -> dict[str, Any]:
        updates = find(world, params["name"]).updates
        if params["updateId"] not in updates:
            raise AwsError("ResourceNotFoundException", f"No update found for ID: {params['updateId']}")
        return {"update": updates[params["updateId"]]}

    def list_updates(params: Parameters) -> dict[str, Any]:
        """Those of the part that the request names; those of the cluster itself where it names none."""
        updates = find(world, params["name"]).updates
        named = [id for id, one in updates.items() if all(one.get(part) == params.get(part) for part in PARTS)]
        return {"updateIds": named}

    add_operations(world, EksResponse, {"describe_update": describe_update, "list_updates": list_updates})
