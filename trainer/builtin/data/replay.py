"""`python -m trainer.builtin.data.replay`: print the digest of every step's samples, read from the data set.

They determine the ledger's chain from data, seed and configuration alone.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path

from trainer.builtin.config import load_config
from trainer.builtin.data.reader import Reader, check_vocabulary, load_manifest
from trainer.client.bivouac_data.reader import folder_opener
from trainer.contract import TrainConfig
from trainer.contract.ledger import Consumed, step_digest
from trainer.errors import TrainerError

_AT_ONCE = 1024


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m trainer.builtin.data.replay", description=__doc__)
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--rows", type=Path, required=True, help="the ledger's rows, as JSON")
    options = parser.parse_args()
    try:
        config = load_config(options.config)
        rows = [Consumed.model_validate(row) for row in json.loads(options.rows.read_bytes())]
        for step, samples in replay(config, options.data, rows):
            print(json.dumps({"step": step, "samples": f"{samples:016x}"}))
    except TrainerError as error:
        print(error, file=sys.stderr)
        return int(error.exit_code)
    return 0


def replay(config: TrainConfig, data: Path, rows: list[Consumed]) -> Iterator[tuple[int, int]]:
    """Yield (step, digest of its samples) for every step of the ledger."""
    for row in rows:
        manifest = load_manifest(data, row.data_digest)
        check_vocabulary(manifest, config.model.vocabulary, or_fewer=bool(config.model.name))
        opener, section = folder_opener(data), config.data
        reader = Reader(manifest, opener, config.model.context, row.seed, section.weights, section.shuffle_blocks)
        for step in range(row.first_step, row.last_step + 1):
            position = row.first_position + (step - row.first_step) * row.global_batch
            yield step, step_digest(_digests(reader, range(position, position + row.global_batch)))


def _digests(reader: Reader, positions: range) -> Iterator[int]:
    for start in range(0, len(positions), _AT_ONCE):
        part = positions[start : start + _AT_ONCE]
        yield from reader.digests(part, reader.stored(part))


if __name__ == "__main__":
    sys.exit(main())
