"""The steward names the rank that the others waited for, from what all nodes know, and its node."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from infra.plan.job_config import train_config
from infra.plan.plan import make_plan
from infra.plan.survey import survey
from infra.report.interruptions import _at_fault
from infra.steward import blame
from infra.steward.decide import EndAttempt, FailureClass, History, Wait, decide
from infra.steward.policy import policy_of
from tests.unit.steward.seeing.observe_world import ObservedGang
from tests.unit.steward.seeing.observe_world import pod as kubernetes_pod
from tests.unit.steward.steward_story import config
from tests.unit.steward.test_blame import LOST
from tests.unit.steward.test_decide import NOW, POLICY, node, pod, seen
from trainer.contract.culprit import Exchanges, RankSeen, Sign
from trainer.contract.job import Termination

WAITED, BEHIND = Exchanges(6, 6, 5, 30.0, 30.0), Exchanges(5, 5, 5)
SECOND = timedelta(seconds=1)


def rank(number: int, end: str = "peer-lost", groups: dict[str, Exchanges] | None = None, **more: object) -> RankSeen:
    return RankSeen.model_validate({"rank": number, "step": 5, "end": end, "groups": groups or {}} | more)


def waiting(number: int, end: str = Sign.ABORTED) -> RankSeen:
    return rank(number, end, {"0": WAITED})


def lost(index: int, *ranks: RankSeen) -> object:
    return pod(index, **LOST, ranks=ranks)


def ended(*pods: object, **more: object) -> EndAttempt:
    action = decide(seen(pods=pods, nodes_wanted=len(pods), since_failed=SECOND, **more), POLICY, History())
    assert isinstance(action, EndAttempt), action
    return action


def test_a_rank_behind_is_named_with_its_node_though_every_pod_ended_alike() -> None:
    action = ended(lost(0, waiting(0), waiting(1)), lost(1, waiting(2), rank(3, Sign.ABORTED, {"0": BEHIND})))
    assert (action.failure, action.first_failed) == (FailureClass.PROCESS, "node-1")
    assert action.why.startswith("rank 3 on node-1: did not enter exchange 6 of group 0")
    assert action.culprit is not None and action.culprit.ranks == (3,)


def test_a_frozen_rank_of_a_pod_that_still_runs_is_named_at_once() -> None:
    frozen = rank(1, Sign.STOPPED, age_s=31.0, phase="training")
    action = ended(lost(0, waiting(0)), pod(1, ranks=(frozen,)))
    assert action.first_failed == "node-1" and "rank 1 on node-1: is stopped by a signal after step 5" in action.why


def test_equal_numbers_accuse_nobody() -> None:
    action = ended(lost(0, waiting(0)), lost(1, waiting(1)))
    assert action.first_failed is None and "perhaps the network between node-0 and node-1" in action.why


def test_pods_that_have_not_ended_may_yet_tell_and_are_waited_for_as_for_a_silence() -> None:
    runs = pod(1, ranks=(RankSeen(rank=1, step=5),))
    sight = seen(pods=(lost(0, waiting(0)), runs), since_failed=POLICY.heartbeat_timeout)
    action = decide(sight, POLICY, History())
    assert isinstance(action, Wait) and "may name the rank" in action.why
    late = sight.model_copy(update={"since_failed": POLICY.heartbeat_timeout + SECOND})
    action = decide(late, POLICY, History())
    assert isinstance(action, EndAttempt) and action.first_failed == "node-1"
    assert "left no record of its exchanges" in action.why


@pytest.mark.parametrize(
    ("end", "longest"), [(LOST, POLICY.heartbeat_timeout), ({**LOST, "reason": "internal"}, 2 * SECOND)]
)
def test_a_gang_without_numbers_is_ended_when_the_others_had_the_time_to_end(
    end: dict[str, object], longest: timedelta, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blame, "_TOGETHER", 2 * SECOND)
    sight = seen(pods=(pod(0, **end), pod(1)), since_failed=longest)
    action = decide(sight, POLICY, History())
    assert isinstance(action, Wait) and "may name the rank" in action.why
    late = sight.model_copy(update={"since_failed": longest + SECOND})
    for over in (late, seen(pods=(pod(0, **end), pod(1, **end)), since_failed=SECOND)):
        action = decide(over, POLICY, History())
        assert isinstance(action, EndAttempt) and action.culprit is None


def test_a_failure_of_its_own_is_not_outvoted_by_numbers() -> None:
    crashed = pod(1, phase="Failed", exit_code=70, reason="signal", detail="signal: died of SIGSEGV", ended_at=NOW,
                  ranks=(rank(1, Sign.DIED, detail="died of SIGSEGV"),))  # fmt: skip
    action = ended(lost(0, waiting(0)), crashed)
    assert action.first_failed == "node-1" and "died of SIGSEGV" in action.why


@pytest.mark.parametrize("kind", ["user", "numeric"])
def test_what_a_retry_repeats_blames_no_rank(kind: str) -> None:
    code = {"user": 64, "numeric": 76}[kind]
    own = pod(1, phase="Failed", exit_code=code, reason=kind, ended_at=NOW, ranks=(rank(1, kind),))
    action = ended(lost(0, waiting(0)), own)
    assert action.failure == FailureClass(kind) and action.culprit is None


def test_a_hang_names_a_frozen_rank() -> None:
    pods = (pod(0, ranks=(RankSeen(rank=0, step=5),)), pod(1, ranks=(rank(1, Sign.STOPPED),)))
    action = decide(seen(pods=pods, since_step=POLICY.hang_timeout + SECOND, step=10), POLICY, History())
    assert isinstance(action, EndAttempt) and (action.failure, action.first_failed) == (FailureClass.HANG, "node-1")


def test_a_gang_that_saves_is_waited_for_as_long_as_its_ranks_wait_for_disks() -> None:
    patient = POLICY.model_copy(update={"save_timeout": timedelta(minutes=30)})
    sight = seen(
        pods=(pod(0, trainer_phase="saving"), pod(1)), since_step=timedelta(minutes=29), step=10, nodes=(node(0),)
    )
    assert isinstance(decide(sight, patient, History()), Wait)
    over = sight.model_copy(update={"since_step": timedelta(minutes=31)})
    assert isinstance(decide(over, patient, History()), EndAttempt)


def test_numbers_come_from_the_termination_message_and_of_a_running_pod_from_its_status(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = ObservedGang(monkeypatch)
    end = Termination(exit_code=70, reason="peer-lost", attempt=1, node="node-0", step=5, committed_step=0,
                      ranks=(waiting(0),))  # fmt: skip
    world.pods = [kubernetes_pod(0, phase="Failed", exitCode=70, message=end.model_dump_json()), kubernetes_pod(1)]
    world.steps[1] = 4
    first, second = world.view(0), world.view(1)
    assert first.ranks == end.ranks
    assert [(one.rank, one.step, one.end, one.age_s) for one in second.ranks] == [(1, 4, Sign.RUNS, 1.5)]
    damaged = json.dumps({"reason": "peer-lost", "ranks": [{"rank": "x"}]})
    world.pods = [kubernetes_pod(0, phase="Failed", exitCode=70, message=damaged), kubernetes_pod(1)]
    assert (world.view(0).reason, world.view(0).ranks) == ("peer-lost", ())


def test_the_report_says_which_rank_it_was() -> None:
    culprit = {"ranks": [3], "nodes": ["node-1"], "why": "did not enter exchange 6"}
    assert _at_fault(culprit) == ["rank 3 on node-1: did not enter exchange 6"]
    assert _at_fault(None) == _at_fault({"ranks": [], "nodes": [], "why": "equal"}) == []


def test_ranks_and_steward_wait_alike_for_a_save_and_for_a_first_step_as_for_a_hang() -> None:
    base = config()
    for hang_s, first_s, save_s in ((60, 40.0, 600.0), (45, 36.0, 600.0), (900, 40.0, 1800.0)):
        recovery = base.spec.recovery.model_copy(update={"hang_timeout": timedelta(seconds=hang_s)})
        training = base.spec.training
        assert training is not None and training.collective_timeout_s == 10
        spec = base.spec.model_copy(update={"recovery": recovery})
        plan = make_plan(spec, survey(spec))
        told = train_config(spec, plan, "d" * 64)
        assert (told.first_step_s, told.save_timeout_s) == (first_s, save_s)
        assert policy_of(base.model_copy(update={"spec": spec})).save_timeout == timedelta(seconds=save_s)
