"""The strictness of a site's emulated AWS, with the seed of its random choices."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from infra.tables import table
from trainer.contract.frozen import Frozen

FILE = "aws/strictness.json"
"""File in the site's folder, written before the emulation starts. Without the file the site is strict."""
Level = Literal["strict", "soft"]


MINUTES: dict[str, tuple[float, float]] = table("infra.rehearsal.aws.strict", "durations")
"""Work of AWS -> shortest and longest time that it takes."""


class Strictness(Frozen):
    """`strict`: AWS's delays, pages, quotas and request limits. `soft`: none of them."""

    level: Level = "strict"
    seed: int = 1
    time_scale: float | None = None
    """How many times as fast as AWS its works are, from a control plane to a file system. None: each takes a moment."""

    @property
    def on(self) -> bool:
        return self.level == "strict"

    def chance(self, *words: object) -> float:
        """Return a number in [0, 1) that depends only on the seed and the words, in any order of calls."""
        digest = hashlib.sha256(repr((self.seed, *words)).encode()).digest()
        return int.from_bytes(digest[:7], "big") / 2**56

    def seconds(self, work: str, quick: float, number: int) -> float:
        """Return what the `number`-th work of its sort takes; `quick` where no scale was asked for."""
        shortest, longest = MINUTES[work]
        if self.time_scale is None:
            return quick
        return 60 * (shortest + (longest - shortest) * self.chance("takes", work, number)) / self.time_scale


STRICT = Strictness()
SOFT = Strictness(level="soft")


@dataclass(frozen=True)
class Delay:
    """Seconds until AWS knows something; on AWS about ten times as long."""

    shortest: float
    longest: float
    share: float = 1.0
    """Fraction of cases with a delay; the others have none."""

    def draw(self, strictness: Strictness, *words: object) -> float:
        if not strictness.on or strictness.chance("share", *words) >= self.share:
            return 0.0
        return self.shortest + (self.longest - self.shortest) * strictness.chance("delay", *words)


def write(folder: Path, strictness: Strictness) -> None:
    """Set the strictness of a site that is about to start; a running one keeps its own."""
    path = folder / FILE
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        path.write_text(strictness.model_dump_json())


def read(folder: Path) -> Strictness:
    path = folder / FILE
    return Strictness.model_validate_json(path.read_text()) if path.exists() else Strictness()
