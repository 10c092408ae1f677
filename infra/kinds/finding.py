"""Search for a resource whose creation was interrupted, by its inputs in the state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from botocore.exceptions import ClientError

from infra.aws.account import Account, every, says_missing
from infra.kinds.kind import Find, Inputs, Status
from infra.spec.names import REGION_TAG


def tags_of_its_own(inputs: Inputs) -> dict[str, str]:
    """Return the tags of a resource; raise `KeyError` if it has none, since no tags match everything."""
    tags = dict(inputs["tags"])
    if not tags:
        raise KeyError("tags")
    return tags


def tagged_as(inputs: Inputs) -> list[dict[str, Any]]:
    """Return EC2's filters for all tags of a resource."""
    return [{"Name": f"tag:{key}", "Values": [value]} for key, value in tags_of_its_own(inputs).items()]


def by_call(service: str, operation: str, id: str, **arguments: str) -> Find:
    """Return a search by name: the resource exists if the operation succeeds. `arguments`: parameter -> input; `id`:
    format of the inputs."""

    def find(account: Account, inputs: Inputs) -> list[str]:
        request = {name: inputs[key] for name, key in arguments.items()}
        try:
            getattr(account.client(service), operation)(**request)
        except ClientError as error:
            if error.response["ResponseMetadata"]["HTTPStatusCode"] == 404 or says_missing(error):
                return []
            raise
        return [id.format_map(inputs)]

    return find


def by_name(service: str, operation: str, result: str, key: str, narrow: str = "") -> Find:
    """Return a search for an exact name in a listing. `narrow`: parameter of a prefix search for the name."""

    def find(account: Account, inputs: Inputs) -> list[str]:
        name = inputs["name"]
        items = every(account.client(service), operation, result, **({narrow: name} if narrow else {}))
        return [name for item in items if item[key] == name]

    return find


def status_of(service: str, operation: str, result: str, field: str, *parameters: str) -> Status:
    """Return a look-up of AWS's status by id, whose parts are the parameters; empty if the answer's list is empty."""

    def status(account: Account, id: str) -> str:
        values = zip(parameters, id.split(":"), strict=True)
        request = {name: [value] if name.endswith("Ids") else value for name, value in values}
        answer = getattr(account.client(service), operation)(**request)[result]
        item = answer if isinstance(answer, Mapping) else next(iter(answer), {})
        return str(item.get(field, ""))

    return status


def of_its_region(tags: Sequence[Mapping[str, str]], inputs: Inputs) -> bool:
    """Return True if an IAM resource is of this region: a campaign of another region may have the same name."""
    region_tags = {tag["Key"]: tag["Value"] for tag in tags}
    return region_tags.get(REGION_TAG) == (inputs.get("tags") or {}).get(REGION_TAG)
