"""`bivouac down NAME`: stop, archive what is sound, tear down, certify. Needs only the name and credentials."""

from __future__ import annotations

from rich.console import Console

from infra import target
from infra.events import Stage
from infra.lifecycle.context import Context
from infra.lifecycle.opening import opened, record_of, stored_plan, stored_spec
from infra.lifecycle.stages import STEPS, Step, run_step


def down_command(campaign: str, region: str, abandon: bool, console: Console) -> int:
    store = record_of(campaign, region)
    spec = stored_spec(store)
    with opened(spec, stored_plan(store, spec), console, target.about()) as context:
        context.outputs |= context.state().finished_stages
        if not abandon and _can_archive(context):
            context.store.put_json("stop.json", {"asked_by": str(context.lease.holder)})
            _run(context, Stage.SUPERVISE, Stage.ARCHIVE)
        _tear_down(context, abandon)
        _run(context, Stage.CERTIFY, Stage.REPORT)
    return 0


def _can_archive(context: Context) -> bool:
    """Training has begun and its steward has not finished."""
    state = context.state()
    return bool(state.attempts) and state.archive is None and Stage.TEARDOWN not in state.finished_stages


def _tear_down(context: Context, abandon: bool) -> None:
    from infra.lifecycle import teardown

    step = next(step for step in STEPS if step.stage is Stage.TEARDOWN)
    run_step(context, Step(step.stage, step.purpose, lambda c: teardown.run(c, abandon=abandon)))


def _run(context: Context, *stages: Stage) -> None:
    for step in STEPS:
        if step.stage in stages:
            run_step(context, step)
