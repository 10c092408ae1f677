"""Byte quantities of Kubernetes."""

from __future__ import annotations

from decimal import Decimal

UNITS = {
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
    "k": 10**3,
    "K": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
}


def size_bytes(quantity: str) -> int:
    """ "64Mi" -> 67108864; raises ValueError for anything else."""
    for unit, factor in UNITS.items():
        if quantity.endswith(unit):
            return int(Decimal(quantity.removesuffix(unit)) * factor)
    return int(Decimal(quantity))
