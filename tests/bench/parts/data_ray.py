"""`data_prepare --ray`: its own pool of processes beside the same stages on Ray Data, on this machine's cores.

`pip install "ray[data]"` first: Ray is no dependency. It listens on every address, so the bench runs in a network
namespace that has loopback alone. A run is a whole preparation, start of the workers included; the shards of both must
be the same bytes. Verdict of the pool against Ray: at most as long.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.bench.data_prepare import documents
from tests.bench.parts.verdict import Verdict, judge
from tests.results import keep, results_of
from trainer.builtin.data.prepare.prepare import list_files, prepare
from trainer.builtin.data.prepare.workers import Stage, Workers
from trainer.contract import Parameters
from trainer.contract.recipe import Recipe, Source

RESULTS = results_of("bench", "data_ray")
PAIRS, CORES, COPIES, UNIT_BYTES, INSIDE = 3, 2, 4, 2**20, "BIVOUAC_BENCH_RAY"


class RayWorkers(Workers):
    """The stages as Ray Data runs them: one block an item, as many at once as there are processors."""

    def run(self, stage: Stage, todo: list[tuple[Any, int]], say: Callable[[int], None]) -> None:
        from ray import data

        if not todo:
            return
        items = [item for item, _ in todo]

        def work(row: dict[str, Any]) -> dict[str, Any]:
            stage.function(items[row["id"]], stage.task)
            return row

        data.range(len(items), override_num_blocks=len(items)).map(work).materialize()
        say(sum(size for _, size in todo))


def prepared(recipe: Recipe, out: Path, on_ray: bool) -> tuple[float, float, str]:
    """Return the seconds in all, those of the start, and a digest of everything that was prepared."""
    begun = time.perf_counter()
    if on_ray:
        import ray

        ray.init(num_cpus=CORES, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    started = time.perf_counter() - begun
    with (RayWorkers if on_ray else Workers)(CORES, lambda stage, part: None) as workers:
        prepare(recipe, list_files(recipe), out, workers)
    if on_ray:
        ray.shutdown()
    names = sorted(path for path in out.iterdir() if path.suffix in (".bin", ".idx"))
    content = hashlib.sha256(b"".join(path.read_bytes() for path in names)).hexdigest()
    return time.perf_counter() - begun, started, content


def compare() -> int:
    """Print the pairs and the verdict; return the code of the benchmark's end, 2 where Ray is missing."""
    if importlib.util.find_spec("ray") is None:
        print('Ray is missing, and no dependency of ours: pip install "ray[data]"', file=sys.stderr)
        return 2
    if INSIDE not in os.environ:
        words = [sys.executable, "-m", "tests.bench.data_prepare", "--ray"]
        enter = ["unshare", "-rn", "sh", "-c", 'ip link set lo up && exec "$@"', "sh", *words]
        os.execvpe("unshare", enter, os.environ | {INSIDE: "1", "RAY_DATA_DISABLE_PROGRESS_BARS": "1"})
    from trainer.builtin.data.prepare import documents as units

    units.UNIT_BYTES = UNIT_BYTES  # as many units of this small text as a larger one has
    with tempfile.TemporaryDirectory(prefix="bench-ray-") as name:
        work = Path(name)
        (work / "in").mkdir()
        for index, text in enumerate(documents() * COPIES):
            (work / "in" / f"{index:05d}.txt").write_text(f"{index}\n{text}")
        sources = (Source(location=str(work / "in")),)
        recipe = Recipe(sources=sources, parameters=Parameters(held_out=0.05, seed=1), vocabulary=2048)
        rows = []
        for number in range(PAIRS):
            sides = (False, True) if number % 2 else (True, False)
            seen = {side: prepared(recipe, work / f"out{number}-{side}", side) for side in sides}
            rows.append((seen[False], seen[True]))
            print(f"pool {seen[False][0]:.1f} s, Ray {seen[True][0]:.1f} s, of which its start {seen[True][1]:.1f} s")
        same = len({side[2] for row in rows for side in row}) == 1
    print("the same bytes" if same else "OTHER BYTES")
    keep(RESULTS, {"pairs": rows, "same": same})
    pool, on_ray = (tuple(row[side][0] for row in rows) for side in (0, 1))
    return judge(Verdict("pool of processes", pool, 1.0, "Ray Data", on_ray)) or int(not same)
