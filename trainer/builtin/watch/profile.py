"""A trace of `torch.profiler` on demand.

`python -m trainer.builtin.watch.profile --rank R --steps N` asks a rank of its container by a file, waits for the
trace, and prints its path.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

MOST_STEPS = 50
"""A trace grows with each step, in the memory of the rank."""
RUNS = "bivouac-run-*"
"""The agent's scratch folder, in the folder for temporary files."""
_POLL_S = 0.2


def request_of(run: Path, rank: int) -> Path:
    return run / f"profile-{rank}"


def trace_of(run: Path, rank: int) -> Path:
    return run / f"trace-rank-{rank}.json.gz"


class Profiler:
    """Starts at the first step after a request and ends before the one after the last; the training goes on."""

    def __init__(self, run: Path, rank: int) -> None:
        self._run, self._rank = run, rank
        self._request = request_of(run, rank)
        self._profile: Any = None
        self._left = 0

    def step_begins(self, step: int) -> None:
        if self._profile is not None:
            self._left -= 1
            if self._left <= 0:
                self._write()
        elif self._request.exists():
            self._begin(step)

    def _begin(self, step: int) -> None:
        from torch.profiler import ProfilerActivity, profile, supported_activities

        from trainer.events import emit

        try:
            self._left = max(1, min(MOST_STEPS, int(self._request.read_text())))
        except ValueError:
            self._left = 1
        self._request.unlink(missing_ok=True)
        activities = {ProfilerActivity.CPU, ProfilerActivity.CUDA} & set(supported_activities())
        self._profile = profile(activities=sorted(activities, key=str))
        self._profile.start()
        emit("profiling", step=step, steps=self._left)

    def _write(self) -> None:
        profile, self._profile = self._profile, None
        profile.stop()
        target = trace_of(self._run, self._rank)
        partial = target.with_name(f"partial-{target.name}")
        profile.export_chrome_trace(str(partial))
        partial.rename(target)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m trainer.builtin.watch.profile", description=__doc__)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--steps", type=int, default=3)
    options = parser.parse_args()
    beats = sorted(Path(tempfile.gettempdir()).glob(f"{RUNS}/rank-{options.rank}.json"))
    if not beats:
        print(f"rank {options.rank} does not train here yet", file=sys.stderr)
        return 69
    return ask(beats[-1].parent, options.rank, options.steps)


def ask(run: Path, rank: int, steps: int) -> int:
    """Ask the rank for a trace, wait until it is written or the rank has ended, and print the path."""
    trace = trace_of(run, rank)
    trace.unlink(missing_ok=True)
    temporary = run / f"ask-{rank}"
    temporary.write_text(str(steps))
    temporary.rename(request_of(run, rank))
    while not trace.exists():
        try:
            beat = json.loads((run / f"rank-{rank}.json").read_bytes())
        except FileNotFoundError:
            beat = {"outcome": {"reason": "its folder is gone"}}
        if beat.get("outcome"):
            print(f"rank {rank} ended before it wrote a trace: {beat['outcome']['reason']}", file=sys.stderr)
            return 69
        time.sleep(_POLL_S)
    print(trace)
    return 0


if __name__ == "__main__":
    sys.exit(main())
