"""A campaign's series in its record: pieces `series/<begin>-<end>.om.gz`, each written once, which join to one file.

Each is OpenMetrics text without its end mark, compressed by gzip, whose files join as they are. Times are whole seconds
since 1970; `end` is the begin of the next piece.
"""

from __future__ import annotations

import gzip
import io
import re
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from infra.record.store import CampaignStore

FOLDER = "series/"
JOINED = "series.om.gz"
"""Name of the joined file, in the archive and in the results folder."""
_PIECE = re.compile(rf"{FOLDER}(\d+)-(\d+)\.om\.gz$")
_AT_ONCE = 8


def piece(begin: int, end: int) -> str:
    """Return the name of a piece in the record. Ten digits last until the year 2286, so names sort by time."""
    return f"{FOLDER}{begin:010d}-{end:010d}.om.gz"


def span(key: str) -> tuple[int, int] | None:
    """Return begin and end of a piece; None for the key of anything else."""
    match = _PIECE.search(key)
    return None if match is None else (int(match[1]), int(match[2]))


def in_order(keys: Iterable[str]) -> list[str]:
    """Return the keys of pieces among `keys`, the oldest first."""
    return sorted(key for key in keys if span(key) is not None)


def pieces(store: CampaignStore) -> list[str]:
    """Return the keys of a record's pieces, the oldest first. Raises S3's errors."""
    return in_order(store.keys(FOLDER))


def bodies(store: CampaignStore, keys: Sequence[str]) -> Iterator[bytes]:
    """Yield the pieces as they are stored, some of them read ahead: those of months exceed a machine's memory. Raises
    S3's errors."""
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="series") as pool:
        for start in range(0, len(keys), _AT_ONCE):
            yield from (body or b"" for body in pool.map(store.get, keys[start : start + _AT_ONCE]))


def lines(bodies: Iterable[bytes]) -> Iterator[str]:
    """Yield the lines of pieces. Raises `OSError`, `EOFError` or `zlib.error` for a damaged one."""
    for body in bodies:
        yield from io.StringIO(gzip.decompress(body).decode(), newline="\n")  # labels may hold other line ends


def lines_of_pieces(store: CampaignStore, keys: Sequence[str]) -> Iterator[str]:
    """Yield the lines of a record's pieces. Raises as `bodies` and `lines` do."""
    return lines(bodies(store, keys))


def lines_of_file(path: Path) -> Iterator[str]:
    """Yield the lines of a joined file. Raises as `lines` does."""
    with gzip.open(path, "rt", encoding="utf-8", newline="\n") as file:
        yield from file
