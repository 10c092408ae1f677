"""Step, loss and other figures in the lines that a job prints."""

from __future__ import annotations

import ast
import json
import math
import re
from typing import Any, Dict, NamedTuple

_NAMES = {
    "step": ("step", "global_step", "iteration", "iter"),
    "loss": ("loss", "train_loss", "lm_loss", "lm loss"),
    "tokens": ("tokens", "num_tokens", "consumed_tokens"),
    "rank": ("rank", "global_rank"),
}
"""Figure -> keys under which frameworks print it in JSON lines; the first that is there counts."""
_SUMMARY = "train_runtime"
"""Key of the line with which Hugging Face's Trainer ends: its `train_loss` is the mean over all steps."""
_CODES = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)|[@-Z\\^_])")
"""Escape sequences of terminals: colours, titles, movements."""
_EVALUATION = re.compile(
    r"(?<![a-z])(eval|evaluat\w*|valid\w*|val|test\w*|sanity|predict\w*"
    r"|map|filter\w*|loading|download\w*|fetching|generating|tokeniz\w*|grouping|resolving|packing)(?![a-z])",
    re.IGNORECASE,
)
"""Words of an evaluation, and of what frameworks count before a training."""
_MODE = re.compile(r"eval|evaluat\w+|valid|validation|val|test|testing", re.IGNORECASE)
"""Text of a record that says which part of the run it is of, such as `"mode": "eval"`."""
_TRAINING = re.compile(r"(?<![a-z])train", re.IGNORECASE)
_EPOCH = re.compile(r"(?<![a-z_])epoch\W{0,3}(\d{1,6})(?![\d.]*\.\d)", re.IGNORECASE)
_TOTAL = re.compile(r"\s*(?:/|of\b)\s*(\d[\d,]{0,15})")
"""Behind a number: what it counts up to, as in `3/10`."""
Figures = Dict[str, float]
LARGEST = 1 << 53
"""Of counts: what every reader of JSON tells apart."""


class Line(NamedTuple):
    """What a line says."""

    step: int | None
    """None: it has figures alone, which belong to a step that another line tells."""
    figures: Figures
    total: int | None = None
    """Number up to which `step` counts, where the line says it."""
    epoch: int | None = None
    headings: int = 0
    """Lines so far that named another epoch than the one before."""
    evaluation: bool = False
    """It is about an evaluation or a preparation, not about the training."""
    rank: int | None = None
    """Rank that the line names."""
    named: str = ""
    """Key under which `step` stands in a record."""


class LineReader:
    """Reads lines. `pattern`: a regular expression with a group `step`, and `loss`, `tokens`, `epoch` and `rank` if it
    has them. Without a pattern, and for a loss that the pattern does not look for: JSON, or Python's form of it."""

    def __init__(self, pattern: str | None = None) -> None:
        self._pattern = re.compile(pattern) if pattern else None
        self._headings = 0
        self._epoch: int | None = None

    def read(self, text: str) -> Line | None:
        """Return what a line says; None for a line without a step and without a loss."""
        text = bare(text)
        epoch = self._heading(text)
        line = self._read_record(text, False) if self._pattern is None else self._match_line(self._pattern, text)
        if line is None or (line.step is None and not line.figures):
            return None
        epoch = epoch if line.epoch is None else line.epoch
        return line._replace(epoch=epoch, headings=self._headings)

    def _heading(self, text: str) -> int | None:
        match = _EPOCH.search(text) if "poch" in text or "POCH" in text else None
        if match is None:
            return None
        epoch = int(match.group(1))
        self._headings += epoch != self._epoch
        self._epoch = epoch
        return epoch

    def _match_line(self, pattern: re.Pattern[str], text: str) -> Line | None:
        match = pattern.search(text)
        if match is None:
            return None if "loss" in pattern.groupindex else self._read_record(text, True)
        groups = {name: _number(group) for name, group in match.groupdict().items()}
        figures = {name: number for name, number in groups.items() if number is not None}
        total = _TOTAL.match(text, match.end("step"))
        # A bar has no end of line: an object behind its number was printed after it, and speaks for itself.
        words = text[: match.end("step")] + text[match.end("step") :].partition("{")[0]
        evaluation = bool(_EVALUATION.search(words)) and not _TRAINING.search(words)
        return _line(figures, evaluation)._replace(
            total=None if total is None else int(total.group(1).replace(",", ""))
        )

    def _read_record(self, text: str, figures_alone: bool) -> Line | None:
        record = _record(text)
        if record is None or _SUMMARY in record:
            return None
        numbers = {key: number for key, value in record.items() if (number := _number(value)) is not None}
        keys = {figure: next(filter(numbers.__contains__, names), "") for figure, names in _NAMES.items()}
        if figures_alone:
            keys["step"] = ""
        figures = {figure: numbers[key] for figure, key in keys.items() if key}
        if figures_alone and "loss" not in figures:
            return None
        is_marked = any(isinstance(value, str) and _MODE.fullmatch(value) for value in record.values())
        evaluation = is_marked or ("loss" not in figures and any(map(_EVALUATION.search, map(str, record))))
        return _line(figures, evaluation)._replace(named=keys["step"])


def bare(text: str) -> str:
    """Return a line without the escape sequences of terminals."""
    return _CODES.sub("", text) if "\x1b" in text else text


def _line(figures: Figures, evaluation: bool) -> Line:
    """Return a line of the numbers that were found; steps, epochs and ranks are whole and not negative."""
    counts = {name: figures.pop(name, None) for name in ("step", "epoch", "rank")}
    step, epoch, rank = (None if n is None or not 0 <= n < LARGEST or n != int(n) else int(n) for n in counts.values())
    if step is None and counts["step"] is not None:
        return Line(None, {})
    return Line(step, {} if evaluation and step is None else figures, epoch=epoch, evaluation=evaluation, rank=rank)


def _record(text: str) -> dict[str, Any] | None:
    """Return the JSON object at the end of a line, or the dictionary as Python prints it; of two lines that ranks have
    printed into one, the first."""
    start = text.find("{")
    text = text[start:].rstrip()
    if start < 0 or not text.endswith("}"):
        return None
    try:
        record, _ = json.JSONDecoder().raw_decode(text)
    except RecursionError:
        return None
    except ValueError:
        try:
            record = ast.literal_eval(text) if "'" in text else None
        except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
            return None
    return record if isinstance(record, dict) else None


def _number(value: object) -> float | None:
    """Return a finite number, also out of a text such as `1,024`, `3.2e-1` or `30/400`."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        number = float(value.partition("/")[0].replace(",", "") if isinstance(value, str) else value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None
