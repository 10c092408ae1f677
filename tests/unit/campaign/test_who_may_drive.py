"""Whoever drives is the cluster's admin, also where the spec names people."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from infra.campaign import provision
from infra.errors import UserError
from tests.example import example_spec

ADA = "arn:aws:iam::123456789012:role/team/ada"


class Begun(Exception):
    """Provision went on to the data."""


def drive(monkeypatch: pytest.MonkeyPatch, principal: str | None, role: str) -> None:
    def begun(context: Any) -> Any:
        raise Begun

    monkeypatch.setattr(provision, "job_data", begun)
    account = SimpleNamespace(principal=lambda arn: principal)
    spec = example_spec(access=[{"principal": ADA, "role": role}])
    context: Any = SimpleNamespace(account=account, operator_arn="arn:aws:sts::x:assumed-role/ada/me", spec=spec)
    provision.run(context)


@pytest.mark.parametrize("role", ["operator", "viewer"])
def test_a_driver_whom_the_spec_gives_less_is_refused_before_anything_is_made(
    monkeypatch: pytest.MonkeyPatch, role: str
) -> None:
    with pytest.raises(UserError) as refused:
        drive(monkeypatch, ADA, role)
    assert role in str(refused.value.seen) and "role: admin" in str(refused.value.cure)


@pytest.mark.parametrize(("principal", "role"), [(ADA, "admin"), (f"{ADA}2", "viewer"), (None, "viewer")])
def test_an_admin_or_somebody_whom_it_does_not_name_goes_on(
    monkeypatch: pytest.MonkeyPatch, principal: str | None, role: str
) -> None:
    with pytest.raises(Begun):
        drive(monkeypatch, principal, role)
