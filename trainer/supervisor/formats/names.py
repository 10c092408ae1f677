"""What the name of a file or folder tells of the step of a checkpoint."""

from __future__ import annotations

import math
import re
from functools import lru_cache
from pathlib import Path
from typing import Collection, Container, Iterable, NamedTuple

_MOST = 20_000
"""Names whose reading is kept: each look reads all of them."""
_STRETCH, _PAUSE_S = 5, 10.0
STEP, EPOCH, TIME, UNIT, PLAIN = "step", "epoch", "time", "unit", "plain"
_ENDINGS = r"(?:\.[A-Za-z]\w*)*$"
"""`.pt`, `.pth.tar`, or none."""
_OF_STEP = r"(?:global_?)?step|iter(?:ation)?|epoch|ep|ckpt|checkpoint|chkpt|snapshot"
_OF_CHECKPOINT = rf"(?<![A-Za-z])(?:{_OF_STEP}|save|state|model|weights)s?"
_BEING_WRITTEN = re.compile(
    r"_temp_[0-9a-f]{32}$|\.orbax-checkpoint-tmp(?:-\d+)?$"
    rf"|(?:^|{_OF_CHECKPOINT}[=._-]?)\d+(?:\.[A-Za-z]\w*)*[._-]?(?:tmp|incomplete|unfinished)(?:[._-]\w+)?$"
    rf"|^\.?tmp[._-]?(?:{_OF_STEP})s?[=._-]?\d", re.I
)  # fmt: skip
"""TensorFlow's and Orbax's, and those of scripts that rename what is finished: `step-40.tmp`, `tmp-checkpoint-40`."""
_NUMERAL = r"(?:[1-9]\d{0,2}(?:,\d{3})+(?![\d,])|\d+)"
"""`30`, `000030` or `1,000`."""
_AFTER_WORD = rf"(?<![A-Za-z])%s[=_-]?({_NUMERAL})(?!\d*\.\d)"
_BEFORE_WORD = rf"(?<![A-Za-z\d.])({_NUMERAL})[_-]?%s(?![A-Za-z]|[=_-]?\d)"
_WORDS = (
    (re.compile(_AFTER_WORD % r"(?:global_?step|steps?|iter(?:ation)?s?|updates?|ba)", re.I), STEP),
    (re.compile(r"(?<![A-Za-z])(?:checkpoint|ckpt)[=_-]?(\d+)(?=[=_-]epoch)", re.I), STEP),
    (re.compile(r"(?<=[_-])s(\d+)(?=[_-]ep?\d+(?:\D|$))", re.I), STEP),
    (re.compile(r"(?<![A-Za-z])e(?:p(?:ochs?)?)?[=_-]?\d+[_-]b(?:atch)?[=_-]?(\d+)(?!\d*\.\d)", re.I), STEP),
    (re.compile(_AFTER_WORD % r"(?:epochs?|ep)", re.I), EPOCH),
    (re.compile(_BEFORE_WORD % r"(?:steps?|iter(?:ation)?s?|updates?)", re.I), STEP),
    (re.compile(_BEFORE_WORD % r"epochs?", re.I), EPOCH),
    (re.compile(r"^(\d+)(?=_net_)", re.I), EPOCH),
    (re.compile(r"(?<!net)(?<!model)-(\d{6})(?=-state$|\.safetensors$)"), EPOCH),
    (re.compile(r"(?<![\d.])(\d+)[kKmMbB](?=(?:\.[A-Za-z]\w*)+$)"), UNIT),
)
"""Words beside a number, and what they count: `checkpoint-30-epoch-0`, `s30_e0` and `e0_b30` have a step. `ba` are the
batches of MosaicML's Composer, `lora-000005-state` is of kohya's scripts after an epoch, but `net-000050` is more often
of a step; `5k` and `2B` in a file's name count steps or tokens, in units of which the step is not known."""
_PROCESSOR = r"(?:[_.-](?:gpu|device|proc(?:ess)?|worker|node|[dtpm]p)[=_-]?|(?<=\d)[_-][rp])%s(?![A-Za-z\d]|\.\d)"
"""`gpu1`, `tp1` and `r1`: other words for a rank."""
_OF_RANK = re.compile(rf"(?<![A-Za-z])rank[=_-]?\d+|{_PROCESSOR}" % r"\d+", re.I)
_SHARD = (
    r"[_.-]?(?:world_?size|mp_rank|ranks?|shard|part)[=_-]?\d+(?:[_-]?of[_-]?\d+)?|" + _PROCESSOR % r"\d+" +
    r"|(?:(?<=\d)[_.-]\d+)?(?<=\d)[_-]?of[_-]?\d+|-\d+-of-\d+"
)  # fmt: skip
_SHARDS = re.compile(_SHARD, re.I)
_PARTS = re.compile(rf"{_SHARD}|[=_-]?-?\d+\.\d+(?:e-?\d+)?|-v\d+(?=\.|$)", re.I)
"""Ranks, parts, totals as in `30_of_80`, figures such as a loss, and Lightning's version of a name: none is a step."""
_LAST = re.compile(rf"^(.*?)(?<!\.h)(?<!\.hdf)(?<!\.pt)(?<!\.bz)({_NUMERAL}){_ENDINGS}")
"""Without the figure in `.h5`, `.hdf5`, `.pt2` and `.bz2`."""
_BEFORE_REMARK = re.compile(rf"{_OF_CHECKPOINT}[=_-]?({_NUMERAL})(?=[_-](?!temp$)[A-Za-z])", re.I)
"""`ckpt_30_final.pt`, `model_30_v2.pt`."""
_FIRST_RANK = re.compile(rf"(?<=\d)[_-]0+(?={_ENDINGS})")
"""`ckpt_30_0.pt`: of the first rank, or the first epoch."""
_FIRST_PROCESSOR = re.compile(_PROCESSOR % "0+", re.I)
_RANK_BEHIND_POINT = re.compile(rf"(?<=\d\.)\d{{1,3}}(?={_ENDINGS})")
_RANK_AT_END = re.compile(rf"(?<=\d[_-])(\d+)(?={_ENDINGS})")
_MOST_RANKS = 10_000
_LAP = re.compile(r"(?<![A-Za-z])(?:epochs?|ep|e)[=_-]?(\d+)(?!\d*\.\d)", re.I)
_FIRST_OF_TWO = re.compile(rf"(?<=[_-])(\d+)(?=[_-]\d+{_ENDINGS})")
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
def is_being_written(name: str) -> bool:
    """Return whether a file or folder is called one that gets another name once it is finished."""
    return bool(_BEING_WRITTEN.search(name))


@lru_cache(maxsize=_MOST)
def number_of(name: str) -> Number | None:
    """Return the number by which a name tells one checkpoint from the next, None if it has none."""
    if is_being_written(name):
        return None
    plain = _PARTS.sub("", name)
    for pattern, kind in _WORDS:
        if match := pattern.search(plain):
            return Number(_digits(match.group(1)), kind)
    if match := _TIME.search(name):
        return Number(_digits(match.group(1)), TIME)
    if _TIME_OF_RUN.search(name):
        return None
    match = _LAST.match(_FIRST_RANK.sub("", plain).rstrip("_-"))
    if match and not _DATE.match(match.group(2)) and not _RUN.search(match.group(1)):
        return Number(_digits(match.group(2)), PLAIN)
    match = _BEFORE_REMARK.search(plain)
    return Number(_digits(match.group(1)), PLAIN) if match and not _DATE.match(match.group(1)) else None


def names_rank(name: str) -> bool:
    """Return whether a word of a name tells a rank."""
    return bool(_OF_RANK.search(name))


def first_rank_name(name: str, names: Container[str], ranks: int = _MOST_RANKS) -> str:
    """Return the name of the first rank's part, `ckpt_30_0.pt` for `ckpt_30_1.pt`, where it is one of `names`, else the
    name itself. The number of the one alone shows where that of the other is. `ranks`: at most."""
    match = _RANK_AT_END.search(name)
    if match is None or not 0 < int(match.group()) < ranks:
        return name
    first_name = name[: match.start()] + "0" * len(match.group()) + name[match.end() :]
    return first_name if first_name in names else name


def family(name: str, names: Container[str] = ()) -> re.Pattern[str] | None:
    """Return the names that are this one with another number, the number as group 1; None for one without a number.
    A number that is filled up with zeros has at least as many digits in each. `names`: of the other parts of its
    checkpoint."""
    numbered_as = first_rank_name(name, names)
    number = number_of(numbered_as)
    if number is None:
        return None
    if number.kind == TIME and (match := _TIME.search(name)):
        return re.compile(re.escape(name[: match.start()]) + _TIME_TEXT + re.escape(name[match.end() :]) + r"\Z")
    numerals = re.finditer(_NUMERAL, numbered_as)
    spans = [match.span() for match in numerals if _digits(match.group()) == number.value]
    # The rank or part may be the same number: the next one is no later step.
    parts = [match.span() for match in _PARTS.finditer(numbered_as)]
    spans = [span for span in spans if not any(low <= span[0] < high for low, high in parts)] or spans
    if number.kind == PLAIN:
        start, end = spans[-1]
    else:
        words = (word for pattern, kind in _WORDS if kind == number.kind for word in pattern.finditer(numbered_as))
        start, end = next((word.span(1) for word in words if _digits(word.group(1)) == number.value), spans[0])
    width = end - start
    digits = rf"(\d{{{width}}}|[1-9]\d{{{width},}})" if name[start] == "0" and width > 1 else f"({_NUMERAL})"
    return re.compile(_general(name[:start]) + digits + _general(name[end:]) + r"\Z")


def _general(text: str) -> str:
    """Return a pattern for the rest of a name: figures and epochs in it differ, ranks do not."""
    return re.sub(
        r"(?:\\-)?\d+\\\.\d+(?:e(?:\\-)?\d+)?|(?<=epoch=)\d+|\\-v\d+(?=\\\.|$)",
        lambda match: r"\d+" if match.group().isdecimal() else r"(?:-v\d+)?" if "v" in match.group() else _FIGURE,
        re.escape(text),
    )


def same_step(parts: Collection[Path]) -> list[re.Pattern[str]]:
    """Return, for each part of a checkpoint that has a number, the names of other ranks' files of the same step."""
    patterns: list[re.Pattern[str]] = []
    for part, pattern in families(parts).items():
        if match := pattern.match(part.name):
            start, end = match.span(1)
            prefix, suffix = (re.sub(r"\d+", r"\\d+", re.escape(text)) for text in (part.name[:start], part.name[end:]))
            patterns.append(re.compile(prefix + re.escape(match.group(1)) + suffix + r"\Z"))
    return patterns


def may_be_first_rank(name: str) -> bool:
    """Return whether a name is like that of the first of each rank's files: `ckpt_30_0.pt`, `ckpt_30_gpu0.pt`."""
    return bool(_FIRST_RANK.search(name) or _FIRST_PROCESSOR.search(name))


def families(parts: Collection[Path]) -> dict[Path, re.Pattern[str]]:
    """Return the family of each part of one checkpoint that has a number."""
    names: dict[Path, set[str]] = {}
    for path in parts:
        names.setdefault(path.parent, set()).add(path.name)
    patterns = {path: family(path.name, names[path.parent]) for path in parts}
    return {path: pattern for path, pattern in patterns.items() if pattern is not None}


def number_in_family(pattern: re.Pattern[str] | None, name: str) -> int | None:
    match = None if pattern is None else pattern.match(name)
    return _digits(match.group(1)) if match else None


def family_place(root: Path) -> tuple[str, int] | None:
    """Return the folder and pattern of a name as one text, and its number; None for a name without one."""
    pattern = family(root.name)
    number = number_in_family(pattern, root.name)
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


def name_of_parts(name: str, names: Container[str]) -> str:
    """Return what is equal for the parts of one checkpoint among `names`, whose numbers nothing reads, and differs for
    another one: `ckpt_30.0.pt` also for `ckpt_30.1.pt` beside it."""
    first_name = _RANK_BEHIND_POINT.sub(lambda match: "0" * len(match.group()), name)
    return _SHARDS.sub("", first_name if first_name in names else name)


@lru_cache(maxsize=_MOST)
def series(path: Path) -> str:
    """Return a path with all of its numbers alike: equal for the checkpoints of one series."""
    plain = re.sub(rf"(?<!\d){_FIGURE}|-v\d+(?=\.|$)", lambda match: "" if match.group()[1] == "v" else "#", str(path))
    return re.sub(_NUMERAL, "#", plain)


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
