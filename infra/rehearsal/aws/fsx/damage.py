"""The route `/_site/tier`: damage to the newest checkpoint on a file system, as a bad disk or a mistaken hand does it.

`?hand=flip&campaign=NAME` flips a bit in the middle of its largest shard, `hand=unmake` removes its manifest. The
answer names the file; 404: no checkpoint is committed.
"""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from infra.rehearsal.aws.world import World
from trainer.contract import COMMITTED_NAME, step_of_folder


def flip(folder: Path) -> Path:
    """Flip a bit in the middle of the largest file but the manifest, and return the file."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != COMMITTED_NAME)
    largest = max(files, key=lambda path: path.stat().st_size)
    with largest.open("r+b") as file:
        file.seek(largest.stat().st_size // 2)
        byte = file.read(1)[0]
        file.seek(-1, 1)
        file.write(bytes([byte ^ 1]))
    return largest


def unmake(step_folder: Path) -> Path:
    """Remove the manifest, and return its path."""
    manifest = step_folder / COMMITTED_NAME
    manifest.unlink()
    return manifest


_HANDS: dict[str, Callable[[Path], Path]] = {"flip": flip, "unmake": unmake}


def newest_checkpoint(root: Path, campaign: str) -> Path | None:
    """Return the folder of a campaign's newest committed step below the file systems, or None."""
    committed_folders = [path.parent for path in root.glob(f"*/**/{campaign}/**/{COMMITTED_NAME}")]
    steps = {step: path for path in committed_folders if (step := step_of_folder(path.name)) is not None}
    return steps[max(steps)] if steps else None


def install(world: World) -> None:
    def route(query: str, body: bytes) -> tuple[int, dict[str, Any]]:
        fields = {name: values[0] for name, values in parse_qs(query).items()}
        name, root = fields.get("hand", ""), world.fsx_root
        folder = newest_checkpoint(root, fields.get("campaign", ""))
        if name not in _HANDS or folder is None:
            return HTTPStatus.NOT_FOUND, {"message": "no such hand, or nothing to damage", "hands": list(_HANDS)}
        return HTTPStatus.OK, {"file": str(_HANDS[name](folder).relative_to(root))}

    world.routes["/_site/tier"] = route
