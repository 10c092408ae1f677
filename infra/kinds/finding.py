"""How a resource whose creation nobody saw end is found again, by the inputs that the state holds of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from botocore.exceptions import ClientError

from infra.aws.account import Account, every, says_missing
from infra.kinds.kind import Find, Inputs, Status
from infra.spec.names import REGION_TAG


def tags_of_its_own(given: Inputs) -> dict[str, str]:
    """Raises `KeyError` without any: by no tags all of the account would match."""
    tags = dict(given["tags"])
    if not tags:
        raise KeyError("tags")
    return tags


def tagged_as(given: Inputs) -> list[dict[str, Any]]:
    """EC2's filters by all tags."""
    return [{"Name": f"tag:{key}", "Values": [value]} for key, value in tags_of_its_own(given).items()]


def there(service: str, operation: str, id: str, **arguments: str) -> Find:
    """What has a name: there when asking for it by name is answered. `arguments`: parameter -> input; `id`: a form over
    the inputs."""

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
    """What a listing shows under the very name. `narrow`: a parameter that takes the name and finds more than it."""

    def find(account: Account, given: Inputs) -> list[str]:
        wanted = given["name"]
        seen = every(account.client(service), operation, result, **({narrow: wanted} if narrow else {}))
        return [wanted for one in seen if one[key] == wanted]

    return find


def status_of(service: str, operation: str, result: str, field: str, *parameters: str) -> Status:
    """AWS's word for what has this id, whose parts are the parameters; empty where a list in the answer is."""

    def status(account: Account, id: str) -> str:
        values = zip(parameters, id.split(":"), strict=True)
        asked = {name: [value] if name.endswith("Ids") else value for name, value in values}
        answer = getattr(account.client(service), operation)(**asked)[result]
        found = answer if isinstance(answer, Mapping) else next(iter(answer), {})
        return str(found.get(field, ""))

    return status


def of_its_region(tags: Sequence[Mapping[str, str]], given: Inputs) -> bool:
    """Whether what IAM knows by this name is of the region: it may be of a campaign of the same name in another."""
    found = {one["Key"]: one["Value"] for one in tags}
    return found.get(REGION_TAG) == (given.get("tags") or {}).get(REGION_TAG)
