"""Errors that end a rank, each with the contract's exit code and the termination message's reason."""

from __future__ import annotations

import errno
import re

from trainer.contract import NOTHING_SOUND, ExitCode
from trainer.contract.exits import GPU, MEMORY, OPEN_FILES, PEER_LOST, PROCESSES, cause_in, limit_of

_LOST_PEER = re.compile(
    r"gloo|Connection closed by peer|Connection reset|NCCL|ncclRemoteError|Timed out (?:waiting|after .* waiting)"
    r"|socket has timed out|Socket Timeout|wait timeout after"
)


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


class OutOfProcesses(TrainerError):
    """The process, its container or its machine may start no more processes and threads."""

    reason = PROCESSES


class GpuFailed(TrainerError):
    """A call to this rank's own GPU failed, also one of NCCL's: no peer is lost by that."""

    reason = GPU


class Diverged(TrainerError):
    """Ranks that must hold equal weights do not."""

    reason = "diverged"


_REFUSALS: dict[str, tuple[type[TrainerError], str, str]] = {
    MEMORY: (
        OutOfMemory,
        "no memory is left",
        "look at what uses the node's memory; a smaller micro-batch needs less, on the GPU too",
    ),
    OPEN_FILES: (OutOfFiles, "no more files can be opened", "look at their limit, and at what opens them"),
    PROCESSES: (OutOfProcesses, "no more processes can be started", "look at their limit, and at what starts them"),
}
"""Reason -> its error, message and cure."""
_FILES_SAY = (FileNotFoundError, NotADirectoryError, IsADirectoryError)
_FILES_SAY_ALSO = (errno.ELOOP, errno.ENAMETOOLONG)


def lasting(error: OSError) -> bool:
    """Return whether the cause is the files or their permissions, so that every further try fails too.

    Other errors come from the storage and may pass: an evicted Lustre client (EIO, ESHUTDOWN), a fail-over (ESTALE,
    ETIMEDOUT), a bucket that cannot be reached.
    """
    return isinstance(error, (*_FILES_SAY, PermissionError)) or error.errno in _FILES_SAY_ALSO


def first_line(error: BaseException) -> str:
    """Return the first line of an error's words; the name of its class where it has none, as a `MemoryError`."""
    return next(iter(str(error).splitlines()), "") or type(error).__name__


def limit_error(error: BaseException, finding: object) -> TrainerError | None:
    """Return the error of a process that was refused memory, a file or a process; None for any other error."""
    reason = limit_of(error)
    if not reason:
        return None
    kind, message, cure = _REFUSALS[reason]
    return kind(message, finding, cure)


def storage_error(error: BaseException, message: str, finding: object, cure: str | None = None) -> TrainerError:
    """Return the error for an operation on storage that failed by `error`: the limit's that refused it, else the
    storage's."""
    return limit_error(error, finding) or StorageError(message, finding, cure)


def unread(error: Exception, refusal: TrainerError) -> TrainerError:
    """Return the error for a failed read: `refusal`, which is never retried, where the content or what is `lasting`
    failed it, else a storage error.

    Missing permissions are a refusal: a person grants them while the warm cluster is held. Retries would only use up
    the attempts.
    """
    if isinstance(error, PermissionError):
        cure = "let the pods' user read it: mode and owner, the mount's options, or the bucket's policy"
        return type(refusal)("no permission to read", refusal.seen, cure)
    if not isinstance(error, OSError):
        return limit_error(error, refusal.seen) or refusal
    if lasting(error):
        return refusal
    return storage_error(error, "storage failed during a read", refusal.seen, "look at the mount of this path")


def classify(error: BaseException) -> TrainerError:
    """Convert any error to a `TrainerError`, by its text where torch raises only `RuntimeError`. A limit comes first:
    NCCL and gloo tell of a call that the kernel refused this rank in the words of a lost connection."""
    if isinstance(error, TrainerError):
        return error
    text = f"{type(error).__name__}: {error}"
    if (refused := limit_error(error, text[:800])) is not None:
        return refused
    if isinstance(error, RuntimeError):
        if cause_in(str(error)) == GPU:
            return GpuFailed("this rank's GPU failed", text[:800], "look at that GPU: `nvidia-smi`, the kernel's log")
        if _LOST_PEER.search(text):
            return PeerLost("a collective failed", text.splitlines()[0][:500], "look at the other nodes first")
    if isinstance(error, OSError):
        return StorageError("an operation on a file failed", text, "look at the mount of this path")
    return TrainerError("unexpected error", text[:800])
