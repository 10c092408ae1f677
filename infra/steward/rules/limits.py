"""The limits of the spec's `recovery`: what counts against each, and what is left of it. Pure."""

from __future__ import annotations

from datetime import datetime, timedelta

from infra.spec.sections import LIMITS_WINDOW
from infra.steward import blame
from infra.steward.seeing.views import CONSEQUENCE, Attempt, Consequence, FailureClass, History, Observation, Policy


def counts(now: datetime, history: History) -> dict[str, int]:
    """Return limit of the spec's `recovery` -> what counts against it at `now`."""
    start, hour_ago = now - LIMITS_WINDOW, now - timedelta(hours=1)
    restart_classes = [kind for kind, effect in CONSEQUENCE.items() if effect is Consequence.RESTART]
    return {
        "attempts_without_progress": history.without_progress(),
        "process_restarts": history.count(start, *restart_classes),
        "node_replacements": history.count(start, FailureClass.NODE),
        "repairs_per_hour": sum(repair_at > hour_ago for repair_at in history.repairs),
    }


def repairs_left(view: Observation, policy: Policy, history: History) -> int:
    """Return how many nodes may still be rebooted or replaced within the hour."""
    return max(0, policy.repairs_per_hour - counts(view.now, history)["repairs_per_hour"])


def not_replaced(view: Observation, policy: Policy, history: History) -> list[str]:
    """Return why sick nodes are not replaced; empty where none is sick or each may be."""
    sick = blame.ailing(history.settled_nodes(view), history)
    cause = blame.shared(view, sick, repairs_left(view, policy, history))
    return [f"{len(sick)} not replaced: {cause}"] if sick and cause else []


def class_exhausted(view: Observation, last_attempt: Attempt, policy: Policy, history: History) -> str | None:
    """Return which limit on node losses or restarts the last attempt has exceeded; None for none."""
    limit_counts = counts(view.now, history)
    window_text = f"within {LIMITS_WINDOW / timedelta(hours=1):g} hours"
    losses, restarts = limit_counts["node_replacements"], limit_counts["process_restarts"]
    if last_attempt.failure is FailureClass.NODE and losses > policy.node_replacements:
        return f"{losses} node losses {window_text}, {policy.node_replacements} allowed"
    if CONSEQUENCE[last_attempt.failure] is Consequence.RESTART and restarts > policy.process_restarts:
        return f"{restarts} restarts {window_text}, {policy.process_restarts} allowed"
    return None
