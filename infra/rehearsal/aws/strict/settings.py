"""How strict the emulated AWS of a site is: one setting, with the seed of all that chance decides there."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

FILE = "aws/strictness.json"
"""In the site's folder, written before the emulation starts; without it the site is strict."""
Level = Literal["strict", "soft"]


class Strictness(BaseModel):
    """`strict`: late where AWS is late, listings in pages, quotas and request limits that hold. `soft`: none of it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    level: Level = "strict"
    seed: int = 1

    @property
    def on(self) -> bool:
        return self.level == "strict"

    def chance(self, *words: object) -> float:
        """A number from 0 to below 1 that depends on the seed and the words alone, in whatever order they are asked."""
        digest = hashlib.sha256(repr((self.seed, *words)).encode()).digest()
        return int.from_bytes(digest[:7], "big") / 2**56


STRICT = Strictness()
SOFT = Strictness(level="soft")


@dataclass(frozen=True)
class Delay:
    """Seconds that AWS takes until something is known; on AWS some ten times as long."""

    shortest: float
    longest: float
    share: float = 1.0
    """The others are known at once."""

    def draw(self, strictness: Strictness, *words: object) -> float:
        if not strictness.on or strictness.chance("share", *words) >= self.share:
            return 0.0
        return self.shortest + (self.longest - self.shortest) * strictness.chance("delay", *words)


def write(folder: Path, strictness: Strictness) -> None:
    """For a site that is about to be pitched; one that stands keeps what it has."""
    path = folder / FILE
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        path.write_text(strictness.model_dump_json())


def read(folder: Path) -> Strictness:
    path = folder / FILE
    return Strictness.model_validate_json(path.read_text()) if path.exists() else Strictness()
