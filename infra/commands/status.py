"""`bivouac status NAME`: where a campaign stands, who drives it, what it costs right now."""

from __future__ import annotations

import json
from typing import Any

from rich.console import Console

from infra.events import Stage
from infra.lifecycle.opening import DRIVER_LEASE, holder_of, record_of, stored_plan, stored_spec


def status_command(campaign: str, region: str, as_json: bool, console: Console) -> int:
    store = record_of(campaign, region)
    spec = stored_spec(store)
    state, live, plan = store.state(), store.get_json("live.json") or {}, stored_plan(store, spec)
    facts: dict[str, Any] = {
        "campaign": campaign,
        "target": spec.target,
        "stage": _stage(state.running_stage, state.finished_stages, state.ended),
        "finished": [str(stage) for stage in state.finished_stages],
        "driver": holder_of(store, DRIVER_LEASE) or "none",
        "steward": holder_of(store, "steward") or "none",
        "attempts": len(state.attempts),
        "outcome": state.outcome,
        "live": live,
        "archive": state.archive,
        "certificate": state.certificate,
        "bills_usd_per_hour": _bills(state, live, float(plan.totals.usd_per_hour_idle.value)),
    }
    if as_json:
        console.print_json(json.dumps(facts, default=str))
        return 0
    console.print(f"[bold]{campaign}[/] on {spec.target}: {facts['stage']}")
    console.print(f"  driver   {facts['driver']}")
    console.print(f"  steward  {facts['steward']}")
    if live:
        console.print(
            f"  training attempt {live['attempt']}, step {live['step']} of {live['steps']}, loss {live['loss']}, "
            f"committed {live['committed_step']}; {live['why']}"
        )
    console.print(
        f"  money    {live.get('spent_usd', 0):.2f} USD metered; now billing {facts['bills_usd_per_hour']} USD/h"
    )
    if state.archive:
        console.print(f"  archive  {state.archive['manifest']} (step {state.archive['step']})")
    if state.certificate:
        verdict = "clean" if state.certificate["clean"] else "not clean"
        console.print(
            f"  certificate {verdict}: {len(state.certificate['found'])} left, "
            f"{len(state.certificate['could_not_look'])} not looked at"
        )
    return 0


def _stage(running: Stage | None, finished: dict[Stage, Any], ended: bool) -> str:
    if ended:
        return "ended"
    if running is not None:
        return f"in {running}"
    return f"after {list(finished)[-1]}" if finished else "not begun"


def _bills(state: Any, live: dict[str, Any], idle: float) -> float:
    """What bills at this moment: nothing after teardown; without GPU nodes the rest still does."""
    if Stage.TEARDOWN in state.finished_stages or not state.finished_stages:
        return 0.0
    return float(live.get("usd_per_hour", idle)) if state.outcome is None else idle
