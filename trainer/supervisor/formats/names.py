"""What the name of a file or folder tells of the step of a checkpoint."""

from __future__ import annotations

import math
import re
from functools import lru_cache
from pathlib import Path
from typing import Iterable, NamedTuple

_MOST = 20_000
"""Names whose reading is kept: each look reads all of them."""
_STRETCH, _PAUSE_S = 5, 10.0
STEP, EPOCH, TIME, UNIT, PLAIN = "step", "epoch", "time", "unit", "plain"
_SUFFIX = r"(?:\.(?:[A-Za-z]\w*))*$"
_AFTER_WORD = r"(?<![A-Za-z]){}[=_-]?(\d+)(?!\d*\.\d)"
_BEFORE_WORD = r"(?<![A-Za-z\d.])(\d+)[_-]?{}(?![A-Za-z]|[=_-]?\d)"
_WORDS = (
    (re.compile(_AFTER_WORD.format(r"(?:global_?step|steps?|iter(?:ation)?s?|updates?|ba)"), re.I), STEP),
    (re.compile(r"(?<![A-Za-z])(?:checkpoint|ckpt)[=_-]?(\d+)(?=[=_-]epoch)", re.I), STEP),
    (re.compile(r"(?<=[_-])s(\d+)(?=[_-]ep?\d+(?:\D|$))", re.I), STEP),
    (re.compile(r"(?<![A-Za-z])e(?:p(?:ochs?)?)?[=_-]?\d+[_-]b(?:atch)?[=_-]?(\d+)(?!\d*\.\d)", re.I), STEP),
    (re.compile(_AFTER_WORD.format(r"(?:epochs?|ep)"), re.I), EPOCH),
    (re.compile(_BEFORE_WORD.format(r"(?:steps?|iter(?:ation)?s?|updates?)"), re.I), STEP),
    (re.compile(_BEFORE_WORD.format(r"epochs?"), re.I), EPOCH),
    (re.compile(r"^(\d+)(?=_net_)", re.I), EPOCH),
    (re.compile(r"(?<!net)(?<!model)-(\d{6})(?=-state$|\.safetensors$)"), EPOCH),
    (re.compile(r"(?<![\d.])(\d+)[kKmMbB](?=(?:\.[A-Za-z]\w*)+$)"), UNIT),
)
"""Words beside a number, and what they count: `checkpoint-30-epoch-0`, `s30_e0` and `e0_b30` have a step. `ba` are the
batches of MosaicML's Composer, `lora-000005-state` is of kohya's scripts after an epoch, but `net-000050` is more often
of a step; `5k` and `2B` in a file's name count steps or tokens, in units of which the step is not known."""
_PARTS = re.compile(
    r"[_.-]?(?:world_?size|mp_rank|ranks?|shard|part)[=_-]?\d+|-\d+-of-\d+|[=_-]?-?\d+\.\d+(?:e-?\d+)?|-v\d+(?=\.|$)",
    re.I,
)
"""Ranks, parts, figures such as a loss, and Lightning's version of a name: none is a step."""
_LAST = re.compile(r"^(.*?)(\d+)" + _SUFFIX)
_FIRST_RANK = re.compile(r"(?<=\d)[_-]0+(?=(?:\.[A-Za-z]\w*)*$)")
"""`ckpt_30_0.pt`: of the first rank, or the first epoch."""
_RANK_AT_END = re.compile(r"(?<=\d[_-])(\d{1,3})(?=\.\w+$)")
_LAP = re.compile(r"(?<![A-Za-z])(?:epochs?|ep|e)[=_-]?(\d+)(?!\d*\.\d)", re.I)
_FIRST_OF_TWO = re.compile(r"(?<=[_-])(\d+)(?=[_-]\d+(?:\.[A-Za-z]\w*)*$)")
_DATE = re.compile(r"^(?:19|20)\d{6}(?:\d{4,6})?$")
_RUN = re.compile(
    r"(?:^|[_-])(?:runs?|versions?|v|exp(?:eriment)?s?|seeds?|trials?|folds?|jobs?|attempts?|lora|r|tokenizer|vocab|"
    r"tensorboard|hparams|eval(?:-results)?|logs?|\d+-\d+|\d+T)[=_-]?$", re.I
)  # fmt: skip
"""Before a number that counts no training: runs, dates in parts, and what stands beside checkpoints."""


_FIGURE = r"-?\d+\.\d+(?:e-?\d+)?"
_TIME_TEXT = r"((?:19|20)\d\d[-_.]?\d\d[-_.]?\d\d[-_.T ]?\d\d[-_.:h]?\d\d(?:[-_.:m]?\d\d)?s?|1[4-9]\d{8}(?:\d{3})?)"
"""A date with the time of day, or seconds or milliseconds since 1970, up to 2033."""
_TIME = re.compile(r"(?<!\d)" + _TIME_TEXT + r"(?=(?:\.[A-Za-z]\w*)+$)")
"""Of files alone: a folder of such a name is more often the folder of a run."""
_TIME_OF_RUN = re.compile(r"(?:^|\D)(?:19|20)\d\d[-_.]\d\d[-_.]\d\d[-_.T ]\d\d[-_.:h]?\d\d(?:[-_.:m]?\d\d)?s?$")


class Number(NamedTuple):
    value: int
    kind: str
    """`STEP` or `EPOCH` where the name says so, `TIME` for when it was written, `UNIT` for one of thousands or more,
    else `PLAIN`."""


@lru_cache(maxsize=_MOST)
def number_of(name: str) -> Number | None:
    """Return the number by which a name tells one checkpoint from the next, None if it has none."""
    plain = _PARTS.sub("", name)
    for pattern, kind in _WORDS:
        if match := pattern.search(plain):
            return Number(int(match.group(1)), kind)
    if match := _TIME.search(name):
        return Number(_digits(match.group(1)), TIME)
    if _TIME_OF_RUN.search(name):
        return None
    match = _LAST.match(_FIRST_RANK.sub("", plain).rstrip("_-"))
    if match and not _DATE.match(match.group(2)) and not _RUN.search(match.group(1)):
        return Number(int(match.group(2)), PLAIN)
    return None


def family(name: str, numbered_as: str = "") -> re.Pattern[str] | None:
    """Return the names that are this one with another number, the number as group 1; None for one without a number.
    A number that is filled up with zeros has as many digits in each. `numbered_as`: a name of the same length that has
    the number at its place, if this one would be read otherwise."""
    numbered_as = numbered_as or name
    number = number_of(numbered_as)
    if number is None:
        return None
    if number.kind == TIME and (match := _TIME.search(name)):
        return re.compile(re.escape(name[: match.start()]) + _TIME_TEXT + re.escape(name[match.end() :]) + r"\Z")
    spans = [match.span() for match in re.finditer(r"\d+", numbered_as) if int(match.group()) == number.value]
    # The rank or part may be the same number: the next one is no later step.
    parts = [match.span() for match in _PARTS.finditer(numbered_as)]
    spans = [span for span in spans if not any(low <= span[0] < high for low, high in parts)] or spans
    if number.kind == PLAIN:
        start, end = spans[-1]
    else:
        words = (word for pattern, kind in _WORDS if kind == number.kind for word in pattern.finditer(numbered_as))
        start, end = next((word.span(1) for word in words if int(word.group(1)) == number.value), spans[0])
    digits = rf"(\d{{{end - start}}})" if name[start] == "0" and end - start > 1 else r"(\d+)"
    return re.compile(_general(name[:start]) + digits + _general(name[end:]) + r"\Z")


def _general(text: str) -> str:
    """Return a pattern for the rest of a name: figures and epochs in it differ, ranks do not."""
    return re.sub(
        r"(?:\\-)?\d+\\\.\d+(?:e(?:\\-)?\d+)?|(?<=epoch=)\d+|\\-v\d+(?=\\\.|$)",
        lambda match: r"\d+" if match.group().isdecimal() else r"(?:-v\d+)?" if "v" in match.group() else _FIGURE,
        re.escape(text),
    )


def same_step(name: str) -> re.Pattern[str] | None:
    """Return the names of other ranks' files of the same step; None for a name without a number."""
    pattern = family(name)
    match = None if pattern is None else pattern.match(name)
    if match is None:
        return None
    start, end = match.span(1)
    prefix, suffix = (re.sub(r"\d+", r"\\d+", re.escape(text)) for text in (name[:start], name[end:]))
    return re.compile(prefix + name[start:end] + suffix + r"\Z")


def may_be_first_rank(name: str) -> bool:
    """Return whether a name ends as the first of each rank's files does: `ckpt_30_0.pt`."""
    return bool(_FIRST_RANK.search(name))


def first_rank_name(name: str) -> tuple[str, int]:
    """Return the name of the first rank's file and the rank of one that may end in a rank: `ckpt_30_0.pt` and 1 for
    `ckpt_30_1.pt`; the name itself and 0 for any other one."""
    match = _RANK_AT_END.search(name)
    if match is None:
        return name, 0
    return name[: match.start()] + "0" * len(match.group()) + name[match.end() :], int(match.group())


def number_in_family(pattern: re.Pattern[str], name: str) -> int | None:
    match = pattern.match(name)
    return _digits(match.group(1)) if match else None


def family_place(root: Path) -> tuple[str, int] | None:
    """Return the folder and pattern of a name as one text, and its number; None for a name without one."""
    pattern = family(root.name)
    number = None if pattern is None else number_in_family(pattern, root.name)
    return None if pattern is None or number is None else (f"{root.parent}/{pattern.pattern}", number)


@lru_cache(maxsize=_MOST)
def lap_of(path: Path) -> int | None:
    """Return the epoch that the name of a file or folder with a step also has, or else that of the folder above it."""
    match = _LAP.search(path.name) or _LAP.search(path.parent.name) or _FIRST_OF_TWO.search(path.name)
    return int(match.group(1)) if match else None


def other_numbers(name: str, value: int) -> list[int]:
    """Return the whole numbers of a name beside its own, such as an epoch's, without ranks and figures."""
    numbers = [int(text) for text in re.findall(r"\d+", _PARTS.sub("", name.rpartition(".")[0] or name))]
    if value in numbers:
        numbers.remove(value)
    return numbers


@lru_cache(maxsize=_MOST)
def series(path: Path) -> str:
    """Return a path with all of its numbers alike: equal for the checkpoints of one series."""
    plain = re.sub(rf"(?<!\d){_FIGURE}|-v\d+(?=\.|$)", lambda match: "" if match.group()[1] == "v" else "#", str(path))
    return re.sub(r"\d+", "#", plain)


def are_steps(names: Iterable[str]) -> bool:
    """Return whether files of one folder have numbers of saves: ranks, layers and epochs follow each other one by
    one, steps have a stretch of several between them."""
    by_series: dict[str, set[int]] = {}
    for name in names:
        number = number_of(name)
        if number is not None and number.kind == PLAIN:
            by_series.setdefault(series(Path(name)), set()).add(number.value)
    return any(0 not in values and math.gcd(*values) >= _STRETCH for values in by_series.values())


def are_saves(paths: Iterable[Path], ranks: int) -> bool:
    """Return whether numbered files of one folder are more than the ranks (0: not known), and were written in the order
    of their numbers with long pauses, as those of epochs. Raises `OSError`."""
    written_at: dict[int, list[float]] = {}
    for path in paths:
        number = number_of(path.name)
        if number is None or number.kind != PLAIN:
            return False
        written_at.setdefault(number.value, []).append(path.stat().st_mtime)
    saves = [times for _, times in sorted(written_at.items())]
    are_apart = all(min(next_times) - max(times) >= _PAUSE_S for times, next_times in zip(saves, saves[1:]))
    return 0 < ranks < len(saves) and are_apart


def _digits(text: str) -> int:
    return int(re.sub(r"\D", "", text))
