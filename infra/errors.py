"""Errors, by their meaning for a retry. Every message has what is wrong, the value seen, and the cure."""

from __future__ import annotations

from datetime import timedelta

CHANGED = 2
"""Exit code of a command that compared and found a difference: neither success nor error."""


NO_GOLDEN = 73
"""Exit code of a campaign that has ended, and trained, without a proven golden checkpoint."""


class BivouacError(Exception):
    """An error for people, shown without a traceback. `exit_code` follows sysexits."""

    exit_code = 1

    def __init__(self, what: str, *, seen: object = None, cure: str | None = None) -> None:
        self.what, self.seen, self.cure = what, seen, cure
        parts = [what]
        if seen is not None:
            parts.append(f"seen: {seen}")
        if cure:
            parts.append(f"cure: {cure}")
        super().__init__("; ".join(parts))


class UserError(BivouacError):
    """The spec, the data or the command is wrong; a retry changes nothing."""

    exit_code = 64


class PermanentError(BivouacError):
    """The operation is refused for good; a retry is useless."""

    exit_code = 70


class TemporaryError(BivouacError):
    """A retry after `delay` may succeed."""

    exit_code = 75

    def __init__(self, what: str, *, seen: object = None, cure: str | None = None, delay: timedelta) -> None:
        super().__init__(what, seen=seen, cure=cure)
        self.delay = delay


class LeaseHeld(BivouacError):
    """Another holder drives this campaign; `seen` names it."""

    exit_code = 75


class LeaseLost(BivouacError):
    """We no longer hold the lease and must touch nothing more."""

    exit_code = 75


class LeaseUnproven(TemporaryError):
    """Our lease was not renewed in time and may still be ours: touch nothing until a renewal succeeds."""


class NotProven(BivouacError):
    """Something must be proven first (an archive before a teardown, a certificate before 'done')."""

    exit_code = 74


def first_line(error: Exception) -> str:
    """Return the beginning of an error's text: of a schema's the first field that does not fit, else the first line."""
    if (fields := getattr(error, "errors", None)) is not None:
        problem = fields()[0]
        return ": ".join(filter(None, (".".join(map(str, problem["loc"])), problem["msg"])))[:200]
    return (str(error).splitlines() or [""])[0][:200] or type(error).__name__
