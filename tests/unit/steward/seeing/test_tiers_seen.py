"""What the nodes and the shared file system hold reaches people through the record."""

from __future__ import annotations

import hashlib
import socket
from pathlib import Path
from typing import Any

import pytest

from infra.checkpoints.find import TIERS
from infra.steward.seeing import tiers
from infra.steward.seeing.tiers import TierWatch
from tests.manifests import manifest_of, seal
from trainer.builtin.serving import Node
from trainer.contract import Shard, attempt_folder, step_folder
from trainer.contract.listing import Listing
from trainer.supervisor.place import Place
from trainer.supervisor.serving import serve

CAMPAIGN = "seen"


class Record:
    """The part of the campaign's store that is written to."""

    campaign = CAMPAIGN

    def __init__(self) -> None:
        self.put: list[tuple[str, Any]] = []

    def put_json(self, name: str, value: Any) -> None:
        self.put.append((name, value))


def commit(tier: Path, step: int, here: tuple[str, ...]) -> None:
    """A step with two shards, of which a tier may hold one."""
    folder = tier / CAMPAIGN / step_folder(step)
    folder.mkdir(parents=True)
    shards = tuple(
        Shard(file=f"{attempt_folder(1)}/{name}", size_bytes=5, sha256=hashlib.sha256(b"bytes").hexdigest(), rank=rank)
        for rank, name in enumerate(("a.pt", "b.pt"))
    )
    for name in here:
        (folder / attempt_folder(1)).mkdir(exist_ok=True)
        (folder / attempt_folder(1) / name).write_bytes(b"bytes")
    seal(folder, manifest_of(step, shards, campaign=CAMPAIGN, world_size=2))


def test_the_steward_records_both_tiers_and_only_what_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(
        Place(CAMPAIGN, 1, "node-7", "127.0.0.1", 0, 1, 1, "pod-0:29500"),
        10,
        tmp_path / "run",
        tmp_path / "local" / CAMPAIGN,
    )
    server = serve("127.0.0.1", node.status, node.answer, 0)
    monkeypatch.setattr(tiers, "AGENT_PORT", server.server_port)
    commit(tmp_path / "local", 20, ("a.pt",))
    commit(tmp_path / "shared", 10, ("a.pt", "b.pt"))
    record = Record()
    watch = TierWatch(record, tmp_path / "shared")  # type: ignore[arg-type]
    rows = watch.look(("127.0.0.1", "127.0.0.2")).rows
    seen = {(row.tier, row.node, row.step, row.here, row.shards) for row in rows}
    assert seen == {("shared", "", 10, 2, 2), ("local", "node-7", 20, 1, 2)}
    watch.look(("127.0.0.1",))
    assert [name for name, _ in record.put] == [TIERS], "what had not changed was written again"
    assert Listing.model_validate(record.put[0][1]).rows == rows
    (tmp_path / "shared" / CAMPAIGN / step_folder(10) / "manifest.json").write_text("damaged")
    damaged = watch.look(()).rows
    assert not damaged[0].committed and len(record.put) == 2
    server.shutdown()
    server.server_close()


def test_looks_do_not_queue_up_behind_one_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiers, "TIERS_EVERY_S", 0.0)
    silent = socket.create_server(("127.0.0.1", 0))
    monkeypatch.setattr(tiers, "AGENT_PORT", silent.getsockname()[1])
    monkeypatch.setattr(tiers, "_TIMEOUT_S", 60.0)
    watch = TierWatch(Record(), tmp_path / "shared")  # type: ignore[arg-type]
    watch.tell({"pod": "127.0.0.1"})
    first = watch._looking
    for _ in range(20):
        watch.tell({"pod": "127.0.0.1"})
    assert first is not None and watch._looking is first
    assert first.daemon, "else the steward could not end while a file system hangs"
    silent.accept()[0].close()
    first.join(30)
    watch.tell({})
    assert not first.is_alive() and watch._looking is not first
    silent.close()
