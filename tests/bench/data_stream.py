"""Bench: how long training waits for data that comes from S3 while it trains, with a cache smaller than the data set.

    .venv/bin/python -m tests.bench.data_stream [--times 20] [--seconds 20] [--runs 3]

A paced consumer takes steps as the loop does, at so many times the rate that the rehearsal trains with; shards come
from `s3_endpoint` in another process, as slowly as `--mib-per-s` says, into a cache of half of the set. Waiting in
the steady state (after the first shuffle window) must stay below a thousandth of the training's time, and the cache
below its limit.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import boto3
import numpy as np

from tests.bench.parts.verdict import Verdict, judge
from tests.results import keep, results_of
from tests.trainer.data_sets import used_bytes
from trainer.buckets.sources import BucketSource
from trainer.builtin.data.cache import Cache
from trainer.builtin.data.feed import Feed, Share
from trainer.builtin.data.prepare.assemble import index_bytes
from trainer.builtin.data.reader import Reader
from trainer.builtin.data.staging import Stager
from trainer.contract import DataManifest, Parameters, SourceCounts, TokenShard

RESULTS = results_of("bench", "data_stream")

BUCKET, CONTEXT, BATCH, SHARD_TOKENS, SHARDS = "bench", 512, 8, 2**17, 48
ENDPOINT = (sys.executable, "-m", "tests.bench.parts.s3_endpoint")
TRAINED = 3000
"""Tokens per second that the rehearsal trains with, about: `tests/bench/data_reader.py` measures it."""
CEILING = 0.001


class Slow(BucketSource):
    """A bucket behind a thin line."""

    def __init__(self, url: str, mib_per_s: float) -> None:
        super().__init__(url)
        self._seconds_per_byte = 1 / (mib_per_s * 2**20)

    def read(self, name: str) -> Iterator[bytes]:
        for piece in super().read(name):
            time.sleep(len(piece) * self._seconds_per_byte)
            yield piece


def write_set(s3: object) -> DataManifest:
    dice, shards = np.random.default_rng(1), []
    for number in range(SHARDS + 1):
        tokens = dice.integers(1, 30_000, SHARD_TOKENS, dtype=np.int16).tobytes()
        index = index_bytes(np.full(SHARD_TOKENS // 256, 256, dtype=np.int32), "int16")
        name = f"train-{number:05d}.bin" if number < SHARDS else "validation-00000.bin"
        s3.put_object(Bucket=BUCKET, Key=name, Body=tokens)  # type: ignore[attr-defined]
        digests = (hashlib.sha256(tokens).hexdigest(), hashlib.sha256(index).hexdigest())
        shards.append(
            TokenShard(
                file=name,
                source="text" if number < SHARDS else "",
                sha256=digests[0],
                index_sha256=digests[1],
                tokens=SHARD_TOKENS,
                documents=SHARD_TOKENS // 256,
            )
        )
    total = SHARDS * SHARD_TOKENS
    counts = SourceCounts(name="text", location="", pattern="", files=1, bytes=0, documents=1, tokens=total)
    return DataManifest(
        sources=(counts,),
        parameters=Parameters(held_out=0.1, seed=1, shard_tokens=SHARD_TOKENS),
        documents=1,
        held_out_documents=1,
        skipped_documents=0,
        source_bytes=0,
        vocabulary=30_000,
        end_of_document=0,
        dtype="int16",
        tokenizer_sha256="",
        train=tuple(shards[:-1]),
        validation=(shards[-1],),
        train_tokens=total,
        validation_tokens=SHARD_TOKENS,
        unigram_loss=0.0,
    )


def consume(options: argparse.Namespace, cache: Cache, manifest: DataManifest) -> dict[str, float]:
    reader = Reader(manifest, cache.open, CONTEXT, 1, None, shuffle_blocks=2)
    step_s = BATCH * CONTEXT / (options.times * TRAINED)
    window = 2 * SHARD_TOKENS // CONTEXT // BATCH
    steps = window + round(options.seconds / step_s)
    feed = Feed(reader, Share(BATCH, BATCH, 1, 0), 0, steps * BATCH, 2, Stager(cache, reader, 0, 4 * BATCH))
    first, before, begun, most, used = 0.0, 0.0, 0.0, 0.0, 0
    with feed:
        for step in range(steps):
            if step == window:
                before, begun = feed.wait_seconds, time.monotonic()
            waited = feed.wait_seconds
            feed.next()
            first = first or feed.wait_seconds
            if step >= window:
                most = max(most, feed.wait_seconds - waited)
            if step % 100 == 0:
                used = max(used, used_bytes(cache))
            time.sleep(step_s)
        total, waited = time.monotonic() - begun, feed.wait_seconds - before
    trained = round(options.seconds / step_s) * BATCH * CONTEXT
    return {
        "first_s": first,
        "waited_s": waited,
        "share": waited / total,
        "longest_s": most,
        "tokens_per_s": trained / total,
        "cache_mib": used / 2**20,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=float, default=20.0, help="the rehearsal's rate, so many times")
    parser.add_argument("--seconds", type=float, default=20.0, help="of training in the steady state")
    parser.add_argument("--runs", type=int, default=3, help="each with an empty cache")
    parser.add_argument("--mib-per-s", type=float, default=20.0)
    options = parser.parse_args()
    os.environ |= {"AWS_ACCESS_KEY_ID": "bench", "AWS_SECRET_ACCESS_KEY": "bench", "AWS_DEFAULT_REGION": "us-east-1"}
    os.environ["AWS_EC2_METADATA_DISABLED"] = "true"
    with (
        tempfile.TemporaryDirectory(prefix="bivouac-bench-stream-") as name,
        tempfile.TemporaryDirectory(prefix="bivouac-bench-s3-") as stored,
        subprocess.Popen([*ENDPOINT, stored], stdin=-1, stdout=-1, text=True) as server,
    ):
        try:
            os.environ["AWS_ENDPOINT_URL"] = f"http://127.0.0.1:{server.stdout.readline().strip()}"  # type: ignore[union-attr]
            s3 = boto3.client("s3")
            s3.create_bucket(Bucket=BUCKET)
            manifest = write_set(s3)
            limit = SHARDS // 2 * SHARD_TOKENS * 2
            rows = []
            for number in range(options.runs):
                folder, source = Path(name) / str(number), Slow(f"s3://{BUCKET}", options.mib_per_s)
                folder.mkdir()
                rows.append(consume(options, Cache(folder, limit, source, 2, "bench"), manifest))
                print("  ".join(f"{what} {figure:,.4g}" for what, figure in rows[-1].items()), flush=True)
        finally:
            server.kill()
    print(f"{SHARDS} shards of a quarter MiB over {options.mib_per_s:.0f} MiB/s, cache of {limit / 2**20:.0f} MiB")
    keep(RESULTS, {"rows": rows, "limit_mib": limit / 2**20})
    # No peer streams the same shards: the limits are a thousandth of the training's time, and the cache's size.
    shares, caches = (tuple(row[name] for row in rows) for name in ("share", "cache_mib"))
    waits = Verdict(
        "part of the steady state spent waiting", tuple(100 * share for share in shares), 100 * CEILING, unit="%"
    )
    return judge(waits, Verdict("the cache", (max(caches),), limit / 2**20, unit="MiB"))


if __name__ == "__main__":
    sys.exit(main())
