"""Bench: the reader beside Megatron-style reading through DeepSpeed's reader, and beside what the rehearsal trains.

Megatron-style: stored permutations of documents and samples, then one `get` per document piece and a concatenation.
Both read the same `.bin` and `.idx` files, in interleaved pairs, from positions of their own at random.
"""

from __future__ import annotations

import contextlib
import io
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from tests.bench.parts.verdict import Verdict, judge
from tests.results import keep, results_of
from tests.root import ROOT
from tests.trainer.data_sets import open_data
from trainer.builtin.data.prepare.assemble import index_bytes
from trainer.builtin.data.reader import Reader
from trainer.contract import DATA_MANIFEST_NAME, DataManifest, ModelConfig, Parameters, SourceCounts, TokenShard

RESULTS = results_of("bench", "data_reader")

TOKENS, VOCABULARY, PAIRS, FAR = 32 * 2**20, 32_000, 9, 10**12
FIRST_BATCH_MS, TIMES_TRAINED = 50.0, 20.0


def write_set(root: Path) -> None:
    """Documents of log-normal length, one shard, ids at random."""
    dice = np.random.default_rng(1)
    lengths = np.clip(dice.lognormal(6.2, 1.0, 80_000), 8, 50_000).astype(np.int32)
    lengths = lengths[: int(np.searchsorted(np.cumsum(lengths), TOKENS))]
    shards = []
    for name, sizes, source in (("train-00000", lengths, "text"), ("validation-00000", lengths[:200], "")):
        dice.integers(1, VOCABULARY, int(sizes.sum()), dtype=np.int16).tofile(root / f"{name}.bin")
        (root / f"{name}.idx").write_bytes(index_bytes(sizes, "int16"))
        shape: dict[str, Any] = {"tokens": int(sizes.sum()), "documents": len(sizes)}
        shards.append(TokenShard(file=f"{name}.bin", source=source, sha256="", index_sha256="", **shape))
    total = shards[0].tokens
    counts = SourceCounts(name="text", location="", pattern="", files=1, bytes=0, documents=len(lengths), tokens=total)
    manifest = DataManifest(
        sources=(counts,),
        parameters=Parameters(held_out=0.1, seed=1),
        documents=len(lengths),
        held_out_documents=200,
        skipped_documents=0,
        source_bytes=0,
        vocabulary=VOCABULARY,
        end_of_document=0,
        dtype="int16",
        tokenizer_sha256="",
        train=(shards[0],),
        validation=(shards[1],),
        train_tokens=total,
        validation_tokens=shards[1].tokens,
        unigram_loss=0.0,
    )
    (root / DATA_MANIFEST_NAME).write_text(manifest.model_dump_json())


class MegatronStyle:
    """What a GPT data set does over an indexed one: built once, then looked up."""

    def __init__(self, root: Path, context: int) -> None:
        from deepspeed.runtime.data_pipeline.data_sampling.indexed_dataset import MMapIndexedDataset

        begun = time.perf_counter()
        with contextlib.redirect_stdout(io.StringIO()):
            self.documents = MMapIndexedDataset(str(root / "train-00000"), skip_warmup=True)
        dice = np.random.default_rng(7)
        self.order = dice.permutation(len(self.documents))
        ends = np.cumsum(self.documents.sizes[self.order])
        self.samples = int((ends[-1] - 1) // context)
        starts = np.arange(self.samples + 1) * context
        self.first = np.searchsorted(ends, starts, side="right")
        self.offset = starts - np.where(self.first, ends[self.first - 1], 0)
        self.shuffle = dice.permutation(self.samples)
        self.context, self.built_s = context, time.perf_counter() - begun

    def batch(self, positions: range) -> np.ndarray:
        return np.stack([self._sample(int(self.shuffle[position % self.samples])) for position in positions])

    def _sample(self, index: int) -> np.ndarray:
        place, offset, missing = int(self.first[index]), int(self.offset[index]), self.context + 1
        pieces = []
        while missing:
            document = int(self.order[place])
            piece = self.documents.get(document, offset, min(missing, int(self.documents.sizes[document]) - offset))
            pieces.append(piece)
            missing, offset, place = missing - len(piece), 0, place + 1
        return np.concatenate(pieces).astype(np.int64)


def rate(batch: Callable[[range], Any], context: int, size: int, batches: int) -> float:
    """Tokens per second."""
    start = random.randrange(10**6)
    begun = time.perf_counter()
    for number in range(batches):
        batch(range(start + number * size, start + (number + 1) * size))
    return batches * size * context / (time.perf_counter() - begun)


def trained_rates(model: ModelConfig, micro_batch: int, ranks: int) -> tuple[float, ...]:
    """Upper bounds of what the rehearsal trains: forward and backward alone, every rank as quick as one alone."""
    import torch

    from trainer.builtin.model import Transformer

    torch.set_num_threads(1)
    network = Transformer(model)
    tokens = torch.randint(0, model.vocabulary, (micro_batch, model.context + 1))
    seconds = []
    for _ in range(6):
        begun = time.perf_counter()
        network(tokens).backward()
        seconds.append(time.perf_counter() - begun)
    return tuple(ranks * micro_batch * model.context / each for each in seconds[1:])


def first_batch_ms(root: Path, context: int) -> tuple[float, ...]:
    """From nothing to the first batch at a far position; digests are verified once per node, beside it."""
    seconds = []
    for number in range(9):
        begun = time.perf_counter()
        open_data(root, "", VOCABULARY, context, number, verify=False).batch(range(FAR, FAR + 8))
        seconds.append(time.perf_counter() - begun)
    return tuple(1000 * each for each in seconds)


def with_ledger(reader: Reader) -> Callable[[range], Any]:
    def batch(positions: range) -> Any:
        stored = reader.stored(positions)
        return reader.digests(positions, stored), stored.astype(np.int64)

    return batch


def main() -> int:
    random.seed(1)
    rows, verdicts = [], list[Verdict]()
    with tempfile.TemporaryDirectory(prefix="bench-reader-") as name:
        root = Path(name)
        write_set(root)
        print(f"{TOKENS / 2**20:.0f} Mi tokens, {PAIRS} interleaved pairs, one thread; million tokens/s")
        print(
            f"{'context':>8}{'at once':>9}{'ours':>9}{'+ ledger':>10}{'Megatron-style':>16}{'ratio':>8}{'+ ledger':>10}"
        )
        for context, size in ((512, 64), (2048, 32), (4096, 32)):
            reader, peer = open_data(root, "", VOCABULARY, context, 1, verify=False), MegatronStyle(root, context)
            sides = (reader.batch, with_ledger(reader), peer.batch)
            batches = max(4, 2**21 // (context * size))
            for side in sides:
                rate(side, context, size, batches)
            seen = [[rate(side, context, size, batches) for side in sides] for _ in range(PAIRS)]
            ours, ledger, theirs = (statistics.median(column) / 1e6 for column in zip(*seen, strict=True))
            # Of each pair first: what else the machine does in its time is in both.
            plain, sealed = (statistics.median(row[side] / row[2] for row in seen) for side in (0, 1))
            print(
                f"{context:>8}{size:>9}{ours:>9.1f}{ledger:>10.1f}{theirs:>16.1f}{plain:>8.2f}{sealed:>10.2f}",
                flush=True,
            )
            rows.append(
                {"context": context, "size": size, "ours": ours, "with_ledger": ledger, "megatron": theirs}
                | {"ratio": plain, "ratio_with_ledger": sealed}
            )
            sides_seen = ([row[side] / 1e6 for row in seen] for side in (0, 2))
            mine, megatron = map(tuple, sides_seen)
            what, unit = f"reader, context {context}", "million tokens/s"
            verdicts.append(Verdict(what, mine, 1.0, "Megatron-style", megatron, at_least=True, unit=unit))
        spec = yaml.safe_load((ROOT / "infra/campaigns/rehearsal.yaml").read_text())["training"]
        model, micro = ModelConfig(**spec["model"]), spec["micro_batch"]
        reader = open_data(root, "", VOCABULARY, model.context, 1, verify=False)
        trained = trained_rates(model, micro, 2)
        read = tuple(rate(with_ledger(reader), model.context, spec["global_batch"], 50) for _ in range(5))
        first = first_batch_ms(root, 4096)
    # Time for a million tokens: of rates far apart the limit, a small part of the figure, would lie within its spread.
    reading, training = (tuple(1e6 / each for each in rates) for rates in (read, trained))
    what, peer_name = "a million tokens of the rehearsal, read", "trained, forward and backward alone"
    verdicts += [
        Verdict(what, reading, 1 / TIMES_TRAINED, peer_name, training),
        Verdict("first batch at position 10^12, with manifest and maps", first, FIRST_BATCH_MS, unit="ms"),
    ]
    answer = {"rows": rows, "trained": trained, "read": read, "first_batch_ms": first}
    keep(RESULTS, answer)
    return judge(*verdicts)


if __name__ == "__main__":
    sys.exit(main())
