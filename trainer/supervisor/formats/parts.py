"""Checkpoints that lie in parts, and are one: `model/step-10` beside `optim/step-10`, a file or folder of each rank.

A part's role is a word of its path. Parts whose paths are equal without it belong together. A checkpoint is not
finished while it lacks a role that the one before it has.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from pathlib import Path
from typing import Iterable, Iterator, NamedTuple, Sequence

from trainer.supervisor.formats.layouts import Candidate, is_state

_KINDS = ("file", "folder", "dcp", "marker", "accelerate", "orbax")
"""The other formats know by themselves what belongs to a checkpoint."""
_STATES = r"(?:[_-]?states?)?"
_ROLES = {
    "model": rf"models?{_STATES}|weights|params",
    "optimizer": rf"optim(?:izer)?s?{_STATES}|opt",
    "schedule": rf"(?:lr[_-]?)?sched(?:uler)?s?{_STATES}",
    "random": rf"rng{_STATES}|random[_-]?states?",
    "state": r"(?:train(?:er|ing)?[_-]?)?states?",
    "average": r"ema",
    "generator": r"generator|gen|g(?!\d)",
    "discriminator": r"discriminator|disc|d(?!\d)",
    "actor": r"actor|policy",
    "critic": r"critic|value",
}
_RANK = r"(?:(?:mp|dp|tp|pp|local|global)_)?rank[_=-]?\d+"
_WORDS = "|".join(f"(?P<{role}>{words})" for role, words in {**_ROLES, "rank": _RANK}.items())
_ROLE = re.compile(rf"(?<![A-Za-z])(?:{_WORDS})(?![A-Za-z])", re.I)
_FOLDER = "folder of accelerate"
"""The role of a folder by which a job goes on."""
_BETWEEN = re.compile(r"[._=+-]+")


class _Path(NamedTuple):
    """The path of a file or folder below the job's folder."""

    roles: frozenset[str]
    """Words of its roles; the rank's with its number."""
    common_path: str
    """The path without them."""
    above: str
    """The folder above the first part of the path that names a role, or else above all of it."""


class _Member(NamedTuple):
    candidate: Candidate
    paths: Sequence[_Path]

    @property
    def roles(self) -> frozenset[str]:
        return frozenset().union(*(path.roles for path in self.paths))

    @property
    def common_path(self) -> str:
        return self.paths[0].common_path

    @property
    def has_ranks(self) -> bool:
        return any(role.startswith("rank") for role in self.roles)


def join_parts(candidates: Iterable[Candidate], folder: Path) -> Iterator[Candidate]:
    """Yield the candidates below a job's folder, with those that are parts of one checkpoint as one."""
    groups: dict[str, list[_Member]] = defaultdict(list)
    for candidate in candidates:
        if candidate.kind in _KINDS:
            member = _Member(candidate, [_parse(path.relative_to(folder)) for path in candidate.tops])
            groups[member.common_path].append(member)
        else:
            yield candidate
    series: dict[str, dict[int, frozenset[str]]] = defaultdict(dict)
    for common_path, members in groups.items():
        number = members[0].candidate.number
        if number is not None:
            series[re.sub(r"\d+", "#", common_path)][number.value] = _roles(members)
    for common_path, members in groups.items():
        yield from _of_group(members, series[re.sub(r"\d+", "#", common_path)], folder)


def _of_group(members: Sequence[_Member], roles_of: dict[int, frozenset[str]], folder: Path) -> Iterator[Candidate]:
    """Yield the checkpoint of all members, or each where they are not parts of one. `roles_of`: the roles of each
    number of this series."""
    number = members[0].candidate.number
    roles = frozenset().union(*(member.roles for member in members))
    lacks = number is not None and not _required(roles_of, number.value) <= _roles(members)
    if len({member.roles for member in members}) > 1 or any(member.has_ranks for member in members):
        yield _union(members, lacks, folder)
        return
    for member in members:
        candidate = member.candidate
        if lacks or (roles and number is not None):  # its next part may be about to come
            candidate = candidate._replace(lacks=lacks, settles=True)
        yield candidate


def _roles(members: Sequence[_Member]) -> frozenset[str]:
    """Return the roles of the parts of a checkpoint; a folder of Accelerate is one of its own."""
    is_of_accelerate = any(member.candidate.kind == "accelerate" for member in members)
    return frozenset({_FOLDER} if is_of_accelerate else ()).union(*(member.roles for member in members))


def _required(roles_of: dict[int, frozenset[str]], number: int) -> frozenset[str]:
    """Return the roles that a checkpoint may still get: those of both saves before it, since a part may be written
    only every other time. None once a later one has come."""
    if any(other_number > number for other_number in roles_of):
        return frozenset()
    last_two = sorted(other_number for other_number in roles_of if other_number < number)[-2:]
    if not last_two:
        return frozenset()
    if _FOLDER in roles_of[last_two[-1]]:  # kohya's scripts may keep the newest state alone
        return roles_of[last_two[-1]]
    return frozenset.intersection(*(roles_of[other_number] for other_number in last_two))


def _union(members: Sequence[_Member], lacks: bool, folder: Path) -> Candidate:
    candidates = [member.candidate for member in members]
    kinds = {candidate.kind for candidate in candidates}
    parent = os.path.commonpath([str(folder / path.above) for member in members for path in member.paths])
    return Candidate(
        kinds.pop() if len(kinds) == 1 else "folder", Path(parent),
        lambda: all(candidate.ready() for candidate in candidates),
        tuple(sorted(path for candidate in candidates for path in candidate.tops)), settles=True,
        told_in=tuple(path for candidate in candidates for path in candidate.told_in),
        ordinal=any(candidate.ordinal for candidate in candidates), lacks=lacks,
    )  # fmt: skip


def _parse(path: Path) -> _Path:
    roles: set[str] = set()
    common_names: list[str] = []
    parent: str | None = None
    for depth, name in enumerate(path.parts):
        is_file = is_state(name) and depth == len(path.parts) - 1
        text = name.rpartition(".")[0] or name if is_file else name
        for match in _ROLE.finditer(text):
            roles.add(match.group().lower() if match.lastgroup == "rank" else str(match.lastgroup))
            parent = os.path.join(*path.parts[:depth], "") if parent is None else parent
        common_names.append(_BETWEEN.sub("-", _ROLE.sub("", text)).strip("-"))
    return _Path(frozenset(roles), "/".join(filter(None, common_names)), str(path.parent) if parent is None else parent)
