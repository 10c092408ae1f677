"""Credentials that end in the middle of a stage: the record keeps the progress, and the next driver enters it again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import ClientError, TokenRetrievalError

from infra.campaign import stages
from infra.campaign.stages import STEPS, StageStep, run_campaign
from infra.cli.refusals import refusal as told
from infra.errors import UserError
from infra.record.events import Stage
from infra.record.store import CampaignStore
from tests.example import example_spec
from tests.worlds.progress import SilentProgress
from tests.worlds.s3 import FakeS3, Time, refusal

EXPIRED = refusal("ExpiredToken", 400, message="The provided token has expired.")
ENDS: dict[str, Exception] = {
    "a session's": EXPIRED,
    "a login's": TokenRetrievalError(provider="sso", error_msg="Token has expired and refresh failed"),
}


class Campaign:
    """Nine stages that only say that they ran, by the real order, record and driver."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.s3, self.ran, self.ends = FakeS3(Time()), list[Stage](), dict[Stage, Exception]()
        patch.setattr(
            stages, "STEPS", tuple(StageStep(one.stage, one.purpose, self._stage(one.stage)) for one in STEPS)
        )
        bills = SimpleNamespace(sentence=lambda campaign: "nothing is seen")
        patch.setattr(stages, "billing", SimpleNamespace(bill=lambda context: bills))
        patch.setattr(stages, "tell", lambda context, cost: None)
        patch.setattr(stages.block_clock, "await_lead", lambda context: None)
        patch.setattr(stages.launch_budget, "note_fired", lambda context: None)

    def _stage(self, stage: Stage) -> Any:
        def run(context: Any) -> dict[str, Any]:
            self.ran.append(stage)
            if (end := self.ends.pop(stage, None)) is not None:
                self.s3.away = EXPIRED  # from here on nothing of this driver's is accepted, its record included
                raise end
            return {}

        return run

    def drive(self, driver: str) -> None:
        store = CampaignStore(self.s3, "state", "example", driver)
        notes = SilentProgress()
        context: Any = SimpleNamespace(
            store=store, state=store.state, outputs={}, guard=lambda: None, progress=notes, spec=example_spec(),
            operator_arn=f"arn:aws:iam::123456789012:user/{driver}",
            account=SimpleNamespace(ends_by_itself=lambda: True),
        )  # fmt: skip
        run_campaign(context)


@pytest.mark.parametrize("how", ENDS)
@pytest.mark.parametrize("stage", [step.stage for step in STEPS])
def test_a_stage_whose_credentials_end_is_entered_again_with_new_ones(
    stage: Stage, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    campaign = Campaign(monkeypatch)
    campaign.ends[stage] = ENDS[how]
    with pytest.raises((ClientError, TokenRetrievalError)) as ended:
        campaign.drive("ada")
    said = told(ended.value)
    assert isinstance(said, UserError) and said.exit_code == 64
    assert "aws sso login" in str(said.cure) and "it continues" in str(said.cure)

    campaign.s3.away = None
    campaign.drive("bob")
    order = [step.stage for step in STEPS]
    at = order.index(stage)
    assert campaign.ran == [*order[: at + 1], *order[at:]]
    events = CampaignStore(campaign.s3, "state", "example", "reader").events()
    begun = [
        (event.data["stage"], event.data["who"].rpartition("/")[2]) for event in events if event.kind == "stage.started"
    ]
    assert begun == [*((one, "ada") for one in order[: at + 1]), *((one, "bob") for one in order[at:])]
