"""What can end a rank: each error carries the exit code of the contract and the reason of the termination message."""

from __future__ import annotations

import errno

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


_FILES_SAY = (FileNotFoundError, NotADirectoryError, IsADirectoryError)
_FILES_SAY_ALSO = (errno.ELOOP, errno.ENAMETOOLONG)


def lasting(error: OSError) -> bool:
    """Whether the files themselves, or their rights, are the trouble: every further try would meet it again.

    Anything else is said by the storage under them, and may pass: an evicted Lustre client (EIO, ESHUTDOWN), a
    fail-over (ESTALE, ETIMEDOUT), a bucket that cannot be reached.
    """
    return isinstance(error, (*_FILES_SAY, PermissionError)) or error.errno in _FILES_SAY_ALSO


def unread(error: OSError, refusal: TrainerError) -> TrainerError:
    """What a failed read stands for: `refusal`, which is never retried, only where it is `lasting`.

    Missing rights are a refusal, too: a person mends them while the warm cluster is held, and retries would only use
    up the attempts after which it is not.
    """
    if isinstance(error, PermissionError):
        cure = "let the pods' user read it: mode and owner, the mount's options, or the bucket's policy"
        return type(refusal)("there is no right to read", refusal.seen, cure)
    if lasting(error):
        return refusal
    return StorageError("storage failed in the middle of a read", refusal.seen, "look at the mount that it names")


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
