"""Kinds that only the foundation creates: the image registry, the account's own key, the closer."""

from __future__ import annotations

from infra.aws.account import Account, every
from infra.kinds.finding import named, tags_of_its_own
from infra.kinds.kind import Inputs, ResourceKind


def _keys(account: Account, given: Inputs) -> list[str]:
    """Find enabled keys by their tags; AWS's own keys have none, and a key that is being deleted is not restored."""
    kms, wanted, found = account.client("kms"), tags_of_its_own(given), []
    for key in every(kms, "list_keys", "Keys"):
        known = kms.describe_key(KeyId=key["KeyId"])["KeyMetadata"]
        if known["KeyManager"] == "CUSTOMER" and known["KeyState"] == "Enabled":
            listed = every(kms, "list_resource_tags", "Tags", KeyId=key["KeyId"])
            tags = {one["TagKey"]: one["TagValue"] for one in listed}
            found += [key["KeyId"]] if wanted.items() <= tags.items() else []
    return found


def _projects(account: Account, given: Inputs) -> list[str]:
    """Find a project by its name; its provider's id is its ARN."""
    found = account.client("codebuild").batch_get_projects(names=[given["name"]])["projects"]
    return [one["arn"] for one in found]


KINDS = (
    ResourceKind(
        "image repository",
        type="aws:ecr/repository:Repository",
        find=named("ecr", "describe_repositories", "repositories", "repositoryName"),
    ),
    ResourceKind("image retention", type="aws:ecr/lifecyclePolicy:LifecyclePolicy", made_over=True),
    ResourceKind("key", type="aws:kms/key:Key", find=_keys),
    ResourceKind(
        "build project",
        type="aws:codebuild/project:Project",
        find=_projects,
    ),
    ResourceKind("key alias", type="aws:kms/alias:Alias", find=named("kms", "list_aliases", "Aliases", "AliasName")),
)
