"""Why a job failed, out of its last lines: the first rank's own error, never the launcher's words about it."""

from __future__ import annotations

import os
import re
from collections import deque
from typing import NamedTuple

from trainer.contract.exits import GPU_MEMORY, MEMORY, OPEN_FILES, PEER_LOST, PROCESSES, TEXTS
from trainer.supervisor.progress.lines import bare

_RANK = re.compile(r"^\[(?:[a-z_]+)?(\d+)\]: ?|^\[\d+,(\d+)\]<std\w+>: ?")
"""What torch, `torchrun --tee` and `mpirun --tag-output` set before a rank's lines."""
_ERROR = re.compile(
    r"^(?:[A-Za-z_]\w*\.)*[A-Za-z_]*(?:Error|Exception|Interrupt|Failure)(?:: |:?$)|^Fatal Python error: "
    r"|^\S+: (?:error: |can't open file )"
)
_AFTER_TRACEBACK = re.compile(r"^(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:: .*)?$")
_THROWN = re.compile(r"^\s*what\(\):\s*(\S.*)$")
_TRACEBACK = "Traceback (most recent call last)"
_CHAINED = ("During handling of the above exception", "The above exception was the direct cause")
_NCCL_SAID = "Last error:"
"""Below it torch prints NCCL's last warning: the cause, of which the error itself says only the kind."""
_GROUP = re.compile(r"^ *(?:\+-[-+]+ \d+ -+|\+-+$|[|+] ?)")
"""What stands before the lines of an `ExceptionGroup`."""
_LAUNCHER = re.compile(
    r"torch[./]distributed[./]elastic.*(failed \(exitcode|closing signal|ChildFailedError|SignalException)"
    r"|Primary job +terminated normally, but|mpirun noticed that"
)
"""Begins a launcher's own words: what follows is a consequence."""
_NO_ROOM = re.compile("No space left on device|Disk quota exceeded")
_LINES, _BURSTS, _IN_ONE, _STALE = 5, 8, 64, 50
"""Last lines that are told; bursts of errors that are kept, errors in one, and other lines after which a burst is not
the reason: it was handled."""
_GPU = "/dev/nvidiactl"


class Cause(NamedTuple):
    name: str
    pattern: re.Pattern[str]
    cure: str
    repeats: str
    """A retry would repeat it: `early` before the first new step, `unsealed` until a newer checkpoint is sealed,
    `without-gpu` on a machine that has none, `passes` where a retry may go well, or `never`: it follows from another
    error, which is told instead."""


CAUSES = tuple(
    Cause(name, re.compile(pattern), cure, repeats)
    for name, pattern, cure, repeats in (
        ("cuda-memory", GPU_MEMORY,
         "CUDA is out of memory: a smaller micro-batch, recomputed activations, or shards over more GPUs", "early"),
        (MEMORY, rf"(?i:{TEXTS[MEMORY].pattern})",
         "no memory was left: look at what uses the node's memory and /dev/shm", "passes"),
        (OPEN_FILES, rf"(?i:{TEXTS[OPEN_FILES].pattern})",
         "no more files could be opened: look at `ulimit -n`, and at what opens them", "passes"),
        (PROCESSES, rf"(?i:{TEXTS[PROCESSES].pattern})",
         "no more processes could be started: fewer workers or threads a rank", "passes"),
        (PEER_LOST,
         r"^(?:[\w.]*\.)?(RuntimeError|Dist\w*Error|NCCLError)\b.*(Connection (closed|reset)|NCCL|nccl|Broken pipe"
         r"|[Ss]ocket|TCPStore|[Tt]imed? ?out|[Tt]imeout|pair closure|gloo|remote (worker|process))"
         r"|^nccl(Remote|System|Internal)Error\b",
         "it lost a peer; look at the rank that failed first", "never"),
        ("no-gpu", r"not compiled with CUDA|[Nn]o NVIDIA driver|No CUDA GPUs are available|no CUDA-capable device",
         "the script insists on CUDA, and there is no GPU for it here: let it take its device as an argument",
         "without-gpu"),
        ("import", r"^(ModuleNotFoundError|ImportError)\b",
         "a module is missing: put it into the image, the source or `requirements`", "unsealed"),
        ("arguments", r": error: (unrecognized arguments|the following arguments|argument )|can't open file ",
         "look at `script`, `command` and `args`", "unsealed"),
        ("file", r"^(FileNotFoundError|NotADirectoryError|IsADirectoryError|PermissionError)\b",
         "look at the path, and at `mounts` and `source`", "early"),
        ("script", r"^(KeyError|AttributeError|NameError|UnboundLocalError|TypeError|IndexError|SyntaxError"
         r"|IndentationError|TabError|NotImplementedError)\b", "an error of the script", "unsealed"),
        ("value", r"^(ValueError|AssertionError|ZeroDivisionError)\b", "an error of the script or of its arguments",
         "early"),
        ("command", r"^(subprocess\.)?CalledProcessError\b", "look at the words of that command", "never"),
    )
)  # fmt: skip
"""The first one whose pattern is found in the error counts."""


def cause_of(error: str) -> Cause | None:
    return next((cause for cause in CAUSES if cause.pattern.search(error)), None)


def repeats(cause: Cause | None, has_stepped: bool, has_sealed: bool) -> bool:
    """Return whether a retry would repeat an error. `has_stepped`: the attempt has made a step."""
    if cause is None:
        return False
    answers = {"early": not has_stepped, "unsealed": not has_sealed, "without-gpu": not os.path.exists(_GPU)}
    return answers.get(cause.repeats, False)


class Failure(NamedTuple):
    error: str
    """Exception and message."""
    rank: int | None
    lines: tuple[str, ...]
    """The lines before it, of its rank."""


class LastWords:
    """The lines of a job that say why it failed."""

    def __init__(self) -> None:
        self._last = self.no_room = ""
        self._bursts: deque[list[Failure]] = deque(maxlen=_BURSTS)
        self._open: dict[int | None, deque[str]] = {}
        """Rank, None for lines that name none -> its traceback's last lines so far."""
        self._unfinished: set[int | None] = set()
        """Ranks whose next line is NCCL's warning."""
        self._since = _STALE
        """Lines of another kind since the last error."""
        self._launcher = False
        """Its launcher has said that it failed."""

    def hear(self, line: str) -> None:
        text = bare(line).rstrip()
        if not text.strip(" -=*"):  # launchers frame their words
            return
        if _NO_ROOM.search(text):
            self.no_room = text.strip()
        if self._launcher or _LAUNCHER.search(text):
            self._open.clear()
            self._launcher = True
            return
        match = _RANK.match(text)
        rank = None if match is None else int(match.group(1) or match.group(2))
        if words := _GROUP.sub("", text if match is None else text[match.end() :]):
            self._take(words, rank)
        self._last = text.strip()

    def _take(self, text: str, rank: int | None) -> None:
        traceback_lines = self._open.get(rank)
        is_error = _ERROR.match(text) or (traceback_lines is not None and _AFTER_TRACEBACK.match(text))
        is_warning = rank in self._unfinished and not is_error
        self._unfinished.discard(rank)
        if text.startswith(_TRACEBACK):
            if len(self._open) < _IN_ONE:
                self._open[rank] = deque(maxlen=_LINES)
        elif exception_match := _THROWN.match(text):
            self._fail(Failure(exception_match.group(1), rank, ()))
        elif traceback_lines is not None and text.startswith((" ", "\t")):
            traceback_lines.append(text.strip())
        elif text.startswith(_CHAINED):
            self._drop(rank)
        elif text.startswith(_NCCL_SAID):
            if len(self._unfinished) < _IN_ONE:
                self._unfinished.add(rank)
        elif is_warning:
            self._extend(rank, text)
        elif is_error:
            self._fail(Failure(text, rank, tuple(self._open.pop(rank, ()))))
        else:
            self._since += 1

    def _fail(self, failure: Failure) -> None:
        if self._since or not self._bursts:
            self._bursts.append([])
        self._since = 0
        if len(self._bursts[-1]) < _IN_ONE:
            self._bursts[-1].append(failure)

    def _drop(self, rank: int | None) -> None:
        """Forget the rank's last error: another one, which it ends with, follows."""
        for failure in self._last_of(rank):
            self._bursts[-1].remove(failure)

    def _extend(self, rank: int | None, warning: str) -> None:
        """Give the rank's last error the warning that tells its cause."""
        for failure in self._last_of(rank):
            place = self._bursts[-1].index(failure)
            self._bursts[-1][place] = failure._replace(error=f"{failure.error} {warning.strip()}")

    def _last_of(self, rank: int | None) -> list[Failure]:
        """Return the rank's last error of this burst; none if it has none."""
        return [failure for failure in self._bursts[-1] if failure.rank == rank][-1:] if self._bursts else []

    def failure(self) -> Failure | None:
        """Return the first error of the last burst that has one of a rank's own; else the first that follows from
        another one."""
        following: Failure | None = None
        for burst in reversed(self._bursts) if self._since < _STALE else ():
            for failure in burst:
                cause = cause_of(failure.error)
                if cause is None or cause.repeats != "never":
                    return failure
                following = following or failure
        return following

    def __str__(self) -> str:
        failure = self.failure()
        if failure is None:
            return f"; it said last: {self._last[:300]}" if self._last else ""
        cause = cause_of(failure.error)
        rank_text = "" if failure.rank is None else f" (rank {failure.rank})"
        earlier_lines = " | ".join(failure.lines)[-400:]
        return "; ".join([f"; it said last: {failure.error[:300]}{rank_text}", *([cause.cure] if cause else []),
                          *([f"before that: {earlier_lines}"] if earlier_lines else [])])  # fmt: skip
