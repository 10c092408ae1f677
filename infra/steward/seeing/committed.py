"""The newest step committed on the shared tier, read without waiting for a file system or a bucket that hangs."""

from __future__ import annotations

import os
import time
from functools import partial
from pathlib import Path
from typing import Any

from infra.archive.unproven import account_of
from infra.checkpoints.place import FolderPlace, Place
from infra.clock import BoundedLook
from infra.record.events import CampaignState
from trainer.contract import OWN_FOLDER, SHARED_CHECKPOINTS, Unrecognised

PATIENCE_S = 5.0
LEFT_PATIENCE_S = 30.0
"""For one look, when training is over."""
REST_S = 2.0
"""Pause between two looks at a bucket, where each look bills."""


class Committed:
    """Looks at the shared tier with a time limit: a Lustre client blocks its callers until its server is back, and the
    steward must still decide on the trainers' hang, the budget and the deadline."""

    def __init__(
        self, campaign: str, state: CampaignState, shared: str | None = None, bucket: Place | None = None
    ) -> None:
        """`bucket`: the shared tier in S3, instead of the folder `shared`."""
        self._folder = Path(shared or SHARED_CHECKPOINTS) / campaign
        self._place = bucket or FolderPlace(self._folder)
        self._look = BoundedLook(self._newest, "committed")
        self._rest_s, self._looked = 0.0 if bucket is None else REST_S, float("-inf")
        self._last = state.newest_committed
        self._trouble: str | None = "nobody has looked at the shared tier yet"

    def step(self) -> int:
        """Return the newest step, -1 for none; while the tier does not answer, the last seen or recorded one."""
        if self._trouble is None and time.monotonic() - self._looked < self._rest_s:
            return self._last
        begun_before = self._look.under_way_s > 0
        try:
            self._last = self._look.within(PATIENCE_S)
            if begun_before:
                # A look that began in an earlier call returns what was there then.
                self._last = self._look.within(PATIENCE_S)
            self._trouble, self._looked = None, time.monotonic()
        except OSError as error:  # a TimeoutError is one
            self._trouble = f"the shared tier cannot be seen ({error}): committed step {self._last} is the last known"
        return self._last

    def may_be_there(self) -> bool:
        """Return whether there may be something to archive; true while nobody can look."""
        return self.step() >= 0 or self._trouble is not None

    def to_record(self) -> int | None:
        """Return the step, -1 for none, None for unknown: -1 would mean that there is nothing to lose."""
        step = self.step()
        return step if self._trouble is None or step >= 0 else None

    def left_behind(self, attempt: int, local: bool) -> dict[str, Any] | None:
        """Return what the job has left that is no known checkpoint: the account that its supervisor published at the
        end of an attempt from `attempt` on, or that its folder is empty. None: nobody could look, or there is content
        without an account. `local`: the folder lies on the nodes' own disks, where only its supervisor looks."""
        look = partial(_left_behind, self._folder, attempt, local)
        try:
            return BoundedLook(look, "left behind").within(LEFT_PATIENCE_S)
        except OSError:
            return None

    def troubles(self) -> tuple[str, ...]:
        return () if self._trouble is None else (self._trouble,)

    def _newest(self) -> int:
        return self._place.newest()


def _left_behind(folder: Path, attempt: int, local: bool) -> dict[str, Any] | None:
    account = account_of(folder)
    current = account is not None and account.attempt >= attempt
    if account is not None and current and (account.files or not local):
        return account.model_dump(include=set(Unrecognised.model_fields))
    # Of nodes with disks of their own, only the first one's account is here, and what the others have brought.
    if (current or not local) and _is_empty(folder / OWN_FOLDER):
        return Unrecognised(files=0, bytes=0).model_dump()
    return None


def _is_empty(folder: Path) -> bool:
    for path, folders, files in os.walk(folder, onerror=_raise):
        if files or any(Path(path, name).is_symlink() for name in folders):
            return False
    return True


def _raise(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error
