"""Relaunch: a new attempt on the warm cluster with changed training settings or code.

One write of the Deployment replaces the steward by one with the newer configuration. That one records the relaunch;
earlier failures no longer count, since a person has judged them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from lightkube import Client

from infra.bake import bake
from infra.campaign.launch import deploy, recorded_config, steward_config
from infra.campaign.provision import packed_source
from infra.cluster import pull_secret
from infra.cluster.steward_config import Changed, Relaunch
from infra.data import dataset
from infra.errors import PermanentError, UserError
from infra.plan.plan import Plan
from infra.preview.read_only import differing
from infra.record.events import CampaignState, Stage
from infra.record.payloads.outputs import BakeOutput, ProvisionOutput
from infra.record.store import CampaignStore, live_figures
from infra.session.context import Context
from infra.session.session import plan_key, spec_key
from infra.spec.campaign import Spec
from infra.spec.image_reference import ImageReference
from trainer.contract.workload import requirements_name, source_name

MAY_CHANGE = (
    "training", "workload", "checkpoint", "recovery", "preflight", "on_stop", "hold_for", "money.budget_usd", "purpose",
)  # fmt: skip
"""Fields that only steward and trainer read; all others are built into the stack, the deadline's schedule or the data.
The steward stops at the new budget; the alarms of the AWS budget stay as the stack has set them."""
BOUND = (
    "training.model.vocabulary", "training.init_from", "workload.mounts", "workload.secrets", "workload.init_from",
    "workload.rehearsal.init_from", "workload.host_network",
)  # fmt: skip
"""Fields of these sections that the prepared data, the file system's links or the bounds of the pods fix."""
IMAGES = ("workload.image", "workload.rehearsal.image")
"""Fields that may change within their repository, which the cluster's admission policies name."""
SHAPES = ("training.model", "training.zero_stage", "training.precision", "workload.checkpoints.format")
"""Fields that shape a checkpoint: they may change only while there is none to resume from."""
_TAKE_UP_S = 180.0


def difference(old: Spec, new: Spec) -> tuple[Changed, ...]:
    """Return every field whose value differs, by its dotted name."""
    rows = differing(old.model_dump(mode="json"), new.model_dump(mode="json"))
    return tuple(Changed(field=field, old=json.dumps(former), new=json.dumps(value)) for field, former, value in rows)


def taken_up(state: CampaignState, diff: tuple[Changed, ...], now: bool) -> bool:
    """Return whether a relaunch with this spec is already in force: a driver was killed after its last write."""
    return not diff and not now and state.version > 0 and state.hold is None and state.outcome is None


def refuse_unfit(state: CampaignState, diff: tuple[Changed, ...], committed_step: int, now: bool) -> None:
    """Raise `UserError` if the campaign cannot be relaunched now, or a changed field may not change."""
    if state.outcome is not None or Stage.LAUNCH not in state.finished_stages:
        raise UserError(
            "this campaign cannot be relaunched",
            seen=f"outcome {state.outcome}" if state.outcome else "it has not been launched",
            cure="`bivouac run` goes on with it, or starts another under a new name",
        )
    if state.hold is None and not now:
        raise UserError(
            "the campaign is not held",
            seen="it trains",
            cure="`bivouac run` goes on with it; --now stops it at its next commit and relaunches",
        )
    bound_fields = [
        row.field
        for row in diff
        if not _in_sections(row.field, MAY_CHANGE)
        or _in_sections(row.field, BOUND)
        or (row.field == "workload.launcher" and json.dumps("mpirun") in (row.old, row.new))  # it has its operator
    ]
    if bound_fields:
        raise UserError(
            "these fields cannot change on a warm cluster",
            seen=", ".join(bound_fields),
            cure=f"change only {', '.join(MAY_CHANGE)}; for the others start a campaign under a new name",
        )
    for row in diff:
        if row.field in IMAGES and _repository(row.old) != _repository(row.new):
            raise UserError(
                "the cluster admits the job's image from one repository only",
                seen=f"{row.old} becomes {row.new}",
                cure="give another tag or digest of the same repository, or start a campaign under a new name",
            )
    shape_fields = [row.field for row in diff if _in_sections(row.field, SHAPES)]
    if shape_fields and committed_step >= 0:
        raise UserError(
            f"the checkpoint of step {committed_step} has another shape",
            seen=", ".join(shape_fields),
            cure="leave them as they are, or start a campaign under a new name",
        )


def _repository(image: str) -> str:
    """Return the repository of an image in a difference, where values are JSON; empty for none."""
    text = json.loads(image)
    return "" if text is None else ImageReference.parse(text).name


def committed_step(store: CampaignStore, state: CampaignState) -> int:
    """Return the step of the newest recorded checkpoint, -1 for none."""
    live = live_figures(store) or {}
    return max(state.newest_committed, int(live.get("committed_step", -1)))


def _refuse_unfit_now(context: Context, diff: tuple[Changed, ...], now: bool) -> None:
    """Check against the current record: a hold ends by itself, even during a question or a bake, and its nodes go."""
    state = context.state()
    refuse_unfit(state, diff, committed_step(context.store, state), now)


def _in_sections(field: str, sections: tuple[str, ...]) -> bool:
    return any(field == section or field.startswith(f"{section}.") for section in sections)


def _next_version(context: Context) -> int:
    """Return a version that no relaunch has used, not even one that was killed halfway."""
    versions = [int(key.rpartition("/")[2].removesuffix(".json")) for key in context.store.keys("specs/")]
    return max([context.state().version, *versions]) + 1


def switch(context: Context, client: Client, version: int, diff: tuple[Changed, ...]) -> None:
    """Bring the steward to the context's spec, plan and image as configuration `version`. Until the last write the old
    configuration is in force; an interrupted switch leaves unused files under a version that is never used again."""
    store, body = context.store, context.spec.model_dump_json()
    context.guard()
    store.put(f"{store.prefix}/{spec_key(version)}", body.encode())
    store.put(f"{store.prefix}/{plan_key(version)}", context.plan.model_dump_json(indent=1).encode())
    digest = hashlib.sha256(body.encode()).hexdigest()
    reason = Relaunch(diff=diff, digest=digest, who=context.operator_arn, bake=BakeOutput.of(context.outputs))
    pull_secret.give(client, context.account, context.spec)
    deploy(client, store, steward_config(context, version, reason))


def _lay_in_bucket(context: Context, paths: Sequence[Path], digest: str) -> None:
    """Upload files to the folder of a digest: the file system imports them from there."""
    for path in paths:
        dataset.add(context.account, context.buckets.data, path, digest)


class Renewal(NamedTuple):
    """How a target renews what a relaunch may change."""

    images: Callable[[Context], BakeOutput]
    lay: Callable[[Context, Sequence[Path], str], None]
    """Lay files beside those of a digest, where the job's pods see them."""


OF_ACCOUNT = Renewal(lambda context: bake.run(context), _lay_in_bucket)


def _new_code(context: Context, renewal: Renewal) -> bool:
    """Pack a workload's code and lay it beside the first on the shared tier; return whether it has changed."""
    workload, provision = context.spec.workload, ProvisionOutput.of(context.outputs)
    if workload is None:
        return False
    # The weights to start from are where they were: they cannot change on a warm cluster.
    job = workload.on(context.spec.target).model_copy(update={"init_from": None})
    package, record = packed_source(context, job, relaunches=True)
    config = recorded_config(context.store, context.state().version)
    old_job = None if config is None else config.workload
    old_digests = ("", "") if old_job is None else (old_job.source_digest, old_job.requirements_digest)
    new_digests = package.sha256, package.requirements
    names = zip(new_digests, old_digests, (source_name, requirements_name), strict=True)
    if paths := [package.folder / name(digest) for digest, old, name in names if digest and digest != old]:
        renewal.lay(context, paths, provision.data_digest)
    previous_output = provision.model_copy(update={"packages": (), "packages_for": ("", "")})
    context.outputs[Stage.PROVISION] = previous_output.model_copy(update=record.model_dump(exclude_unset=True))
    return new_digests != old_digests


def relaunch(
    context: Context, spec: Spec, plan: Plan, diff: tuple[Changed, ...], now: bool, renewal: Renewal = OF_ACCOUNT
) -> None:
    """Renew what changed, bring the steward to the newer configuration, and wait until it is in force.

    Raises as `refuse_unfit`, which is checked under the lease and again right before the switch. An end of training
    after that is noticed by the wait.
    """
    _refuse_unfit_now(context, diff, now)
    version = _next_version(context)
    context.spec, context.plan = spec, plan
    context.outputs |= context.state().finished_stages
    with context.progress.stage("relaunch", f"spec {version} on the warm cluster"):
        images, old_images = renewal.images(context), BakeOutput.of(context.outputs)
        # A cluster that was made before the steward had an image of its own admits the trainer's repository only.
        if not old_images.steward_image:
            images = images.model_copy(update={"steward_image": None})
        same_images = (images.code, images.job_image) == (old_images.code, old_images.job_image)
        if not _new_code(context, renewal) and not diff and same_images:
            raise UserError(
                "nothing has changed",
                seen="the same spec and the same code: the error would repeat",
                cure="mend the spec (--spec FILE) or the code in the clone",
            )
        context.outputs[Stage.BAKE] = images
        client = context.cluster_client()
        _refuse_unfit_now(context, diff, now)
        switch(context, client, version, diff)
        for _ in context.turns(_TAKE_UP_S):
            context.progress.step(f"the steward takes up configuration {version}")
            state = context.state()
            if state.version >= version:
                return
            if state.outcome is not None:
                raise UserError(
                    "training was over before the new configuration was taken up",
                    seen=f"outcome {state.outcome}",
                    cure="`bivouac run` goes on with what was trained: archive, teardown; or start another campaign",
                )
        hold = context.state().hold
        raise PermanentError(
            "the steward did not take up the new configuration",
            seen=f"version {context.state().version} after {_TAKE_UP_S:.0f} s",
            cure="see `kubectl logs deployment/steward`; a hold goes on until its end, "
            f"{'which has come' if hold is None else hold.until}",
        )
