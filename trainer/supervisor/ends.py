"""What an end means: the contract's exit code, and a sentence for the one who reads it."""

from __future__ import annotations

import errno
import json
import os
import signal
from pathlib import Path
from typing import Any, Iterable, Mapping, NamedTuple

from trainer.contract.exits import PEER_LOST, REASONS, ExitCode, cause_in, fitting, limit_of
from trainer.supervisor.failures import LastWords, cause_of, repeats

DONE, USER, DATA, INTERNAL = ExitCode.DONE, ExitCode.USER, ExitCode.DATA, ExitCode.INTERNAL
STORAGE, INTERRUPTED, NUMERIC = ExitCode.STORAGE, ExitCode.INTERRUPTED, ExitCode.NUMERIC
_OWN = (USER, DATA, STORAGE, INTERRUPTED, NUMERIC)
"""Codes by which a job says itself why it ends."""
_MIB = 2**20


class End(NamedTuple):
    code: int
    detail: str = ""
    reason: str = ""
    """In place of the code's own."""
    rank: int | None = None
    """The one that failed first."""
    signal: int | None = None
    """What it died of."""
    ranks: tuple[Any, ...] = ()
    """`trainer.contract.culprit.RankSeen` of each rank, from the built-in trainer."""


def termination(end: End, attempt: int, node: str, step: int, committed_step: int) -> dict[str, Any]:
    """Return the content of `trainer.contract.Termination`, but for its ranks."""
    return {
        "exit_code": end.code,
        "reason": end.reason or REASONS.get(end.code, "signal" if end.signal else "internal"),
        "attempt": attempt,
        "node": node,
        "step": step,
        "committed_step": committed_step,
        "signal": end.signal,
        "rank": end.rank,
        "detail": end.detail[:1500],
    }


def fitting_text(message: Mapping[str, Any]) -> str:
    """Return a termination message as JSON. Where it would be longer than the kubelet keeps, the ranks' words and
    numbers are left out, then the ranks, then the end of its detail."""
    rows, detail = message.get("ranks", ()), message["detail"]
    shorter = [
        {"ranks": [{name: value for name, value in row.items() if name not in left_out} for row in rows]}
        for left_out in ((), ("detail",), ("detail", "groups"))
    ]
    cuts = [len(detail) * 3**number // 4**number for number in range(24)]
    shorter += [{"ranks": [], "detail": detail[:cut]} for cut in cuts]
    texts = ({**message, **changes} for changes in shorter)
    return fitting(json.dumps(text, separators=(",", ":"), ensure_ascii=False) for text in texts)


class Made(NamedTuple):
    """What an attempt has made when it fails."""

    stepped: bool = True
    sealed: bool = True
    nodes: int = 1


_ANYTHING = Made()


def own_code(code: int, words: LastWords, progress: Made) -> int:
    """Return the code of an end, `USER` in place of one that says nothing where a retry would repeat the error."""
    failure = words.failure() if code > 0 and code not in _OWN else None
    return USER if failure is not None and repeats(cause_of(failure.error), progress.stepped, progress.sealed) else code


def failure_end(
    code: int,
    words: LastWords,
    places: Iterable[Path],
    on_another_node: bool = False,
    progress: Made = _ANYTHING,
    rank: int | None = None,
) -> End:
    """Return the end of a job whose launcher, or whose first failed rank, ended with `code`. `on_another_node`: that
    rank is another node's."""
    end_text = f"died of {signal_name(-code)}" if code < 0 else f"exited with {code}"
    failure = words.failure()
    cause = None if failure is None else cause_of(failure.error)
    rank = failure.rank if failure is not None and failure.rank is not None else rank
    code = own_code(code, words, progress)
    if on_another_node:
        return End(code if code in _OWN else INTERNAL, f"the job {end_text} on another node{words}", PEER_LOST, rank)
    if code in _OWN:
        return End(code, f"the job {end_text}{words}", rank=rank)
    if full := next(filter(None, map(room_in, places)), ""):
        return End(STORAGE, f"the job {end_text} where no room is left: {full}{words}", rank=rank)
    if words.no_room:
        return End(STORAGE, f"the job {end_text} for want of room; it said: {words.no_room[:300]}", rank=rank)
    lost_peer = code > 0 and progress.nodes > 1 and cause is not None and cause.name == PEER_LOST
    reason = PEER_LOST if lost_peer else cause_in(failure.error) if failure is not None else ""
    return End(INTERNAL, f"the job {end_text}{words}", reason, rank)


def rank_end(code: int, rank: int, is_outside_signal: bool) -> End:
    """Return the end of a rank of ours that failed first. `is_outside_signal`: it died of a signal that its code does
    not send itself; what else ends a rank may be the loss of a peer, unless its code says more."""
    if code in _OWN:
        return End(code, f"exited with {code}", REASONS[code], rank)
    if code > 0:
        return End(INTERNAL, f"exited with {code}", PEER_LOST, rank)
    return End(INTERNAL, f"died of {signal_name(-code)}", "signal" if is_outside_signal else PEER_LOST, rank, -code)


def error_end(error: OSError, place: Path, before: str = "") -> End:
    """Return the end that an error of the supervisor's own means: a disk's, unless the kernel refused it memory,
    another open file or another process."""
    reason = limit_of(error)
    return End(INTERNAL if reason else STORAGE, before + of_error(error, place), reason)


def of_error(error: OSError, place: Path) -> str:
    """Return what stopped the supervisor itself, with the room that is left if it was that."""
    text = f"{error}: {error.filename}" if error.filename and error.filename not in str(error) else str(error)
    return f"{text}; {_room(place)}" if error.errno in (errno.ENOSPC, errno.EDQUOT) else text


def room_in(place: Path) -> str:
    """Return the room of a full file system in words; empty while it has a MiB and an inode."""
    try:
        status = os.statvfs(str(_existing_folder(place)))
    except OSError:
        return ""
    full = status.f_bavail * status.f_frsize < _MIB or (status.f_files and not status.f_favail)
    return _room(place) if full else ""


def _room(place: Path) -> str:
    try:
        status = os.statvfs(str(_existing_folder(place)))
    except OSError as error:
        return f"{place}: {error}"
    free, size = (blocks * status.f_frsize / _MIB for blocks in (status.f_bavail, status.f_blocks))
    return f"{place} has {free:.1f} of {size:.1f} MiB free, and {status.f_favail} inodes"


def _existing_folder(place: Path) -> Path:
    """Return the folder, or the one above it that exists."""
    return next(path for path in (place, *place.parents) if path.exists())


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
