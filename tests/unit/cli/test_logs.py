"""`bivouac logs`: what the pods printed, read from the record's pieces, while they run and afterwards."""

from __future__ import annotations

from typing import Any

import pytest

from infra.cli.look.logs import lines
from infra.errors import UserError
from infra.record.events import Kind
from infra.record.pod_logs import piece
from infra.record.store import CampaignStore
from infra.spec.campaign import load
from tests.root import ROOT
from tests.unit.fake_s3 import FakeS3, Time


@pytest.fixture
def store() -> CampaignStore:
    made: Any = FakeS3(Time())
    store = CampaignStore(made, "state", "train", "reader")
    spec = load(ROOT / "infra/campaigns/rehearsal.yaml").spec
    store.put(f"{store.prefix}/spec.json", spec.model_dump_json().encode())
    written(store, "train-a1-gang-0-0-x", "one\ntw", "o\n")
    written(store, "train-a1-gang-0-1-y", "first\n")
    written(store, "train-a2-gang-0-0-z", "three\n", "four")
    written(store, "archive-x", "no rank printed this\n")
    return store


def written(store: CampaignStore, pod: str, *bodies: str, begin: int = 0) -> None:
    for number, body in enumerate(bodies, begin):
        store.put(f"{store.prefix}/{piece(pod, number)}", body.encode())


def read(store: CampaignStore, **asked: Any) -> list[str]:
    given = {"attempt": None, "rank": None, "follow": False, "pause": lambda: None} | asked
    return list(lines(store, **given))


def test_the_newest_attempt_is_shown_and_an_earlier_one_by_its_number(store: CampaignStore) -> None:
    assert read(store) == ["node 0 | three", "node 0 | four"]
    assert read(store, attempt=1) == ["node 0 | one", "node 0 | two", "node 1 | first"]


def test_of_one_rank_only_its_nodes_lines_are_shown(store: CampaignStore) -> None:
    assert read(store, attempt=1, rank=1) == ["first"]
    for asked in ({"rank": 2}, {"attempt": 2, "rank": 1}, {"attempt": 3}):
        with pytest.raises(UserError):
            read(store, **asked)


def test_what_comes_is_followed_into_the_next_attempt_until_training_is_over(store: CampaignStore) -> None:
    story = iter([
        lambda: written(store, "train-a2-gang-0-0-z", " and\nfive\n", begin=2),
        lambda: written(store, "train-a3-gang-0-0-w", "six\n"),
        lambda: store.append(Kind.TRAINING_FINISHED, outcome="done", why="", step=1, committed_step=1),
    ])  # fmt: skip
    assert read(store, rank=0, follow=True, pause=lambda: next(story)()) == ["three", "four and", "five", "six"]
