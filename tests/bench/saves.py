"""What a save costs the training: stall and dip, beside a plain host copy, DeepSpeed's own save and DCP's async_save.

    .venv/bin/python tests/bench/saves.py [--width 384] [--layers 6] [--rounds 7]

One rank on this machine's CPU; the peers take turns in every round on the same live state; ratios are of medians.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))
os.environ.setdefault("DS_ACCELERATOR", "cpu")
os.environ["OMP_NUM_THREADS"] = "1"
os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29631"}

import torch
import torch.distributed.checkpoint as dcp

from trainer.checkpoint.commit import Begun, Committer, Identity, Progress
from trainer.checkpoint.deepspeed_engine import HostCopyEngine
from trainer.checkpoint.tiers import campaign_tiers
from trainer.contract import CheckpointConfig, ModelConfig, TrainConfig
from trainer.engine import build_engine, initialize_distributed
from trainer.gang import Gang


class Bench:
    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        model = ModelConfig(layers=options.layers, width=options.width, heads=6, context=64, vocabulary=4096)
        self.config = TrainConfig(campaign="bench", model=model, steps=1000, global_batch=2, micro_batch=2)
        initialize_distributed(self.config)
        self.gang = Gang.join(timedelta(seconds=600))
        self.engine = build_engine(self.config, 1)
        self.folder, self.own, self.step_number = folder, self.engine.checkpoint_engine, 0
        tiers = campaign_tiers(folder / "local", folder / "shared", "bench")
        identity = Identity("bench", 1, 1, "", "", "", "")
        saving = CheckpointConfig(every_steps=1, shared_every=10**6, keep_local=1, keep_shared=1)
        self.committer = Committer(self.gang, tiers, saving, identity, Begun())
        self.ours = HostCopyEngine(lambda path, file: None)
        self.batch = torch.randint(0, 4096, (2, 65))
        for _ in range(3):
            self.step()
        self.plain = [(tensor, torch.empty_like(tensor)) for tensor in self.tensors()]

    def step(self) -> float:
        started = time.monotonic()
        self.engine.backward(self.engine(self.batch))
        self.engine.step()
        self.step_number += 1
        return time.monotonic() - started

    def tensors(self) -> list[torch.Tensor]:
        """Everything that a save must copy: weights, master weights, both moments."""
        optimizer = self.engine.optimizer
        found = [*self.engine.module.state_dict().values(), *optimizer.single_partition_of_fp32_groups]
        for state in optimizer.optimizer.state.values():
            found += [value for value in state.values() if torch.is_tensor(value)]
        return [tensor.detach() for tensor in found]

    def copy(self) -> float:
        started = time.monotonic()
        for source, target in self.plain:
            target.copy_(source)
        return time.monotonic() - started

    def bivouac(self) -> tuple[float, Any]:
        self.engine.checkpoint_engine = self.ours
        self.committer.save(self.engine, Progress(self.step_number, 0, 0, 1.0))
        return self.committer.measured.stall_s, self._ours_idle

    def _ours_idle(self) -> bool:
        return self.committer.settle(self.committer.votes())

    def deepspeed(self) -> tuple[float, Any]:
        self.engine.checkpoint_engine = self.own
        started = time.monotonic()
        self.engine.save_checkpoint(str(self.folder / "deepspeed"), tag="step")
        return time.monotonic() - started, lambda: True

    def async_save(self) -> tuple[float, Any]:
        state = {str(index): tensor for index, tensor in enumerate(self.tensors())}
        shutil.rmtree(self.folder / "dcp", ignore_errors=True)
        started = time.monotonic()
        future: Any = dcp.async_save(state, checkpoint_id=str(self.folder / "dcp"))
        return time.monotonic() - started, getattr(future, "upload_completion", future).done

    def round(self, save: Any) -> dict[str, float]:
        """Quiet steps, a save, and the steps beside it until it is durable."""
        quiet = statistics.median(self.step() for _ in range(4))
        stall, idle = save()
        started, beside = time.monotonic(), [self.step()]
        while not idle():
            beside.append(self.step())
        lost_s = sum(beside) - quiet * len(beside)
        return {
            "stall_s": stall,
            "background_s": time.monotonic() - started,
            "dip_s": lost_s,
            "lost_tokens": (stall + lost_s) / quiet * self.config.tokens_per_step(),
            "tokens_per_s": self.config.tokens_per_step() / quiet,
        }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--results", type=Path, default=Path(os.environ.get("BIVOUAC_RESULTS", "results")))
    options = parser.parse_args()
    torch.set_num_threads(1)
    folder = Path(tempfile.mkdtemp(prefix="bivouac-bench-saves-", dir=Path.cwd() if os.access(".", os.W_OK) else None))
    try:
        bench = Bench(options, folder)
        peers = {
            "bivouac": bench.bivouac,
            "DeepSpeed save_checkpoint": bench.deepspeed,
            "DCP async_save": bench.async_save,
        }
        size = sum(tensor.nbytes for tensor, _ in bench.plain)
        rows: dict[str, list[dict[str, float]]] = {name: [] for name in peers}
        copies = []
        for number in range(options.rounds + 1):
            copy = bench.copy()
            seen = {name: bench.round(save) for name, save in peers.items()}
            if number:  # the first round makes the buffers
                copies.append(copy)
                for name, row in seen.items():
                    rows[name].append(row)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    report(rows, copies, size, options)
    return 0


def report(
    rows: dict[str, list[dict[str, float]]], copies: list[float], size: int, options: argparse.Namespace
) -> None:
    plain = statistics.median(copies)
    middle = {n: {key: statistics.median(r[key] for r in each) for key in each[0]} for n, each in rows.items()}
    print(
        f"state {size / 1e6:.0f} MB, {options.rounds} rounds, load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    )
    print(f"{'':28}{'stall s':>10}{'/copy':>8}{'dip s':>8}{'durable s':>11}{'lost tokens':>13}")
    print(f"{'plain host copy':28}{plain:10.4f}{1:8.2f}")
    for name, row in middle.items():
        stall = row["stall_s"]
        print(
            f"{name:28}{stall:10.4f}{stall / plain:8.2f}{row['dip_s']:8.3f}{row['background_s']:11.3f}"
            f"{row['lost_tokens']:13.0f}"
        )
    ours, own = middle["bivouac"]["stall_s"], middle["DeepSpeed save_checkpoint"]["stall_s"]
    print(f"stall / plain copy {ours / plain:.2f} (wanted 1.2 at most); stall / DeepSpeed {ours / own:.3f} (0.1)")
    target = options.results / "bench" / "saves.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps({"bytes": size, "copy_s": copies, "rows": rows, "load": os.getloadavg()}, indent=1))


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)
