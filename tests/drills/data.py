"""Drill: preparations that are killed at any moment and continued on other numbers of cores, by seed.

`python -m tests.drills.data --seed 1 --count 20`: random texts in random formats; however often it was killed, the set
is, byte for byte, what an undisturbed run on one core made; and until then there is no manifest.
"""

from __future__ import annotations

import argparse
import bz2
import gzip
import json
import lzma
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow
import zstandard
from pyarrow import parquet

from tests.results import conclude, results_of
from tests.root import ROOT
from trainer.contract import DATA_MANIFEST_NAME, Parameters
from trainer.contract.recipe import Recipe, Source

RESULTS = results_of("drills", "data")

PACK: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".zst": zstandard.compress,
    ".xz": lzma.compress,
    ".bz2": bz2.compress,
}
LIMIT_S = 300


def write_inputs(dice: random.Random, root: Path) -> Recipe:
    words = ["".join(dice.choices("abcdefghij ", k=dice.randint(2, 8))) for _ in range(400)] + ["ümlaut", "日本", "\n"]
    sources = []
    for number in range(dice.randint(1, 3)):
        folder = root / f"in{number}"
        folder.mkdir()
        for index in range(dice.randint(2, 12)):
            rows = [" ".join(dice.choices(words, k=dice.randint(1, 400))) for _ in range(dice.randint(1, 250))]
            rows += dice.choices(rows, k=len(rows) // 10)
            match dice.choice(("text", "jsonl", "parquet")):
                case "parquet":
                    table = pyarrow.table({"text": rows})
                    parquet.write_table(table, folder / f"{index}.parquet", row_group_size=dice.randint(5, 100))
                case "jsonl":
                    end = dice.choice(list(PACK))
                    lines = "".join(json.dumps({"text": row}) + "\n" for row in rows)
                    (folder / f"{index}.jsonl{end}").write_bytes(PACK[end](lines.encode()))
                case _:
                    end = dice.choice(list(PACK))
                    (folder / f"{index}.txt{end}").write_bytes(PACK[end]("\n".join(rows).encode()))
        sources.append(Source(name=f"s{number}", location=str(folder)))
    parameters = Parameters(held_out=0.1, seed=dice.randint(0, 99), shard_tokens=2**16, document_bytes=2**14)
    return Recipe(sources=tuple(sources), parameters=parameters, vocabulary=400)


def start(recipe: Recipe, out: Path, cores: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "trainer.builtin.data", recipe.model_dump_json(), str(out), f"--cores={cores}"]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def content(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in out.iterdir() if not path.name.startswith(".")}


def case(dice: random.Random, root: Path) -> tuple[str | None, int]:
    """What went wrong, and how many kills there were."""
    recipe, kills = write_inputs(dice, root), 0
    plain = start(recipe, root / "plain", 1)
    begun = time.monotonic()
    if plain.wait(LIMIT_S):
        return f"undisturbed: exit code {plain.returncode}: {plain.stderr.read()[-300:]!r}", 0  # type: ignore[union-attr]
    whole = time.monotonic() - begun
    while True:
        process = start(recipe, root / "killed", dice.randint(1, 3))
        try:
            code = process.wait(dice.uniform(0.2, 1.2) * whole if kills < 6 else LIMIT_S)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
            kills += 1
            made = root / "killed" / DATA_MANIFEST_NAME
            if made.exists() and made.read_bytes() != (root / "plain" / DATA_MANIFEST_NAME).read_bytes():
                return "a killed run left another manifest", kills
            continue
        if code:
            return f"exit code {code}: {process.stderr.read()[-300:]!r}", kills  # type: ignore[union-attr]
        break
    differ = sorted(
        name for name, body in content(root / "plain").items() if content(root / "killed").get(name) != body
    )
    return (f"other bytes in {', '.join(differ)}" if differ else None), kills


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=20)
    options = parser.parse_args()
    rows, begun = [], time.monotonic()
    for number in range(options.count):
        with tempfile.TemporaryDirectory(prefix="drill-data-") as name:
            wrong, kills = case(random.Random(f"{options.seed}:{number}"), Path(name))
        rows.append({"case": number, "kills": kills, "wrong": wrong})
        print(f"case {number}: {kills} kills: {wrong or 'the same bytes'}", flush=True)
    failed = sum(row["wrong"] is not None for row in rows)
    return conclude(RESULTS, {"seed": options.seed, "rows": rows}, len(rows), failed, begun)


if __name__ == "__main__":
    sys.exit(main())
