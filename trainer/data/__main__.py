"""`python -m trainer.data SOURCE OUT`: prepare a data set by hand; progress and the manifest's digest as JSON lines."""

from __future__ import annotations

import argparse
import hashlib
import signal
import sys
from pathlib import Path

from trainer.contract import DATA_MANIFEST_NAME, ExitCode
from trainer.data.prepare import prepare
from trainer.errors import DataError, StorageError, TrainerError
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
    except MemoryError:
        cure = "set data.max_files, or use a machine with more"
        print(DataError("the text does not fit into memory", "no memory left", cure), file=sys.stderr)
        return int(ExitCode.DATA)
    except OSError as error:
        seen = f"{error.filename or options['out']}: {error.strerror}"
        print(
            StorageError("the prepared data cannot be written", seen, "make room, or name another folder"),
            file=sys.stderr,
        )
        return int(ExitCode.STORAGE)
    except KeyboardInterrupt:
        print("interrupted: nothing half-made will be taken; prepare again", file=sys.stderr)
        return 128 + signal.SIGINT
    digest = hashlib.sha256((options["out"] / DATA_MANIFEST_NAME).read_bytes()).hexdigest()
    emit("prepared", manifest_sha256=digest, tokens=manifest.train_tokens, unigram_loss=manifest.unigram_loss)
    return 0


if __name__ == "__main__":
    sys.exit(main())
