"""VPC peering within one account and region."""

from __future__ import annotations

from typing import Any

from infra.rehearsal.plugins.aws.call import Call, Resource
from infra.rehearsal.plugins.aws.ec2.kind import Ec2Kind, retag
from infra.rehearsal.plugins.aws.table import LOCAL, Input
from infra.rehearsal.plugins.wire import Props

PEERING = Ec2Kind("vpc_peering_connection")
_ENDED = ("deleted", "deleting", "expired", "failed", "rejected")


def create(call: Call) -> str:
    PEERING.create(call, VpcId=call.new["vpcId"], PeerVpcId=call.new["peerVpcId"])
    if call.new.get("autoAccept"):
        accept = call.client().accept_vpc_peering_connection
        call.retry(lambda: accept(VpcPeeringConnectionId=call.id), "InvalidVpcPeeringConnectionID.NotFound")
        call.wait(lambda: _status(call) == "active", f"VPC peering {call.id} to become active")
    return call.id


def _status(call: Call) -> str:
    return str(((PEERING.describe(call) or {}).get("Status") or {}).get("Code", ""))


def read(call: Call) -> Props | None:
    found: dict[str, Any] | None = PEERING.describe(call)
    if not found or found["Status"]["Code"] in _ENDED:
        return None
    return {
        "vpcId": found["RequesterVpcInfo"]["VpcId"],
        "peerVpcId": found["AccepterVpcInfo"]["VpcId"],
        "acceptStatus": found["Status"]["Code"],
        "tags": found["Tags"],
    }


def delete(call: Call) -> None:
    """Delete the peering; AWS still lists it, as deleted, for hours."""
    call.destroy(lambda: call.client().delete_vpc_peering_connection(VpcPeeringConnectionId=call.id))
    call.wait(lambda: _status(call) in ("", *_ENDED), f"VPC peering {call.id} to go")


RESOURCES = (
    Resource(
        token="aws:ec2/vpcPeeringConnection:VpcPeeringConnection",
        service="ec2",
        inputs={
            "vpcId": Input(required=True, replaces=True),
            "peerVpcId": Input(required=True, replaces=True),
            "autoAccept": Input(api=LOCAL),
        },
        outputs={"acceptStatus": LOCAL},
        create=create,
        read=read,
        update=lambda call: None,
        delete=delete,
        tagger=retag,
    ),
)
