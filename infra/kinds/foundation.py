"""Kinds that only the foundation creates: the image registry, the account's own key, the closer."""

from __future__ import annotations

from infra.aws.account import Account, every
from infra.kinds.finding import by_name, tags_of_its_own
from infra.kinds.kind import Inputs, ResourceKind


def _keys(account: Account, inputs: Inputs) -> list[str]:
    """Find enabled keys by their tags; AWS's own keys have none, and a key that is being deleted is not restored."""
    kms, own_tags, key_ids = account.client("kms"), tags_of_its_own(inputs), []
    for key in every(kms, "list_keys", "Keys"):
        metadata = kms.describe_key(KeyId=key["KeyId"])["KeyMetadata"]
        if metadata["KeyManager"] == "CUSTOMER" and metadata["KeyState"] == "Enabled":
            key_tags = every(kms, "list_resource_tags", "Tags", KeyId=key["KeyId"])
            tags = {tag["TagKey"]: tag["TagValue"] for tag in key_tags}
            key_ids += [key["KeyId"]] if own_tags.items() <= tags.items() else []
    return key_ids


def _projects(account: Account, inputs: Inputs) -> list[str]:
    """Find a project by its name; its provider's id is its ARN."""
    projects = account.client("codebuild").batch_get_projects(names=[inputs["name"]])["projects"]
    return [project["arn"] for project in projects]


KINDS = (
    ResourceKind(
        "image repository",
        type="aws:ecr/repository:Repository",
        find=by_name("ecr", "describe_repositories", "repositories", "repositoryName"),
    ),
    ResourceKind("image retention", type="aws:ecr/lifecyclePolicy:LifecyclePolicy", made_over=True),
    ResourceKind("key", type="aws:kms/key:Key", find=_keys),
    ResourceKind("build project", type="aws:codebuild/project:Project", find=_projects),
    ResourceKind("key alias", type="aws:kms/alias:Alias", find=by_name("kms", "list_aliases", "Aliases", "AliasName")),
)
