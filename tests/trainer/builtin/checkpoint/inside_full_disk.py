"""Run in a private mount namespace: a tier on a tiny tmpfs, saves until it is full, and what is left then.

python -m tests.trainer.builtin.checkpoint.inside_full_disk FOLDER '[[TIER, MOUNT_OPTIONS], ...]'
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.drills.parts.storage_gang import Camp, Orders, run_attempt

SHARD_BYTES = 2 * 2**20


def main() -> int:
    folder, scenarios = Path(sys.argv[1]), json.loads(sys.argv[2])
    print(json.dumps([fill(folder / str(index), *each) for index, each in enumerate(scenarios)]))
    return 0


def fill(root: Path, tier: str, options: str) -> dict[str, Any]:
    camp = Camp(root, 1, 1)
    full = root / ("shared" if tier == "shared" else "local-0")
    full.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(full)], check=True)
    codes = run_attempt(camp, Orders(1, (10, 20, 30, 40), padding_bytes=SHARD_BYTES))
    first = {
        "codes": codes,
        "ended": camp.events(1, "ended"),
        "reclaimed": camp.events(1, "reclaimed"),
        "announced": [(e["tier"], e["step"]) for e in camp.events(1, "committed")],
        "committed": {name: [m.step for m in tier.committed()] for name, tier in camp.every_tier().items()},
    }
    codes = run_attempt(camp, Orders(2, padding_bytes=SHARD_BYTES))
    after = {"codes": codes, "restored": camp.events(2, "restored"), "ended": camp.events(2, "ended")}
    left = [str(path) for path in root.rglob("*.partial")]
    return {"path": str(full), "first": first, "after": after, "left": left}


if __name__ == "__main__":
    sys.exit(main())
