"""Search for a resource whose creation was interrupted, by its inputs in the state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from botocore.exceptions import ClientError

from infra.aws.account import Account, every, says_missing
from infra.kinds.kind import Find, Inputs, Status
from infra.spec.names import REGION_TAG


def tags_of_its_own(given: Inputs) -> dict[str, str]:
    """Return the tags of a resource; raise `KeyError` if it has none, since no tags match everything."""
    tags = dict(given["tags"])
    if not tags:
        raise KeyError("tags")
    return tags


def tagged_as(given: Inputs) -> list[dict[str, Any]]:
    """Return EC2's filters for all tags of a resource."""
    return [{"Name": f"tag:{key}", "Values": [value]} for key, value in tags_of_its_own(given).items()]


def there(service: str, operation: str, id: str, **arguments: str) -> Find:
    """Return a search by name: the resource exists if the operation succeeds. `arguments`: parameter -> input; `id`:
    format of the inputs."""

    def find(account: Account, given: Inputs) -> list[str]:
        asked = {name: given[key] for name, key in arguments.items()}
        try:
            getattr(account.client(service), operation)(**asked)
        except ClientError as error:
            if error.response["ResponseMetadata"]["HTTPStatusCode"] == 404 or says_missing(error):
                return []
            raise
        return [id.format_map(given)]

    return find


def named(service: str, operation: str, result: str, key: str, narrow: str = "") -> Find:
    """Return a search for an exact name in a listing. `narrow`: parameter of a prefix search for the name."""

    def find(account: Account, given: Inputs) -> list[str]:
        wanted = given["name"]
        seen = every(account.client(service), operation, result, **({narrow: wanted} if narrow else {}))
        return [wanted for one in seen if one[key] == wanted]

    return find


def status_of(service: str, operation: str, result: str, field: str, *parameters: str) -> Status:
    """Return a look-up of AWS's status by id, whose parts are the parameters; empty if the answer's list is empty."""

    def status(account: Account, id: str) -> str:
        values = zip(parameters, id.split(":"), strict=True)
        asked = {name: [value] if name.endswith("Ids") else value for name, value in values}
        answer = getattr(account.client(service), operation)(**asked)[result]
        found = answer if isinstance(answer, Mapping) else next(iter(answer), {})
        return str(found.get(field, ""))

    return status


def of_its_region(tags: Sequence[Mapping[str, str]], given: Inputs) -> bool:
    """Return True if an IAM resource is of this region: a campaign of another region may have the same name."""
    found = {one["Key"]: one["Value"] for one in tags}
    return found.get(REGION_TAG) == (given.get("tags") or {}).get(REGION_TAG)
