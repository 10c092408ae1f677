"""The steward's part of the archive: a GPU node for its Job, its bounds, and its outcome in the record."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from infra.archive import archive_job
from infra.archive.archive_job import Bounds
from infra.archive.settings import ArchiveConfig
from infra.aws.account import explained
from infra.cluster.standing.placing import placed
from infra.errors import PermanentError
from infra.record.payloads.training import ArchiveBegun, ArchiveFailed, ArchiveUnproven, ArchiveVerified
from infra.steward import judging
from infra.steward.judging import Judged
from infra.steward.parts import Parts

LEAST = timedelta(minutes=30)
TIMES = 4
"""Bound of the whole Job in planned archive times: it has three tries."""
_COPIED_PER_S = 200e6
"""Bytes a second of what is copied as it is: read twice from the file system, sent, and read back."""
_AFTER_DEADLINE = timedelta(minutes=1)
"""AWS removes the nodes at the deadline: a Job still running then never ends."""


log = logging.getLogger("steward")
AGAIN_S = 2.0
BILLS = ("pending", "running", "stopping")
"""States of an instance that EC2 may bill."""


class GangRelease:
    """Gives back all but one node of the gang.

    The others are cordoned first, so the Job's pod starts on the node that stays. A successor reads from the Auto
    Scaling group which nodes are left, and from their cordons which one stays. Each look repeats the calls that AWS
    refused; a refusal costs money but never fails the archive.
    """

    def __init__(self, steward: Parts) -> None:
        self._steward, self._nodes = steward, steward.nodes
        self._given: set[str] = set()
        self._kept: str | None = None
        self._next, self._lowered = 0.0, False

    def begin(self) -> None:
        """Start the release if a checkpoint is known to be on the shared tier: else a node may hold the only copy."""
        steward = self._steward
        is_done = steward.config.spec.nodes.count == 1 or steward.store.state().archives_on is not None
        if is_done or steward.committed.step() < 0 or steward.committed.troubles():
            return
        try:
            members = self._nodes.held()
            wanted_accelerators = steward.config.accelerators
            fit = [node for node in self._nodes.facts() if node.fit(wanted_accelerators) and node.instance in members]
            if not fit:
                return
            self._kept = min(fit, key=lambda node: node.name).instance
        except (ClientError, BotoCoreError) as error:
            log.warning("no node is given back before the archive: %s", explained(error))
        else:
            self.look()

    def look(self) -> None:
        """Give back the nodes that are left; record it once only the one node bills."""
        if self._kept is None or time.monotonic() < self._next:
            return
        self._next = time.monotonic() + AGAIN_S
        try:
            if self._give_back() and (sum(launch.state in BILLS for launch in self._nodes.launched()) <= 1):
                config = self._steward.config
                group, node_count = self._steward.names.gpu_group, config.spec.nodes.count
                self._steward.store.append(ArchiveBegun(group=group, nodes=1, of=node_count, released=len(self._given)))
                self._kept = None
        except (ClientError, BotoCoreError) as error:
            log.warning("not every node is given back yet: %s", explained(error))

    def _give_back(self) -> bool:
        """Return whether the group now wants only the one node."""
        other_instances = self._nodes.held() - {self._kept} - self._given
        for node in self._nodes.facts():
            if node.instance in other_instances and not node.cordoned:
                self._nodes.cordon(node.name, True)
        for instance in sorted(other_instances):
            try:
                self._nodes.release(instance)
            except (ClientError, BotoCoreError) as error:
                log.warning("%s is not given back yet: %s", instance, explained(error))
            else:
                self._given.add(instance)
        if other_instances - self._given:
            return False
        if not self._lowered and self._nodes.desired() > 1:  # nodes that never came are still wanted
            self._nodes.set_desired(1)
        self._lowered = True
        return True


def record(steward: Parts) -> None:
    """Run the job's own evaluation and the archive, and record the outcome. After a failure the checkpoints stay on
    the shared tier; after one of the evaluation alone the newest is in the archive as well. Where no checkpoint was
    committed, what the job left is copied as it is."""
    try:
        _have_a_node(steward)
        release = GangRelease(steward)
        release.begin()

        def pause() -> None:
            release.look()
            steward.pause()

        outcome = _run(steward, _judge(steward, pause), pause)
    except PermanentError as error:
        judging.forget(steward)
        steward.store.append(ArchiveFailed(error=str(error)))
        return
    if unproven_copy := outcome.pop("copied", None):
        steward.store.append(ArchiveUnproven(**unproven_copy))
    if "unproven" not in outcome:
        if outcome:
            steward.store.append(ArchiveVerified(**outcome))
        return
    # In this order: what is left by a steward that dies here comes to the same end.
    archive_job.remove(steward.client)
    judging.forget(steward)
    part = {"part": outcome["part"]} if outcome.get("part") else {}
    steward.store.append(ArchiveFailed(error=str(outcome["unproven"]), step=outcome["step"], **part))


def _judge(steward: Parts, pause: Callable[[], None]) -> Judged:
    """Run the job's own evaluation and export, if the spec asks for them and there is a checkpoint to evaluate."""
    if max(steward.store.state().newest_committed, steward.committed_step()) >= 0:
        return judging.judge(steward, pause)
    reason = "no checkpoint to evaluate was known when training was over"
    return Judged(unjudged=reason) if steward.config.judges else Judged()


def _have_a_node(steward: Parts) -> None:
    """Request one GPU node if none is fit: the Job evaluates the restored model on a GPU.

    None is fit after a failed archive, which leaves them at zero, or after training that ended for want of capacity.
    Raises `PermanentError` when deadline or budget do not cover it.
    """
    config = steward.config
    fit = any(node.fit(config.accelerators) for node in steward.nodes.facts())
    if fit and steward.nodes.desired() > 0:  # at zero, nodes that are still seen are shutting down
        return
    paid_usd = steward.observer.spent_usd
    rate = config.base_usd_per_hour + config.node_usd_per_hour
    cost = rate * Decimal(config.archive.total_seconds()) / 3600
    if steward.clock.now() + config.bare_archive >= config.deadline:
        reason = f"the deadline {config.deadline.isoformat(timespec='seconds')} leaves no time for it"
    elif paid_usd + cost > config.spec.money.budget_usd:
        reason = f"{paid_usd:.2f} of {config.spec.money.budget_usd} USD are spent, it needs about {cost:.2f} USD"
    else:
        group = steward.names.gpu_group
        # Recorded first: no reader of the record may believe that no GPU node bills.
        steward.store.append(ArchiveBegun(group=group, nodes=1, of=config.spec.nodes.count))
        try:
            steward.nodes.set_desired(1)
        except (ClientError, BotoCoreError) as error:
            reason = str(explained(error))
        else:
            return
    raise PermanentError("no GPU node for the archive", seen=reason, cure=archive_job.out_of_cluster(config.spec))


def _run(steward: Parts, verdict: Judged, pause: Callable[[], None]) -> dict[str, Any]:
    settings, state = steward.config, steward.store.state()
    config = ArchiveConfig(
        campaign=settings.spec.campaign,
        identity=settings.identity,
        attempt=max((attempt.number for attempt in state.attempts), default=0),
        committed_step=max(state.newest_committed, steward.committed_step()),
        region=settings.spec.s3_region,
        state_bucket=settings.state_bucket,
        archive_bucket=settings.archive_bucket,
        bucket_root=settings.spec.bucket_root,
        image_manifest=settings.image_manifest,
        shared_tier=settings.shared_tier,
        data_source=settings.train.data.stream_from if settings.train is not None and settings.shared_tier else "",
        tolerance=settings.spec.job.evaluation_tolerance,
        workload=not settings.spec.runtime.is_built_in,
        judgement=verdict.sha256,
        unjudged=verdict.unjudged,
    )
    job = archive_job.manifest(config, settings.image, settings.accelerators)
    job = placed(job, settings.spec.cluster, steward.nodes.left_out)
    raw_copy_time = timedelta(seconds=state.unrecognised.bytes / _COPIED_PER_S if state.unrecognised is not None else 0)
    longest = max(LEAST, TIMES * (settings.bare_archive + raw_copy_time))
    bounds = Bounds(
        start_within=settings.spec.capacity_timeout,
        end_within=longest,
        end_by=settings.deadline + _AFTER_DEADLINE,
        cure=archive_job.out_of_cluster(settings.spec),
        now=steward.clock.now,
    )
    return archive_job.run(
        steward.client, config, job, settings.job_files, bounds, steward.lease.check, pause, steward.logs.follow
    )
