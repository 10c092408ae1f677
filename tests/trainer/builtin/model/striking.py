"""An agent one of whose ranks dies at a drawn call: in a step, in a save, or while it restores.

`python -m tests.trainer.builtin.model.striking MOMENT NOTES` and the agent's own arguments. MOMENT is `Moment` as
JSON; null: then each rank notes how often it came to each place. The dying rank leaves a note, too.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROGRAM = "from tests.trainer.builtin.model import striking; striking.main()"
IN_STEP = {
    "forward pass": "deepspeed.runtime.engine:DeepSpeedEngine.forward",
    "backward pass": "deepspeed.runtime.engine:DeepSpeedEngine.backward",
    "update": "deepspeed.runtime.engine:DeepSpeedEngine.step",
    "exchange": "trainer.builtin.gang:Gang.sums",
    "report": "trainer.builtin.loop:Loop._report",
}
IN_SAVE = {
    "copy to the host": "trainer.builtin.checkpoint.deepspeed_engine:HostCopyEngine.save",
    "bytes of a file": "trainer.builtin.checkpoint.files:DigestingFile.write",
    "file is there": "trainer.builtin.checkpoint.writing:Writing.shard",
    "gathering of shards": "trainer.builtin.gang:Gang.gather_beside",
    "manifest": "trainer.builtin.checkpoint.tiers:Tier.publish",
    "copy to the shared tier": "trainer.builtin.checkpoint.tiers:Tier.take",
    "retention": "trainer.builtin.checkpoint.tiers:Tier.retain",
}
IN_RESTORE = {
    "choice": "trainer.builtin.checkpoint.restore:_choose",
    "load of a file": "trainer.builtin.checkpoint.deepspeed_engine:HostCopyEngine.load",
}
PLACES = IN_STEP | IN_SAVE | IN_RESTORE
_HALF_DONE = "bytes of a file"


@dataclass(frozen=True)
class Moment:
    place: str
    rank: int
    call: int
    """The rank dies as it comes there this many times."""
    node: bool
    """Its agent dies as well, and so all ranks of its node."""


def note_of(notes: Path) -> Path:
    return notes / "struck"


def calls_of(notes: Path, rank: int) -> Path:
    return notes / f"calls-{rank}.json"


class Striking:
    def __init__(self, moment: Moment | None, notes: Path) -> None:
        self._moment, self._notes = moment, notes
        self._calls, self._lock = Counter[str](), threading.Lock()
        for name, place in PLACES.items():
            module, _, path = place.partition(":")
            *owners, attribute = path.split(".")
            target: Any = importlib.import_module(module)
            for owner in owners:
                target = getattr(target, owner)
            setattr(target, attribute, self._counted(name, getattr(target, attribute)))
        loop = importlib.import_module("trainer.builtin.loop").Loop
        loop.run = self._told(loop.run)

    def _counted(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            rank = int(os.environ.get("RANK", "-1"))
            with self._lock:
                self._calls[name] += 1
                here = Moment(name, rank, self._calls[name], self._moment.node if self._moment else False)
            if here == self._moment:
                if name == _HALF_DONE:
                    file, content = given
                    piece = memoryview(content).cast("B")
                    real(file, piece[: len(piece) // 2])
                self._die()
            return real(*given, **named)

        return call

    def _die(self) -> None:
        assert self._moment is not None
        note_of(self._notes).write_text(self._moment.place)
        if self._moment.node:
            os.kill(os.getppid(), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)

    def _told(self, real: Callable[..., None]) -> Callable[..., None]:
        def run(loop: Any) -> None:
            real(loop)
            calls_of(self._notes, loop.gang.rank).write_text(json.dumps(self._calls))

        return run


def main() -> None:
    from trainer.builtin import agent

    given, notes = json.loads(sys.argv.pop(1)), Path(sys.argv.pop(1))
    Striking(Moment(**given) if given else None, notes)
    agent._exit(agent.main())
