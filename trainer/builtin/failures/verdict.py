"""The cause of a node's end, from what its ranks left: exit codes, their own words, heartbeats, dumps, logs."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from trainer.builtin.failures import first_end, recorder
from trainer.builtin.heartbeat import Beat, read_beats
from trainer.contract.culprit import Located, RankSeen, Sign, find_culprit
from trainer.contract.exits import OF_OTHERS, PEER_LOST, cause_in
from trainer.supervisor.ends import DONE, INTERNAL, End

_TAIL_BYTES = 256 * 1024
_OWN = re.compile(r"CUDA error|ncclUnhandledCudaError|watchdog got stuck for|Xid|uncorrectable ECC", re.IGNORECASE)
"""The watchdog also aborts a rank whose own GPU or driver failed: that is no lost peer."""
_OF_OTHERS = re.compile(
    r"Watchdog caught collective operation timeout|Received a dump signal due to a collective timeout"
    r"|failure detected by watchdog at work|ncclRemoteError|ncclSystemError"
)
_ABORTS = re.compile(r"watchdog|terminate called|taking the entire process down", re.IGNORECASE)


def cause_of(run: Path, logs: Path, exit_codes: Mapping[int, int]) -> End:
    """Return the pod's cause of death.

    A rank that died of a signal comes first, then an error of its own, then one that is frozen, and last the loss of a
    peer. An abort by the NCCL watchdog is the loss of a peer: the rank was well and waited for another.
    """
    if not any(exit_codes.values()):
        return End(DONE, reason="done")
    end = first_end.read(run)
    beats = {beat.rank: beat for beat in read_beats(run)}
    now = end.at if end else time.monotonic()
    ranks = tuple(
        _judge(run, logs, rank, (end.codes.get(rank) if end else code), _state(end, rank), beats.get(rank), now)
        for rank, code in sorted(exit_codes.items())
    )
    return _cause(ranks, beats, exit_codes)._replace(ranks=ranks)


def seen_alive(run: Path, beats: Sequence[Beat]) -> tuple[RankSeen, ...]:
    """Return what is known of ranks that may still run; empty while none is frozen and none has left a dump."""
    if not recorder.any_dump(run) and all(first_end.state_of(beat.pid) not in first_end.FROZEN for beat in beats):
        return ()
    now = time.monotonic()
    return tuple(_judge(run, run, peer.rank, None, first_end.state_of(peer.pid), peer, now) for peer in beats)


def _state(end: first_end.FirstEnd | None, rank: int) -> str:
    return end.states.get(rank, "") if end else ""


def _judge(run: Path, logs: Path, rank: int, code: int | None, state: str, beat: Beat | None, now: float) -> RankSeen:
    outcome = beat.outcome if beat else None
    end, detail = str(Sign.RUNS), ""
    if outcome is not None:
        end, detail = outcome.reason, outcome.detail
    elif state in first_end.FROZEN:
        end = Sign.STOPPED
    elif code == -signal.SIGABRT and (abort_line := waited_in_vain(tail(logs, rank))):
        end, detail = Sign.ABORTED, abort_line
    # The agent ends the other ranks with SIGTERM after the first failure.
    elif code is not None and code < 0 and code != -signal.SIGTERM:
        end, detail = Sign.DIED, f"died of {signal.Signals(-code).name}"
        if code == -signal.SIGABRT and (failure_line := own_failure(tail(logs, rank))):
            detail = f"{detail}; {failure_line}"
    elif code:
        end, detail = "internal", f"exit code {code}"
    return RankSeen(
        rank=rank,
        step=beat.step if beat else 0,
        phase=beat.phase if beat else "",
        age_s=round(max(0.0, now - beat.at), 1) if beat else None,
        end=end,
        detail=detail[:200],
        groups=recorder.exchanges_of(run, rank),
    )


def _cause(ranks: tuple[RankSeen, ...], beats: Mapping[int, Beat], exit_codes: Mapping[int, int]) -> End:
    for state in ranks:
        if state.end == Sign.DIED:
            reason = cause_in(state.detail) or "signal"
            return End(INTERNAL, state.detail, reason, state.rank, -exit_codes[state.rank])
    outcomes = {rank: beat.outcome for rank, beat in beats.items() if beat.outcome is not None}
    faults = {rank: state for rank, state in outcomes.items() if state.exit_code != 0 and state.reason not in OF_OTHERS}
    if faults:
        rank = min(faults)
        return End(faults[rank].exit_code, faults[rank].detail, faults[rank].reason, rank)
    if frozen_rank := next((state for state in ranks if state.end == Sign.STOPPED), None):
        culprit = find_culprit([Located("", state) for state in ranks])
        return End(INTERNAL, str(culprit), "stopped", frozen_rank.rank)
    failures = sorted((state.exit_code == 0, state.reason == PEER_LOST, rank) for rank, state in outcomes.items())
    if failures and not failures[0][0]:
        rank = failures[0][2]
        return End(outcomes[rank].exit_code, outcomes[rank].detail, outcomes[rank].reason, rank)
    if aborted_rank := next((state for state in ranks if state.end == Sign.ABORTED), None):
        return End(INTERNAL, aborted_rank.detail, PEER_LOST, aborted_rank.rank, int(signal.SIGABRT))
    return End(INTERNAL, f"exit codes {dict(exit_codes)}", "internal")


def waited_in_vain(log: str) -> str:
    """Return the watchdog's line if it ended the rank because an exchange with others did not end; else empty."""
    lines = [line for line in log.splitlines() if _OWN.search(line) or _OF_OTHERS.search(line)]
    if any(_OWN.search(line) for line in lines):
        return ""
    return next((line.strip() for line in lines if _OF_OTHERS.search(line)), "")


def own_failure(log: str) -> str:
    """Return the line by which a rank's own GPU or driver failed; empty when none is known."""
    lines = log.splitlines()
    failure_lines = [line.strip() for line in lines if _OWN.search(line)]
    return next((line for line in failure_lines if _ABORTS.search(line)), failure_lines[0] if failure_lines else "")


def tail(logs: Path, rank: int) -> str:
    """Return the end of a rank's newest log; empty when there is none."""
    try:
        logs_of_rank = [*logs.glob(f"rank-{rank}.log"), *logs.glob(f"rank-{rank}-*.log")]
        newest = max(logs_of_rank, key=lambda path: path.stat().st_mtime, default=None)
        if newest is None:
            return ""
        with newest.open("rb") as file:
            file.seek(max(0, newest.stat().st_size - _TAIL_BYTES))
            return file.read().decode(errors="replace")
    except OSError:
        return ""
