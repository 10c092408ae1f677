"""What follows from an alarm, on one rank and over a restart; each intervention tells what was seen and what it did."""

from __future__ import annotations

import json
import random
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from pydantic import ValidationError

from tests.manifests import manifest_of
from tests.trainer.agents import World, run
from tests.trainer.builtin.watch.test_detectors import changed, steps
from tests.trainer.test_loop_pace import alone
from trainer.builtin.checkpoint.tiers import Tier
from trainer.builtin.data.feed import Fed
from trainer.builtin.gang import Gang
from trainer.builtin.watch import replay
from trainer.builtin.watch.figures import All, Mine
from trainer.builtin.watch.overseer import Overseer, RolledBack, Ruling, read_bans, write_ban
from trainer.builtin.watch.watch import Watch
from trainer.contract import ExitCode, ParallelConfig, TrainConfig, WatchConfig
from trainer.contract.checkpoint import Ban
from trainer.errors import Interrupted, NumericError, Sick

EVERY = All(1.0, True, {"checkpoint": 0.0}, (), (), 1.0, 1.0, (), (1.0,), (0.1,), (1.0,))


def overseer(tmp_path: Path, **watch: Any) -> Overseer:
    made = alone(tmp_path).overseer
    made.config = made.config.model_copy(update={"watch": WatchConfig(**watch)})
    made.watch = Watch(made.config.watch)
    return made


def spiked(made: Overseer) -> Ruling:
    """The decision at step 100, whose loss is an outlier."""
    given = changed(steps(100), 100, loss=6.0)
    return [made.judge(seen, EVERY, 0.2) for seen in given][-1]


def told(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines() if '"watch"' in line]


def committed(made: Overseer, step: int, attempt: int = 1) -> None:
    assert isinstance(made.shared, Tier)
    made.shared.folder(step).mkdir(parents=True)
    made.shared.publish(manifest_of(step, attempt=attempt), attempt)


def test_by_default_an_alarm_is_an_event_and_nothing_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert spiked(overseer(tmp_path)) == Ruling()
    (event,) = told(capsys)
    assert (event["detector"], event["action"], event["did"], event["onset"]) == ("loss", "log", "logged", 100)
    assert event["value"] == 6.0 and 3 < event["threshold"] < 6


def test_checkpoint_saves_this_step_and_stop_commits_it_and_holds(tmp_path: Path) -> None:
    assert spiked(overseer(tmp_path / "a", loss="checkpoint")) == Ruling(save=True)
    stop = spiked(overseer(tmp_path / "b", loss="stop"))
    assert isinstance(stop.end, NumericError) and stop.commit


def test_without_a_checkpoint_before_it_nothing_is_rolled_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = overseer(tmp_path, loss="skip")
    committed(made, 100)
    assert spiked(made) == Ruling()
    assert told(capsys)[0]["did"] == "no roll-back: no checkpoint before it lies on the shared tier"
    assert read_bans(made.shared) == ()


def test_a_roll_back_leaves_what_every_later_attempt_repeats(tmp_path: Path) -> None:
    made = overseer(tmp_path, loss="skip", skip_steps=5)
    committed(made, 90)
    committed(made, 110)
    assert isinstance(spiked(made).end, RolledBack)
    (ban,) = read_bans(made.shared)
    assert (ban.attempt, ban.first, ban.last) == (1, 100, 104)
    refused = {manifest.step: ban.refuses(manifest) for manifest in made.shared.committed()}
    assert refused == {90: False, 110: True}
    made.bans = (ban,)
    assert [step for step in range(95, 110) if made.skips(step)] == [100, 101, 102, 103, 104]


def test_a_later_attempts_checkpoint_of_a_refused_step_is_trusted() -> None:
    ban = Ban(1, 50, 49, "why")
    assert not ban.refuses(manifest_of(60, attempt=2)) and not ban.skips(50)


def test_after_ten_roll_backs_a_person_should_look(tmp_path: Path) -> None:
    made = overseer(tmp_path, loss="skip")
    committed(made, 10)
    for first in range(20, 30):
        write_ban(made.shared, Ban(1, first, first, "why"))
    assert spiked(made) == Ruling()


@pytest.mark.parametrize(("rank", "error"), [(0, Sick), (5, Interrupted)])
def test_of_a_slow_rank_only_that_rank_calls_itself_sick(tmp_path: Path, rank: int, error: type[Exception]) -> None:
    made, chance = overseer(tmp_path, straggler="quarantine"), random.Random(1)
    found = Ruling()
    for step in steps(100):
        seconds = [0.1 * (1 + 0.01 * chance.random()) for _ in range(8)]
        seconds[rank] *= 2
        found = made.judge(step, replace(EVERY, forward_s=tuple(seconds)), 0.2)
        if found.end is not None:
            break
    assert isinstance(found.end, error) and found.commit


@pytest.mark.parametrize(
    ("ranks", "parallel"), [(2, {"sequence": 2}), (4, {"sequence": 2}), (4, {"tensor": 2}), (2, {"tensor": 1})], ids=str
)
def test_the_masked_tokens_that_a_group_of_ranks_reads_count_once(
    ranks: int, parallel: dict[str, int], tmp_path: Path
) -> None:
    told = list[float]()

    def weights(rank: int, whole: float) -> list[float]:
        made = overseer(tmp_path)
        own = {"parallel": ParallelConfig(**parallel), "global_batch": 8, "micro_batch": 1}
        made.config = made.config.model_copy(update=own)
        made.gang = Gang(rank, 0, ranks, None)  # type: ignore[arg-type]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Gang, "sums", lambda _, values: told.append(values[0]) or [whole])
            group = rank // max(parallel.values())
            return made._weights(Fed(0, (), 0, counted=(10 + group, 30)))

    groups = ranks // max(parallel.values())
    whole = sum(40 + group for group in range(groups))
    first, *_ = [weights(rank, whole) for rank in range(ranks)]
    assert sum(told) == whole
    assert first == [10 * 8 / whole, 30 * 8 / whole]


class Two:
    """The exchange of two ranks that are threads."""

    def __init__(self) -> None:
        self.given, self.met = dict[int, list[float]](), threading.Barrier(2, timeout=600)

    def gang(self, rank: int) -> Any:
        def sums(values: list[float]) -> list[float]:
            self.given[rank] = values
            self.met.wait()
            summed = [a + b for a, b in zip(self.given[0], self.given[1], strict=True)]
            self.met.wait()
            return summed

        return SimpleNamespace(rank=rank, first=not rank, first_on_node=True, world_size=2, sums=sums)


def test_ranks_whose_clocks_differ_decide_alike_on_the_time_of_a_step(tmp_path: Path) -> None:
    two, saves = Two(), dict[int, list[int]]()

    def rank(number: int, slow_from: int) -> None:
        loop, found = alone(tmp_path / str(number)), list[int]()
        loop.gang = loop.overseer.gang = two.gang(number)
        loop.committer.settle = lambda tally: False  # type: ignore[method-assign]
        loop.overseer.watch = Watch(WatchConfig(throughput="checkpoint"))
        loop.overseer.config = loop.config.model_copy(update={"watch": WatchConfig(throughput="checkpoint")})
        for step in range(1, 161):
            loop.step = loop.position = step
            seconds = 0.3 if step > slow_from else 0.2
            stepped = replace(loop._agree(Mine(loss=1.0), 0.0, 0, 0.1), seconds=seconds)
            if loop._watch(loop._accept(stepped)).save:
                found.append(step)
        saves[number] = found

    ranks = [threading.Thread(target=rank, args=given) for given in ((0, 80), (1, 120))]
    [rank.start() for rank in ranks]
    [rank.join() for rank in ranks]
    assert saves[0] == saves[1] and len(saves[0]) == 1


def test_no_action_is_taken_in_that_would_do_nothing() -> None:
    with pytest.raises(ValidationError, match="throughput"):
        WatchConfig.model_validate({"throughput": "quarantine"})  # whose node?


SPIKED = """
import dataclasses, os
from trainer.builtin import agent
from trainer.builtin.watch.overseer import Overseer
compute = Overseer.compute
def spiked(self, fed):
    mine = compute(self, fed)
    if os.environ["BIVOUAC_ATTEMPT"] == "1" and fed.position == 40 * 8:
        mine.loss *= 3
    return mine
Overseer.compute = spiked
agent._exit(agent.main())
"""


@pytest.mark.nightly
def test_a_spike_is_rolled_back_and_its_batches_are_skipped_by_the_next_attempt(
    world: World, config: TrainConfig, twin: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.trainer.agents.AGENT", SPIKED)
    world.config = config.model_copy(update={"watch": WatchConfig(loss="skip", skip_steps=5)})
    first, second = run(world, 1), run(world, 2)

    assert {first.termination(node)["reason"] for node in (0, 1)} == {"rolled-back"}
    (alarm,) = [event for event in first.events("watch") if event["detector"] == "loss"]
    assert (alarm["step"], alarm["action"]) == (41, "skip") and "steps 41 to 45 are skipped" in alarm["did"]
    assert [agent.returncode for agent in second.agents] == [ExitCode.DONE] * 2, second.log(0).read_text()
    assert second.events("restored")[0]["step"] == 30
    assert [event["step"] for event in second.events("skipped_step")] == [41, 42, 43, 44, 45]
    losses = second.losses()
    assert {step: losses[step] for step in range(31, 41)} == {step: twin.losses()[step] for step in range(31, 41)}
    assert losses[46] != twin.losses()[46] and max(losses) == 60


NOT_A_NUMBER = """
import os
import torch
from trainer.builtin import agent
from trainer.builtin.watch import overseer
from trainer.builtin.watch.overseer import Overseer
compute, tries = Overseer.compute, []
def broken(self, fed):
    if fed.position != 40 * 8 or self.gang.rank != 1:
        return compute(self, fed)
    tries.append(1)
    if len(tries) > int(os.environ.get("TIMES", "1")):
        return compute(self, fed)
    hook = self.engine.module.norm.register_forward_hook(lambda module, given, out: out * float("nan"))
    try:
        return compute(self, fed)
    finally:
        hook.remove()
Overseer.compute = broken
agent._exit(agent.main())
"""


@pytest.mark.parametrize("stage", [1, pytest.param(2, marks=pytest.mark.nightly), 3])
@pytest.mark.nightly
def test_a_rank_that_once_gives_no_number_costs_one_step_and_no_bit(
    stage: int, world: World, config: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.config = config.model_copy(update={"zero_stage": stage, "steps": 45})
    sound = run(World(tmp_path / "sound", world.data, world.config), 1)
    monkeypatch.setattr("tests.trainer.agents.AGENT", NOT_A_NUMBER)
    attempt = run(world, 1)
    assert [agent.returncode for agent in attempt.agents] == [0, 0], attempt.log(0).read_text()
    (alarm,) = [event for event in attempt.events("watch") if event["detector"] == "nan"]
    assert (alarm["step"], alarm["ranks"]) == (41, [1])
    assert attempt.losses() == sound.losses()


FLIPPED = """
import torch
from trainer.builtin import agent
from trainer.builtin.watch import replay
compute = replay.compute
def flipped(*given):
    engine, found = given[0], compute(*given)
    wrong = torch.distributed.get_rank() == 1 and engine.global_steps >= 39
    return found._replace(again=found.again ^ 4) if wrong else found
replay.compute = flipped
agent._exit(agent.main())
"""


@pytest.mark.nightly
def test_a_rank_that_computes_differently_has_its_own_code_and_newer_saves_no_trust(
    world: World, config: TrainConfig, twin: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = WatchConfig(replay_every=10, replay="quarantine")
    saving = config.checkpoint.model_copy(update={"every_steps": 6})
    world.config = config.model_copy(update={"watch": watch, "checkpoint": saving})
    monkeypatch.setattr("tests.trainer.agents.AGENT", FLIPPED)
    first = run(world, 1)
    assert first.termination(1)["exit_code"] == ExitCode.SICK, first.log(1).read_text()
    assert first.termination(0)["reason"] in ("interrupted", "peer-lost")
    (alarm,) = [event for event in first.events("watch") if event["detector"] == "replay"]
    assert (alarm["step"], alarm["ranks"]) == (40, [1])
    monkeypatch.undo()
    second = run(world, 2)
    # The replay before step 30 was sound: the checkpoint of step 24 is the newest one before it, 30 and 36 are not.
    assert second.events("restored")[0]["step"] <= 29
    assert [agent.returncode for agent in second.agents] == [0, 0], second.log(0).read_text()
    assert second.losses()[60] == twin.losses()[60]


def test_a_model_without_deterministic_kernels_is_told_once_and_names_no_node(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, tries = overseer(tmp_path, replay_every=10, replay="quarantine"), []

    def refused(*given: Any) -> replay.Digests:
        tries.append(given)
        return replay.Digests(7, 0, 0, refusal="cumsum_cuda_kernel does not have a deterministic implementation")

    alone_here = SimpleNamespace(rank=0, first=True, of_first=lambda tensor: tensor, gather=lambda mine: [mine])
    made.gang = cast(Gang, alone_here)
    monkeypatch.setattr(replay, "compute", refused)
    fed = SimpleNamespace(micro_batches=[np.zeros((1, 17), dtype=np.int64)])
    assert [made.replay(step, cast(Fed, fed)) for step in (10, 20)] == [Ruling(), Ruling()]
    (event,) = told(capsys)
    assert (event["detector"], event["step"]) == ("replay", 10) and "cumsum" in event["text"]
    assert len(tries) == 1 and made.watch.sound_step == -1, "what nobody has looked at is not called sound"


def test_what_was_sound_is_known_over_a_restart_and_a_ban_goes_back_to_it(tmp_path: Path) -> None:
    first = overseer(tmp_path / "first", replay_every=10)
    first.watch.sound_step = 39
    later = overseer(tmp_path / "later", replay_every=10)
    later.watch.restore(first.watch.state())
    assert later.watch.sound_step == 39


def test_ranks_that_wait_for_each_other_in_the_forward_pass_are_not_called_slow(tmp_path: Path) -> None:
    for stage, alarms in ((1, 1), (3, 0)):
        made = overseer(tmp_path / str(stage))
        made.config = made.config.model_copy(update={"zero_stage": stage})
        slow = replace(EVERY, forward_s=(0.1, 0.1, 0.1, 0.4))
        for step in steps(60):
            made.judge(step, slow, 0.2)
        assert made.watch.alarms == alarms
