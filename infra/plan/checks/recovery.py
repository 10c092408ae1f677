"""Rules about timeouts, recovery limits, and the faults of a rehearsal."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any, NamedTuple

from infra.plan.checks.finding import Case, Draft, error, warning
from infra.plan.estimates import losses, work
from infra.plan.layout import gang_sizes
from infra.spec import duration
from infra.spec.campaign import Spec
from infra.spec.drills.scenarios import scenarios
from infra.spec.sections import LIMITS_WINDOW

PLAUSIBLE_MFU = 0.65
"""Highest MFU that a published training run of a dense transformer reports."""
MOST_CHANCE, SMALL_CHANCE = 0.05, 0.01
"""Chance that a limit ends a healthy campaign: above the first it is an error, above the second a warning."""


def timeout_order(case: Case) -> Iterator[Draft]:
    """Timeouts ascend from the ranks to the deadline: heartbeat, collective and first step < hang < startup < deadline,
    collective < save < deadline, spare < capacity, capacity and blind < deadline. In another order the nearer one never
    heals."""
    for rung in rungs(case.spec):
        if not rung.stands:
            longest = duration.text(rung.wider.lasts)
            yield error(
                rung.nearer.field,
                f"must be shorter than {rung.wider.field}",
                seen=f"{duration.text(rung.nearer.lasts)}, {rung.wider.field} {longest}",
                cure=f"write less than {longest}",
            )


def timeout_length(case: Case) -> Iterator[Draft]:
    """No timeout ends during a healthy step, or during an evaluation for which the other ranks wait. A gang that may go
    on with fewer nodes takes longer for a step, as each has more of the batch; an evaluation lasts as long."""
    world, ranks, count = case.world_size, case.ranks_per_node, case.spec.nodes.count
    if world is None or ranks is None:
        return
    fewest = min(gang_sizes(case.spec, ranks), default=count)
    step = case.step_s * count / fewest
    step_name = "step" if fewest == count else f"step with {fewest} of {count} nodes"
    evaluation = work.one_evaluation_seconds(case.spec, world)
    longest, work_name = max(step, evaluation), "evaluation" if evaluation > step else step_name
    fields = [("recovery.hang_timeout", case.spec.recovery.hang_timeout.total_seconds())]
    if (training := case.spec.training) is not None:
        fields.insert(0, ("training.collective_timeout_s", training.collective_timeout_s))
    for field, timeout in fields:
        detail, cure = f"{timeout:g} s, one {work_name} about {longest:.3g} s", f"write {_seconds(3 * longest)} or more"
        if timeout <= longest:
            yield error(field, f"is shorter than one healthy {work_name}", seen=detail, cure=cure)
        elif timeout < 3 * longest:
            yield warning(field, f"leaves little beyond one healthy {work_name}", seen=detail, cure=cure)


def plausible_step_time(case: Case) -> Iterator[Draft]:
    """The estimated step time does not exceed the accelerators' speed: clock and cost depend on it."""
    world, step = case.world_size, case.step_s
    mfu = None if world is None else work.implied_mfu(case.spec, case.facts, world)
    if mfu is not None and mfu > PLAUSIBLE_MFU:
        draft = error if mfu > 1 else warning
        message = "claims more than the accelerators can do: clock and cost will be too low"
        cure = f"write {step * mfu / 0.4:.3g}, an MFU of 40 %"
        yield draft(case.job.step_time_field, message, seen=f"{step:g} s, an MFU of {mfu:.0%}", cure=cure)


def loss_limits(case: Case) -> Iterator[Draft]:
    """A limit on node losses breaks a loop; expected losses alone do not reach it in a healthy campaign."""
    recovery, hours = case.spec.recovery, case.spec.money.deadline / timedelta(hours=1)
    per_hour = case.spec.nodes.count / recovery.node_mtbf_hours
    rate = f"{case.spec.nodes.count} nodes, one loss in {recovery.node_mtbf_hours:g} h each"
    for field, limit, window in (
        ("node_replacements", recovery.node_replacements, LIMITS_WINDOW / timedelta(hours=1)),
        ("repairs_per_hour", recovery.repairs_per_hour, 1.0),
    ):
        chance = losses.chance_of_more(limit, per_hour, window, hours)
        if chance <= SMALL_CHANCE:
            continue
        draft, mean = error if chance > MOST_CHANCE else warning, per_hour * min(window, hours)
        sufficient_limit = losses.limit_for(SMALL_CHANCE, per_hour, window, hours)
        yield draft(
            f"recovery.{field}",
            "losses that are expected may end the campaign",
            seen=f"{limit} allowed within {window:g} h, {mean:.3g} expected ({rate}); more come in the campaign's "
            f"{hours:g} h with a chance of up to {chance:.2g} (Poisson)",
            cure=f"write {sufficient_limit} or more: a chance of at most {SMALL_CHANCE:g}",
        )


def fault_range(case: Case) -> Iterator[Draft]:
    """A fault names a node of the gang and a step of the run, and each killed node may be replaced."""
    spec, faults = case.spec, case.spec.rehearsal.faults if case.spec.rehearsal else ()
    for index, fault in enumerate(faults):
        place = f"rehearsal.faults.{index}"
        if fault.pod >= spec.nodes.count:
            cure = f"write 0 to {spec.nodes.count - 1}"
            yield error(f"{place}.{fault.kills}", "the gang has no such node", seen=fault.pod, cure=cure)
        if fault.after_step >= spec.job.steps:
            cure = f"write less than {spec.job.steps}"
            yield error(f"{place}.after_step", "training is over by then", seen=fault.after_step, cure=cure)
        ends = [item for item in faults if item.ends_campaign and item.after_step < fault.after_step]
        if ends and fault.in_training:
            fact = f"{ends[0].fault} ends it after step {ends[0].after_step}"
            yield error(f"{place}.after_step", "the campaign is over by then", seen=fact, cure="leave one of them out")
    kill_count = sum(fault.lost_nodes for fault in faults)
    if kill_count > spec.recovery.node_replacements:
        detail = f"{kill_count} faults, {spec.recovery.node_replacements} replacements"
        cure = f"write {kill_count} or more"
        yield error("recovery.node_replacements", "more nodes are killed than may be replaced", seen=detail, cure=cure)


def fault_needs(case: Case) -> Iterator[Draft]:
    """The spec has what a fault by name strikes, and what notices it. Else the fault is never overcome, and those after
    it wait for that."""
    for index, fault in enumerate(case.spec.rehearsal.faults if case.spec.rehearsal else ()):
        for need in scenarios()[fault.fault].needs if fault.fault is not None else ():
            value: Any = case.spec
            for name in need.field.split("."):
                value = getattr(value, name, None)
            if not need.holds(value):
                text = " ".join(value) if isinstance(value, tuple) else value
                seen = f"{need.field}: {'none' if value is None else text}"
                cure = f"{need.cure}, or leave the fault out"
                yield error(f"rehearsal.faults.{index}.fault", f"{fault.fault} cannot strike", seen=seen, cure=cure)


def driver_fault(case: Case) -> Iterator[Draft]:
    """Who kills the driver, or starts a second one, is `bivouac drill`: elsewhere such a fault never strikes."""
    for index, fault in enumerate(case.spec.rehearsal.faults if case.spec.rehearsal else ()):
        if fault.fault is not None and scenarios()[fault.fault].driver is not None:
            cure = f"`bivouac drill {fault.fault}`; in a spec of your own leave it out"
            message = "only `bivouac drill` strikes the driver: elsewhere nothing comes of it, and later faults wait"
            yield warning(f"rehearsal.faults.{index}.fault", message, seen=fault.fault, cure=cure)


def fault_after_checkpoint(case: Case) -> Iterator[Draft]:
    """A fault before the first shared checkpoint would rehearse only a second start."""
    guess, faults = case.estimate, case.spec.rehearsal.faults if case.spec.rehearsal else ()
    if guess is None:
        return
    checkpoint = guess.saving.checkpoint
    first_shared_step = checkpoint.every_steps * checkpoint.shared_every
    for index, fault in enumerate(faults):
        if fault.after_step <= first_shared_step:
            yield error(
                f"rehearsal.faults.{index}.after_step",
                "no checkpoint has reached the shared tier by then",
                seen=f"step {fault.after_step}, first shared checkpoint at step {first_shared_step}",
                cure=f"write more than {first_shared_step}, or save more often",
            )


def _seconds(amount: float) -> str:
    return f"{max(1, round(amount))}"


class Timeout(NamedTuple):
    """One timeout of a spec, by its field."""

    field: str
    lasts: timedelta


class Rung(NamedTuple):
    """Two timeouts of which the first must be shorter."""

    nearer: Timeout
    wider: Timeout

    @property
    def stands(self) -> bool:
        return self.nearer.lasts < self.wider.lasts


def rungs(spec: Spec) -> Iterator[Rung]:
    """Yield every pair of timeouts that must ascend, the nearest to the ranks first. Timeouts that the spec does not
    give and that follow from others are left out: they are made to fit.

    A rank's exchange and a pod's heartbeat end before the steward calls a hang; a hang before a start, which a restart
    needs; all of them before the deadline, at which AWS's schedule takes the nodes whoever lives. A timeout that is not
    shorter than the next wider one never heals anything: the wider one has acted by then.
    """
    recovery = spec.recovery
    hang = Timeout("recovery.hang_timeout", recovery.hang_timeout)
    startup = Timeout("recovery.startup_timeout", recovery.startup_timeout)
    deadline = Timeout("money.deadline", spec.money.deadline)
    yield Rung(Timeout("recovery.heartbeat_timeout", recovery.heartbeat_timeout), hang)
    if (training := spec.training) is not None:
        yield Rung(Timeout("training.collective_timeout_s", timedelta(seconds=training.collective_timeout_s)), hang)
        if training.first_step_timeout_s is not None:
            first_step = timedelta(seconds=training.first_step_timeout_s)
            yield Rung(Timeout("training.first_step_timeout_s", first_step), hang)
    yield Rung(hang, startup)
    yield Rung(startup, deadline)
    if training is not None and training.save_timeout_s is not None:
        save = Timeout("training.save_timeout_s", timedelta(seconds=training.save_timeout_s))
        collective = timedelta(seconds=training.collective_timeout_s)
        yield Rung(Timeout("training.collective_timeout_s", collective), save)
        yield Rung(save, deadline)
    if recovery.capacity_timeout is not None:
        yield Rung(Timeout("recovery.capacity_timeout", recovery.capacity_timeout), deadline)
    if recovery.min_nodes is not None:
        spare = Timeout("recovery.spare_timeout", recovery.spare_timeout)
        yield Rung(spare, Timeout("recovery.capacity_timeout", spec.capacity_timeout))
    if "blind_timeout" in recovery.model_fields_set:
        yield Rung(Timeout("recovery.blind_timeout", recovery.blind_timeout), deadline)
