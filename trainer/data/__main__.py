"""`python -m trainer.data RECIPE OUT`: prepare a data set; print progress and the manifest's digest as JSON lines."""

from __future__ import annotations

import argparse
import hashlib
import json
import signal
import sys
import time
from pathlib import Path

from pydantic import ValidationError

from trainer.contract import DATA_MANIFEST_NAME, ExitCode
from trainer.contract.recipe import Recipe
from trainer.data.prepare.prepare import make
from trainer.errors import DataError, StorageError, TrainerError
from trainer.events import emit


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m trainer.data", description=__doc__)
    parser.add_argument("recipe", help="a recipe as JSON; see `trainer.contract.recipe`")
    parser.add_argument("out", type=Path)
    parser.add_argument("--cores", type=int, default=None)
    options = parser.parse_args()
    try:
        recipe = Recipe.model_validate(json.loads(options.recipe))
        manifest = make(recipe, options.out, _Teller(), options.cores)
    except TrainerError as error:
        print(error, file=sys.stderr)
        return int(error.exit_code)
    except ValidationError as error:
        rows = [f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors()]
        print(DataError("the recipe is not valid", "; ".join(rows), "correct it"), file=sys.stderr)
        return int(ExitCode.USER)
    except MemoryError:
        cure = "use fewer --cores, or a machine with more"
        print(DataError("the text does not fit into memory", "no memory left", cure), file=sys.stderr)
        return int(ExitCode.DATA)
    except OSError as error:
        seen = f"{error.filename or options.out}: {error.strerror}"
        cure = "make room, or name another folder; the same command continues"
        print(StorageError("the prepared data cannot be written", seen, cure), file=sys.stderr)
        return int(ExitCode.STORAGE)
    except KeyboardInterrupt:
        print("interrupted: the same command continues", file=sys.stderr)
        return 128 + signal.SIGINT
    digest = hashlib.sha256((options.out / DATA_MANIFEST_NAME).read_bytes()).hexdigest()
    emit("prepared", manifest_sha256=digest, tokens=manifest.train_tokens, unigram_loss=manifest.unigram_loss)
    return 0


class _Teller:
    """Prints progress and the time left, at the rate of this run without the work of earlier ones."""

    def __init__(self) -> None:
        self._first: tuple[float, float] | None = None

    def __call__(self, stage: str, part: float) -> None:
        now = time.monotonic()
        if self._first is None and part > 0:
            self._first = now, part
        left = None
        if self._first is not None and part > self._first[1]:
            left = round((now - self._first[0]) * (1 - part) / (part - self._first[1]))
        emit("progress", stage=stage, part=round(part, 4), left_s=left)


if __name__ == "__main__":
    sys.exit(main())
