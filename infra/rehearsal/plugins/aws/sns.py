"""SNS topics."""

from __future__ import annotations

from infra.rehearsal.plugins.aws.call import Call, Resource
from infra.rehearsal.plugins.aws.table import LOCAL, Conversion, Input, Naming
from infra.rehearsal.plugins.aws.tags import by_id, retagging, tag_list, tag_map
from infra.rehearsal.plugins.wire import Props

_ATTRIBUTES = {"displayName": "DisplayName", "policy": "Policy", "kmsMasterKeyId": "KmsMasterKeyId"}


def create_topic(call: Call) -> str:
    wanted = {api: call.new[name] for name, api in _ATTRIBUTES.items() if call.new.get(name) is not None}
    answer = call.client().create_topic(Name=call.new["name"], Attributes=wanted, Tags=tag_list(call.tags))
    return str(answer["TopicArn"])


def read_topic(call: Call) -> Props | None:
    client = call.client()
    answer = call.or_none(lambda: client.get_topic_attributes(TopicArn=call.id))
    if not answer:
        return None
    found = answer["Attributes"]
    observed = {name: found[api] for name, api in _ATTRIBUTES.items() if found.get(api)}
    tags = tag_map(client.list_tags_for_resource(ResourceArn=call.id)["Tags"])
    return {**observed, "name": call.id.rpartition(":")[2], "arn": call.id, "owner": found["Owner"], "tags": tags}


def update_topic(call: Call) -> None:
    for name, api in _ATTRIBUTES.items():
        if call.changed(name):
            value = call.new.get(name) or ""
            call.client().set_topic_attributes(TopicArn=call.id, AttributeName=api, AttributeValue=value)


def delete_topic(call: Call) -> None:
    call.destroy(lambda: call.client().delete_topic(TopicArn=call.id))


retag = retagging("ResourceArn", by_id)


RESOURCES = (
    Resource(
        token="aws:sns/topic:Topic",
        service="sns",
        inputs={
            "displayName": Input(api=LOCAL),
            "policy": Input(api=LOCAL, kind=Conversion.JSON, computed=True),
            "kmsMasterKeyId": Input(api=LOCAL),
        },
        outputs={"arn": LOCAL, "owner": LOCAL},
        naming=Naming(longest=256),
        identity=("name",),
        create=create_topic,
        read=read_topic,
        update=update_topic,
        delete=delete_topic,
        tagger=retag,
    ),
)
