"""Bench: `data prepare` beside `tokenizers` alone on the same text, both on one core, in interleaved pairs.

Alone: one process encodes the documents, already in memory, in batches of the same size, and keeps nothing.
With `--ray` instead: the pool of processes beside the same stages on Ray Data (`parts/data_ray.py`).
Prepare: both passes, deduplication, filters, digests, shards and manifest on disk, with the same tokenizer given.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

os.environ["TOKENIZERS_PARALLELISM"] = "false"

from tokenizers import Tokenizer

from tests.bench.parts.verdict import Verdict, judge
from tests.results import keep, results_of
from trainer.builtin.data.prepare.encode import BATCH_CHARACTERS
from trainer.builtin.data.prepare.prepare import make
from trainer.builtin.data.prepare.vocabulary import load_tokenizer, train_tokenizer
from trainer.contract import Parameters
from trainer.contract.recipe import Recipe, Source

RESULTS = results_of("bench", "data_prepare")

PAIRS, TEXT_BYTES, VOCABULARY, FLOOR = 7, 2 * 2**20, 8192, 0.8


def timed(work: Callable[[], int]) -> tuple[float, float]:
    """(tokens per second, tokens per second of CPU)."""
    wall, used = time.perf_counter(), time.process_time()
    tokens = work()
    return tokens / (time.perf_counter() - wall), tokens / (time.process_time() - used)


def documents() -> list[str]:
    found, size = [], 0
    for path in sorted(Path(sysconfig.get_path("stdlib")).rglob("*.py")):
        if "site-packages" not in path.parts and size < TEXT_BYTES:
            text = path.read_text(errors="ignore")
            found.append(text)
            size += len(text)
    return list(dict.fromkeys(text for text in found if text.strip()))


def alone(tokenizer: Tokenizer, texts: list[str]) -> int:
    batch, held, tokens = list[str](), 0, 0
    for text in [*texts, ""]:
        if batch and (held + len(text) > BATCH_CHARACTERS or not text):
            tokens += sum(len(each.ids) for each in tokenizer.encode_batch_fast(batch, add_special_tokens=False))
            batch, held = [], 0
        batch.append(text)
        held += len(text)
    return tokens


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ray", action="store_true", help="beside Ray Data, which must be installed")
    if parser.parse_args().ray:
        from tests.bench.parts import data_ray

        return data_ray.compare()
    return measure()


def measure() -> int:
    texts = documents()
    with tempfile.TemporaryDirectory(prefix="bench-data-") as name:
        work = Path(name)
        (work / "in").mkdir()
        for index, text in enumerate(texts):
            (work / "in" / f"{index:05d}.txt").write_text(text)
        given = work / "tokenizer.json"
        train_tokenizer(iter(texts[:200]), VOCABULARY).save(str(given))
        tokenizer = load_tokenizer(given.read_bytes())
        recipe = Recipe(
            sources=(Source(location=str(work / "in")),),
            parameters=Parameters(held_out=0.05, seed=1),
            tokenizer=given,
        )

        def prepared(number: int) -> int:
            manifest = make(recipe, work / f"out{number}", lambda stage, part: None, cores=1)
            return manifest.train_tokens + manifest.validation_tokens

        rows = []
        for number in range(PAIRS):
            pair = [partial(alone, tokenizer, texts), partial(prepared, number)]
            order = (0, 1) if number % 2 else (1, 0)
            seen = {index: timed(pair[index]) for index in order}
            rows.append((seen[0], seen[1]))
    wall = [statistics.median(row[side][0] for row in rows) for side in (0, 1)]
    cpu = [statistics.median(row[side][1] for row in rows) for side in (0, 1)]
    print(f"{len(texts)} documents, {sum(map(len, texts)) / 1e6:.1f} M characters, {PAIRS} interleaved pairs, one core")
    print(f"{'':<22}{'tokens/s':>12}{'tokens/s of CPU':>18}")
    print(f"{'tokenizers alone':<22}{wall[0]:>12,.0f}{cpu[0]:>18,.0f}")
    print(f"{'data prepare':<22}{wall[1]:>12,.0f}{cpu[1]:>18,.0f}")
    ratio = cpu[1] / cpu[0]
    print(f"{'ratio of medians':<22}{wall[1] / wall[0]:>12.2f}{ratio:>18.2f}   floor {FLOOR}")
    keep(RESULTS, {"pairs": rows, "wall": wall, "cpu": cpu, "ratio": ratio, "floor": FLOOR})
    alone_rate, ours = (tuple(row[side][1] for row in rows) for side in (0, 1))
    return judge(Verdict("data prepare", ours, FLOOR, "tokenizers", alone_rate, at_least=True, unit="tokens/s of CPU"))


if __name__ == "__main__":
    sys.exit(main())
