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

    def look(self, newest_step: int) -> None:
        """Watch the copy under way, or start one that is due. What fails here never disturbs the training."""
        now = self._steward.clock.monotonic()
        if now < self._next:
            return
        self._next = now + AGAIN_S
        try:
            self._look(newest_step)
        except PASSING as error:
            log.warning("the copies to S3 wait: %s", error)

    def check_launch(self, action: Action) -> Action:
        """Return what to do instead of a launch that would begin without the campaign's checkpoints: wait for the
        newest copy, or stop where none can be had. Any other action stays."""
        if not isinstance(action, Launch):
            return action
        self._state = self._steward.store.state()
        shared_tier = self._steward.committed
        if not self._fetching and copy_job.is_there(self._steward.client, FETCH):
            self._fetching = "an earlier steward found none"  # its manifest may be there before its Job has ended
        if not self._fetching:
            step = shared_tier.step()
            reason = "" if step < 0 and shared_tier.troubles() else lacks(self._state, step)
            if not reason:
                return action
            self._start(FETCH)
            self._fetching = reason
        reason, result = self._fetching, self._result(FETCH)
        if result is None:
            return Wait(why=self.under_way()[0])
        self._fetching = ""
        if result.error:
            self._steward.store.append(CheckpointFetchFailed(error=result.error))
            archive_job.remove(self._steward.client, FETCH.name)
            return Finish(outcome="stopped", why=f"{reason}, and none comes back from S3: {result.error}")
        self._steward.store.append(CheckpointFetched(attempt=action.attempt, **result.told))
        archive_job.remove(self._steward.client, FETCH.name)
        return Wait(why=f"step {result.told['step']} is back from S3")

    def under_way(self) -> tuple[str, ...]:
        """Return a sentence for people while a copy is brought back."""
        return (f"{self._fetching}: the newest copy comes back from S3",) if self._fetching else ()

    def stop(self) -> None:
        """End what is under way: training is over, and the archive takes the node."""
        for job in (COPY, FETCH):
            if copy_job.is_there(self._steward.client, job):
                archive_job.remove(self._steward.client, job.name)

    def _look(self, newest_step: int) -> None:
        steward = self._steward
        if steward.config.shared_tier:
            return  # each checkpoint of the shared tier is in S3
        if self._copying:
            self._watch()
            return
        if not self._state.attempts:
            self._state = steward.store.state()
        interval = steward.config.archive_every
        if is_due(self._state, newest_step, interval, steward.clock.now()) and not self._still_there():
            self._start(COPY)
            self._copying = True

    def _watch(self) -> None:
        client = self._steward.client
        if not copy_job.is_there(client, COPY):
            self._copying = False
            return
        result = self._result(COPY)
        if result is None:
            return
        self._steward.lease.check()
        self._tell(result)
        archive_job.remove(client, COPY.name)
        self._copying = False

    def _tell(self, result: Ended) -> None:
        store = self._steward.store
        if result.error:
            store.append(CheckpointCopyFailed(error=result.error))
        elif result.told["step"] > store.state().copied:  # else a predecessor ended before it removed the Job
            store.append(CheckpointCopied(**result.told))
        self._state = store.state()

    def _still_there(self) -> bool:
        return copy_job.is_there(self._steward.client, COPY)

    def _result(self, job: CopyJob) -> Ended | None:
        client = self._steward.client
        for pod in copy_job.pods(client, job):
            if pod.status and pod.status.phase != "Pending" and pod.metadata:
                self._steward.logs.follow(str(pod.metadata.name))
        return copy_job.result_of(client, job)

    def _start(self, job: CopyJob) -> None:
        steward, settings = self._steward, self._steward.config
        steward.lease.check()
        config = CopiesConfig(
            campaign=settings.spec.campaign,
            identity=settings.identity,
            region=settings.spec.s3_region,
            archive_bucket=settings.archive_bucket,
            bucket_root=settings.spec.bucket_root,
            above=self._state.copied,
        )
        longest = max(LEAST, TIMES * settings.bare_archive)
        cluster, left_out = settings.spec.cluster, steward.nodes.left_out
        copy_job.start(steward.client, job, config, settings.image, longest, cluster, left_out)


def is_due(state: CampaignState, newest_step: int, interval: timedelta, now: datetime) -> bool:
    """Return whether `newest_step` is newer than the newest copy, and an interval has passed since the last try
    or, before the first, since training began. A failure is not tried again before the next interval."""
    first_launch = state.attempts[0].launched_at if state.attempts else None
    last_try = state.copy_tried_at or first_launch
    return last_try is not None and newest_step > state.copied and now - last_try >= interval


def lacks(state: CampaignState, newest_step: int) -> str:
    """Return why an attempt would find no checkpoint although S3 has a copy; empty if it finds one, or S3 has none.

    `newest_step`: committed on the shared tier, which can be seen; -1 for none.
    """
    if state.copied < 0:
        return ""
    if newest_step < 0:
        return "the shared tier holds no checkpoint"
    last_end = state.attempts[-1].ended if state.attempts else None
    fetched_for = state.fetched.attempt if state.fetched is not None else 0
    if last_end is not None and last_end.nothing_sound and fetched_for <= last_end.attempt:
        return "no checkpoint on the shared tier is sound"
    return ""
