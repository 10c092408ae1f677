"""Parser of `chronyc tracking`."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Tracking:
    reference: str
    synchronised: bool
    offset_s: float
    """System clock minus true time, as chrony estimates it."""
    root_delay_s: float
    root_dispersion_s: float

    @property
    def bound_s(self) -> float:
        """Return |offset| + dispersion + delay/2, a bound on the clock's error (chronyc(1), `tracking`)."""
        return abs(self.offset_s) + self.root_dispersion_s + self.root_delay_s / 2


def parse_tracking(text: str) -> Tracking:
    """Parse the output. Raises `ValueError` when a line is missing."""
    rows = dict(re.split(r"\s*: ", line, maxsplit=1) for line in text.splitlines() if " : " in line)
    try:
        system = rows["System time"].split()
        return Tracking(
            reference=rows["Reference ID"],
            synchronised=rows["Leap status"].strip() != "Not synchronised",
            offset_s=float(system[0]) * (1 if system[2] == "fast" else -1),
            root_delay_s=float(rows["Root delay"].split()[0]),
            root_dispersion_s=float(rows["Root dispersion"].split()[0]),
        )
    except (KeyError, IndexError) as error:
        raise ValueError(f"no `chronyc tracking`: {error}: {text[:120]!r}") from error
