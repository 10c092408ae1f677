"""The base of what an event says: fields, sentence, effect on the state, and who is told."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, ClassVar

from pydantic import Field

from infra.record.kinds import Kind
from infra.record.state import CampaignState
from infra.spec.notify import Change
from trainer.contract.frozen import Frozen

Whole = Annotated[int, Field(strict=True)]
Update = Mapping[str, Any]
"""Fields of `CampaignState` with their new values."""


class Payload(Frozen, extra="allow"):
    """What an event of one kind says. Fields have defaults where earlier versions did not write them; fields that only
    a later version writes are kept."""

    kind: ClassVar[Kind]
    notice: ClassVar[Change | None] = None
    """The change under which people are told of it."""
    watched: ClassVar[bool] = False
    """A driver that watches prints it."""
    in_doubt: ClassVar[bool] = False
    """A checkpoint is in doubt. People are told once in an attempt: a job saves often."""

    def sentence(self) -> str:
        """Return the event for people, without the time."""
        return ", ".join(f"{name} {value}" for name, value in self.data().items())

    def update(self, state: CampaignState, at: datetime) -> Update:
        """Return what the event changes in the state. `at`: when it happened."""
        return {}

    def data(self) -> dict[str, Any]:
        """Return the fields that were given, as they are stored."""
        return self.model_dump(mode="json", exclude_unset=True)


def by(who: str | None) -> str:
    """Return who did it: the end of an ARN, such as `user/ada` or `assumed-role/team/ada`; older records do not say."""
    return f", by {who.split(':', 5)[-1]}" if who else ""
