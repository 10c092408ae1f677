"""Commands of the trainer's own tools, which run in processes of their own."""

from __future__ import annotations

from infra.extras import refuse_missing
from infra.folders import own_module


def trainer_command(module: str, *arguments: str) -> list[str]:
    """Return the command line of `python -m trainer.builtin.MODULE`. Raises `UserError` without the extra `trainer`."""
    refuse_missing("trainer")
    return own_module(f"trainer.builtin.{module}", *arguments)
