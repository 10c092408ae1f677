"""What the ranks exchange about checkpoints, at 512 simulated ranks: bytes, time and memory of one rank.

    .venv/bin/python -m tests.bench.exchanges [--ranks 512] [--per-node 8] [--steps 4]

Real tiers in a folder hold the manifests of some steps; the node's own disk lacks the newest, as a new node's does. One
rank's real `_candidates` and the real end of a save run; the other ranks' values are made, pickled, padded to the
longest as torch does, and unpickled. The peer gathers whole manifests, as until November 2026.
"""

from __future__ import annotations

import argparse
import pickle
import statistics
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.bench.parts.verdict import Verdict, judge
from tests.manifests import manifest_of
from tests.results import keep, results_of
from trainer.builtin.checkpoint import restore
from trainer.builtin.checkpoint.tiers import Tiers, campaign_tiers
from trainer.builtin.checkpoint.writing import merge
from trainer.builtin.gang import Gang
from trainer.contract import Manifest, Shard, parse_manifest, step_folder

RESULTS = results_of("bench", "exchanges")
MOST_S, MOST_MB, RUNS = 1.0, 50.0, 5


class Simulated(Gang):
    """Rank 0 of many: the others tell what `others` says of them."""

    def __init__(self, ranks: int, others: Callable[[int], Any], given: bytes = b"") -> None:
        super().__init__(0, 0, ranks, None)  # type: ignore[arg-type]
        object.__setattr__(self, "state", {"others": others, "given": given, "bytes": 0})

    @property
    def gathered(self) -> int:
        return int(self.state["bytes"])  # type: ignore[attr-defined]

    def gather(self, mine: Any) -> list[Any]:
        state = self.state  # type: ignore[attr-defined]
        told = [pickle.dumps(mine if rank == 0 else state["others"](rank)) for rank in range(self.world_size)]
        longest = max(map(len, told))
        state["bytes"] += longest * self.world_size
        # torch gathers every value padded to the longest, in one tensor, before it unpickles.
        padded = b"".join(one.ljust(longest, b"\0") for one in told)
        return [pickle.loads(padded[start : start + longest]) for start in range(0, len(padded), longest)]

    def of_holder(self, content: bytes | None, holder: int) -> bytes:
        state = self.state  # type: ignore[attr-defined]
        given: bytes = content if content is not None else state["given"]
        state["bytes"] += len(given)
        return bytes(bytearray(given))

    def together(self, what: str, work: Callable[[], Any]) -> Any:
        return work()


def shards_of(rank: int) -> tuple[Shard, ...]:
    names = [f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt", f"rng_rank_{rank:05d}.pt"]
    names += ["mp_rank_00_model_states.pt"] * (rank == 0)
    return tuple(
        Shard(file=f"attempt-0001/{name}", size_bytes=10**9 + rank, sha256=f"{rank:08x}{index:056x}", rank=rank)
        for index, name in enumerate(names)
    )


def manifest(step: int, ranks: int) -> Manifest:
    shards = merge(tuple(shards_of(rank) for rank in range(ranks)))
    return parse_manifest(manifest_of(step, shards, world_size=ranks, campaign="bench").serialize())


def measured(work: Callable[[], object], gang: Simulated) -> dict[str, Any]:
    """Seconds of `RUNS` runs without the tracer, peak of new memory with it."""
    work()
    sent = gang.gathered
    took = list[float]()
    for _ in range(RUNS):
        begun = time.process_time()
        work()
        took.append(time.process_time() - begun)
    tracemalloc.start()
    work()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return {"seconds": took, "bytes": sent, "peak_bytes": peak}


def whole_manifests(gang: Gang, tiers: Tiers) -> list[Manifest]:
    """The peer."""
    mine = {claim.manifest.serialize() for tier in tiers for claim in tier.claims() if claim.manifest}
    return [parse_manifest(content) for content in sorted(set().union(*gang.gather(sorted(mine))))]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=512)
    parser.add_argument("--steps", type=int, default=4)
    options = parser.parse_args()
    ranks = options.ranks
    made = [manifest(100 * number, ranks) for number in range(1, options.steps + 1)]
    contents = [one.serialize() for one in made]
    with tempfile.TemporaryDirectory() as folder:
        tiers = campaign_tiers(Path(folder) / "local", Path(folder) / "shared", "bench")
        for one, content in zip(made[:-1], contents[:-1], strict=True):  # the newest is on the other nodes only
            place = tiers.shared.root / step_folder(one.step)
            place.mkdir(parents=True)
            (place / "manifest.json").write_bytes(content)
        seals = Simulated(ranks, lambda rank: sorted(one.seal for one in made), contents[-1])
        whole = Simulated(ranks, lambda rank: contents)
        saving = Simulated(ranks, lambda rank: (7, None, shards_of(rank)))
        rows = {
            "restore: seals": measured(lambda: restore._candidates(seals, tiers), seals),
            "restore: whole manifests": measured(lambda: whole_manifests(whole, tiers), whole),
            "save: digests": measured(lambda: _save(saving), saving),
        }
    print(f"{ranks} ranks, {options.steps} steps, a manifest of {len(contents[-1]) / 1e6:.2f} MB")
    for name, row in rows.items():
        seconds, sizes = statistics.median(row["seconds"]), (row["bytes"] / 1e6, row["peak_bytes"] / 1e6)
        print(f"{name:26}{seconds:8.2f} s{sizes[0]:10.1f} MB gathered{sizes[1]:10.1f} MB")
    keep(RESULTS, rows)
    ours, peer = (tuple(rows[name]["seconds"]) for name in ("restore: seals", "restore: whole manifests"))
    verdicts = [Verdict("restore: seals", ours, 1.0, "whole manifests", peer)]
    for name in ("restore: seals", "save: digests"):
        most_mb = max(rows[name]["bytes"], rows[name]["peak_bytes"]) / 1e6
        verdicts.append(Verdict(name, tuple(rows[name]["seconds"]), MOST_S))
        verdicts.append(Verdict(f"{name}, gathered or in memory", (most_mb,), MOST_MB, unit="MB"))
    return judge(*verdicts)


def _save(gang: Simulated) -> Manifest:
    """As the committer does after its files are written."""
    _, _, written = zip(*gang.gather((7, None, shards_of(0))), strict=True)
    made = manifest_of(7, merge(written), world_size=gang.world_size, campaign="bench")
    made.serialize()
    return made


if __name__ == "__main__":
    sys.exit(main())
