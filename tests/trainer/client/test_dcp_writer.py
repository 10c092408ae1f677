"""The writer of distributed checkpoints: what it has digested is held against what is sealed."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

from trainer.client.bivouac_dcp import Writer
from trainer.supervisor import seal
from trainer.supervisor.job import Job
from trainer.supervisor.place import Place

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
WIDTH = 512
SIZE = 2 * WIDTH * WIDTH * 4
"""Bytes of the two ranks' tensors, at least."""
Save = Callable[[dict[str, Any], Path], None]


def with_writer(state: dict[str, Any], folder: Path) -> None:
    dcp.save(state, storage_writer=Writer(folder))


def beside_training(state: dict[str, Any], folder: Path) -> None:
    saving: Any = dcp.async_save(state, storage_writer=Writer(folder, thread_count=2), process_group=dist.new_group())
    saving.result()


def plainly(state: dict[str, Any], folder: Path) -> None:
    dcp.save(state, checkpoint_id=folder)


def weights(step: int, rank: int) -> torch.Tensor:
    return torch.rand(WIDTH, WIDTH, generator=torch.Generator().manual_seed(2 * step + rank))


def by_two_ranks(save: Save, folder: Path, *steps: int, drawn: int = 0, idle: bool = False) -> None:
    """Let two ranks save tensors of their own, and one of them what both have; `idle`: the second one has nothing."""
    store, pids = str(folder.with_name(f"store-{secrets.token_hex(4)}")), []
    for rank in range(2):
        if not (pid := os.fork()):
            try:
                torch.set_num_threads(1)  # torch's threads do not survive a fork
                dist.init_process_group("gloo", store=dist.FileStore(store, 2), rank=rank, world_size=2)
                for step in steps:
                    state = {f"weights-{rank}": weights(step + drawn, rank), "step": step}
                    save({} if idle and rank else state, folder / f"step-{step}")
                dist.barrier()
                os._exit(0)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
        pids.append(pid)
    assert [os.waitpid(pid, 0)[1] for pid in pids] == [0, 0]


def job(tmp_path: Path, attempt: int = 1) -> Job:
    place = Place("tiny", attempt, "n0", "127.0.0.1", 0, 2, 1, "127.0.0.1:29500", "", "")
    config = {"checkpoints": {"folder": str(tmp_path / "own"), "format": "dcp", "keep": 9}, "launcher": "torchrun"}
    return Job(config | {"identity": "one", "config_digest": "config"}, place, tmp_path, tmp_path)


def sealed(tmp_path: Path, attempt: int = 1) -> Job:
    """Seal what is finished; return the supervisor."""
    one = job(tmp_path, attempt)
    one.sealing.look()
    return one


def manifest(one: Job, step: int) -> dict[str, Any]:
    return json.loads((one.tier / f"step-{step:08d}" / seal.MANIFEST).read_bytes())  # type: ignore[no-any-return]


@pytest.mark.parametrize("save", [with_writer, beside_training])
def test_a_checkpoint_is_sealed_as_its_writer_has_digested_it(save: Save, tmp_path: Path) -> None:
    by_two_ranks(save, tmp_path / "own", 10)
    one = sealed(tmp_path)
    assert seal.committed(one.tier) == [10]
    place, shards = one.tier / "step-00000010", manifest(one, 10)["shards"]
    assert sum(shard["size_bytes"] for shard in shards) > SIZE
    for shard in shards:
        content = (place / shard["file"]).read_bytes()
        assert (len(content), hashlib.sha256(content).hexdigest()) == (shard["size_bytes"], shard["sha256"])
    names = {path.name for path in (tmp_path / "own/step-10").iterdir()}
    assert len(shards) == len(names) + 1 >= 5 and names >= {".metadata", ".digests.json"}
    files = json.loads((tmp_path / "own/step-10/.digests.json").read_text())["files"]
    assert {digest for _, digest in files.values()} <= {shard["sha256"] for shard in shards}
    state = {"weights-1": torch.empty(WIDTH, WIDTH), "step": 0}
    dcp.load(state, checkpoint_id=tmp_path / "own/step-10", no_dist=True)
    assert state["step"] == 10 and torch.equal(state["weights-1"], weights(10, 1))  # type: ignore[arg-type]


def test_a_rank_that_has_nothing_to_write_spoils_no_note(tmp_path: Path) -> None:
    by_two_ranks(with_writer, tmp_path / "own", 10, idle=True)
    assert seal.committed(sealed(tmp_path).tier) == [10]


def test_dcps_own_writer_leaves_no_note_and_is_sealed_all_the_same(tmp_path: Path) -> None:
    by_two_ranks(plainly, tmp_path / "own", 10)
    assert seal.committed(sealed(tmp_path).tier) == [10]


def test_a_byte_that_changes_after_it_was_written_keeps_its_step_from_being_sealed(tmp_path: Path) -> None:
    by_two_ranks(with_writer, tmp_path / "own", 10, 20)
    (shard, *_) = (tmp_path / "own/step-20").glob("__1_*")
    with shard.open("r+b") as file:
        file.seek(shard.stat().st_size // 2)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))
    assert seal.committed(sealed(tmp_path).tier) == [10]
    assert job(tmp_path, attempt=2).sealing.choose()["step"] == 10


def test_a_checkpoint_that_is_written_anew_spoils_no_sealed_one_and_counts_as_new(tmp_path: Path) -> None:
    by_two_ranks(with_writer, tmp_path / "own", 10)
    one = sealed(tmp_path)
    by_two_ranks(with_writer, tmp_path / "own", 10, drawn=1)
    assert seal.fault(one.tier, 10, "tiny", "one") == "", "the sealed one is not the job's file any more"
    old = (tmp_path / "own/step-10/.digests.json").read_bytes()
    by_two_ranks(plainly, tmp_path / "own", 10, drawn=2)
    (tmp_path / "own/step-10/.digests.json").write_bytes(old)
    one = sealed(tmp_path, attempt=2)
    assert seal.fault(one.tier, 10, "tiny", "one") == ""
