"""Which step a restore takes: what claims to be one, what fits, what is told, and what is tidied up."""

from __future__ import annotations

import re
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.manifests import manifest_of
from tests.trainer.builtin.checkpoint.saved_steps import TinyEngine, Told, flip, random_state, saved
from trainer.builtin.checkpoint import restore, search
from trainer.builtin.checkpoint.commit import Begun
from trainer.builtin.checkpoint.neighbour import Neighbours, ShardAddress
from trainer.builtin.checkpoint.search import FoundShard
from trainer.builtin.checkpoint.tiers import Claim, Tiers
from trainer.contract import NOTHING_SOUND, Layout, Manifest, Shard, parse_manifest
from trainer.errors import ConfigError, Fenced, NothingSound

Events = list[dict[str, Any]]
pytestmark = pytest.mark.usefixtures("events")


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    seen: list[float] = []
    for module in (restore, search):
        monkeypatch.setattr(module, "time", SimpleNamespace(sleep=seen.append, monotonic=lambda: 0.0))
    return seen


def restored(tiers: Tiers, gang: Told | None = None, attempt: int = 2, stage: int = 1) -> tuple[Begun, TinyEngine]:
    engine = TinyEngine(gang or Told.of())
    return restore.load_start(engine, restore.choose_start(engine.gang, tiers, stage, attempt)), engine


# The whole way


def test_a_restore_loads_the_newest_step_with_its_random_state(tiers: Tiers) -> None:
    saved(tiers, 10)
    manifest = saved(tiers, 20)
    torch.manual_seed(99)
    begun, engine = restored(tiers)
    assert begun == Begun(manifest, on_shared=True) and engine.holds(20)
    assert torch.equal(torch.get_rng_state(), random_state(20))


def test_a_step_without_random_states_leaves_that_of_the_process(tiers: Tiers) -> None:
    saved(tiers, 10, rng_included=False)
    for tier in tiers:
        (tier.folder(10) / "attempt-0001/rng_rank_00000.pt").unlink()
    manifest = manifest_of(10, tuple(s for s in tiers.local.committed()[0].shards if "rng" not in s.file))
    manifest = manifest.model_copy(update={"rng_included": False})
    for tier in tiers:
        tier.publish(manifest, 2)
    torch.manual_seed(99)
    before = torch.get_rng_state()
    begun, engine = restored(tiers)
    assert begun.step == 10 and engine.holds(10) and torch.equal(torch.get_rng_state(), before)


def test_where_nothing_was_saved_training_begins_at_the_beginning(tiers: Tiers) -> None:
    begun, engine = restored(tiers)
    assert begun == Begun() and begun.on_shared is False and engine.loaded == {}


def test_a_restore_searches_at_the_neighbours_that_it_is_given(tiers: Tiers, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def chosen(_: Any, search: Any, layout: Layout, stage: int) -> None:
        seen.append((search, (layout.world_size, stage)))

    monkeypatch.setattr(restore, "_choose", chosen)
    doors = Neighbours(1, (ShardAddress(0, (0,), "here", 1, "word"), ShardAddress(1, (1,), "there", 1, "word")))
    for given in (doors, None):
        assert restore.choose_start(Told.of(ranks=3), tiers, 2, 7, given) is None
    assert [(each.neighbours, each.attempt, each.tiers) for each, _ in seen] == [
        (doors, 7, tiers),
        (Neighbours(0), 7, tiers),
    ]
    assert [shape for _, shape in seen] == [(3, 2), (3, 2)]


# What ended attempts left


@pytest.mark.parametrize(
    ("rank", "local_rank", "tidied"), [(0, 0, {"local", "shared"}), (1, 0, {"local"}), (1, 1, set())]
)
def test_the_first_rank_of_a_node_tidies_up_there_and_the_first_of_all_on_shared(
    rank: int, local_rank: int, tidied: set[str], tiers: Tiers, events: Events
) -> None:
    for tier in tiers:
        (tier.folder(40) / "attempt-0001").mkdir(parents=True)
    restored(tiers, Told.of(rank, local_rank, 2))
    assert {tier.name for tier in tiers if not tier.folder(40).exists()} == tidied
    told = {event["tier"]: (event["leftovers"], event["count"]) for event in events if event["event"] == "cleaned"}
    assert told == {name: (["step-00000040/attempt-0001", "step-00000040"], 2) for name in tidied}


def test_shards_of_steps_that_another_tier_has_committed_are_no_leftovers(tiers: Tiers, events: Events) -> None:
    for step in (10, 20):
        saved([tiers.shared], step)
        (tiers.local.folder(step) / "attempt-0001").mkdir(parents=True)
    restored(tiers)
    assert tiers.local.steps() == [20, 10] and "cleaned" not in [event["event"] for event in events]


# Candidates


def test_candidates_are_what_any_rank_saw_on_any_tier_newest_step_and_attempt_first(tiers: Tiers) -> None:
    both = saved(tiers, 10)
    here, there = saved([tiers.local], 20), saved([tiers.shared], 30)
    older, elsewhere = saved([tiers.local], 40, attempt=1), parse_manifest(manifest_of(40, attempt=3).serialize())
    gang = Told.of(ranks=2, others={1: [elsewhere.seal]}, given={1: elsewhere.serialize()})
    found = restore._candidates(gang, tiers)
    assert [(m.step, m.attempt) for m in found] == [(40, 3), (40, 1), (30, 1), (20, 1), (10, 1)]
    assert [m.serialize() for m in found] == [m.serialize() for m in (elsewhere, older, there, here, both)]


def test_manifests_that_every_rank_has_do_not_travel(tiers: Tiers) -> None:
    saved(tiers, 10)
    (seen,) = restore._candidates(Told.of(ranks=3), tiers)
    assert seen.step == 10, "a rank that gives or takes one finds none given"


def test_a_manifest_that_is_refused_is_told_and_others_beside_it_count(tiers: Tiers, events: Events) -> None:
    saved([tiers.shared], 10)
    saved([tiers.shared], 20)
    flip(tiers.shared.folder(20) / "manifest.json")
    assert [m.step for m in restore._candidates(Told.of(), tiers)] == [10]
    (told,) = events
    assert (told["event"], told["step"], told["tier"], told["file"]) == ("refused_shard", 20, "shared", "manifest.json")


class Answers:
    """A tier that answers one list of claims after the other, the last one ever after."""

    def __init__(self, *answers: list[Claim]) -> None:
        self.answers, self.asked = list(answers), 0

    def claims(self) -> Iterator[Claim]:
        self.asked += 1
        return iter(self.answers.pop(0) if len(self.answers) > 1 else self.answers[0])


SOUND, DAMAGED = Claim(10, manifest_of(10)), Claim(30, None, "damaged")
UNREAD = Claim(20, None, "unreadable: a disk", passing=True)


@pytest.mark.parametrize(
    ("answers", "waited", "taken"),
    [
        ([[SOUND, DAMAGED]], [], [SOUND, DAMAGED]),
        ([[SOUND, UNREAD], [SOUND]], [1.0], [SOUND]),
        ([[UNREAD, SOUND], [SOUND, UNREAD], [UNREAD], [DAMAGED]], [1.0, 5.0, 15.0], [DAMAGED]),
        ([[SOUND, UNREAD]], [1.0, 5.0, 15.0], [SOUND, UNREAD]),
    ],
)
def test_what_cannot_be_read_for_now_is_asked_for_again_with_growing_pauses(
    answers: list[list[Claim]], waited: list[float], taken: list[Claim], pauses: list[float]
) -> None:
    tier: Any = Answers(*answers)
    assert restore._claims(tier, search.PAUSES_S) == taken
    assert pauses == waited and tier.asked == len(waited) + 1


@pytest.mark.parametrize(("name", "waited"), [("local", []), ("shared", [1.0, 5.0, 15.0])])
def test_the_shared_tier_alone_is_waited_for(
    name: str, waited: list[float], tiers: Tiers, pauses: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        type(tiers.local), "claims", lambda tier: iter([UNREAD] if tier.name == name else []), raising=True
    )
    assert restore._candidates(Told.of(), tiers) == [] and pauses == waited


# The choice


class Searched:
    """A search that finds all shards but those of the steps that it is told."""

    def __init__(self, gang: Told, tiers: Tiers, incomplete: tuple[int, ...] = (), empty: tuple[int, ...] = ()) -> None:
        self.gang, self.tiers, self.attempt = gang, tiers, 2
        self.incomplete, self.empty, self.asked = incomplete, empty, list[tuple[str, int]]()

    def _found(self, how: str, manifest: Manifest) -> list[FoundShard | None]:
        self.asked.append((how, manifest.step))
        if manifest.step in self.empty:
            return []
        found: list[FoundShard | None] = [FoundShard(shard, self.tiers.local) for shard in manifest.shards]
        return [*found[:-1], None] if manifest.step in self.incomplete else found

    def shards(self, manifest: Manifest) -> list[FoundShard | None]:
        return self._found("shards", manifest)

    def all_shards(self, manifest: Manifest) -> list[FoundShard | None]:
        return self._found("everything", manifest)


def candidate(step: int, shards: int = 3, **told: Any) -> Manifest:
    folder = f"attempt-{told.get('attempt', 1):04d}"
    named = (Shard(file=f"{folder}/{n}.pt", size_bytes=1, sha256=f"{n:064x}", rank=n) for n in range(shards))
    return manifest_of(step, tuple(named), **told)


def chosen(searched: Searched, candidates: list[Manifest], shape: tuple[int, int] = (2, 1)) -> Any:
    return restore._choose(candidates, searched, Layout(shape[0]), shape[1])  # type: ignore[arg-type]


def test_the_newest_complete_step_is_taken_with_all_of_its_shards(tiers: Tiers, events: Events) -> None:
    newest, complete, oldest = (candidate(step, world_size=2) for step in (30, 20, 10))
    searched = Searched(Told.of(ranks=2), tiers, incomplete=(30,))
    manifest, found = chosen(searched, [newest, complete, oldest])
    assert manifest is complete and [item.shard for item in found] == list(complete.shards)
    assert searched.asked == [("shards", 30), ("shards", 20)]
    assert events == [{"event": "refused_step", "step": 30, "of_attempt": 1, "why": "not complete on every rank"}]


def test_a_step_of_one_shard_is_complete_and_one_of_which_nothing_is_known_is_not(tiers: Tiers) -> None:
    searched = Searched(Told.of(ranks=2), tiers, empty=(30,))
    manifest, found = chosen(searched, [candidate(30, world_size=2), candidate(20, shards=1, world_size=2)])
    assert manifest.step == 20 and len(found) == 1


def test_a_step_that_another_rank_lacks_is_taken_by_none(tiers: Tiers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Told, "all_agree", lambda gang, mine: False)
    assert chosen(Searched(Told.of(ranks=2), tiers), [candidate(20, world_size=2)]) is None


def test_the_first_rank_alone_tells_of_a_refused_step(tiers: Tiers, events: Events) -> None:
    chosen(Searched(Told.of(1, 1, 2), tiers, incomplete=(20,)), [candidate(20, world_size=2)])
    assert events == []


@pytest.mark.parametrize(
    ("ranks", "stage", "shape", "how"),
    [
        (2, 1, (2, 1), "shards"),
        (2, 0, (2, 0), "shards"),
        (4, 1, (2, 1), "everything"),
        (1, 3, (2, 3), "everything"),
        (4, 0, (2, 0), None),
        (2, 2, (2, 1), None),
        (1, 2, (2, 1), None),
        (2, 0, (2, 1), None),
        (1, 1, (1, 2), None),
    ],
)
def test_with_zero_another_number_of_ranks_is_reshaped_and_another_stage_never_fits(
    ranks: int, stage: int, shape: tuple[int, int], how: str | None, tiers: Tiers, events: Events
) -> None:
    searched = Searched(Told.of(ranks=shape[0]), tiers)
    fits, older = candidate(20, world_size=ranks, zero_stage=stage), candidate(10, world_size=9, zero_stage=0)
    if how:
        assert chosen(searched, [fits, older], shape)[0] is fits and searched.asked == [(how, 20)]
        return
    shapes = r"\[" + ", ".join(rf"\({a}, {b}\)" for a, b in sorted([(ranks, stage), (9, 0)])) + r"\]"
    with pytest.raises(ConfigError, match=rf"{shapes}, this attempt has \({shape[0]}, {shape[1]}\)"):
        chosen(searched, [fits, older], shape)
    assert searched.asked == []
    assert [event["why"] for event in events] == [
        f"of {ranks} ranks with ZeRO stage {stage}",
        "of 9 ranks with ZeRO stage 0",
    ]


def test_a_step_of_a_newer_attempt_ends_this_one_and_its_own_is_taken(tiers: Tiers) -> None:
    searched = Searched(Told.of(ranks=2), tiers)
    with pytest.raises(Fenced, match="attempt 3, this is 2"):
        chosen(searched, [candidate(20, world_size=2, attempt=3)])
    assert chosen(searched, [candidate(20, world_size=2, attempt=2)])[0].step == 20


def test_where_the_shared_tier_holds_nothing_sound_training_does_not_silently_begin_anew(tiers: Tiers) -> None:
    for step in (10, 20, 30, 40):
        saved([tiers.shared], step)
    for step in (20, 30):
        flip(tiers.shared.folder(step) / "manifest.json")
    searched = Searched(Told.of(ranks=2), tiers, incomplete=(10, 40))
    with pytest.raises(NothingSound) as told:
        chosen(searched, [candidate(40, world_size=2), candidate(10, world_size=2)])
    assert told.value.reason == NOTHING_SOUND, "the steward then brings back a copy from S3"
    assert re.search(
        r"none of them is sound.*: step 40, step 10, step 30: no manifest.*, step 20: no manifest", str(told.value)
    )
    assert all(str(told.value).count(f"step {step}") == 1 for step in (10, 20, 30, 40))


def test_where_the_nodes_alone_held_something_and_it_is_unsound_training_begins_anew(tiers: Tiers) -> None:
    saved([tiers.local], 10)
    assert chosen(Searched(Told.of(ranks=2), tiers, incomplete=(10,)), [candidate(10, world_size=2)]) is None
    assert chosen(Searched(Told.of(ranks=2), tiers), []) is None
