"""Dumps of the flight recorder as numbers, and what follows.

The dumps here are synthetic: they have the form that torch's `FlightRecorderDetail.hpp` (2.13, version 2.10 of the
format) writes, since torch's own tests hold no recorded ones. Real dumps, of gloo, are in `test_culprit_of_ranks`. The
oracle is torch's own analyser.
"""

from __future__ import annotations

import mmap
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
from torch.distributed.flight_recorder.components.builder import build_db
from torch.distributed.flight_recorder.components.config_manager import JobConfig
from torch.distributed.flight_recorder.components.loader import read_dir

from trainer.builtin.failures import recorder
from trainer.contract.culprit import Culprit, Exchanges, Located, RankSeen, Sign, find_culprit

BEGAN_NS, TIMEOUT_S, WORLD = 1_700_000_000_000_000_000, 30, 4


def entry(record: int, seq: int, state: str, at_s: float) -> dict[str, Any]:
    return {
        "record_id": record, "pg_id": 0, "process_group": ("0", "default_pg"), "thread_name": "pt_main",
        "thread_id": "1", "collective_seq_id": seq, "p2p_seq_id": 0, "op_id": seq, "profiling_name": "nccl:all_reduce",
        "time_created_ns": BEGAN_NS + int(at_s * 1e9), "input_sizes": [[8]], "input_dtypes": ["Float"],
        "output_sizes": [[8]], "output_dtypes": ["Float"], "state": state, "time_discovered_started_ns": None,
        "time_discovered_completed_ns": None, "retired": state == "completed", "timeout_ms": 1000 * TIMEOUT_S,
        "is_p2p": False, "frames": [],
    }  # fmt: skip


def dump(enqueued: int, started: int, completed: int, entered_s: float = 0.0) -> dict[str, Any]:
    states = ["completed" if n <= completed else "started" if n <= started else "scheduled" for n in range(1, 9)]
    rows = [entry(n - 1, n, states[n - 1], entered_s if n > completed else 0.0) for n in range(1, enqueued + 1)]
    status = {
        "last_enqueued_collective": enqueued, "last_started_collective": started, "last_completed_collective": completed
    }  # fmt: skip
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": str(list(range(WORLD)))}}
    return {
        "version": "2.10",
        "pg_config": config,
        "comm_lib_version": "2.28",
        "pg_status": {"0": status},
        "entries": rows,
    }


def written(run: Path, dumps: dict[int, dict[str, Any]]) -> list[Located]:
    (run / recorder.FOLDER).mkdir()
    for rank, content in dumps.items():
        path = run / recorder.FOLDER / f"nccl_trace_rank_{rank}"
        path.write_bytes(pickle.dumps(content, protocol=2))
        ended_ns = BEGAN_NS + TIMEOUT_S * 10**9
        os.utime(path, ns=(ended_ns, ended_ns))
    seen = [RankSeen(rank=rank, end=Sign.ABORTED, groups=recorder.exchanges_of(run, rank)) for rank in range(WORLD)]
    return [Located(f"node-{one.rank // 2}", one) for one in seen]


def missing_by_torch(run: Path) -> set[int]:
    """Ranks that torch's analyser misses in the first exchange that not all have."""
    args = JobConfig().parse_args([str(run / recorder.FOLDER)])
    details, version = read_dir(args)
    database = build_db(details, args, version)
    return next(
        (set(collective.missing_ranks) for collective in database.collectives if collective.missing_ranks), set()
    )


def named(run: Path, dumps: dict[int, dict[str, Any]]) -> Culprit:
    found = find_culprit(written(run, dumps))
    assert found is not None
    return found


def test_a_rank_that_did_not_enter_is_named_as_by_torchs_analyser(tmp_path: Path) -> None:
    dumps = {rank: dump(6, 6, 5) for rank in (0, 1, 3)} | {2: dump(5, 5, 5)}
    found = named(tmp_path, dumps)
    assert (found.ranks, found.node) == ((2,), "node-1") and "did not enter exchange 6 of group 0" in found.why
    assert missing_by_torch(tmp_path) == set(found.ranks)


def test_a_rank_whose_gpu_never_came_to_the_exchange_is_named_though_it_was_enqueued(tmp_path: Path) -> None:
    found = named(tmp_path, {rank: dump(7, 6, 5) for rank in (0, 1, 2)} | {3: dump(8, 5, 5)})
    assert found.ranks == (3,) and "did not start exchange 6 on its GPU" in found.why


def test_a_rank_that_merely_queues_less_ahead_is_not_accused(tmp_path: Path) -> None:
    found = named(tmp_path, {rank: dump(8, 6, 5) for rank in (0, 1, 2)} | {3: dump(6, 6, 5)})
    assert found.ranks == () and "every rank had entered exchange 6" in found.why
    assert missing_by_torch(tmp_path) <= {3}


def test_a_rank_that_came_late_is_named(tmp_path: Path) -> None:
    found = named(tmp_path, {rank: dump(6, 6, 5) for rank in (0, 1, 2)} | {3: dump(6, 6, 5, entered_s=29.0)})
    assert found.ranks == (3,) and "29.0 s late" in found.why


def test_a_rank_without_a_dump_is_named_where_all_others_left_one(tmp_path: Path) -> None:
    found = named(tmp_path, {rank: dump(6, 6, 5) for rank in range(3)})
    assert found.ranks == (3,) and not found.proven


def test_a_member_that_never_entered_any_exchange_of_a_group_counts_as_behind(tmp_path: Path) -> None:
    found = named(tmp_path, {rank: dump(1, 1, 0) for rank in range(3)} | {3: dump(0, -1, -1)})
    assert found.ranks == (3,) and "did not enter exchange 1" in found.why


def test_a_dump_that_would_run_code_or_is_cut_off_counts_as_none(tmp_path: Path) -> None:
    folder = tmp_path / recorder.FOLDER
    folder.mkdir()
    (folder / "nccl_trace_rank_0").write_bytes(pickle.dumps({"entries": [os.getcwd]}))
    (folder / "nccl_trace_rank_1").write_bytes(pickle.dumps(dump(6, 6, 5))[:-200])
    assert [recorder.exchanges_of(tmp_path, rank) for rank in range(3)] == [{}, {}, {}]


def test_a_chain_of_waits_ends_at_the_rank_that_waits_for_nobody() -> None:
    """Rank 1 is behind among the first ranks of nodes, since it waits for rank 3 within its node."""
    waits, within = Exchanges(9, -1, 8, 30.0, 30.0), Exchanges(9, -1, 8, 30.0, 30.0)
    seen = [
        RankSeen(rank=0, end="peer-lost", groups={"firsts": waits, "node-0": Exchanges(9, -1, 9)}),
        RankSeen(rank=2, end="peer-lost", groups={"node-0": Exchanges(9, -1, 9)}),
        RankSeen(rank=1, end="peer-lost", groups={"firsts": Exchanges(8, -1, 8), "node-1": within}),
        RankSeen(rank=3, end="peer-lost", groups={"node-1": Exchanges(8, -1, 8)}),
    ]
    found = find_culprit([Located(f"node-{one.rank % 2}", one) for one in seen])
    assert found is not None and (found.ranks, found.node) == ((3,), "node-1")


def test_settings_are_names_that_the_installed_torch_reads() -> None:
    import torch

    root = Path(torch.__path__[0])
    headers = [path.read_bytes() for path in (root / "include/torch/csrc/distributed/c10d").glob("*.hpp")]
    with (root / "lib/libtorch_cpu.so").open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as library:
        for name in recorder.settings(Path("/run"), 480.0):
            assert any(name.encode() in text for text in headers) or library.find(name.encode()) > 0, name


@pytest.mark.parametrize("given", ["4000", None])
def test_what_is_set_already_stays(given: str | None, tmp_path: Path) -> None:
    environment = {"TORCH_FR_BUFFER_SIZE": given} if given else {}
    recorder.switch_on(environment, tmp_path, 1000.0)
    assert environment["TORCH_FR_BUFFER_SIZE"] == (given or "2000")
    assert environment["TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"] == "2000"
