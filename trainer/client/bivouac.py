"""Four calls with which a training script tells its supervisor more than its lines do, and hears from it.

    import bivouac

    folder = bivouac.resume_from()            # None: begin
    for step in ...:
        bivouac.beat(step, loss=loss)
        if step % 1000 == 0 or bivouac.should_stop():
            save(folder := f"checkpoints/step-{step}")
            bivouac.committed(folder, step)   # on one rank, any, after all have written
        if bivouac.should_stop():
            break

One file on the standard library of Python 3.8. Without the supervisor each call does nothing: scripts run anywhere.
"""

from __future__ import annotations

import json
import os

__all__ = ["beat", "committed", "resume_from", "should_stop"]

_RUN, _RESUME = "BIVOUAC_RUN", "BIVOUAC_RESUME_FROM"


def beat(step: int, loss: float | None = None, tokens: int | None = None) -> None:
    """Tell that `step` (counted from 1) is done, with its loss and all tokens so far, if they are known. Cheap: one
    line is appended to a local file. Any rank of any node may call it; of several, the lowest one counts."""
    _tell(step=int(step), loss=None if loss is None else float(loss), tokens=None if tokens is None else int(tokens))


def should_stop() -> bool:
    """Return True once the job has been asked to stop: save, and end with code 0. The supervisor then waits for half of
    the grace period before it sends SIGTERM; a job that never asks gets SIGTERM at once."""
    run = os.environ.get(_RUN)
    if not run:
        return False
    request = os.path.join(run, "asks")
    if not os.path.exists(request):
        open(request, "w").close()
    return os.path.exists(os.path.join(run, "stop"))


def committed(folder: str, step: int) -> None:
    """Tell that all files of the checkpoint of `step` are written below `folder`, a path in `$BIVOUAC_CHECKPOINTS`. One
    rank of any node calls it; with `tier: local`, node 0 must have the folder too, or it is refused in words. The
    supervisor seals the files while training goes on; they must not change any more."""
    path = os.path.abspath(folder)
    if os.path.islink(path):  # such as `latest`, which leads elsewhere soon
        path = os.path.normpath(os.path.join(os.path.dirname(path), os.readlink(path)))
    _tell(step=int(step), folder=path, version=_version(path))


def resume_from() -> str | None:
    """Return the checkpoint to go on from, or None to begin. Its files have been compared with their digests."""
    return os.environ.get(_RESUME) or None


def _version(path: str) -> list[int] | None:
    """Return number, bytes and newest time of change of a checkpoint's files: others, if it is written again."""
    files = [os.path.join(top, name) for top, _, names in os.walk(path) for name in names]
    try:
        rows = [os.stat(file) for file in files or [path] if os.path.isfile(file)]
    except OSError:
        return None
    return [len(rows), sum(row.st_size for row in rows), max([row.st_mtime_ns for row in rows], default=0)]


def _tell(**fields: object) -> None:
    run = os.environ.get(_RUN)
    if run:
        line = json.dumps({name: value for name, value in fields.items() if value is not None}) + "\n"
        rank = os.environ.get("RANK") or os.environ.get("OMPI_COMM_WORLD_RANK") or "0"
        with open(os.path.join(run, f"told-{rank}.jsonl"), "a") as file:
            file.write(line)
