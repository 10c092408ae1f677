"""Time and nodes of a preparation of the data in the cluster."""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal

from infra.plan.estimates.figure import round_to
from infra.plan.facts import Facts
from infra.spec.campaign import Spec

TEXT_BYTES_PER_VCPU_S = 0.8e6
"""Both passes, with the reading of JSON: half of what a core of this project's machine does in its own time, 1.6 MB/s
of 20 MB of Python source with a vocabulary of 4,096. A vCPU is half a core."""
JOIN_S = 360
"""Nodes join and pull the trainer image. From general knowledge."""
LINK_S = 300
"""The second change of the stack: the nodes go, the file system is linked to the data. From general knowledge."""
_SIZE = re.compile(r"^[a-z0-9-]+[.](?:(?P<times>[0-9]*)x)?large$")


@dataclass(frozen=True)
class PreparingTime:
    nodes_s: Decimal
    """Seconds in which its nodes bill."""
    seconds: Decimal
    """That, and the change of the stack after it."""
    formula: str


def vcpus(instance_type: str) -> int | None:
    """Return the vCPUs of a general type by its size: `large` has 2, `xlarge` 4, `Nxlarge` N times as many. None for
    other sizes. https://docs.aws.amazon.com/ec2/latest/instancetypes/gp.html"""
    match = _SIZE.match(instance_type)
    if match is None:
        return None
    times = match["times"]
    return 2 if times is None else 4 * int(times or 1)


def preparing_time(spec: Spec, facts: Facts) -> PreparingTime | None:
    """Return the time; None if the driver prepares the data. Of text whose size is unknown only the start counts."""
    if spec.data is None or not spec.data.in_cluster:
        return None
    prepare, size = spec.data.prepare, facts.data.text_bytes
    node_vcpus = vcpus(prepare.instance_type)
    works, words = 0.0, "size of the text unknown: nothing counts for it"
    if size is not None and node_vcpus is not None:
        works = size / (TEXT_BYTES_PER_VCPU_S * node_vcpus * prepare.nodes)
        words = (
            f"{size / 1e9:.3g} GB of text / ({prepare.nodes} nodes x {node_vcpus} vCPUs x "
            f"{TEXT_BYTES_PER_VCPU_S / 1e6:g} MB/s) = {works:.0f} s"
        )
    nodes_s = round_to(JOIN_S + works, 0)
    formula = f"data in the cluster: nodes join {JOIN_S} s, {words}, link {LINK_S} s"
    return PreparingTime(nodes_s, nodes_s + LINK_S, formula)
