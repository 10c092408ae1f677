"""`python -m trainer.builtin.data RECIPE OUT`: prepare a data set; print progress and digest as JSON lines.

Without OUT it only lists the sources, and prints the digest of what would be prepared, and the files' number and sizes.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import signal
import sys
from pathlib import Path

from pydantic import ValidationError

from trainer.builtin.data.prepare.failures import preparation_error
from trainer.builtin.data.prepare.prepare import list_files, make, plan_digest, text_bytes
from trainer.builtin.data.prepare.workers import Teller
from trainer.contract import DATA_MANIFEST_NAME, ExitCode
from trainer.contract.recipe import Recipe
from trainer.errors import DataError, TrainerError
from trainer.events import emit


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m trainer.builtin.data", description=__doc__)
    parser.add_argument("recipe", help="a recipe as JSON; see `trainer.contract.recipe`")
    parser.add_argument("out", type=Path, nargs="?")
    parser.add_argument("--cores", type=int, default=None)
    options = parser.parse_args()
    try:
        recipe = Recipe.model_validate(json.loads(options.recipe))
        if options.out is None:
            _list(recipe)
            return 0
        manifest = make(recipe, options.out, Teller(), options.cores)
    except ValidationError as error:
        rows = [f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors()]
        print(DataError("the recipe is not valid", "; ".join(rows), "correct it"), file=sys.stderr)
        return int(ExitCode.USER)
    except (TrainerError, OSError, MemoryError) as error:
        cure = "make room, or name another folder; the same command continues"
        memory_cure = "use fewer --cores, or a machine with more"
        refusal = preparation_error(error, options.out, "the prepared data cannot be written", cure, memory_cure)
        print(refusal, file=sys.stderr)
        return int(refusal.exit_code)
    except KeyboardInterrupt:
        print("interrupted: the same command continues", file=sys.stderr)
        return 128 + signal.SIGINT
    digest = hashlib.sha256((options.out / DATA_MANIFEST_NAME).read_bytes()).hexdigest()
    emit("prepared", manifest_sha256=digest, tokens=manifest.train_tokens, unigram_loss=manifest.unigram_loss)
    return 0


def _list(recipe: Recipe) -> None:
    files = list_files(recipe)
    all_files = [file for source in files for file in source]
    totals = {"files": len(all_files), "bytes": sum(file.size for file in all_files), "text_bytes": text_bytes(files)}
    emit("listed", plan=plan_digest(recipe, files), **totals)


if __name__ == "__main__":
    sys.exit(main())
