"""All stages of a campaign in order, each with its purpose and its function. `run_campaign` runs those that the record
does not call finished. A stage whose driver was killed is entered again: every stage is idempotent."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache

from infra.aws.account import explained
from infra.bake import bake, trial_build
from infra.campaign import billing, launch, launch_budget, preflight, provision, report, supervise, teardown
from infra.campaign.driver_notices import tell
from infra.cluster.kubernetes import OF_WORLD
from infra.errors import BivouacError, LeaseLost
from infra.inventory import certify
from infra.plan.survey import environment
from infra.record.events import Stage
from infra.record.payloads.outputs import StageOutput
from infra.record.payloads.stages import Attached, Detached, StageFailed, StageFinished, StageStarted
from infra.session import block_clock
from infra.session.context import Context


@dataclass(frozen=True)
class StageStep:
    stage: Stage
    purpose: str
    run: Callable[[Context], StageOutput]


_SHORT = (
    "these credentials end, and nobody renews them (AWS_SESSION_TOKEN, or a copied session): a profile of IAM Identity "
    "Center or with `credential_process` renews its own. When they end, this driver stops and the steward goes on; run "
    "the same command again then"
)

STEPS: tuple[StageStep, ...] = (
    StageStep(
        Stage.BAKE,
        "foundation; node image, trainer image, steward image on builder instances, or known already",
        bake.run,
    ),
    StageStep(Stage.PROVISION, "data, and the campaign's stack with no GPU node yet", provision.run),
    StageStep(Stage.PREFLIGHT, "GPU nodes up; each proves itself, all together prove the fabric", preflight.run),
    StageStep(Stage.LAUNCH, "the steward starts and launches the first attempt", launch.run),
    StageStep(Stage.SUPERVISE, "training, carried through failures by the steward", supervise.run),
    StageStep(Stage.ARCHIVE, "the golden checkpoint to S3, read back, evaluated", supervise.archive),
    StageStep(Stage.TEARDOWN, "everything that bills is destroyed", teardown.run),
    StageStep(Stage.CERTIFY, "an independent look for what was left", certify.run),
    StageStep(Stage.REPORT, "time, goodput, money, pictures", report.run),
)
"""`check` and `plan` come before them, without a record: see `infra.cli.run.run.run_command`."""


def run_campaign(context: Context, detach: bool = False, steps: Sequence[StageStep] | None = None) -> bool:
    """Run all stages that have not finished, in order; return whether the campaign has ended. Raises the first stage's
    error; the record keeps the progress.

    `steps`: the stages as the target has them; None: `STEPS`. `detach`: leave once training runs, which the end of the
    launch has seen. What is over already is driven to its end.
    """
    launch_budget.note_fired(context)
    state = context.state()
    context.outputs |= state.finished_stages
    if context.account.ends_by_itself():
        context.progress.note(_SHORT)
    if state.detached is not None:
        context.store.append(Attached(holder=str(context.lease.holder)))
    if state.started_at is None:
        block_clock.await_lead(context)
    for step in STEPS if steps is None else steps:
        if detach and step.stage is Stage.SUPERVISE and not context.state().closed:
            context.guard()
            context.store.append(Detached(holder=str(context.lease.holder), deadline=context.deadline.isoformat()))
            return False
        builds = detach and step.stage in (Stage.BAKE, Stage.PROVISION) and environment(context.spec).makes_cluster
        if builds and not context.state().closed:
            trial_build.insist(context)  # before images are paid for; and once the foundation stands
        if step.stage in context.outputs and not (step.stage is Stage.BAKE and state.bake_again):
            continue
        run_step(context, step)
    return True


def _say_what_bills(context: Context, stage: Stage) -> None:
    """Print the current bill after a failed stage, or that it cannot be seen, and tell people; after the teardown
    nothing bills."""
    bills = cache(lambda: billing.bill(context).sentence(context.spec.campaign))
    if stage not in (Stage.CERTIFY, Stage.REPORT):
        context.progress.note(bills())
    tell(context, bills)


def run_step(context: Context, step: StageStep) -> StageOutput:
    """Run one stage and record its start and its end or failure."""
    start = time.monotonic()
    context.guard()
    context.store.append(StageStarted(stage=step.stage, who=context.operator_arn))
    try:
        with context.progress.stage(step.stage, step.purpose):
            outputs = step.run(context)
    except LeaseLost:
        raise  # another driver may work: we may not write to the record any more
    except (BivouacError, *OF_WORLD) as error:
        context.guard()
        is_ours = isinstance(error, BivouacError)
        with suppress(*OF_WORLD):  # AWS may refuse this call for the same reason
            # A stage that raises our error says itself what it gave back; one that was cut off gave nothing back.
            failure = {"error": str(error)} if is_ours else {"error": str(explained(error)), "cut_off": True}
            context.store.append(StageFailed(stage=step.stage, **failure))
        _say_what_bills(context, step.stage)
        raise
    seconds = round(time.monotonic() - start, 2)
    context.guard()
    context.store.append(StageFinished(stage=step.stage, seconds=seconds, outputs=outputs))
    context.outputs[step.stage] = outputs
    tell(context, lambda: billing.bill(context).sentence(context.spec.campaign))
    return outputs
