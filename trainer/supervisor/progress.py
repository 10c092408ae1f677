"""Step, loss and tokens of a job, from the lines that it prints."""

from __future__ import annotations

import json
import math
import re
from typing import Dict

_NAMES = {
    "step": ("step", "global_step", "iteration", "iter"),
    "loss": ("loss", "train_loss", "lm_loss", "lm loss"),
    "tokens": ("tokens", "num_tokens", "consumed_tokens"),
}
"""Figure -> keys under which frameworks print it in JSON lines; the first that is there counts."""
Figures = Dict[str, float]


class Reader:
    """Reads lines. `pattern`: a regular expression with groups named `step`, and `loss` and `tokens` if it has them."""

    def __init__(self, pattern: str | None = None) -> None:
        self._pattern = re.compile(pattern) if pattern else None

    def read(self, line: str) -> tuple[int, Figures] | None:
        """Return the step and the other finite figures of a line; None for a line without a step."""
        found = _json(line) if self._pattern is None else _matched(self._pattern, line)
        step = found.pop("step", None)
        if step is None or step < 0 or step != int(step):
            return None
        return int(step), found


def _json(line: str) -> Figures:
    start = line.find("{")
    if start < 0 or not line.rstrip().endswith("}"):
        return {}
    try:
        given = json.loads(line[start:])
    except ValueError:
        return {}
    if not isinstance(given, dict):
        return {}
    found = {}
    for figure, names in _NAMES.items():
        value = next((number for name in names if (number := _number(given.get(name))) is not None), None)
        if value is not None:
            found[figure] = value
    return found


def _matched(pattern: re.Pattern[str], line: str) -> Figures:
    match = pattern.search(line)
    if match is None:
        return {}
    numbers = {name: _number(text) for name, text in match.groupdict().items()}
    return {name: number for name, number in numbers.items() if number is not None}


def _number(value: object) -> float | None:
    """Return a finite number, also out of a text such as `1,024` or `3.2e-1`."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        number = float(value.replace(",", "") if isinstance(value, str) else value)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
