"""Image repositories and their lifecycle policies."""

from __future__ import annotations

from infra.rehearsal.plugins.aws.call import Call, Resource
from infra.rehearsal.plugins.aws.table import LOCAL, Case, Conversion, Input, Naming
from infra.rehearsal.plugins.aws.tags import by_arn, retagging, tag_list, tag_map
from infra.rehearsal.plugins.wire import Props


def create_repository(call: Call) -> str:
    request = call.request("imageTagMutability", "imageScanningConfiguration")
    if call.new.get("encryptionConfigurations"):
        request["encryptionConfiguration"] = call.new["encryptionConfigurations"][0]
    name = call.new["name"]
    call.client().create_repository(repositoryName=name, tags=tag_list(call.tags), **request)
    return str(name)


def read_repository(call: Call) -> Props | None:
    client = call.client()
    answer = call.or_none(lambda: client.describe_repositories(repositoryNames=[call.id]))
    if not answer or not answer["repositories"]:
        return None
    found = answer["repositories"][0]
    tags = client.list_tags_for_resource(resourceArn=found["repositoryArn"])["tags"]
    encryption = found.get("encryptionConfiguration")
    return {
        **call.observed(found),
        "name": call.id,
        "encryptionConfigurations": [encryption] if encryption else None,
        "tags": tag_map(tags),
    }


def update_repository(call: Call) -> None:
    client = call.client()
    if call.changed("imageTagMutability"):
        client.put_image_tag_mutability(
            repositoryName=call.id, imageTagMutability=call.new.get("imageTagMutability", "MUTABLE")
        )
    if call.changed("imageScanningConfiguration"):
        scanning = call.new.get("imageScanningConfiguration") or {"scanOnPush": False}
        client.put_image_scanning_configuration(repositoryName=call.id, imageScanningConfiguration=scanning)


def delete_repository(call: Call) -> None:
    force = bool(call.state.get("forceDelete"))
    call.destroy(lambda: call.client().delete_repository(repositoryName=call.id, force=force))


retag = retagging("resourceArn", by_arn, keys="tagKeys", tags="tags")


def put_policy(call: Call) -> str:
    call.client().put_lifecycle_policy(repositoryName=call.new["repository"], lifecyclePolicyText=call.new["policy"])
    return str(call.new["repository"])


def update_policy(call: Call) -> None:
    put_policy(call)


def read_policy(call: Call) -> Props | None:
    answer = call.or_none(lambda: call.client().get_lifecycle_policy(repositoryName=call.id))
    return {**call.observed(answer), "repository": call.id} if answer else None


def delete_policy(call: Call) -> None:
    call.destroy(lambda: call.client().delete_lifecycle_policy(repositoryName=call.id))


RESOURCES = (
    Resource(
        token="aws:ecr/repository:Repository",
        service="ecr",
        case=Case.CAMEL,
        inputs={
            "imageTagMutability": Input(default="MUTABLE"),
            "imageScanningConfiguration": Input(fields={"scanOnPush": Input(required=True)}),
            "encryptionConfigurations": Input(
                api=LOCAL, replaces=True, fields={"encryptionType": Input(), "kmsKey": Input(computed=True)}
            ),
            "forceDelete": Input(api=LOCAL),
        },
        outputs={"arn": "repositoryArn", "registryId": None, "repositoryUrl": "repositoryUri"},
        naming=Naming(prefix_property=None),
        identity=("name",),
        create=create_repository,
        read=read_repository,
        update=update_repository,
        delete=delete_repository,
        tagger=retag,
    ),
    Resource(
        token="aws:ecr/lifecyclePolicy:LifecyclePolicy",
        service="ecr",
        case=Case.CAMEL,
        inputs={
            "repository": Input(required=True, replaces=True),
            "policy": Input(api="lifecyclePolicyText", required=True, kind=Conversion.JSON),
        },
        outputs={"registryId": None},
        identity=("repository",),
        create=put_policy,
        read=read_policy,
        update=update_policy,
        delete=delete_policy,
    ),
)
