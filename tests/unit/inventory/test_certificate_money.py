"""The certificate tells what the campaign cost, by the one meter, and what was removed though no stack knew it."""

from __future__ import annotations

from pathlib import Path

import pytest

from infra.inventory import certify
from infra.record.events import Stage
from infra.record.payloads import payload_of
from infra.record.payloads.stages import ResidueSwept, StageFinished
from tests.unit.inventory.test_certificate import looks
from tests.unit.inventory.test_certificate_looks import Clock, campaign, store


def test_both_parts_of_the_cost_and_all_that_was_swept_are_in_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    Clock(monkeypatch)
    looks(monkeypatch, volume=list)
    monkeypatch.setattr(certify, "stays_on_purpose", lambda context: ())
    context = campaign(store=store(), results=tmp_path)
    certify.run(context)
    told = context.store.get_json(certify.CERTIFICATE)
    assert (told["metered_usd"], told["estimated_usd"], told["removed"]) == ("0.00", "0.00", [])
    for stage, kind in ((Stage.PROVISION, "stage.started"), (Stage.PREFLIGHT, "stage.started")):
        context.store.append(payload_of(kind, dict(stage=stage)))
    context.store.append(ResidueSwept(things=["VPC endpoint vpce-1, made by GuardDuty"]))
    context.store.append(ResidueSwept(things=["security group sg-1, made by GuardDuty"]))
    context.store.append(StageFinished(stage=Stage.TEARDOWN))
    certify.run(context)
    told = context.store.get_json(certify.CERTIFICATE)
    # 4 h of the stack at 2 USD/h and 3 h of the nodes at 80: an event an hour.
    assert (told["metered_usd"], told["estimated_usd"]) == ("248.00", "5.00")
    assert told["removed"] == ["VPC endpoint vpce-1, made by GuardDuty", "security group sg-1, made by GuardDuty"]
