"""A checkpoint of four ranks converted for other ranks: all ranks together, and one rank alone as until November 2026.

    .venv/bin/python -m tests.bench.reshape [--parts 2] [--megabytes 400] [--rounds 3]

The peer is DeepSpeed's converter as the trainer ran it: one process, whole files in memory, through the restricted
unpickler. Ours are so many processes that convert a part each. All are warm (torch and DeepSpeed are imported), and the
results must be equal, file by file.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("DS_ACCELERATOR", "cpu")
os.environ["OMP_NUM_THREADS"] = "1"

import torch
from deepspeed.checkpoint import ds_to_universal
from deepspeed.utils.tensor_fragment import fragment_address

from tests.bench.parts.verdict import Verdict, judge
from tests.results import results_of
from trainer.builtin.checkpoint.convert.universal import convert, only_allowed

RESULTS = results_of("bench", "reshape")
RANKS, PARAMETERS = 4, 24


def made(folder: Path, megabytes: int) -> None:
    """Files as DeepSpeed writes them under ZeRO 1: each rank has a fourth of the flat state of three tensors."""
    each = megabytes * 10**6 // (12 * PARAMETERS) // RANKS * RANKS
    shapes = {f"layers.{index}.weight": torch.Size([each]) for index in range(PARAMETERS)}
    weights = {name: torch.zeros(shape, dtype=torch.bfloat16) for name, shape in shapes.items()}
    known = {"universal_checkpoint_version": 0.2}
    model = {"module": weights, "param_shapes": [shapes], "dp_world_size": RANKS, "mp_world_size": 1}
    model |= {"global_steps": 1, "iteration": 1, "ds_config": {}, "ds_version": "0.19.8"}
    folder.mkdir(parents=True)
    torch.save({**model, "universal_checkpoint_info": known}, folder / "mp_rank_00_model_states.pt")
    size = each * PARAMETERS // RANKS
    for rank in range(RANKS):
        mine = [name for index, name in enumerate(shapes) if index * RANKS // PARAMETERS == rank]
        flat = {name: torch.randn(size, generator=torch.Generator().manual_seed(rank)) for name in ("a", "b", "c")}
        optimizer = {
            "base_optimizer_state": {
                "state": {0: {"exp_avg": flat["a"], "exp_avg_sq": flat["b"], "step": torch.tensor(1.0)}},
                "param_groups": [{"lr": 1e-3}],
            },
            "single_partition_of_fp32_groups": [flat["c"]],
            "param_slice_mappings": [
                {name: fragment_address(start=place * each, numel=each) for place, name in enumerate(mine)}
            ],
            "zero_stage": 1,
            "partition_count": [RANKS],
        }
        path = folder / f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"
        torch.save({"optimizer_state_dict": optimizer, "ds_config": {}, "ds_version": "0.19.8"}, path)


def alone(source: Path, target: Path) -> None:
    """The peer."""
    target.mkdir(parents=True)
    namespace = argparse.Namespace(
        input_folder=str(source), output_folder=str(target), num_extract_workers=1, num_merge_workers=1,
        keep_temp_folder=False, strict=True, inject_missing_state=True,
    )  # fmt: skip
    with only_allowed():
        ds_to_universal.main(namespace)


def timed(work: Any, calls: list[tuple[Any, ...]]) -> float:
    context: Any = multiprocessing.get_context("fork")
    begun = time.monotonic()
    ranks = [context.Process(target=_quiet, args=(work, *call)) for call in calls]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    if any(rank.exitcode for rank in ranks):
        raise RuntimeError(f"exit codes {[rank.exitcode for rank in ranks]}")
    return time.monotonic() - begun


def _quiet(work: Any, *call: Any) -> None:
    for descriptor in (1, 2) if "BIVOUAC_LOUD" not in os.environ else ():
        os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
    torch.set_num_threads(1)
    work(*call)


def differing(first: Path, second: Path) -> list[str]:
    files = {str(path.relative_to(first)) for path in first.rglob("*.pt")}
    others = {str(path.relative_to(second)) for path in second.rglob("*.pt")}
    return sorted(
        (files ^ others) | {one for one in files & others if (first / one).read_bytes() != (second / one).read_bytes()}
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", type=int, default=2)
    parser.add_argument("--megabytes", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory(prefix="bench-reshape-", dir=RESULTS.parent) as name:
        source, ours, theirs = (Path(name) / each for each in ("attempt-0001", "ours", "theirs"))
        made(source, options.megabytes)
        for _ in range(options.rounds):
            for folder in (ours, theirs, ours.with_name("ours-parts")):
                shutil.rmtree(folder, ignore_errors=True)
            os.sync()
            row = {"alone_s": timed(alone, [(source, theirs)])}
            os.sync()
            row["parts_s"] = timed(convert, [(source, ours, part, options.parts) for part in range(options.parts)])
            if wrong := differing(ours, theirs):
                print(f"not equal: {wrong[:5]}")
                return 1
            rows.append(row)
    ratio = statistics.median(row["alone_s"] / row["parts_s"] for row in rows)
    for row in rows:
        print(f"one rank {row['alone_s']:6.2f} s   {options.parts} ranks {row['parts_s']:6.2f} s")
    print(f"{ratio:.2f} times as fast, {options.megabytes} MB")
    RESULTS.write_text(json.dumps({"rounds": rows, "ratio": ratio, "load": os.getloadavg()}, indent=1))
    together, alone_s = (tuple(row[name] for row in rows) for name in ("parts_s", "alone_s"))
    return judge(Verdict("ranks together", together, 1.0, "one rank alone", alone_s))


if __name__ == "__main__":
    sys.exit(main())
