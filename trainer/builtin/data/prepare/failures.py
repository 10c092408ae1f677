"""The error that a preparation of data ends with."""

from __future__ import annotations

from pathlib import Path

from trainer.contract.exits import MEMORY, limit_of
from trainer.errors import DataError, TrainerError, storage_error


def preparation_error(error: Exception, place: Path, message: str, cure: str, memory_cure: str) -> TrainerError:
    """Return the error for one that ended a preparation at `place`. Memory is the text's fault, whether Python or the
    kernel refused it: the same text would need as much again. `message` and `cure`: of any other one of storage."""
    if isinstance(error, TrainerError):
        return error
    if limit_of(error) == MEMORY:
        return DataError("the text does not fit into memory", "no memory left", memory_cure)
    detail = f"{getattr(error, 'filename', None) or place}: {getattr(error, 'strerror', None) or error}"
    return storage_error(error, message, detail, cure)
