"""What became of a campaign's faults, and when, as lines of a file in its site; the last word is the judge's."""

from __future__ import annotations

import os
from datetime import datetime, timedelta
from pathlib import Path
from typing import Literal

from trainer.contract.frozen import Frozen

MomentKind = Literal["due", "struck", "over", "caught-up", "recovered", "driver-ended", "stopping"]
"""`due`: its step has come, and somebody outside of the site strikes. `over`: it is undone. `caught-up`: a step after
those before the strike was trained. `recovered`: such a step is committed. `driver-ended`: the driver gave up, and
the drill started the same command again, as its last words say.
`stopping`: the drill ends the campaign; what follows is no fault's."""


BEHIND = timedelta(seconds=1)
"""By how much the record's clock may be behind a moment's: it goes by `Date` headers, which have whole seconds."""


class Moment(Frozen):
    fault: int
    """Its number among the campaign's faults."""
    kind: MomentKind
    at: datetime
    step: int = -1
    """The training's, as the steward published it last."""
    usd_per_hour: float = 0.0
    places: dict[str, str] = {}
    """Where it struck: values of the hands' fields."""
    answer: str = ""
    """MomentKind the hands answered."""


Moments = dict[tuple[int, MomentKind], Moment]


def path_of(folder: Path, campaign: str) -> Path:
    return folder / "campaigns" / f"{campaign}.moments"


def note(folder: Path, campaign: str, moment: Moment) -> None:
    with path_of(folder, campaign).open("a") as file:
        file.write(moment.model_dump_json() + "\n")
        file.flush()
        os.fsync(file.fileno())


def moments_in(folder: Path, campaign: str) -> Moments:
    """Return the first moment of each kind of each fault."""
    path, moments = path_of(folder, campaign), Moments()
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    for line in lines:
        if line.endswith("\n"):  # else it is being written
            moment = Moment.model_validate_json(line)
            moments.setdefault((moment.fault, moment.kind), moment)
    return moments
