"""The steward's part of the interval copies: a Job when one is due, its outcome in the record, and the way back."""

from __future__ import annotations

import logging
from datetime import datetime, timedelta

from infra.archive import archive_job
from infra.checkpoints import copy_job
from infra.checkpoints.copies import CopiesConfig
from infra.checkpoints.copy_job import COPY, FETCH, CopyJob, Ended
from infra.record.events import CampaignState
from infra.record.payloads.checkpoints import (
    CheckpointCopied,
    CheckpointCopyFailed,
    CheckpointFetched,
    CheckpointFetchFailed,
)
from infra.steward.archiving import LEAST, TIMES
from infra.steward.decide import Action, Finish, Launch, Wait
from infra.steward.parts import Parts
from infra.steward.seeing.sources import PASSING

log = logging.getLogger("steward")
AGAIN_S = 5.0


class Copier:
    """Has committed checkpoints copied to S3 while training runs, and the newest sound copy brought back before an
    attempt that would find none."""

    def __init__(self, steward: Parts) -> None:
        self._steward = steward
        self._copying = True
        """A copy is under way, perhaps a predecessor's."""
        self._next = 0.0
        self._fetching = ""
        """Why a copy is being brought back; empty if none is."""
        self._state = steward.store.state()

    def look(self, committed: int) -> None:
        """Watch the copy under way, or start one that is due. What fails here never disturbs the training."""
        now = self._steward.clock.monotonic()
        if now < self._next:
            return
        self._next = now + AGAIN_S
        try:
            self._look(committed)
        except PASSING as error:
            log.warning("the copies to S3 wait: %s", error)

    def before(self, action: Action) -> Action:
        """Return what to do instead of a launch that would begin without the campaign's checkpoints: wait for the
        newest copy, or stop where none can be had. Any other action stays."""
        if not isinstance(action, Launch):
            return action
        self._state = self._steward.store.state()
        committed = self._steward.committed
        if not self._fetching and copy_job.is_there(self._steward.client, FETCH):
            self._fetching = "an earlier steward found none"  # its manifest may be there before its Job has ended
        if not self._fetching:
            step = committed.step()
            why = "" if step < 0 and committed.troubles() else lacks(self._state, step)
            if not why:
                return action
            self._start(FETCH)
            self._fetching = why
        why, ended = self._fetching, self._ended(FETCH)
        if ended is None:
            return Wait(why=self.under_way()[0])
        self._fetching = ""
        if ended.error:
            self._steward.store.append(CheckpointFetchFailed(error=ended.error))
            archive_job.remove(self._steward.client, FETCH.name)
            return Finish(outcome="stopped", why=f"{why}, and none comes back from S3: {ended.error}")
        self._steward.store.append(CheckpointFetched(attempt=action.attempt, **ended.told))
        archive_job.remove(self._steward.client, FETCH.name)
        return Wait(why=f"step {ended.told['step']} is back from S3")

    def under_way(self) -> tuple[str, ...]:
        """Return a sentence for people while a copy is brought back."""
        return (f"{self._fetching}: the newest copy comes back from S3",) if self._fetching else ()

    def stop(self) -> None:
        """End what is under way: training is over, and the archive takes the node."""
        for job in (COPY, FETCH):
            if copy_job.is_there(self._steward.client, job):
                archive_job.remove(self._steward.client, job.name)

    def _look(self, committed: int) -> None:
        steward = self._steward
        if steward.config.shared_tier:
            return  # each checkpoint of the shared tier is in S3
        if self._copying:
            self._watch()
            return
        if not self._state.attempts:
            self._state = steward.store.state()
        every = steward.config.archive_every
        if is_due(self._state, committed, every, steward.clock.now()) and not self._still_there():
            self._start(COPY)
            self._copying = True

    def _watch(self) -> None:
        client = self._steward.client
        if not copy_job.is_there(client, COPY):
            self._copying = False
            return
        ended = self._ended(COPY)
        if ended is None:
            return
        self._steward.lease.check()
        self._tell(ended)
        archive_job.remove(client, COPY.name)
        self._copying = False

    def _tell(self, ended: Ended) -> None:
        store = self._steward.store
        if ended.error:
            store.append(CheckpointCopyFailed(error=ended.error))
        elif ended.told["step"] > store.state().copied:  # else a predecessor ended before it removed the Job
            store.append(CheckpointCopied(**ended.told))
        self._state = store.state()

    def _still_there(self) -> bool:
        return copy_job.is_there(self._steward.client, COPY)

    def _ended(self, job: CopyJob) -> Ended | None:
        client = self._steward.client
        for pod in copy_job.pods(client, job):
            if pod.status and pod.status.phase != "Pending" and pod.metadata:
                self._steward.logs.follow(str(pod.metadata.name))
        return copy_job.ended(client, job)

    def _start(self, job: CopyJob) -> None:
        steward, given = self._steward, self._steward.config
        steward.lease.check()
        config = CopiesConfig(
            campaign=given.spec.campaign,
            identity=given.identity,
            region=given.spec.region,
            archive_bucket=given.archive_bucket,
            above=self._state.copied,
        )
        longest = max(LEAST, TIMES * given.bare_archive)
        copy_job.start(steward.client, job, config, given.image, longest)


def is_due(state: CampaignState, committed: int, every: timedelta, now: datetime) -> bool:
    """Return whether the step `committed` is newer than the newest copy, and an interval has passed since the last try
    or, before the first, since training began. A failure is not tried again before the next interval."""
    begun = state.attempts[0].launched_at if state.attempts else None
    since = state.copy_tried_at or begun
    return since is not None and committed > state.copied and now - since >= every


def lacks(state: CampaignState, committed: int) -> str:
    """Return why an attempt would find no checkpoint although S3 has a copy; empty if it finds one, or S3 has none.

    `committed`: newest committed step on the shared tier, which can be seen; -1 for none.
    """
    if state.copied < 0:
        return ""
    if committed < 0:
        return "the shared tier holds no checkpoint"
    ended = state.attempts[-1].ended if state.attempts else None
    fetched_for = state.fetched.attempt if state.fetched is not None else 0
    if ended is not None and ended.nothing_sound and fetched_for <= ended.attempt:
        return "no checkpoint on the shared tier is sound"
    return ""
