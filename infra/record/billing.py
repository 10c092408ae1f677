"""What bills after each event, according to the record. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from fractions import Fraction
from typing import Any

from infra.record.kinds import Kind, Stage

_WITHOUT_STACK = (Stage.CHECK, Stage.PLAN, Stage.BAKE, Stage.CERTIFY, Stage.REPORT)


class Billing(StrEnum):
    """Resources that begin and end to bill together."""

    STACK = "stack"
    BUILDER = "builder"
    DATA_NODES = "data nodes"
    GPU_NODES = "GPU nodes"


Bills = dict[Billing, Fraction]
"""Share of the nodes that bill; what is not in it does not bill."""


def billing_after(before: Bills, kind: Kind, data: Mapping[str, Any]) -> Bills:
    """Return what bills after an event: the same object if that changes nothing.

    GPU nodes count from preflight's request: EC2 bills from their start, not from the steward's. Raises `KeyError`,
    `TypeError`, `ValueError` or `ArithmeticError` for data that do not fit.
    """
    stage, changes = data.get("stage"), dict[Billing, Fraction | int]()
    match kind:
        case Kind.STAGE_STARTED:
            changes[Billing.BUILDER] = int(stage == Stage.BAKE)
            if stage not in _WITHOUT_STACK:
                changes[Billing.STACK] = 1
            if stage == Stage.PREFLIGHT:
                changes[Billing.GPU_NODES] = 1
        case Kind.STAGE_FINISHED if stage == Stage.TEARDOWN:
            return {}
        case Kind.STAGE_FINISHED | Kind.STAGE_FAILED | Kind.DRIVER_TOOK_OVER:
            changes[Billing.BUILDER] = 0
            if kind is Kind.STAGE_FINISHED and stage == Stage.PROVISION:
                changes[Billing.DATA_NODES] = 0
            if kind is Kind.STAGE_FAILED and stage == Stage.PREFLIGHT and not data.get("cut_off"):
                changes[Billing.GPU_NODES] = 0
        case Kind.DATA_BEGUN | Kind.DATA_ENDED:
            changes[Billing.DATA_NODES] = int(kind is Kind.DATA_BEGUN)
        case Kind.PILOT_PROVEN | Kind.ATTEMPT_LAUNCHED:
            changes[Billing.GPU_NODES] = max(1, before.get(Billing.GPU_NODES, 1))
        case Kind.PILOT_BEGUN | Kind.ARCHIVE_BEGUN | Kind.NODES_COUNTED:
            changes[Billing.GPU_NODES] = Fraction(int(data["nodes"]), int(data["of"]))
        case Kind.NODES_AT_ZERO:
            changes[Billing.GPU_NODES] = 0
    after = {name: Fraction(share) for name, share in (before | changes).items() if share}
    return before if after == before else after
