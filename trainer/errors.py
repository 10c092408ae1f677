"""Errors that end a rank, each with the contract's exit code and the termination message's reason."""

from __future__ import annotations

import errno

from trainer.contract import NOTHING_SOUND, ExitCode
from trainer.contract.exits import MEMORY, OF_LIMITS, OPEN_FILES, PEER_LOST

_NO_MEMORY = ("can't allocate memory", "Cannot allocate memory", "out of memory")
_LOST_PEER = ("gloo", "Connection closed by peer", "Connection reset", "NCCL", "ncclRemoteError", "Timed out waiting")


class TrainerError(Exception):
    """For a person: what is wrong, the value seen, and the cure."""

    exit_code = ExitCode.INTERNAL
    reason = "internal"

    def __init__(self, message: str, finding: object = None, cure: str | None = None) -> None:
        self.what, self.seen, self.cure = message, finding, cure
        parts = [message]
        if finding is not None:
            parts.append(f"seen: {finding}")
        if cure:
            parts.append(f"cure: {cure}")
        super().__init__("; ".join(parts))

    def __reduce__(self) -> tuple[type[TrainerError], tuple[object, ...]]:
        """Keep the parts when a worker process pickles the error."""
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


class NothingSound(StorageError):
    """The steward then brings back a copy from S3, if there is one."""

    reason = NOTHING_SOUND


class NumericError(TrainerError):
    exit_code = ExitCode.NUMERIC
    reason = "numeric"


class Sick(TrainerError):
    """This rank's node computes wrongly or slowly, by the watch."""

    exit_code = ExitCode.SICK
    reason = "sick"


class Interrupted(TrainerError):
    """A stop was requested; a checkpoint of the last finished step is committed."""

    exit_code = ExitCode.INTERRUPTED
    reason = "interrupted"


class Fenced(TrainerError):
    """A newer attempt of the campaign has started: this one must not publish."""

    reason = "fenced"


class PeerLost(TrainerError):
    """A collective failed: another rank is gone or silent."""

    reason = PEER_LOST


class OutOfMemory(TrainerError):
    """The host's or the GPU's memory is used up, or the limit of this process."""

    reason = MEMORY


class OutOfFiles(TrainerError):
    """The process or its machine may open no more files."""

    reason = OPEN_FILES


class Diverged(TrainerError):
    """Ranks that must hold equal weights do not."""

    reason = "diverged"


_FILES_SAY = (FileNotFoundError, NotADirectoryError, IsADirectoryError)
_FILES_SAY_ALSO = (errno.ELOOP, errno.ENAMETOOLONG)


def lasting(error: OSError) -> bool:
    """Return whether the cause is the files or their permissions, so that every further try fails too.

    Other errors come from the storage and may pass: an evicted Lustre client (EIO, ESHUTDOWN), a fail-over (ESTALE,
    ETIMEDOUT), a bucket that cannot be reached.
    """
    return isinstance(error, (*_FILES_SAY, PermissionError)) or error.errno in _FILES_SAY_ALSO


def limit_error(error: BaseException, finding: object) -> TrainerError | None:
    """Return the error of a process that was refused memory or another open file; None for any other error."""
    reason = OF_LIMITS.get(error.errno or 0) if isinstance(error, OSError) else None
    is_refused = isinstance(error, RuntimeError) and any(sign in str(error) for sign in _NO_MEMORY)
    if reason == MEMORY or isinstance(error, MemoryError) or is_refused:
        cure = "look at what uses the node's memory; a smaller micro-batch needs less, on the GPU too"
        return OutOfMemory("no memory is left", finding, cure)
    if reason == OPEN_FILES:
        return OutOfFiles("no more files can be opened", finding, "look at their limit, and at what opens them")
    return None


def unread(error: OSError, refusal: TrainerError) -> TrainerError:
    """Return the error for a failed read: `refusal`, which is never retried, if it is `lasting`, else a storage error.

    Missing permissions are a refusal: a person grants them while the warm cluster is held. Retries would only use up
    the attempts.
    """
    if isinstance(error, PermissionError):
        cure = "let the pods' user read it: mode and owner, the mount's options, or the bucket's policy"
        return type(refusal)("no permission to read", refusal.seen, cure)
    if lasting(error):
        return refusal
    if (refused := limit_error(error, refusal.seen)) is not None:
        return refused
    return StorageError("storage failed during a read", refusal.seen, "look at the mount of this path")


def _of_own_gpu(text: str) -> bool:
    """NCCL also reports a failed call to this rank's own GPU: no peer is lost by that."""
    return any(
        sign in text for sign in ("ncclUnhandledCudaError", "unhandled cuda error", "CUDA error", "out of memory")
    )


def classify(error: BaseException) -> TrainerError:
    """Convert any error to a `TrainerError`, by its text where torch raises only `RuntimeError`."""
    if isinstance(error, TrainerError):
        return error
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, RuntimeError) and any(sign in text for sign in _LOST_PEER) and not _of_own_gpu(text):
        return PeerLost("a collective failed", text.splitlines()[0][:500], "look at the other nodes first")
    if (refused := limit_error(error, text[:800])) is not None:
        return refused
    if isinstance(error, OSError):
        return StorageError("an operation on a file failed", text, "look at the mount of this path")
    return TrainerError("unexpected error", text[:800])
