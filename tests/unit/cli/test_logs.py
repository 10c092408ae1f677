"""`bivouac logs`: what the pods printed, read from the record's pieces, while they run and afterwards."""

from __future__ import annotations

import io
import re
import time
from collections.abc import Callable
from contextlib import nullcontext
from datetime import UTC, datetime
from typing import Any

import httpx2
import pytest
from rich.console import Console

from infra.cli.look import logs as logs_module
from infra.cli.look.logs import Asked, Living, in_words, lines, logs_command, moment
from infra.errors import UserError
from infra.record.events import Stage
from infra.record.payloads.stages import StageStarted
from infra.record.payloads.training import TrainingFinished
from infra.record.pod_logs import UNTIL, Position, piece
from infra.record.store import CampaignStore
from infra.spec.campaign import load
from tests.rehearsal.steward.fake_kubelet import START_NS, rfc3339
from tests.root import ROOT
from tests.worlds.s3 import FakeS3, Time


@pytest.fixture
def store() -> CampaignStore:
    fake_s3: Any = FakeS3(Time())
    store = CampaignStore(fake_s3, "state", "train", "reader")
    spec = load(ROOT / "infra/campaigns/rehearsal.yaml").spec
    store.put(f"{store.prefix}/spec.json", spec.model_dump_json().encode())
    written(store, "train-a1-gang-0-0-x", "one\ntw", "o\n")
    written(store, "train-a1-gang-0-1-y", "first\n")
    written(store, "train-a2-gang-0-0-z", "three\n", "four")
    written(store, "archive-x", "no rank printed this\n")
    return store


BEGINNING = Position(1, 1)


def written(store: CampaignStore, pod: str, *bodies: str, begin: int = 0, until: Position = BEGINNING) -> None:
    for number, body in enumerate(bodies, begin):
        told = {UNTIL: until.stored()}
        assert store.put_if_absent(f"{store.prefix}/{piece(pod, number)}", body.encode(), told)


def read(
    store: CampaignStore, living: Living | None = None, pause: Callable[[], object] = lambda: None, **asked: Any
) -> list[str]:
    return list(lines(store, Asked(**asked), living, pause))


class Cluster(httpx2.BaseTransport):
    """An API server with the logs of living pods."""

    def __init__(self, logs: dict[str, list[tuple[int, str]]]) -> None:
        self.logs = logs
        self.ended = False

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        name = request.url.path.removeprefix("/api/v1/namespaces/campaign/pods").strip("/")
        if not name and "steward" in str(request.url):
            pods: list[dict[str, Any]] = [{"metadata": {"name": pod}} for pod in self.logs if pod.startswith("steward")]
            return httpx2.Response(200, json={"items": pods}, request=request)
        if not name:
            found = [
                (pod, *re.findall(r"a(\d+)-gang-0-(\d+)", pod)[0]) for pod in self.logs if not pod.startswith("steward")
            ]
            labels = "bivouac.dev/attempt"
            index = "batch.kubernetes.io/job-completion-index"
            pods = [
                {"metadata": {"name": pod, "labels": {labels: a}, "annotations": {index: i}},
                 "spec": {"containers": [{"name": "trainer"}]}}
                for pod, a, i in found
            ]  # fmt: skip
            return httpx2.Response(200, json={"items": pods}, request=request)
        if name.removesuffix("/log") not in self.logs:
            return httpx2.Response(404, json={"code": 404}, request=request)
        if not name.endswith("/log"):
            phase = "Succeeded" if self.ended else "Running"
            return httpx2.Response(200, json={"status": {"phase": phase}}, request=request)
        text = "".join(f"{rfc3339(at)} {line}" for at, line in self.logs[name.removesuffix("/log")])
        return httpx2.Response(200, content=text.encode(), request=request)


def living(logs: dict[str, list[tuple[int, str]]]) -> Living:
    return Living(httpx2.Client(base_url="https://api", transport=Cluster(logs)), "train")


def test_the_newest_attempt_is_shown_and_an_earlier_one_by_its_number(store: CampaignStore) -> None:
    assert read(store) == ["node 0 | three", "node 0 | four"]
    assert read(store, attempt=1) == ["node 0 | one", "node 0 | two", "node 1 | first"]


def test_the_job_s_own_evaluation_comes_last_and_is_of_no_attempt_or_rank(store: CampaignStore) -> None:
    written(store, "train-judge1-gang-0-0-v", "the loss\n")
    assert read(store) == ["node 0 | three", "node 0 | four", "evaluation | the loss"]
    assert read(store, rank=0) == ["three", "four"] and read(store, attempt=2) == ["node 0 | three", "node 0 | four"]


def test_of_one_rank_only_its_nodes_lines_are_shown(store: CampaignStore) -> None:
    assert read(store, attempt=1, rank=1) == ["first"]
    wrong: tuple[dict[str, Any], ...] = ({"rank": 2}, {"attempt": 2, "rank": 1}, {"attempt": 3})
    for asked in wrong:
        with pytest.raises(UserError):
            read(store, **asked)


def test_the_pods_of_an_mpi_job_are_nodes_of_the_gang_its_launcher_the_first(store: CampaignStore) -> None:
    written(store, "train-a3-launcher-abcde", "of mpirun\n")
    written(store, "train-a3-worker-0", "of node 1\n")
    assert read(store) == ["node 0 | of mpirun", "node 1 | of node 1"]
    assert read(store, rank=1) == ["of node 1"]


def test_what_comes_is_followed_into_the_next_attempt_until_training_is_over(store: CampaignStore) -> None:
    story = iter([
        lambda: written(store, "train-a2-gang-0-0-z", " and\nfive\n", begin=2),
        lambda: written(store, "train-a3-gang-0-0-w", "six\n"),
        lambda: store.append(TrainingFinished(outcome="done", why="", step=1, committed_step=1)),
    ])  # fmt: skip
    assert read(store, rank=0, follow=True, pause=lambda: next(story)()) == ["three", "four and", "five", "six"]


NEWEST = "train-a2-gang-0-0-z"


def test_what_the_record_has_not_yet_comes_from_the_cluster_once(store: CampaignStore) -> None:
    """The last piece ends with the second of two lines of one time."""
    at = START_NS
    written(store, NEWEST, "\nfive\nsix\n", begin=2, until=Position(at, 2))
    cluster = living({NEWEST: [(at, "five\n"), (at, "six\n"), (at, "seven\n"), (at + 1, "eight\n")]})
    whole = ["three", "four", "five", "six", "seven", "eight"]
    assert read(store, cluster, rank=0) == whole
    story = iter([
        lambda: store.append(TrainingFinished(outcome="done", why="", step=1, committed_step=1)),
    ])  # fmt: skip
    cluster._http._transport.ended = True  # type: ignore[attr-defined]
    assert read(store, cluster, rank=0, follow=True, pause=lambda: next(story)()) == whole


def test_a_pod_that_the_record_does_not_know_yet_is_read(store: CampaignStore) -> None:
    cluster = living({"train-a3-gang-0-1-new": [(START_NS, "begins\n")]})
    assert read(store, cluster) == ["node 1 | begins"]
    assert read(store, cluster, attempt=2) == ["node 0 | three", "node 0 | four"]


def test_only_what_is_not_older_is_shown(store: CampaignStore) -> None:
    """A piece that ended before is left out; in the one that spans the time, events tell theirs."""
    s, since = 10**9, START_NS
    old = f'{{"time": {since / s - 5}}}'
    new = f'{{"time": {since / s + 5}}}'
    pod = "train-a5-gang-0-0-p"
    written(store, pod, "long ago\n", until=Position(since - 9 * s, 1))
    written(store, pod, f"{old}\nbetween\n{new}\nafter\n", begin=1, until=Position(since + 6 * s, 1))
    assert read(store, rank=0, since=since) == [new, "after"]
    later = since + 7 * s
    cluster = living({pod: [(later - 1, "just before\n"), (later, "now\n")]})
    assert read(store, cluster, rank=0, since=later) == ["now"]


def test_a_time_ago_is_a_duration() -> None:
    assert moment(None) == 0 and abs(time.time_ns() - 600 * 10**9 - moment("10m")) < 500 * 10**9
    for wrong in ("10", "soon", "-5m"):
        with pytest.raises(UserError, match="since"):
            moment(wrong)


def test_only_each_pods_newest_lines_are_shown_and_those_that_come_while_it_is_followed(
    store: CampaignStore,
) -> None:
    assert read(store, attempt=1, tail=1) == ["node 0 | two", "node 1 | first"]
    story = iter([
        lambda: written(store, NEWEST, " and\nfive\nsix\n", begin=2),
        lambda: store.append(TrainingFinished(outcome="done", why="", step=1, committed_step=1)),
    ])  # fmt: skip
    assert read(store, rank=0, follow=True, tail=1, pause=lambda: next(story)()) == ["three", "four and", "five", "six"]


def test_people_read_an_events_words_and_a_job_s_text_as_it_is() -> None:
    step = '\x1e{"event": "step", "time": 1795262400.5, "rank": 0, "step": 5, "loss": 2.103456, "norm": null}'
    assert in_words(step) == "12:00:00 step 5, loss 2.103"
    assert in_words('{"event": "refused_shard", "step": 7, "why": "x"}') == "refused shard, step 7, why x"
    assert in_words('{"event": "step"}') == "step ?"
    for text in ("epoch 3", '{"a": 1}', "{"):
        assert in_words(text) == text


def test_the_steward_s_log_comes_from_its_pods_and_the_drivers_words_from_the_record(
    store: CampaignStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = living({"train-a3-gang-0-1-new": [(START_NS, "of a job\n")], "steward-x": [(START_NS, "it looks\n")]})
    monkeypatch.setattr(logs_module, "record_of", lambda *_: store)
    monkeypatch.setattr(logs_module, "living_logs", lambda *_: nullcontext(cluster))
    driver = CampaignStore(store.s3, "state", "train", "driver-1", now=lambda: datetime(2026, 1, 1, tzinfo=UTC))
    driver.append(StageStarted(stage=Stage.BAKE))

    def said(of: str, **options: Any) -> str:
        out, notes = io.StringIO(), io.StringIO()
        assert logs_command("train", "us-east-1", Console(file=out), of=of, notes=Console(file=notes), **options) == 0
        return out.getvalue()

    assert said("steward") == "it looks\n" and said("job") == "node 1 | of a job\n"
    assert said("driver").endswith("driver   bake begins\n")
    assert said("driver", since="1h") == ""
    with pytest.raises(UserError, match="has logs"):
        said("closer")
    with pytest.raises(UserError, match="attempts and ranks"):
        said("driver", rank=0)


def test_the_log_of_a_steward_that_comes_later_is_followed_beside_that_of_a_dead_one(
    store: CampaignStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = {"steward-dead": [(START_NS, "it looks\n")]}
    looks = iter(range(9))

    def pause(_: float) -> None:
        if next(looks) == 0:
            logs["steward-new"] = [(START_NS, "it took over\n")]
        else:
            store.append(TrainingFinished(outcome="done"))

    monkeypatch.setattr(logs_module.time, "sleep", pause)
    texts = list(logs_module._of_steward(store, living(logs), Asked(follow=True)))
    assert texts == ["it looks", "it took over"]
