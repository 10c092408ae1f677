"""Live tiers have no door to the outside: the steward verifies, prunes and carries out what people ask for."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from http import HTTPStatus
from pathlib import Path

import boto3
import pytest
from rich.console import Console

from infra.aws.account import Account
from infra.checkpoints import requests, work
from infra.checkpoints.find import TIERS, find
from infra.checkpoints.place import FolderPlace
from infra.cli.data import checkpoints as commands
from infra.cluster.steward_config import STEWARD_LEASE
from infra.errors import LeaseLost, UserError
from infra.record.events import Stage
from infra.record.lease import Lease
from infra.record.payloads.attempts import NodesAtZero
from infra.record.payloads.stages import StageFinished
from infra.record.payloads.training import TrainingFinished
from infra.record.store import CampaignStore
from infra.spec import names
from infra.steward import request_handling
from tests.unit.steward.seeing.test_tiers_seen import CAMPAIGN, commit
from trainer.builtin.serving import Node
from trainer.contract import step_folder
from trainer.supervisor.place import Place
from trainer.supervisor.serving import serve

REGION = "us-east-1"
BOTH = ("a.pt", "b.pt")


@dataclass
class LiveTiers:
    """A campaign in the record, its shared tier, and one node with a tier of its own."""

    shared: Path
    local: Path
    store: CampaignStore
    lease: Lease
    desk: request_handling.RequestServer

    def shard(self, tier: Path, step: int, name: str) -> Path:
        return tier / CAMPAIGN / step_folder(step) / "attempt-0001" / name


@pytest.fixture
def camp(moto_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LiveTiers]:
    for name, value in {"ENDPOINT_URL": moto_server, "ACCESS_KEY_ID": "a", "SECRET_ACCESS_KEY": "b"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    monkeypatch.setattr(request_handling.RequestServer, "every_s", 0.02)
    for module, pause in ((request_handling, "_BUSY_PAUSE_S"), (requests, "_POLL_S")):
        monkeypatch.setattr(module, pause, 0.02)
    account = Account(REGION)
    where = names.buckets(account.identity()["Account"], REGION)
    for bucket in (where.state, where.archive):
        boto3.client("s3", region_name=REGION).create_bucket(Bucket=bucket)
    store = CampaignStore(account.client("s3"), where.state, CAMPAIGN, "test")
    store.put_json("spec.json", {})
    shared, local = tmp_path / "shared", tmp_path / "local"
    for step in (10, 20, 30):
        commit(shared, step, BOTH)
    commit(local, 30, ("a.pt",))
    place = Place(CAMPAIGN, 1, "node-7", "127.0.0.1", 0, 1, 1, "pod-0:29500")
    node = Node(place, 10, tmp_path / "run", local / CAMPAIGN)
    server = serve("127.0.0.1", node.status, node.answer, 0)
    monkeypatch.setattr(request_handling, "AGENT_PORT", server.server_port)
    lease = store.lease(STEWARD_LEASE, timedelta(seconds=60))
    lease.acquire()
    one = request_handling.RequestServer(store, lambda: {"pod-0": "127.0.0.1"}, lease.check, shared)
    yield LiveTiers(shared, local, store, lease, one)
    lease._lost = "over"  # the desk's thread ends
    server.shutdown()
    server.server_close()
    for key in store.keys(""):
        store.s3.delete_object(Bucket=store.bucket, Key=key)


def verify(tier: str | None, step: int | None = None) -> tuple[int, dict[tuple[str, str, int], dict[str, str]]]:
    out = io.StringIO()
    console = Console(width=200, file=out)
    code = commands.verify_command(CAMPAIGN, step, REGION, True, console, tier)
    rows = json.loads(out.getvalue())
    return code, {(row["tier"], row["node"], row["step"]): row["faults"] for row in rows}


def test_verify_reads_the_shared_tier_and_every_node_and_names_what_is_wrong(camp: LiveTiers) -> None:
    camp.desk.open()
    code, found = verify(None)
    assert code == 0 and set(found) == {
        ("shared", "", 10),
        ("shared", "", 20),
        ("shared", "", 30),
        ("local", "node-7", 30),
    }
    camp.shard(camp.local, 30, "a.pt").write_bytes(b"bytez")
    camp.shard(camp.shared, 20, "b.pt").unlink()
    code, found = verify(None)
    assert code == 74 and found["shared", "", 20] == {"attempt-0001/b.pt": "missing"}
    assert set(found["local", "node-7", 30]) == {"attempt-0001/a.pt"} and not found["shared", "", 30]
    assert verify("local", 30)[1].keys() == {("local", "node-7", 30)}
    assert not camp.store.keys("requests/"), "an answered request was left in the record"


@pytest.mark.parametrize("while_reading", [20, 10])
def test_a_step_that_retention_takes_meanwhile_is_left_out_and_is_no_damage(tmp_path: Path, while_reading: int) -> None:
    for step in (10, 20):
        commit(tmp_path, step, BOTH)
    place = FolderPlace(tmp_path / CAMPAIGN)

    def tell(words: str) -> None:
        if words.startswith(f"step {while_reading}:"):
            place.remove(10)

    assert [(one.step, one.sound) for one in work.verify(place, [20, 10], tell)] == [(20, True)]


def test_prune_of_the_shared_tier_removes_what_it_showed_and_not_the_newest_proven(camp: LiveTiers) -> None:
    camp.desk.open()
    camp.shard(camp.shared, 30, "a.pt").write_bytes(b"bytez")
    out = io.StringIO()
    console = Console(width=200, file=out)
    assert commands.prune_command(CAMPAIGN, 1, True, REGION, True, console, "shared") == 0
    body = json.loads(out.getvalue())
    assert (body["keep"], body["proven"], body["drop"], body["removed"]) == ([30, 20], 20, [10], True)
    assert sorted(path.name for path in (camp.shared / CAMPAIGN).iterdir()) == [step_folder(20), step_folder(30)]


def test_restore_brings_a_step_out_of_the_cluster_and_leaves_nothing_in_the_bucket(
    camp: LiveTiers, tmp_path: Path
) -> None:
    camp.desk.open()
    out = io.StringIO()
    console = Console(width=200, file=out)
    assert commands.restore_command(CAMPAIGN, tmp_path / "out", None, REGION, console) == 0
    folder = tmp_path / "out" / step_folder(30)
    assert {path.name: path.read_bytes() for path in folder.glob("*/*")} == dict.fromkeys(BOTH, b"bytes")
    assert (folder / "manifest.json").exists() and not camp.store.keys("carried/")


def test_without_a_living_steward_nothing_is_pretended(camp: LiveTiers) -> None:
    camp.lease.release()
    for command in (
        partial(commands.verify_command, CAMPAIGN, None, REGION, True),
        partial(commands.prune_command, CAMPAIGN, 1, True, REGION, True),
    ):
        with pytest.raises(UserError, match=r"no steward is in the cluster.*bivouac run"):
            command(Console(file=io.StringIO()), "shared")


def test_a_steward_that_lost_its_lease_touches_nothing_and_answers_nothing(camp: LiveTiers) -> None:
    camp.store.put_json("requests/x.json", {"kind": "prune", "at": "2999-01-01T00:00:00Z", "steps": [10], "keep": 1})
    camp.lease._lost = "taken over"
    with pytest.raises(LeaseLost):
        camp.desk.look()
    assert (camp.shared / CAMPAIGN / step_folder(10)).exists() and camp.store.keys("requests/x.answer") == []


def test_a_nodes_own_disk_is_not_pruned_from_outside(camp: LiveTiers) -> None:
    with pytest.raises(UserError, match=r"keep_local"):
        commands.prune_command(CAMPAIGN, 1, True, REGION, True, Console(file=io.StringIO()), "local")


def test_an_agent_reads_one_step_at_a_time(camp: LiveTiers) -> None:
    from trainer.supervisor.sealing.listing import _ONE_AT_A_TIME, answer

    asked = (camp.local / CAMPAIGN, CAMPAIGN, "node-7")
    with _ONE_AT_A_TIME:
        busy = answer("/verdicts/30", *asked)
    assert busy is not None and busy[0] == HTTPStatus.TOO_MANY_REQUESTS
    assert answer("/verdicts/20", *asked) is None


def test_what_the_steward_told_of_a_tier_is_shown_no_longer_than_the_tier_lives(camp: LiveTiers) -> None:
    rows = [
        {"tier": "shared", "step": 30, "committed": True},
        {"tier": "local", "node": "n", "step": 30, "committed": True},
    ]
    camp.store.put_json(TIERS, {"rows": rows})
    assert [row.tier for row in find(CAMPAIGN, REGION).tiers] == ["shared", "local"]
    camp.store.append(TrainingFinished(outcome="completed", committed_step=30))
    camp.store.append(NodesAtZero())
    assert [row.tier for row in find(CAMPAIGN, REGION).tiers] == ["shared"], "the nodes' disks are gone"
    camp.store.append(StageFinished(stage=Stage.TEARDOWN))
    assert not find(CAMPAIGN, REGION).tiers
