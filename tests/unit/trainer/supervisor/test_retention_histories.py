"""Random histories of saves, damage, losses, restarts and relaunches: the newest sound step stays and is chosen."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.worlds.supervisor_tier import JobDisk
from trainer.contract.sealed import newest_sound, removable
from trainer.supervisor.sealing.shared import NoSoundSeal, Sealing

STEPS = st.sets(st.integers(0, 30), max_size=8)


@given(STEPS, st.integers(0, 5), STEPS, STEPS)
def test_the_rule_keeps_the_newest_not_known_to_be_unsound_and_all_that_is_newer(
    committed: set[int], keep: int, unsound: set[int], protected: set[int]
) -> None:
    gone = removable(committed, keep, unsound, protected)
    left, counted = committed - set(gone), committed - unsound
    assert gone == sorted(gone, reverse=True) and set(gone) <= committed - protected
    assert set(sorted(counted)[-max(keep, 1) :]) <= left
    if counted or protected:
        newest = max(counted | protected)
        assert {step for step in committed if step >= newest} <= left
        oldest = min({*sorted(counted)[-max(keep, 1) :], *protected})
        assert not {step for step in left if step < oldest}, "nothing older than what is kept stays"
        assert not {step for step in left - protected - counted if step < newest}, "nor what is unsound"
    else:
        assert not gone, "where nothing is sound, nothing goes"


@given(STEPS, STEPS)
def test_the_newest_sound_step_is_chosen_and_no_older_one_is_looked_at(committed: set[int], sound: set[int]) -> None:
    looked: list[int] = []
    chosen = newest_sound(committed, lambda step: looked.append(step) or step in sound)
    assert chosen == max(committed & sound, default=None)
    assert looked == sorted((step for step in committed if chosen is None or step >= chosen), reverse=True)


def sound_steps(tier: Path) -> dict[int, str]:
    """Step -> content of its file, by reading what lies there: shares no code with the supervisor."""
    found = {}
    for manifest in tier.glob("step-*/manifest.json"):
        try:
            shards = json.loads(manifest.read_text())["shards"]
            contents = {shard["file"]: (manifest.parent / shard["file"]).read_bytes() for shard in shards}
        except (OSError, ValueError):
            continue
        if all(hashlib.sha256(contents[shard["file"]]).hexdigest() == shard["sha256"] for shard in shards):
            (own,) = (text for name, text in contents.items() if "tree-" not in name)
            found[int(manifest.parent.name[5:])] = own.decode()
    return found


KEEP, WHICH = st.sampled_from([1, 1, 2, 3]), st.sampled_from([0, 0, 1, 2])
HARMS = st.sampled_from(["damage", "lose", "unmanifest"])
SAVES = st.tuples(st.just("save"), st.sampled_from([0, 1, 3, 10, 10]))
ACTS = st.one_of(
    SAVES,
    SAVES,
    SAVES,
    st.tuples(HARMS, WHICH),
    st.just(("restart in place",)),
    st.tuples(st.just("relaunch"), KEEP),
    st.tuples(st.just("fall"), HARMS, WHICH, KEEP),
    st.tuples(st.just("fall"), HARMS, st.just(0), st.just(1)),
)


class History:
    def __init__(self, root: Path, keep: int) -> None:
        self.disk = JobDisk(root)
        self.attempt, self.step, self.generation, self.saves = 0, 0, 0, 0
        self.sealing: Sealing
        self.over = False
        self.relaunch(keep)

    def act(self, name: str, *given: Any) -> None:
        before = sound_steps(self.disk.tier)
        if name == "save":
            self.save(given[0] if self.step else 10)
            after = sound_steps(self.disk.tier)
            assert max(after) == self.step >= max(before, default=0) or max(after) == max(before), (before, after)
            assert after[max(after)] == (self.text if max(after) == self.step else before[max(before)])
        elif name in ("damage", "lose", "unmanifest"):
            self.harm(name, *given)
        elif name == "restart in place":
            self.generation += 1
            self.resume(before)
        elif name == "relaunch":
            self.relaunch(*given)
        else:
            self.harm(*given[:2])
            self.relaunch(given[2])

    def save(self, more: int) -> None:
        self.step, self.saves = self.step + more, self.saves + 1
        self.text = f"save {self.saves} of step {self.step}"
        self.disk.save(self.sealing, self.step, self.text)
        self.sealing.put_off.clear()
        self.sealing.look()

    def harm(self, how: str, which: int) -> None:
        steps = sorted(self.disk.tier.glob("step-*"), reverse=True)
        if not steps:
            return
        place = steps[which % len(steps)]
        files = [place / "manifest.json"] if how == "unmanifest" else sorted(place.glob("attempt-*/*"))
        if not files or not files[0].exists():
            return
        if how == "damage":
            files[0].write_bytes(b"?" * files[0].stat().st_size)
        else:
            files[0].unlink()

    def relaunch(self, keep: int) -> None:
        before = sound_steps(self.disk.tier)
        self.attempt, self.generation = self.attempt + 1, 0
        try:
            self.sealing, _, path = self.disk.begin(self.attempt, keep=keep)
        except NoSoundSeal:
            self.over = True
            assert not before
            return
        self.check(before, path)

    def resume(self, before: dict[int, str]) -> None:
        try:
            path = self.sealing.resume(self.generation)
        except NoSoundSeal:
            self.over = True
            assert not before
            return
        self.check(before, path)

    def check(self, before: dict[int, str], path: str) -> None:
        """The newest sound step was chosen, laid back as it was, and nothing sound went."""
        assert sound_steps(self.disk.tier) == before
        assert before or not list(self.disk.tier.glob("step-*/manifest.json")), "a start anew is a person's choice"
        assert self.sealing.committed == max(before, default=-1)
        assert (Path(path).read_text() if path else None) == before.get(max(before, default=-1))
        self.step = max(before, default=0)


def follow(acts: list[tuple[Any, ...]], keep: int) -> None:
    memory = Path("/dev/shm")
    root = Path(tempfile.mkdtemp(prefix="history-", dir=memory if memory.is_dir() else None))
    try:
        history = History(root, keep)
        for act in acts:
            if not history.over:
                history.act(*act)
        if not history.over:
            history.relaunch(1)
    finally:
        shutil.rmtree(root)


@example([("save", 10), ("save", 10), ("fall", "damage", 0, 1), ("save", 1)], 3)
@example([("save", 10), ("save", 10), ("fall", "lose", 0, 1), ("save", 1), ("restart in place",)], 3)
@settings(max_examples=100, deadline=None)
@given(st.lists(ACTS, min_size=6, max_size=14), st.integers(2, 3))
def test_the_newest_sound_step_is_never_removed_and_always_the_one_chosen(
    acts: list[tuple[Any, ...]], keep: int
) -> None:
    follow(acts, keep)


@pytest.mark.nightly
@settings(max_examples=3000, deadline=None)
@given(st.lists(ACTS, max_size=30), st.integers(1, 3))
def test_the_same_over_long_histories(acts: list[tuple[Any, ...]], keep: int) -> None:
    follow(acts, keep)
