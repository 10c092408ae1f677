"""What can end a rank: each error carries the exit code of the contract and the reason of the termination message."""

from __future__ import annotations

from trainer.contract import ExitCode

_LOST_PEER = ("gloo", "Connection closed by peer", "Connection reset", "NCCL", "ncclRemoteError", "Timed out waiting")


class TrainerError(Exception):
    """Read by a person: what is wrong, the value seen, and the cure."""

    exit_code = ExitCode.INTERNAL
    reason = "internal"

    def __init__(self, what: str, seen: object = None, cure: str | None = None) -> None:
        self.what, self.seen, self.cure = what, seen, cure
        parts = [what]
        if seen is not None:
            parts.append(f"seen: {seen}")
        if cure:
            parts.append(f"cure: {cure}")
        super().__init__("; ".join(parts))

    def __reduce__(self) -> tuple[type[TrainerError], tuple[object, ...]]:
        """Also from a worker's process it comes with its parts."""
        return type(self), (self.what, self.seen, self.cure)


class ConfigError(TrainerError):
    exit_code = ExitCode.USER
    reason = "config"


class DataError(TrainerError):
    exit_code = ExitCode.DATA
    reason = "data"


class StorageError(TrainerError):
    exit_code = ExitCode.STORAGE
    reason = "storage"


class NumericError(TrainerError):
    exit_code = ExitCode.NUMERIC
    reason = "numeric"


class Interrupted(TrainerError):
    """Asked to stop; a checkpoint of the last finished step is committed."""

    exit_code = ExitCode.INTERRUPTED
    reason = "interrupted"


class Fenced(TrainerError):
    """A newer attempt of the campaign has started: this one must not publish anything."""

    reason = "fenced"


class PeerLost(TrainerError):
    """A collective failed: another rank is gone or silent."""

    reason = "peer-lost"


class Diverged(TrainerError):
    """Ranks that must hold equal weights do not."""

    reason = "diverged"


def classify(error: BaseException) -> TrainerError:
    """The error of ours that any error stands for; told by its text where torch raises only `RuntimeError`."""
    if isinstance(error, TrainerError):
        return error
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, RuntimeError) and any(sign in text for sign in _LOST_PEER):
        return PeerLost("a collective failed", text.splitlines()[0][:500], "look at the other nodes first")
    if isinstance(error, OSError):
        return StorageError("an operation on a file failed", text, "look at the mount that it names")
    return TrainerError("unexpected error", text[:800])
