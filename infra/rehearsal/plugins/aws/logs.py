"""CloudWatch log groups."""

from __future__ import annotations

from infra.rehearsal.plugins.aws.call import Call, Resource
from infra.rehearsal.plugins.aws.table import LOCAL, Case, Input, Naming
from infra.rehearsal.plugins.aws.tags import by_arn, retagging
from infra.rehearsal.plugins.wire import Props


def create(call: Call) -> str:
    name = call.new["name"]
    tags = {"tags": call.tags} if call.tags else {}
    call.client().create_log_group(logGroupName=name, **call.request("kmsKeyId", "logGroupClass"), **tags)
    call.id = name
    if call.new.get("retentionInDays"):
        _retain(call)
    return str(name)


def _retain(call: Call) -> None:
    client, days = call.client(), call.new.get("retentionInDays")
    if days:
        client.put_retention_policy(logGroupName=call.id, retentionInDays=days)
    else:
        client.delete_retention_policy(logGroupName=call.id)


def read(call: Call) -> Props | None:
    client = call.client()
    groups = call.listed("describe_log_groups", "logGroups", logGroupNamePrefix=call.id)
    found = next((group for group in groups if group["logGroupName"] == call.id), None)
    if not found:
        return None
    arn = found["arn"].removesuffix(":*")
    tags = client.list_tags_for_resource(resourceArn=arn)["tags"]
    return {**call.observed(found), "name": call.id, "arn": arn, "tags": tags}


def update(call: Call) -> None:
    if call.changed("retentionInDays"):
        _retain(call)
    if call.changed("kmsKeyId") and call.new.get("kmsKeyId"):
        call.client().associate_kms_key(logGroupName=call.id, kmsKeyId=call.new["kmsKeyId"])


def delete(call: Call) -> None:
    if not call.state.get("skipDestroy"):
        call.destroy(lambda: call.client().delete_log_group(logGroupName=call.id), "OperationAbortedException")


retag = retagging("resourceArn", by_arn, keys="tagKeys", tags="tags", form=dict)


RESOURCES = (
    Resource(
        token="aws:cloudwatch/logGroup:LogGroup",
        service="logs",
        case=Case.CAMEL,
        inputs={
            "retentionInDays": Input(),
            "kmsKeyId": Input(),
            "logGroupClass": Input(replaces=True, computed=True),
            "skipDestroy": Input(api=LOCAL, default=False),
        },
        outputs={"arn": LOCAL},
        naming=Naming(longest=512),
        identity=("name",),
        create=create,
        read=read,
        update=update,
        delete=delete,
        tagger=retag,
    ),
)
