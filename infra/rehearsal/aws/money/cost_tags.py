"""Cost allocation tags of Cost Explorer, which moto lacks.

AWS lists a key up to a day after a resource first carried it; here `/_site/cost-tags` with
`{"listed": {KEY: "Active" | "Inactive"}, "linked": true}` sets it, and an empty body reads it. A linked account (a
member of an organization) may neither read nor change them.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from moto.ce.responses import CostExplorerResponse

from infra.rehearsal.aws.operations import AwsError, Parameters, add_operations
from infra.rehearsal.aws.world import World
from infra.spec.names import CAMPAIGN_TAG

MOST = 20
"""Limit of entries in one UpdateCostAllocationTagsStatus."""


class CostTags:
    def __init__(self) -> None:
        # As in an account with an earlier campaign whose Billing console was never used.
        self.listed = {CAMPAIGN_TAG: "Inactive"}
        self.changed: dict[str, str] = {}
        self.linked = False

    def list(self, params: Parameters) -> dict[str, Any]:
        self._refuse_linked("list Cost Allocation Tags")
        keys, status = params.get("TagKeys"), params.get("Status")
        return {
            "CostAllocationTags": [
                {"TagKey": key, "Type": "UserDefined", "Status": now}
                | ({"LastUpdatedDate": self.changed[key]} if key in self.changed else {})
                for key, now in self.listed.items()
                if (keys is None or key in keys) and status in (None, now)
            ]
        }

    def update(self, params: Parameters) -> dict[str, Any]:
        self._refuse_linked("update Cost Allocation Tag")
        entries = params["CostAllocationTagsStatus"]
        if not 1 <= len(entries) <= MOST:
            raise AwsError("ValidationException", f"between 1 and {MOST} tags, not {len(entries)}")
        errors = []
        for entry in entries:
            if entry["TagKey"] not in self.listed:
                errors.append(
                    {"TagKey": entry["TagKey"], "Code": "TagKeysNotFoundException", "Message": "Tag key not found"}
                )
                continue
            if self.listed[entry["TagKey"]] != entry["Status"]:
                self.changed[entry["TagKey"]] = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
            self.listed[entry["TagKey"]] = entry["Status"]
        return {"Errors": errors}

    def route(self, query: str, body: bytes) -> tuple[int, dict[str, Any]]:
        if body:
            request = json.loads(body)
            self.listed, self.linked = request.get("listed", self.listed), request.get("linked", self.linked)
        return 200, {"listed": self.listed, "linked": self.linked}

    def _refuse_linked(self, action: str) -> None:
        if self.linked:
            words = f"Failed to {action}: Linked account doesn't have access to cost allocation tags."
            raise AwsError("AccessDeniedException", words)


def install(world: World) -> None:
    tags = CostTags()
    operations = {"list_cost_allocation_tags": tags.list, "update_cost_allocation_tags_status": tags.update}
    add_operations(world, CostExplorerResponse, operations)
    world.routes["/_site/cost-tags"] = tags.route
