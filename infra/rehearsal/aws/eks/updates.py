"""Updates of clusters, node groups and add-ons, each listed under its cluster."""

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
        """List the updates of the part that the request names, or of the cluster itself."""
        updates = find(world, params["name"]).updates
        ids = [id for id, update in updates.items() if all(update.get(part) == params.get(part) for part in PARTS)]
        return {"updateIds": ids}

    add_operations(world, EksResponse, {"describe_update": describe_update, "list_updates": list_updates})
