"""Bench: memory of a rank that makes the model, spread over the ranks as it is made (ZeRO 3) or whole.

    .venv/bin/python -m tests.bench.zero_init [--width 1024] [--layers 8] [--ranks 2]

Real ranks on this machine's CPU make the same model with the same seed, up to where the optimizer would be made. What
is told is the growth of a rank's peak resident memory, as a part of the weights' bytes. The peer is the same code
without `zero.Init`. The C library gives back what is freed at once, so that its heap does not hide what is held
(`--heap` leaves it as it is). Exit code 1 when a rank's part is not the smaller one.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import socket
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ.setdefault("DS_ACCELERATOR", "cpu")
os.environ["OMP_NUM_THREADS"] = "1"

import torch
from torch import multiprocessing

from tests.bench.parts.verdict import Verdict, judge
from tests.results import keep, results_of
from trainer.builtin.engine import build_engine, import_deepspeed, initialize_distributed
from trainer.builtin.model import Transformer, parameter_count
from trainer.contract import ModelConfig, TrainConfig

RESULTS = results_of("bench", "zero_init")
MIB = 2**20


class Made(Exception):
    """The model stands; nothing else is to be made."""


def rank_of(rank: int, ranks: int, port: int, spread: bool, config: TrainConfig, folder: str) -> None:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    initialize_distributed(config)
    deepspeed: Any = import_deepspeed()
    before = peak_bytes()

    def stop(**_: Any) -> None:
        raise Made

    deepspeed.initialize = stop
    if not spread:
        init = deepspeed.zero.Init
        deepspeed.zero.Init = lambda **given: init(**{**given, "enabled": False})
    try:
        build_engine(config, ranks)
    except Made:
        (Path(folder) / f"{rank}.json").write_text(json.dumps(peak_bytes() - before))
    torch.distributed.barrier()


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def grown(options: argparse.Namespace, spread: bool) -> tuple[int, ...]:
    """Return the growth of each rank in bytes."""
    model = ModelConfig(layers=options.layers, width=options.width, heads=8, context=64, vocabulary=8192)
    config = TrainConfig(
        campaign="bench", model=model, steps=1, global_batch=options.ranks, micro_batch=1, zero_stage=3
    )
    with tempfile.TemporaryDirectory() as folder, socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        server.close()
        given = (options.ranks, port, spread, config, folder)
        multiprocessing.start_processes(rank_of, args=given, nprocs=options.ranks, start_method="spawn")
        return tuple(json.loads((Path(folder) / f"{rank}.json").read_text()) for rank in range(options.ranks))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--heap", action="store_true")
    options = parser.parse_args()
    if not options.heap:  # the ranks read it at their start
        os.environ |= {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
    shape = ModelConfig(layers=options.layers, width=options.width, heads=8, context=64, vocabulary=8192)
    with torch.device("meta"):
        weights = 4 * parameter_count(Transformer(shape))
    sides = (("zero.Init", True), ("whole", False))
    parts = {name: tuple(each / weights for each in grown(options, spread)) for name, spread in sides}
    print(f"{weights / MIB:.0f} MiB of float32 weights, {options.ranks} ranks; growth of a rank's peak / weights")
    keep(RESULTS, {"weights": weights, "ranks": options.ranks, "parts": parts})
    return judge(Verdict("zero.Init", parts["zero.Init"], 1.0, "whole", parts["whole"], unit="of the weights"))


if __name__ == "__main__":
    sys.exit(main())
