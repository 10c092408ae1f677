"""What a save costs the training: stall and dip, beside a plain host copy, DeepSpeed's own save and DCP's async_save.

    .venv/bin/python -m tests.bench.saves [--width 672] [--layers 6] [--rounds 9] [--dips 9] [--variants] [--busy 2]

One rank on this machine's CPU. First the stall: in each round every peer saves the same live state once, in a turning
order, a plain copy of the same bytes before each and nothing else at work, so that each has a pair of its own; then
the dip: quiet steps, a save, the steps beside it until it is durable. Ratios are of medians. `--variants` repeats the
dip with what the background writing could be done otherwise: through the page cache, at the step's own priority, and
in a process of its own; beside the dip, which is noise on a busy machine, stands the processor time that it took.
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
from datetime import timedelta
from pathlib import Path
from typing import Any

os.environ.setdefault("DS_ACCELERATOR", "cpu")
os.environ["OMP_NUM_THREADS"] = "1"
os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29631"}

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

from tests.bench.parts.verdict import Verdict, judge
from tests.results import results_of
from trainer.builtin.checkpoint import writing
from trainer.builtin.checkpoint.commit import Begun, Committer, ManifestIdentity, TrainingProgress
from trainer.builtin.checkpoint.deepspeed_engine import HostCopyEngine
from trainer.builtin.checkpoint.direct import DirectFile
from trainer.builtin.checkpoint.tiers import campaign_tiers
from trainer.builtin.checkpoint.writing import Writing
from trainer.builtin.engine import build_engine, initialize_distributed
from trainer.builtin.gang import Gang
from trainer.contract import CheckpointConfig, ModelConfig, TrainConfig

RESULTS = results_of("bench", "saves")

_DIRECT = DirectFile._direct
_QUIET = 8
"""Fewest steps without a save that a round compares with."""


def _as_it_is(self: DirectFile, on: bool) -> None:
    """Write through the page cache."""


class Bench:
    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        model = ModelConfig(layers=options.layers, width=options.width, heads=6, context=32, vocabulary=4096)
        self.config = TrainConfig(campaign="bench", model=model, steps=1000, global_batch=1, micro_batch=1)
        initialize_distributed(self.config)
        self.gang = Gang.join(timedelta(seconds=600))
        self.engine = build_engine(self.config, 1)
        self.folder, self.own, self.step_number = folder, self.engine.checkpoint_engine, 0
        self.committer = self._committer("bivouac")
        self.ours = HostCopyEngine(lambda path, file: None)
        # Pinned memory and streams need a GPU's driver; what is left is that the staged copy is kept and used again.
        gpu = torch.cuda.is_available()
        self.staging = DefaultStager(StagingOptions(gpu, False, gpu, gpu))
        self.dcp_group = torch.distributed.new_group(backend="gloo") if gpu else None
        self.batch = torch.randint(0, 4096, (1, 33), device=self.engine.device)
        for _ in range(3):
            self.step()
        self.plain = [(tensor, torch.zeros_like(tensor).fill_(1)) for tensor in self.tensors()]
        self.ready_s = self._make_ready()

    def _committer(self, name: str) -> Committer:
        tiers = campaign_tiers(self.folder / name / "local", self.folder / name / "shared", "bench")
        identity = ManifestIdentity("bench", 1, 1, "", "", "", "")
        saving = CheckpointConfig(every_steps=1, shared_every=10**6, keep_local=1, keep_shared=1)
        return Committer(self.gang, tiers, saving, identity, Begun())

    def variants(self) -> dict[str, Any]:
        """The same save with one thing of its background writing changed."""
        kept, writing._NICENESS = writing._NICENESS, 0
        eager, buffered = self._committer("eager"), self._committer("buffered")
        writing._NICENESS = kept
        apart = Apart(self)
        return {
            "bivouac": self.bivouac,
            "page cache, not direct I/O": lambda: self._save(buffered, direct=False),
            "priority of the step": lambda: self._save(eager, direct=True),
            "process of its own": apart.save,
        }

    def _make_ready(self) -> float:
        self.engine.checkpoint_engine, started = self.ours, time.monotonic()
        self.committer.make_ready(self.engine)
        while self.committer.writing():
            time.sleep(0.01)
        return time.monotonic() - started

    def step(self) -> float:
        started = time.monotonic()
        self.engine.backward(self.engine(self.batch))
        self.engine.step()
        if self.batch.is_cuda:
            torch.cuda.synchronize()
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
        return self._save(self.committer, direct=True)

    def _save(self, committer: Committer, direct: bool) -> tuple[float, Any]:
        DirectFile._direct = _DIRECT if direct else _as_it_is  # type: ignore[method-assign]
        self.engine.checkpoint_engine = self.ours
        self.step_number += 1
        if not committer.save(self.engine, TrainingProgress(self.step_number, 0, 0, 1.0)):
            raise RuntimeError("the save before was not durable yet")
        return committer.measured.stall_s, lambda: committer.settle(committer.votes())

    def deepspeed(self) -> tuple[float, Any]:
        self.engine.checkpoint_engine = self.own
        started = time.monotonic()
        self.engine.save_checkpoint(str(self.folder / "deepspeed"), tag="step")
        return time.monotonic() - started, lambda: True

    def async_save(self) -> tuple[float, Any]:
        return self._dcp({})

    def async_save_cached(self) -> tuple[float, Any]:
        """With the staging buffers that DCP keeps on request."""
        return self._dcp({"async_stager": self.staging})

    def _dcp(self, named: dict[str, Any]) -> tuple[float, Any]:
        state = {str(index): tensor for index, tensor in enumerate(self.tensors())}
        shutil.rmtree(self.folder / "dcp", ignore_errors=True)
        started = time.monotonic()
        future: Any = dcp.async_save(
            state, checkpoint_id=str(self.folder / "dcp"), process_group=self.dcp_group, **named
        )
        return time.monotonic() - started, getattr(future, "upload_completion", future).done

    def pair(self, save: Any) -> dict[str, float]:
        """A plain copy (the second of two: the first also finds the caches cold) and a save right after it, alone."""
        for tensor in self.tensors():
            # Another state each time, or the file of the save before would be linked.
            tensor.view(-1)[:1].add_(1e-6)
        self.copy()
        row = {"copy_s": self.copy()}
        row["stall_s"], idle = save()
        if save == self.bivouac:
            row["copying_s"] = self.committer.measured.copy_s
        while not idle():
            time.sleep(0.01)
        os.sync()
        return row

    def round(self, save: Any) -> dict[str, float]:
        """Quiet steps, a save, the steps beside it until it is durable, and quiet steps again.

        What the save costs is the difference of means over as many quiet steps as ran beside it, at least eight: a
        median would leave the long steps of a busy machine out on the quiet side alone.
        """
        quiet, used = [], []
        for _ in range(_QUIET // 2):
            before = time.process_time()
            quiet.append(self.step())
            used.append(time.process_time() - before)
        stall, idle = save()
        before = time.process_time()
        started, beside = time.monotonic(), [self.step()]
        while not idle():
            beside.append(self.step())
        background_s, cpu_s = time.monotonic() - started, time.process_time() - before
        while len(quiet) < max(_QUIET, len(beside)):
            quiet.append(self.step())
        step_s = statistics.fmean(quiet)
        lost_s = sum(beside) - step_s * len(beside)
        return {
            "stall_s": stall,
            "background_s": background_s,
            "dip_s": lost_s,
            "writing_cpu_s": cpu_s - min(used) * len(beside),
            "lost_tokens": (stall + lost_s) / step_s * self.config.tokens_per_step(),
            "tokens_per_s": self.config.tokens_per_step() / step_s,
        }


class Apart:
    """Writing in a process of its own, out of buffers that it shares with the training."""

    def __init__(self, bench: Bench) -> None:
        context: Any = torch.multiprocessing.get_context("spawn")
        self.bench, self.ours = bench, HostCopyEngine(lambda path, file: None)
        self.orders, self.done, self.number = context.Queue(), context.Queue(), 0
        context.Process(target=write_apart, args=(self.orders, self.done), daemon=True).start()
        bench.engine.checkpoint_engine = self.ours
        self.ours.foresee(bench.engine)()
        for buffer in self.ours.buffers.values():
            buffer.share_memory_()

    def save(self) -> tuple[float, Any]:
        self.bench.engine.checkpoint_engine = self.ours
        started, self.number = time.monotonic(), self.number + 1
        snapshots = self.ours.collect(self.bench.engine, self.bench.folder / "apart", f"save-{self.number}")
        self.ours.copies.wait()
        self.orders.put(snapshots)
        return time.monotonic() - started, self._idle

    def _idle(self) -> bool:
        return not self.done.empty() and bool(self.done.get())


def write_apart(orders: Any, done: Any) -> None:
    os.nice(10)
    torch.set_num_threads(1)
    while True:
        snapshots = orders.get()
        shutil.rmtree(snapshots[0].path.parent.parent, ignore_errors=True)
        for snapshot in snapshots:
            Writing(snapshot, snapshot.path.name, 0).write()
        done.put(True)


def keep_busy() -> None:
    while True:
        pass


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=672)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=9, help="of pairs, for the stall")
    parser.add_argument("--dips", type=int, default=9, help="rounds of saves beside steps, for the dip")
    parser.add_argument("--variants", action="store_true", help="also how else the background could write")
    parser.add_argument("--busy", type=int, default=0, help="processes that compute beside it all, at its own priority")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for _ in range(options.busy):
        multiprocessing.get_context("spawn").Process(target=keep_busy, daemon=True).start()
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="bench-saves-", dir=RESULTS.parent))
    try:
        bench = Bench(options, folder)
        peers = {
            "bivouac": bench.bivouac,
            "DeepSpeed save_checkpoint": bench.deepspeed,
            "DCP async_save": bench.async_save,
            "DCP async_save, cached": bench.async_save_cached,
        }
        pairs, dips = measure(peers, bench.pair, options.rounds), measure(peers, bench.round, options.dips)
        variants = measure(bench.variants(), bench.round, options.dips) if options.variants else {}
        size = sum(tensor.nbytes for tensor, _ in bench.plain)
        print(f"state {size / 1e6:.0f} MB, {options.rounds} rounds; buffers were made beside the training in", end=" ")
        print(f"{bench.ready_s:.2f} s; load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    finally:
        for process in multiprocessing.active_children():
            process.kill()
        shutil.rmtree(folder, ignore_errors=True)
    held = report(pairs, dips)
    report_variants(variants)
    RESULTS.write_text(
        json.dumps(
            {"bytes": size, "pairs": pairs, "dips": dips, "variants": variants, "load": os.getloadavg()}, indent=1
        )
    )
    return 0 if held else 1


def measure(peers: dict[str, Any], take: Any, rounds: int) -> dict[str, list[dict[str, float]]]:
    """Every peer once a round, in an order that turns; what the first round measures is left out."""
    rows: dict[str, list[dict[str, float]]] = {name: [] for name in peers}
    names = list(peers)
    for number in range(rounds + 1):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            row = take(peers[name])
            if number:
                rows[name].append(row)
    return rows


def medians(rows: dict[str, list[dict[str, float]]]) -> dict[str, dict[str, float]]:
    return {n: {key: statistics.median(r[key] for r in each) for key in each[0]} for n, each in rows.items() if each}


def report(pairs: dict[str, list[dict[str, float]]], dips: dict[str, list[dict[str, float]]]) -> bool:
    """Prints the table; whether the stall keeps its limit."""
    stall, dip = medians(pairs), medians(dips)
    print(f"{'':28}{'copy s':>9}{'stall s':>9}{'/copy':>8}{'dip s':>8}{'durable s':>11}{'lost tokens':>13}")
    for name, row in stall.items():
        print(f"{name:28}{row['copy_s']:9.4f}{row['stall_s']:9.4f}{row['stall_s'] / row['copy_s']:8.2f}", end="")
        beside = dip.get(name)
        print(f"{beside['dip_s']:8.2f}{beside['background_s']:11.2f}{beside['lost_tokens']:13.0f}" if beside else "")
    ours, own = stall["bivouac"], stall["DeepSpeed save_checkpoint"]
    gather = statistics.median(row["stall_s"] - row["copying_s"] for row in pairs["bivouac"])
    print(f"ours: copy {ours['copying_s']:.4f} s, DeepSpeed's gathering and hand-over {gather:.4f} s")
    stalls, copies = (tuple(row[key] for row in pairs["bivouac"]) for key in ("stall_s", "copy_s"))
    # No save can be shorter than the bare copy: that is the limit, whatever part of DeepSpeed's save it is here.
    print(f"stall / DeepSpeed {ours['stall_s'] / own['stall_s']:.3f}, bare copy / DeepSpeed", end=" ")
    print(f"{ours['copy_s'] / own['stall_s']:.3f}: the least that hardware allows")
    return judge(Verdict("stall", stalls, 1.2, "bare copy", copies)) == 0


def report_variants(variants: dict[str, list[dict[str, float]]]) -> None:
    rows = medians(variants)
    if rows:
        print(f"{'background writing':28}{'stall s':>9}{'dip s':>8}{'durable s':>11}{'lost tokens':>13}{'CPU s':>8}")
    for name, row in rows.items():
        print(f"{name:28}{row['stall_s']:9.4f}{row['dip_s']:8.2f}{row['background_s']:11.2f}", end="")
        print(f"{row['lost_tokens']:13.0f}{row['writing_cpu_s']:8.2f}")


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)
