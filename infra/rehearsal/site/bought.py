"""The reservation or capacity block of a rehearsed campaign, which the emulated account holds as AWS's would."""

from __future__ import annotations

import json
import urllib.request
from typing import TYPE_CHECKING

from infra.aws.account import Account
from infra.plan.purchase import RESERVED
from infra.spec.campaign import Capacity

if TYPE_CHECKING:
    from infra.spec.campaign import Spec


def give(spec: Spec) -> None:
    """Hold what the spec names, as somebody has bought it on AWS: of its kind, under its name, with a free place for
    each node. Called inside the site."""
    nodes = spec.nodes
    if nodes.capacity not in RESERVED or nodes.reservation_id is None:
        return
    purchase = {
        "name": nodes.reservation_id,
        "kind": "capacity-block" if nodes.capacity is Capacity.CAPACITY_BLOCK else "default",
        "instance_type": nodes.instance_type,
        "zone": spec.zone,
        "count": nodes.count,
    }
    endpoint = Account(spec.region).client("ec2").meta.endpoint_url
    with urllib.request.urlopen(f"{endpoint}/_site/bought", data=json.dumps(purchase).encode()) as answer:
        answer.read()
