"""Files that are whole or absent."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


def write_whole(path: Path, content: bytes, durable: bool = False) -> None:
    with writing(path, durable) as file:
        file.write(content)


@contextmanager
def writing(path: Path, durable: bool = False) -> Iterator[BinaryIO]:
    """Yield a file with a temporary name and rename it when it is complete; `durable` survives a power cut."""
    temporary = path.with_name(f".{path.name}.partial")
    with temporary.open("wb") as file:
        yield file
        if durable:
            file.flush()
            os.fsync(file.fileno())
    temporary.rename(path)
