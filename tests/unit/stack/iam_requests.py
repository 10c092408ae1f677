"""The requests of `iam_requests.yaml`: what everybody's work needs, and what nobody must be able to do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests import tables
from tests.unit.stack import iam_questions
from tests.unit.stack.iam_questions import BOUNDARY, BUILDER, LISTS, OURS, TAGGED, VIA, A, Ask, R

ADMIN = "arn:aws:iam::aws:policy/AdministratorAccess"
FOUNDATION = {"iam:PermissionsBoundary": BOUNDARY.replace("bivouac_", "bivouac_foundation_")}
MARKED = {"aws:RequestTag/bivouac:campaign": "train", "aws:TagKeys": "bivouac:campaign,bivouac:owner"}
UNDER = {"iam:PermissionsBoundary": BOUNDARY}
CONTEXTS: dict[str, dict[str, str]] = {
    "builder": BUILDER,
    "existing": {"aws:ResourceTag/bivouac:network": "true"},  # a network of the company's own that campaigns may use
    "foundation": FOUNDATION,
    "founded": {"aws:ResourceTag/bivouac:foundation": "true"},
    "lists": LISTS,
    "mark": {"s3:BucketTag/team": "payroll", "aws:ResourceTag/team": "payroll"},
    "marked": MARKED,
    "other": {
        "aws:ResourceTag/eks:cluster-name": "bivouac-train-gpu",
        "aws:ResourceTag/eks:nodegroup-name": "bivouac-train-gpu-gpu",
    },
    "ours": {OURS: "train"},
    "tagged": TAGGED,
    "under": UNDER,
    "via": VIA,
}
NAMES: dict[str, str] = {name: value for name, value in vars(iam_questions).items() if isinstance(value, str)} | {
    "ADMIN": ADMIN,
    "CLOSER": f"arn:aws:codebuild:{R}:{A}:project/bivouac_closer",
    "DRA": f"arn:aws:fsx:{R}:{A}:association/",
    "EC2": f"arn:aws:ec2:{R}:{A}:",
    "EKS": f"arn:aws:eks:{R}:{A}:",
    "FOUNDATION_BOUNDARY": FOUNDATION["iam:PermissionsBoundary"],
    "FS": f"arn:aws:fsx:{R}:{A}:file-system/",
    "NODES": "arn:aws:iam::aws:policy/AmazonEKSWorkerNodePolicy",
    "ROLE": f"arn:aws:iam::{A}:role/",
    "X": "/x-0123456789abcdef0",
}
"""Names in braces, and what stands for them; besides, those of `iam_questions`."""
SECTIONS = tables.read(Path(__file__).with_suffix(".yaml"))


def requests(section: str) -> list[Ask]:
    """Return the requests of a section. Raise `TypeError` for a key that no row has."""
    return [request for row in SECTIONS[section] for request in _of_row(**row)]


def _of_row(
    do: str = "",
    to: str | Sequence[str] = "",
    when: Any = (),
    all_of: str | Sequence[str] = (),
    but: Sequence[str] = (),
    only: Sequence[str] = ("",),
) -> Iterator[Ask]:
    """Yield each action on each resource, and of other sections what `only` and `but` leave by their beginnings."""
    for section in _listed(all_of):
        for action, resource, context in requests(section):
            text = f"{action} {resource}"
            if not text.startswith(tuple(map(_whole, but))) and text.startswith(tuple(map(_whole, only))):
                yield action, resource, context
    context = {}
    for part in _listed(when):
        known = CONTEXTS[part] if isinstance(part, str) else part
        context |= {key: _whole(value) for key, value in known.items()}
    for resource in _listed(to):
        for action in do.split():
            yield action, _whole(resource), context


def _listed(value: Any) -> list[Any]:
    return [value] if isinstance(value, str | dict) else list(value)


def _whole(text: str) -> str:
    return text.format_map(NAMES)
