"""Where each rule about recovery, checkpoints and training begins to speak: the last value that passes, the first that
does not. What was estimated is given by hand, so that nothing here is the estimates' own arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError

from infra.plan.checks import recovery, storage, training
from infra.plan.checks.finding import Case
from infra.spec.rehearsal import Fault
from tests.unit.plan.checks.edges import Told, cases, estimated, of_instance, told, unknown

OWN_JOB = {
    "training": None, "data": None, "workload.launcher": "none", "workload.command": ["train"],
    "workload.estimates": {"steps": 100, "step_seconds": 0.2, "checkpoint_gib": 0.1},
    "workload.checkpoints.format": "marker",
}  # fmt: skip

READY = {"workload.command": ["train", "signal.SIGUSR1"]}


@pytest.fixture
def case(spec_file: Callable[..., Any]) -> Callable[..., Case]:
    return cases(spec_file)


# Recovery


@pytest.mark.parametrize(
    ("shorter", "longer"),
    [
        ("recovery.heartbeat_timeout", "recovery.hang_timeout"),
        ("recovery.hang_timeout", "recovery.startup_timeout"),
        ("recovery.startup_timeout", "money.deadline"),
        ("recovery.capacity_timeout", "money.deadline"),
    ],
)
def test_the_nearer_cause_is_seen_before_the_wider_one(case: Callable[..., Case], shorter: str, longer: str) -> None:
    times = {
        "recovery.heartbeat_timeout": "10s", "recovery.hang_timeout": "100s", "recovery.startup_timeout": "200s",
        "recovery.capacity_timeout": "300s", "money.deadline": "400s",
    }  # fmt: skip
    rule = recovery.timeout_order
    assert told(rule, case(times)) == []
    just = int(times[longer].removesuffix("s"))
    assert told(rule, case({**times, shorter: f"{just - 1}s"}))[:1] != [("error", shorter.partition(".")[2])]
    assert ("error", shorter.partition(".")[2]) in told(rule, case({**times, shorter: f"{just}s"}))
    collective = {"training.collective_timeout_s": 99}
    assert told(rule, case({**times, **collective})) == []
    collective["training.collective_timeout_s"] = 100
    assert told(rule, case({**times, **collective})) == [("error", "collective_timeout_s")]


def test_a_timeout_is_three_healthy_steps_or_evaluations_long(case: Callable[..., Case]) -> None:
    # one evaluation of the base spec: 8 x 0.3 / 3 = 0.8 s, longer than its step of 0.3 s
    rule, field = recovery.timeout_length, "training.collective_timeout_s"
    hang, few = "recovery.hang_timeout", {"training.evaluate_batches": 1}
    for changes, wanted in (
        ({"training.step_seconds_estimate": 3.0, **few, field: 9}, []),
        ({"training.step_seconds_estimate": 3.0, **few, field: 8}, [("warning", "collective_timeout_s")]),
        ({"training.step_seconds_estimate": 3.0, **few, field: 4}, [("warning", "collective_timeout_s")]),
        ({"training.step_seconds_estimate": 3.0, **few, field: 3}, [("error", "collective_timeout_s")]),
        ({"training.step_seconds_estimate": 3.0, **few, hang: "8s"}, [("warning", "hang_timeout")]),
        ({"training.step_seconds_estimate": 3.0, **few, hang: "3s"}, [("error", "hang_timeout")]),
        # 8 x 3 / 3 = 8 s of evaluation
        ({"training.step_seconds_estimate": 3.0, field: 24}, []),
        ({"training.step_seconds_estimate": 3.0, field: 23}, [("warning", "collective_timeout_s")]),
        ({"training.step_seconds_estimate": 3.0, field: 8}, [("error", "collective_timeout_s")]),
    ):
        made = case(changes)
        assert told(rule, made) == wanted
        words = "evaluation" if "training.evaluate_batches" not in changes else "step"
        assert all(words in draft.message for draft in rule(made))
    cures = [draft.cure for draft in rule(case({"training.step_seconds_estimate": 3.0, field: 8}))]
    assert cures == ["write 24 or more"]
    assert told(rule, case(facts=unknown)) == []


def test_a_timeout_covers_the_steps_of_a_gang_with_fewer_nodes(case: Callable[..., Case]) -> None:
    """Two nodes take 3 s for a step, so one takes 6."""
    rule, field = recovery.timeout_length, "training.collective_timeout_s"
    slow = {"training.step_seconds_estimate": 3.0, "training.evaluate_batches": 1, "recovery.min_nodes": 1}
    assert told(rule, case({**slow, field: 18})) == []
    assert told(rule, case({**slow, field: 17})) == [("warning", "collective_timeout_s")]
    (draft,) = rule(case({**slow, field: 6}))
    assert (draft.level, draft.cure) == ("error", "write 18 or more")
    assert draft.message == "is shorter than one healthy step with 1 of 2 nodes"
    assert told(rule, case({**slow, field: 17, "recovery.min_nodes": 2})) == []


@pytest.mark.parametrize(
    ("chance", "wanted"), [(0.0099, []), (0.0101, ["warning"]), (0.0499, ["warning"]), (0.0501, ["error"])]
)
def test_a_limit_is_refused_at_one_in_twenty_and_told_at_one_in_a_hundred(
    case: Callable[..., Case], monkeypatch: pytest.MonkeyPatch, chance: float, wanted: list[str]
) -> None:
    asked: list[tuple[float, ...]] = []

    def more(limit: int, per_hour: float, window: float, hours: float) -> float:
        asked.append((limit, per_hour, window, hours))
        return chance

    monkeypatch.setattr(recovery.losses, "chance_of_more", more)
    monkeypatch.setattr(recovery.losses, "limit_for", lambda chance, *rest: [7, chance, *rest])
    changes = {"nodes.count": 8, "recovery.node_mtbf_hours": 1000.0, "recovery.node_replacements": 3}
    made = case({**changes, "recovery.repairs_per_hour": 5})
    fields = ("node_replacements", "repairs_per_hour")
    expected = [(level, field) for field in fields for level in wanted]
    assert told(recovery.loss_limits, made) == expected
    # eight nodes fail eight times as often as one
    assert asked[:2] == [(3, 0.008, 24.0, 4.0), (5, 0.008, 1.0, 4.0)]
    needed = [draft.cure for draft in recovery.loss_limits(made)]
    assert [cure.startswith("write [7, 0.01, 0.008, ") for cure in needed] == [True] * len(expected)


def test_a_fault_is_within_the_gang_and_the_run_and_after_a_checkpoint(case: Callable[..., Case]) -> None:
    def faults(*each: tuple[int, int], **more: Any) -> tuple[Told, Told]:
        listed = [{"kill_node": node, "after_step": step} for node, step in each]
        made = case({"rehearsal.faults": listed, **more})
        return told(recovery.fault_range, made), told(recovery.fault_after_checkpoint, made)

    assert faults((0, 11), (1, 99)) == ([], [])
    assert faults((2, 50)) == ([("error", "kill_node")], [])
    assert faults((1, 100)) == ([("error", "after_step")], [])
    assert faults((1, 50), (1, 10)) == ([], [("error", "after_step")])
    assert faults((1, 50), (1, 60), **{"recovery.node_replacements": 2}) == ([], [])
    assert faults((1, 50), (1, 60), **{"recovery.node_replacements": 1}) == ([("error", "node_replacements")], [])
    assert faults((1, 30), **{"checkpoint.shared_every": 3}) == ([], [("error", "after_step")])
    assert faults((1, 31), **{"checkpoint.shared_every": 3}) == ([], [])
    for rule in (recovery.fault_range, recovery.fault_after_checkpoint):
        assert told(rule, case({"rehearsal": None})) == []
    assert told(recovery.fault_after_checkpoint, case({"rehearsal.faults.0.after_step": 1}, facts=unknown)) == []
    ranks = case(
        {
            "rehearsal.faults": [{"kill_rank": rank, "after_step": 50} for rank in (0, 1, 2)],
            "recovery.node_replacements": 0,
        }
    )
    assert told(recovery.fault_range, ranks) == [("error", "kill_rank")], "no node is replaced for a rank"


@pytest.mark.parametrize(
    ("names", "wrong"),
    [
        (("nan", "rank-killed"), [("error", "after_step")]),
        (("rank-killed", "nan"), []),
        (("nan", "destroy-interrupted"), []),
    ],
)
def test_no_fault_of_the_training_comes_after_one_that_ends_the_campaign(
    case: Callable[..., Case], names: tuple[str, str], wrong: list[tuple[str, str]]
) -> None:
    rows = [{"fault": name, "after_step": step} for name, step in zip(names, (50, 60), strict=True)]
    assert told(recovery.fault_range, case({"rehearsal.faults": rows})) == wrong


@pytest.mark.parametrize(
    ("name", "fit", "unfit", "seen", "cure"),
    [
        ("spot-notice", {"nodes.capacity": "spot"}, {}, "on-demand", "write `nodes.capacity: spot`"),
        ("bad-batch", {"training.watch.data": "skip"}, {}, "log", "write `training.watch.data: skip`"),
        ("nan", {}, {"training.model.width": 48}, "48", "write 64 or more for `training.model.width`"),
        ("nodes-killed", {}, {"nodes.count": 1}, "1", "write 2 or more for `nodes.count`"),
        ("rank-killed", {}, {"recovery.restarts_in_place": 0}, "0", "write 1 or more for `recovery.restarts_in_"),
        ("receiver-down", {}, {"addons.prometheus": False}, "False", "write `addons.prometheus: true`"),
        ("lustre-gone", {}, {"storage.shared": "none"}, "none", "give `storage.shared`"),
        ("supervisor-killed", {}, OWN_JOB, "none", "give `training`"),
        ("user-error", {**OWN_JOB, **READY}, OWN_JOB, "train", "give `workload.command` with"),
    ],
)
def test_a_fault_that_the_spec_gives_nothing_to_strike_is_refused(
    case: Callable[..., Case], name: str, fit: dict[str, Any], unfit: dict[str, Any], seen: str, cure: str
) -> None:
    rows = {"rehearsal.faults": [{"kill_node": 0, "after_step": 40}, {"fault": name, "after_step": 50}]}
    assert list(recovery.fault_needs(case({**fit, **rows}))) == []
    (draft,) = recovery.fault_needs(case({**unfit, **rows}))
    assert (draft.level.value, draft.place) == ("error", "rehearsal.faults.1.fault") and name in draft.message
    assert draft.cure.startswith(cure) and draft.seen.endswith(f": {seen}")


@pytest.mark.parametrize("both", [{}, {"kill_node": 0, "kill_rank": 0}])
def test_a_fault_kills_one_thing(both: dict[str, int]) -> None:
    with pytest.raises(ValidationError, match="either `kill_node` or `kill_rank`"):
        Fault.model_validate({**both, "after_step": 9})


# Checkpoints


def saved(every: int = 10, shared: int = 1, **figures: float) -> Any:
    named = tuple(SimpleNamespace(name=name.replace("_", " "), value=value) for name, value in figures.items())
    return estimated(
        saving=SimpleNamespace(
            checkpoint=SimpleNamespace(every_steps=every, shared_every=shared), figures=named, derived=False
        )
    )


@pytest.mark.parametrize(("needed", "fits"), [(800, True), (801, False)])
@pytest.mark.parametrize("name", ["local", "shared"])
def test_four_fifths_of_a_tier_are_for_checkpoints(
    case: Callable[..., Case], name: str, needed: int, fits: bool
) -> None:
    def tier(asked: str) -> Any:
        assert asked == name
        return SimpleNamespace(capacity_bytes=size, needed_bytes=needed, formula="f")

    local = name == "local"
    rule = storage.local_tier_size if local else storage.shared_tier_size
    size: int | None = 1000
    guess = estimated(tier=tier)
    assert told(rule, case(estimate=guess)) == ([] if fits else [("error", "keep_local" if local else "capacity_gib")])
    derived = told(rule, case({"checkpoint": None}, guess))
    assert derived == ([] if fits else [("error", "training" if local else "capacity_gib")])
    size = None
    assert told(rule, case(estimate=guess)) == told(rule, case(facts=unknown)) == []


def test_the_shared_tier_has_a_checkpoint_before_the_next_one(case: Callable[..., Case]) -> None:
    # 40,922,112 B at 250 x 1,200 / 1,024 MB/s = 0.13968 s, and as long to read them back
    rule = storage.shared_tier_speed
    for every, shared, step, cure in (
        (1, 1, 0.2794, None),
        (1, 1, 0.2793, "2"),
        (2, 1, 0.1397, None),
        (1, 2, 0.1396, "3"),
    ):
        made = case({"training.step_seconds_estimate": step}, saved(every, shared))
        assert told(rule, made) == ([("warning", "shared_every")] if cure else [])
        assert not cure or f"shared_every: {cure}," in next(iter(rule(made))).cure
    assert told(rule, case(facts=unknown)) == []


def test_saving_takes_a_hundredth_of_the_time_at_most(case: Callable[..., Case]) -> None:
    # (10,230,528 + 15,345,792) / 6e9 + 0.005 = 0.0092627 s: a hundredth of 0.92627 s
    rule = storage.save_overhead
    for every, step, cure in ((1, 0.927, None), (1, 0.926, "2"), (10, 0.0927, None), (10, 0.0926, "11")):
        made = case({"training.step_seconds_estimate": step}, saved(every))
        assert told(rule, made) == ([("warning", "every_steps")] if cure else [])
        assert not cure or f"write {cure} or more" in next(iter(rule(made))).cure
    assert told(rule, case(facts=unknown)) == []


def test_an_emergency_save_fits_twice_the_collective_timeout(case: Callable[..., Case]) -> None:
    rule = storage.emergency_save_time
    short = case({"training.collective_timeout_s": 100}, saved(save_stall=10_000, emergency_save=200))
    long = case({"training.collective_timeout_s": 100}, saved(save_stall=1, emergency_save=201))
    assert told(rule, short) == [] and told(rule, long) == [("warning", "collective_timeout_s")]
    assert told(rule, case(estimate=saved())) == told(rule, case(facts=unknown)) == []


def test_some_checkpoint_outlives_its_nodes_and_has_one_behind_it(case: Callable[..., Case]) -> None:
    rule = storage.shared_checkpoint
    assert told(rule, case({"checkpoint.every_steps": 33, "checkpoint.shared_every": 3})) == []  # 99 of 100
    (late,) = rule(case({"checkpoint.every_steps": 10, "checkpoint.shared_every": 10}))
    assert late.cure.startswith("write 3,")  # a third of ten saves
    (never,) = rule(case({"checkpoint.every_steps": 60, "checkpoint.shared_every": 2}))
    assert never.cure.startswith("write 1,")
    older = storage.older_checkpoint
    assert told(older, case({"checkpoint.keep_shared": 2})) == told(older, case({"checkpoint": None})) == []
    assert told(older, case({"checkpoint.keep_shared": 1})) == [("warning", "keep_shared")]
    assert told(rule, case({"checkpoint": None})) == []


# Training


def test_a_model_leaves_a_fifth_of_the_memory_to_activations(case: Callable[..., Case]) -> None:
    # weights and gradients 2 x 10,230,528, half of the optimizer 15,345,792: 35,806,848 B
    rule, size = training.accelerator_memory, 35_806_848 / 2**30
    for share, wanted in ((0.9999, ["error"]), (1.0, ["warning"]), (1.2499, ["warning"]), (1.2501, [])):
        made = case(facts=of_instance(accelerator_memory_gib=size * share))
        assert [level for level, _ in told(rule, made)] == wanted
    assert told(rule, case(facts=unknown)) == []


def test_a_step_claims_no_more_than_was_ever_seen(case: Callable[..., Case]) -> None:
    # 1.69220506e10 FLOP a step (test_estimates_by_hand) of 2 x 989e12: 65 % at 13.16 us
    rule, field = recovery.plausible_step_time, "training.step_seconds_estimate"
    narrow = {"training.precision": "bfloat16"}
    assert told(rule, case({**narrow, field: 1.3164e-5})) == []
    (claim,) = rule(case({**narrow, field: 1.3159e-5}))
    assert "65%" in claim.seen and claim.cure.startswith("write 2.14e-05")  # 1.3159e-5 x 65.02 / 40
    assert told(rule, case({**narrow, field: 1e-6}, facts=unknown)) == []
    # The peak itself at 8.555 us: more than that is no MFU but a mistake.
    assert told(rule, case({**narrow, field: 8.56e-6})) == [("warning", "step_seconds_estimate")]
    assert told(rule, case({**narrow, field: 8.55e-6})) == [("error", "step_seconds_estimate")]


def test_a_batch_a_width_and_a_rate_at_their_edges(case: Callable[..., Case]) -> None:
    for batch, cure in ((16, None), (17, "write 16 or 24"), (7, "write 8"), (23, "write 16 or 24")):
        cures = [one.cure for one in training.global_batch_multiple(case({"training.global_batch": batch}))]
        assert cures == ([cure] if cure else [])
    for width, heads, cure in ((192, 6, None), (198, 6, "write 192,"), (199, 6, "write 204,"), (17, 16, "write 32,")):
        changes = {"training.model.width": width, "training.model.heads": heads}
        cures = [one.cure for one in training.even_head_width(case(changes))]
        assert [text.startswith(cure or "") for text in cures] == ([True] if cure else []), (width, cures)
    rate = "training.optimizer."
    same = {f"{rate}learning_rate": 1e-3, f"{rate}minimum_learning_rate": 1e-3, f"{rate}warmup_steps": 99}
    assert told(training.learning_rate_schedule, case(same)) == []
    both = {f"{rate}learning_rate": 1e-3, f"{rate}minimum_learning_rate": 1.1e-3, f"{rate}warmup_steps": 100}
    drafts = list(training.learning_rate_schedule(case(both)))
    assert [draft.level.value for draft in drafts] == ["error", "warning"] and drafts[1].cure == "write 5"
    short = {f"{rate}warmup_steps": 9, "training.steps": 9}
    assert [draft.cure for draft in training.learning_rate_schedule(case(short))] == ["write 1"]
