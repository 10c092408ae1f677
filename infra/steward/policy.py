"""The limits that a spec sets on the steward's decisions."""

from __future__ import annotations

from datetime import timedelta

from infra.cluster.steward_config import StewardConfig
from infra.plan.layout import gang_sizes
from infra.steward.decide import Action, EndAttempt, History, Launch, Observation, Policy, Reboot, Replace
from infra.steward.rules.means import out_of_means


def policy_of(config: StewardConfig) -> Policy:
    recovery = config.spec.recovery
    save_s = config.spec.job.longest_save_s(recovery.hang_timeout)
    return Policy(
        attempts_without_progress=recovery.attempts_without_progress,
        process_restarts=recovery.process_restarts,
        node_replacements=recovery.node_replacements,
        repairs_per_hour=recovery.repairs_per_hour,
        heartbeat_timeout=recovery.heartbeat_timeout,
        hang_timeout=recovery.hang_timeout,
        save_timeout=None if save_s is None else timedelta(seconds=save_s),
        startup_timeout=recovery.startup_timeout,
        capacity_timeout=config.spec.capacity_timeout,
        gang_sizes=gang_sizes(config.spec, config.ranks_per_node),
        spare_timeout=recovery.spare_timeout,
        reboots=not config.spec.borrows_nodes,
        blind_timeout=recovery.blind_timeout,
        undone_timeout=recovery.startup_timeout,
        budget_usd=config.spec.money.budget_usd,
        on_stop=config.spec.on_stop.value,
        hold_for=config.spec.hold_for,
        archive=config.archive,
        interval_and_archive=config.interval_and_archive,
    )


def _is_bound(view: Observation, policy: Policy) -> bool:
    """Return whether a stop, the budget or the deadline ends the training: `recovery.act: log` prevents none."""
    return bool(view.stop_requested or view.given_back or out_of_means(view, policy))


def is_withheld(action: Action, view: Observation, policy: Policy, history: History) -> bool:
    """Return whether `recovery.act: log` only says this action."""
    match action:
        case EndAttempt():
            return not _is_bound(view, policy)
        case Replace() | Reboot():
            return True
        case Launch():
            return bool(history.attempts)
    return False
