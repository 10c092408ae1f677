"""Changes bits of a model's weights in the memory of a process, from outside, as a faulty memory cell does.

Run as `python -I weights.py PID WIDTH KEEP SET TOGGLE VALUES SECONDS`, with numpy. Of each found row of weights the
first VALUES numbers become ((bits & KEEP) | SET) ^ TOGGLE, hexadecimal, once, or again and again for SECONDS. A row is
found by what the scales of a normalisation have in common: WIDTH float32 numbers, all near 1 and not all equal.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import numpy as np

_FAR = 0.7
_ALIGNED_TO = 4
"""Numbers: ranks share one flat buffer, in which a row may begin anywhere at 16 bytes."""
_LONGEST_BYTES = 2**28
_AGAIN_S = 0.002


def main(pid: int, width: int, keep: int, set_bits: int, toggle: int, count: int, seconds: float) -> None:
    memory = os.open(f"/proc/{pid}/mem", os.O_RDWR)
    rows = [address for start, end in regions(pid) for address in rows_in(memory, start, end, width)]
    if not rows:
        sys.exit("no row of weights is in its memory")
    print(f"{len(rows)} rows", flush=True)
    time.sleep(0.5)  # whoever asks notes the moment of the strike before anybody sees what follows
    deadline = time.monotonic() + seconds
    while True:
        for address in rows:
            bits = np.frombuffer(os.pread(memory, 4 * width, address), "<u4")
            if (np.abs(bits.view("<f4") - 1) < _FAR).all():  # else something else lies there now
                os.pwrite(memory, (((bits[:count] & keep) | set_bits) ^ toggle).astype("<u4").tobytes(), address)
        if time.monotonic() >= deadline:
            return
        time.sleep(_AGAIN_S)


def regions(pid: int) -> list[tuple[int, int]]:
    """Return the anonymous memory that it may write and has written."""
    found_regions, span = list[tuple[int, int]](), None
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        words = line.split()
        if words[0] == "Rss:" and span is not None and int(words[1]) > 0:
            found_regions.append(span)
        if not words[0].endswith(":"):
            start, end = (int(part, 16) for part in words[0].split("-"))
            is_own = words[1].startswith("rw") and (len(words) < 6 or words[5] == "[heap]")
            span = (start, end) if is_own and end - start <= _LONGEST_BYTES else None
    return found_regions


def rows_in(memory: int, start: int, end: int, width: int) -> list[int]:
    """Return the addresses of rows, none of which overlaps another."""
    try:
        numbers = np.frombuffer(os.pread(memory, end - start, start), "<f4")
    except OSError:
        return []  # it has been unmapped meanwhile
    length = width // _ALIGNED_TO
    parts = numbers[: len(numbers) // _ALIGNED_TO * _ALIGNED_TO].reshape(-1, _ALIGNED_TO)
    with np.errstate(all="ignore"):
        is_near = np.abs(parts[:, 0] - 1) < _FAR
        is_near[is_near] = (np.abs(parts[is_near] - 1) < _FAR).all(axis=1)
    edges = np.flatnonzero(np.diff(np.concatenate(([0], is_near.view(np.int8), [0]))))
    rows = [
        index
        for begin, stop in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)
        for index in range(begin, stop - length + 1, length)
    ]
    return [start + 4 * _ALIGNED_TO * row for row in rows if np.ptp(parts[row : row + length]) > 0]


if __name__ == "__main__":
    keep_bits, set_bits, toggled_bits = (int(text, 16) for text in sys.argv[3:6])
    main(int(sys.argv[1]), int(sys.argv[2]), keep_bits, set_bits, toggled_bits, int(sys.argv[6]), float(sys.argv[7]))
