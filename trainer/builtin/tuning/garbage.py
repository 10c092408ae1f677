"""Python's garbage collection in a training loop: never on its own, and on all ranks at the same step.

Left alone it looks at every object of the process when it likes, and each rank's pause at a step of its own makes all
others wait. What was there before the loop is set aside for good. Source of the method: torchtitan,
`torchtitan/tools/utils.py`, `GarbageCollection`.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

EVERY = 10
"""Steps between two collections. Each looks only at what the steps have made."""


class Collection:
    def __init__(self) -> None:
        self._settled = False

    def collect_after(self, step: int) -> None:
        """Collect after some steps, by the step's number. After the first one of an attempt, set aside what it
        imported and cached too."""
        if not self._settled:
            _set_aside()
            self._settled = True
        elif step % EVERY == 0:
            gc.collect()


@contextmanager
def collection() -> Iterator[Collection]:
    """Take collection over for the block."""
    was_enabled = gc.isenabled()
    gc.disable()
    _set_aside()
    try:
        yield Collection()
    finally:
        gc.unfreeze()
        if was_enabled:
            gc.enable()


def _set_aside() -> None:
    gc.collect()
    gc.freeze()
