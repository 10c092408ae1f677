"""The fence: `<shared>/<campaign>/fence.json` names the newest attempt; an older one must not publish anything."""

from __future__ import annotations

import json
from pathlib import Path

from trainer.checkpoint.files import durable
from trainer.errors import Fenced, StorageError

FENCE_NAME = "fence.json"


def raise_fence(root: Path, attempt: int) -> None:
    """Claim the campaign for this attempt; raises `Fenced` when a newer one has started."""
    check_fence(root, attempt)
    with durable(root / FENCE_NAME) as file:
        file.write(json.dumps({"attempt": attempt}).encode())


def check_fence(root: Path, attempt: int) -> None:
    """Raises `Fenced` when the fence names a newer attempt than this one."""
    newest = _read(root / FENCE_NAME)
    if newest > attempt:
        raise Fenced(
            "a newer attempt of this campaign has started",
            f"attempt {attempt}, fence at {newest}",
            "let this attempt end; only the newest may publish checkpoints",
        )


def _read(path: Path) -> int:
    try:
        return int(json.loads(path.read_bytes())["attempt"])
    except FileNotFoundError:
        return -1
    except (ValueError, KeyError, TypeError) as error:
        raise StorageError("the fence cannot be read", f"{path}: {error}", "remove it when no attempt runs") from error
