"""`python -m trainer.builtin.checkpoint.convert.adopt`: import a folder that DeepSpeed saved without a manifest."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from trainer.contract import SHARED_CHECKPOINTS
from trainer.errors import TrainerError


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m trainer.builtin.checkpoint.convert.adopt", description=__doc__)
    parser.add_argument("folder", type=Path, help="a tag's folder, such as global_step100")
    parser.add_argument("--campaign", required=True)
    parser.add_argument("--shared", type=Path, default=Path(SHARED_CHECKPOINTS))
    parser.add_argument("--tokens", type=int, required=True, help="tokens consumed until then")
    parser.add_argument("--position", type=int, required=True, help="sequences consumed until then, over all ranks")
    options = parser.parse_args()
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    # After the accelerator is set: torch and DeepSpeed read it once, at their import.
    from trainer.builtin.checkpoint.convert.legacy import Origin, import_legacy
    from trainer.builtin.checkpoint.tiers import Tier

    origin = Origin(options.campaign, options.tokens, options.position)
    try:
        manifest = import_legacy(options.folder, Tier("shared", options.shared / options.campaign), origin)
    except TrainerError as error:
        print(error, file=sys.stderr)
        return int(error.exit_code)
    print(json.dumps({"step": manifest.step, "shards": len(manifest.shards), "world_size": manifest.world_size}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
