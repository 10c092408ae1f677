"""`python -m trainer.data SOURCE OUT`: prepare a data set by hand; progress and the manifest's digest as JSON lines."""

from __future__ import annotations

import argparse
import hashlib
import sys
from pathlib import Path

from trainer.contract import DATA_MANIFEST_NAME
from trainer.data.prepare import prepare
from trainer.errors import TrainerError
from trainer.events import emit


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m trainer.data", description=__doc__)
    parser.add_argument("source", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--pattern", default="**/*")
    parser.add_argument("--max-files", type=int, default=None)
    parser.add_argument("--held-out", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=1234)
    parser.add_argument("--vocabulary", type=int, default=4096)
    options = vars(parser.parse_args())
    try:
        manifest = prepare(**options, progress=lambda stage, part: emit("progress", stage=stage, part=part))
    except TrainerError as error:
        print(error, file=sys.stderr)
        return int(error.exit_code)
    digest = hashlib.sha256((options["out"] / DATA_MANIFEST_NAME).read_bytes()).hexdigest()
    emit("prepared", manifest_sha256=digest, tokens=manifest.train_tokens, unigram_loss=manifest.unigram_loss)
    return 0


if __name__ == "__main__":
    sys.exit(main())
