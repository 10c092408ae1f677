"""The stages of a campaign, and the kinds of its events."""

from __future__ import annotations

from enum import StrEnum


class Stage(StrEnum):
    """The stages of a campaign, in order."""

    CHECK = "check"
    PLAN = "plan"
    BAKE = "bake"
    PROVISION = "provision"
    PREFLIGHT = "preflight"
    LAUNCH = "launch"
    SUPERVISE = "supervise"
    ARCHIVE = "archive"
    TEARDOWN = "teardown"
    CERTIFY = "certify"
    REPORT = "report"


class Kind(StrEnum):
    """Kinds of event; the comments list the keys of their data."""

    STAGE_STARTED = "stage.started"  # stage, who (the caller's ARN)
    STAGE_FINISHED = "stage.finished"  # stage, seconds, outputs
    STAGE_FAILED = "stage.failed"  # stage, error, cut_off (no GPU node was given back)
    DRIVER_TOOK_OVER = "driver.took-over"  # holder, previous, who
    NODE_VERDICT = "node.verdict"  # node, instance, fit, probes
    NODE_QUARANTINED = "node.quarantined"  # node, instance, reason
    DATA_BEGUN = "data.begun"  # nodes (that bill from here on), usd_per_hour (of them all), plan, files, bytes
    DATA_ENDED = "data.ended"  # digest, or error; its nodes go
    # until, usd (of the whole bill): if training does not run by then, the closer gives the GPU nodes back
    LAUNCH_BUDGET = "launch.budget"
    PILOT_BEGUN = "pilot.begun"  # nodes (that bill from here on), of (the spec's)
    PILOT_PROVEN = "pilot.proven"  # node, instance, digest (of what it proved); the other nodes are asked for next
    NODES_COUNTED = "nodes.counted"  # nodes (GPU nodes that bill from here on, as the steward saw), of (the spec's)
    ATTEMPT_LAUNCHED = "attempt.launched"  # attempt, jobset, committed_step
    ATTEMPT_RUNNING = "attempt.running"  # attempt, nodes, node_ranks of its pods
    # attempt, generation, step, culprit (rank, if known), of_node, cause, seconds (from the death to a new step)
    ATTEMPT_RESTARTED_IN_PLACE = "attempt.restarted-in-place"
    # attempt, failure, detail, step, committed_at_end, dead_nodes, first_failed, culprit (ranks, nodes, why), instances
    # and began (False: no container of its pods has started)
    ATTEMPT_ENDED = "attempt.ended"
    CHECKPOINT_REFUSED = "checkpoint.refused"  # tier, rank, file, step, wanted, seen
    CHECKPOINT_RESTORED = "checkpoint.restored"  # attempt, step, tier
    CHECKPOINT_COPIED = "checkpoint.copied"  # step, place, objects, bytes, seconds, removed, locked
    CHECKPOINT_COPY_FAILED = "checkpoint.copy-failed"  # error
    # attempt (that is launched with it), step, bytes, seconds, refused
    CHECKPOINT_FETCHED = "checkpoint.fetched"
    CHECKPOINT_FETCH_FAILED = "checkpoint.fetch-failed"  # error
    # pod, files, bytes, newest (path), why (a sentence: what was looked for, what lies there), fits (a format, or "")
    CHECKPOINT_UNRECOGNISED = "checkpoint.unrecognised"
    CHECKPOINT_NOT_SEALED = "checkpoint.not-sealed"  # pod, step, why
    CHECKPOINT_STEP_REFUSED = "checkpoint.step-refused"  # pod, step, why
    CHECKPOINT_WEIGHTS_ONLY = "checkpoint.weights-only"  # pod, attempt, why
    # id, word (FSx's), copied (step in S3), repair (the driver begins to make it again), why (it does not; or the cost)
    FILE_SYSTEM_LOST = "file-system.lost"
    FILE_SYSTEM_REPLACED = "file-system.replaced"  # none
    # attempt, step, detector, value, threshold, action, text, did, onset or ranks
    WATCH = "watch"
    TRAINING_STARTED_OVER = "training.started-over"  # attempt, before (newest step that was trained), why
    TRAINING_RESUMED_ELSEWHERE = "training.resumed-elsewhere"  # attempt, pod, offered, first (steps)
    TRAINING_LOSS_JUMPED = "training.loss-jumped"  # attempt, pod, step, before, now (losses of the same step)
    DECISION = "decision"  # action, why
    OPERATOR_ENTERED = "operator.entered"  # who, attempt, node, pod, program (no arguments: they may hold secrets)
    HELD = "held"  # attempt, failure, cause, log, until, usd_per_hour
    RELAUNCHED = "relaunched"  # version, diff, digest, who, committed_step, bake
    # outcome, why, step, committed_step, unrecognised (files, bytes, newest, why, fits; None: nobody could look)
    TRAINING_FINISHED = "training.finished"
    ARCHIVE_VERIFIED = "archive.verified"  # manifest, step, evaluation_loss, objects, bytes, metrics, export
    ARCHIVE_BEGUN = "archive.begun"  # group, nodes (that bill from here on), of (the spec's), released (None: asked)
    # error, step (archived byte for byte, but not proven), part (that has failed; none: the job's own evaluation)
    ARCHIVE_FAILED = "archive.failed"
    # prefix (s3://), files, bytes, why: unrecognised content is copied as it is, with digests, each object read back
    ARCHIVE_UNPROVEN = "archive.unproven"
    NODES_AT_ZERO = "nodes.at-zero"  # group, why (only where the closer gave nodes back)
    DETACHED = "detached"  # holder, deadline
    ATTACHED = "attached"  # holder (drives again what was detached, or what the closer had begun to end)
    CLOSING = "closing"  # why (the closer ends the campaign)
    SWEPT = "swept"  # things (removed, though no stack knew them)
    ABANDONED = "abandoned"  # who; written before a teardown without a verified archive removes anything
    NOTICE_FAILED = "notice.failed"  # way, error (the first time)
    CERTIFIED = "certified"  # clean, found, could_not_look
    # key, why: it stands for an object of the record that cannot be read, and is never written
    UNREADABLE = "record.unreadable"
