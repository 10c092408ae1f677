"""Bench: restore with every digest compared, beside DeepSpeed's own load, which compares none.

    .venv/bin/python -m tests.bench.load [--width 512] [--layers 8] [--rounds 7]

One rank on this machine's CPU, the same engine and the same state on the same disk. Ours is the whole restore: the
newest step is found, every shard read and its SHA-256 compared, what must not be unpickled looked for, loaded. The peer
is `engine.load_checkpoint` with DeepSpeed's own checkpoint engine. Rounds are interleaved, once with the files in the
page cache and once without; ratios are medians of pairs. Exit code 1 when ours is slower, or loads another state.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

os.environ.setdefault("DS_ACCELERATOR", "cpu")
os.environ["OMP_NUM_THREADS"] = "1"
os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29633"}

import torch

from tests.bench.parts.verdict import Verdict, judge
from tests.results import keep, results_of
from trainer.builtin.checkpoint.commit import Begun, Committer, ManifestIdentity, TrainingProgress
from trainer.builtin.checkpoint.deepspeed_engine import HostCopyEngine
from trainer.builtin.checkpoint.restore import choose_start, load_start
from trainer.builtin.checkpoint.tiers import campaign_tiers
from trainer.builtin.engine import build_engine, initialize_distributed
from trainer.builtin.gang import Gang
from trainer.contract import CheckpointConfig, ModelConfig, TrainConfig

RESULTS = results_of("bench", "load")

STEP, MIB = 7, 2**20


class Bench:
    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        model = ModelConfig(layers=options.layers, width=options.width, heads=8, context=32, vocabulary=4096)
        config = TrainConfig(
            campaign="bench", model=model, steps=1000, global_batch=2, micro_batch=2, zero_stage=options.stage
        )
        initialize_distributed(config)
        self.gang, self.stage = Gang.join(timedelta(seconds=600)), options.stage
        self.engine = build_engine(config, 1)
        self.own = self.engine.checkpoint_engine
        self.tiers, self.peer = campaign_tiers(folder / "local", folder / "shared", "bench"), folder / "deepspeed"
        for _ in range(2):
            self.engine.backward(self.engine(torch.randint(0, 4096, (2, 33))))
            self.engine.step()
        self.engine.save_checkpoint(str(self.peer), tag="step")
        saving = CheckpointConfig(every_steps=1, shared_every=1, keep_local=1, keep_shared=1)
        committer = Committer(
            self.gang, self.tiers, saving, ManifestIdentity("bench", 1, options.stage, "", "", "", ""), Begun()
        )
        self.engine.checkpoint_engine = HostCopyEngine(lambda path, file: None)
        committer.save(self.engine, TrainingProgress(STEP, 0, 0, 1.0))
        committer.drain(replicate=True)

    def ours(self) -> None:
        begun = load_start(self.engine, choose_start(self.gang, self.tiers, self.stage, 2))
        assert begun.manifest is not None and begun.manifest.step == STEP

    def theirs(self) -> None:
        self.engine.checkpoint_engine = self.own
        assert self.engine.load_checkpoint(str(self.peer), tag="step")[0] is not None

    def files(self) -> list[Path]:
        return [path for root in (self.tiers.local.root, self.peer) for path in root.rglob("*") if path.is_file()]

    def state(self) -> list[torch.Tensor]:
        optimizer = self.engine.optimizer
        found = [tensor for _, tensor in sorted(self.engine.module.state_dict().items())]
        inner = getattr(optimizer, "optimizer", optimizer)
        found += [each for state in inner.state.values() for each in state.values() if torch.is_tensor(each)]
        return [tensor.detach().clone() for tensor in found]

    def spoil(self) -> None:
        """So that a load that does nothing does not pass."""
        with torch.no_grad():
            for parameter in self.engine.module.parameters():
                parameter.add_(1.0)

    def timed(self, load: Callable[[], None], cold: bool) -> float:
        self.spoil()
        for path in self.files() if cold else ():
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        began = time.monotonic()
        load()
        return time.monotonic() - began


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--stage", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()), help="on the disk to read from")
    options = parser.parse_args()
    torch.set_num_threads(1)
    folder = Path(tempfile.mkdtemp(prefix="bivouac-bench-load-", dir=options.folder))
    rows: list[dict[str, Any]] = []
    try:
        bench = Bench(options, folder)
        before, size = bench.state(), sum(path.stat().st_size for path in bench.peer.rglob("*") if path.is_file())
        for number in range(options.rounds + 1):
            for cold in (False, True):
                row: dict[str, Any] = {"cold": cold}
                for side in ("ours", "theirs") if number % 2 else ("theirs", "ours"):
                    row[side] = bench.timed(getattr(bench, side), cold)
                    same = all(torch.equal(a, b) for a, b in zip(before, bench.state(), strict=True))
                    assert same, f"{side}: another state was loaded"
                if number:  # the first round warms up
                    rows.append(row)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(f"{size / MIB:.0f} MiB, ZeRO {options.stage}, one rank, {options.rounds} rounds, medians")
    print(f"{'':16}{'ours, verified':>16}{'DeepSpeed':>12}{'DeepSpeed/ours':>16}")
    ratios, verdicts = {}, []
    for cold, name in ((False, "page cache"), (True, "disk")):
        mine = [row for row in rows if row["cold"] is cold]
        ratios[name] = statistics.median(row["theirs"] / row["ours"] for row in mine)
        ours, theirs = (tuple(row[side] for row in mine) for side in ("ours", "theirs"))
        verdicts.append(Verdict(f"load from the {name}", ours, 1.0, "DeepSpeed", theirs))
        seconds = [statistics.median(row[side] for row in mine) for side in ("ours", "theirs")]
        print(f"{name:16}{seconds[0]:>14.2f} s{seconds[1]:>10.2f} s{ratios[name]:>16.2f}")
    keep(RESULTS, {"bytes": size, "stage": options.stage, "ratios": ratios, "rows": rows})
    return judge(*verdicts)


if __name__ == "__main__":
    sys.exit(main())
