"""`bivouac exec` and `bivouac cp`: what is refused before a cluster is asked, and what a cluster's errors say."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx2
import pytest
from rich.console import Console

from infra.cli.look import cp, inside
from infra.cli.look import exec as look_exec
from infra.errors import BivouacError, TemporaryError, UserError
from infra.record.store import CampaignStore
from infra.spec.campaign import Spec, load
from tests.root import ROOT
from tests.worlds.s3 import FakeS3, Time

QUIET = Console(file=io.StringIO())


class NoCluster(Exception):
    pass


class Account:
    def __init__(self, region: str) -> None: ...

    def client(self, service: str) -> Any:
        class Eks:
            class exceptions:
                ResourceNotFoundException = NoCluster

        return Eks

    def identity(self) -> dict[str, str]:
        return {"Arn": "arn:aws:iam::123456789012:user/ada"}


@pytest.fixture
def store() -> CampaignStore:
    fake_s3: Any = FakeS3(Time())
    store = CampaignStore(fake_s3, "state", "train", "reader")
    spec = load(ROOT / "infra/campaigns/rehearsal.yaml").spec
    store.put(f"{store.prefix}/spec.json", spec.model_dump_json().encode())
    return store


@contextmanager
def answering(patch: pytest.MonkeyPatch, store: CampaignStore, answer: Any) -> Iterator[None]:
    def streams(account: object, cluster: str) -> httpx2.Client:
        if answer is None:
            raise NoCluster
        return httpx2.Client(base_url="https://api", transport=httpx2.MockTransport(answer))

    patch.setattr(inside, "Account", Account)
    patch.setattr(inside, "streams_from_outside", streams)
    for module in (look_exec, cp):
        patch.setattr(module, "record_of", lambda campaign, region: store)
    yield


def refused(status: int, message: str = "no") -> Any:
    return lambda request: httpx2.Response(status, content=json.dumps({"message": message}).encode())


def away(request: httpx2.Request) -> httpx2.Response:
    raise httpx2.ConnectTimeout("timed out")


@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        (None, UserError, ("the campaign has no cluster", "bivouac-rehearsal", "bivouac status train")),
        (refused(401), UserError, ("does not know these credentials", "create-access-entry")),
        (refused(403, "cannot list pods"), UserError, ("does not allow", "cannot list pods", "pods/exec")),
        (away, TemporaryError, ("does not answer", "https://api", "timed out", "api_allowed_cidrs")),
        (lambda request: httpx2.Response(200, json={"items": []}), UserError, ("no attempt is in the cluster",)),
    ],
)
def test_a_cluster_that_is_gone_away_or_closed_is_told_with_its_cure(
    monkeypatch: pytest.MonkeyPatch, store: CampaignStore, answer: Any, kind: type[BivouacError], words: tuple[str, ...]
) -> None:
    with answering(monkeypatch, store, answer), pytest.raises(kind) as error:
        look_exec.exec_command("train", "us-east-1", 0, ["true"], False, False, QUIET)
    assert all(word in str(error.value) for word in words), error.value


def test_a_private_api_is_named_as_the_cause(monkeypatch: pytest.MonkeyPatch, store: CampaignStore) -> None:
    spec = json.loads(store.get(f"{store.prefix}/spec.json") or b"")
    private = Spec.model_validate({**spec, "network": {**spec["network"], "api_endpoint": "private"}})
    store.put(f"{store.prefix}/spec.json", private.model_dump_json().encode())
    with answering(monkeypatch, store, away), pytest.raises(TemporaryError, match="peered"):
        cp.cp_command("train", "us-east-1", "0:/x", "x", QUIET)


@pytest.mark.parametrize(("source", "target"), [("a", "b"), ("0:/a", "1:/b"), ("./0:/a", "b")])
def test_a_copy_has_one_rank_on_one_side(source: str, target: str) -> None:
    with pytest.raises(UserError, match="one side must be a rank"):
        cp.cp_command("train", "us-east-1", source, target, QUIET)


def test_a_missing_file_is_told_before_the_cluster_is_asked() -> None:
    with pytest.raises(UserError, match="no such file"):
        cp.cp_command("train", "us-east-1", "/no/such", "0:/tmp", QUIET)


def test_a_terminal_that_is_none_is_refused() -> None:
    with pytest.raises(UserError, match="this is none"):
        look_exec.exec_command("train", "us-east-1", 0, ["bash"], False, True, QUIET)


def test_the_record_gets_the_programs_name_and_who_but_no_word_more(
    monkeypatch: pytest.MonkeyPatch, store: CampaignStore
) -> None:
    labels = {"bivouac.dev/attempt": "4"}
    pod = {"metadata": {"name": "p", "labels": labels}, "spec": {"containers": [{"name": "trainer"}]},
           "status": {"phase": "Running"}}  # fmt: skip

    def answer(request: httpx2.Request) -> httpx2.Response:
        if request.url.path.endswith("/exec"):
            return httpx2.Response(404, json={"message": "gone"})
        return httpx2.Response(200, json={"items": [pod]})

    with answering(monkeypatch, store, answer), pytest.raises(UserError, match="404 gone"):
        look_exec.exec_command("train", "us-east-1", 0, ["/usr/bin/env", "KEY=s3cret", "x"], False, False, QUIET)
    (event,) = store.events()
    who = "arn:aws:iam::123456789012:user/ada"
    assert event.kind == "operator.entered"
    assert event.data == {"who": who, "attempt": 4, "node": 0, "pod": "p", "program": "env"}
