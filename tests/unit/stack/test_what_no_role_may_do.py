"""What no role that we make may do, nor anybody under the boundary: what could be regretted.

Near misses of what a role may do are in `test_rights_to_the_letter`.
"""

from __future__ import annotations

import pytest

from tests.unit.stack.iam_questions import (
    ANYTHING,
    LIMIT,
    OURS,
    OWN,
    SOMEBODY,
    A,
    R,
    arn_of,
    ask,
    ec2,
    granted,
    limit_of,
    role,
)
from tests.unit.stack.iam_requests import SECTIONS, requests
from tests.unit.stack.test_who_may_do_what import WRITTEN


@pytest.mark.parametrize("name", OWN)
def test_no_role_may_do_what_could_be_regretted(name: str) -> None:
    assert granted(requests(f"never {name}"), arn_of(name), OWN[name], limit_of(name)) == []


def test_every_section_of_the_requests_is_asked_of_somebody() -> None:
    asked = {f"{rule} {name}" for rule in ("must", "must not") for name in WRITTEN} | {f"never {name}" for name in OWN}
    together = {"buying", "losing", "reading", "roles_never", "ruling", "stealing", "telling", "weakening"}
    assert set(SECTIONS) == asked | together | {"never a made role"}


def test_the_boundary_keeps_every_role_from_what_could_be_regretted() -> None:
    asks = [
        *requests("roles_never"),
        ask("ec2:CreateTags", ec2("instance"), {"aws:TagKeys": "bivouac:role"}),
        ask("ec2:CreateTags", ec2("instance"), {"aws:TagKeys": "kubernetes.io/cluster/x,bivouac:role"}),
        ask("ec2:TerminateInstances", ec2("instance"), {OURS: "train"}),
        ask("iam:AttachRolePolicy", role("ci"), {"iam:PolicyARN": f"arn:aws:iam::{A}:policy/bivouac-train-freeze"}),
        ask("lambda:CreateFunction", f"arn:aws:lambda:{R}:{A}:function:x"),
    ]
    assert granted(asks, SOMEBODY, ANYTHING, LIMIT) == []
