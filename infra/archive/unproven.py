"""What a job left that is no known checkpoint, copied as it is: byte for byte, with digests, and proven to be no more
than that. It may be the only model.

Each file becomes an object below `unproven/attempt-<4 digits>/files/`, under its own path. Links, empty folders and
what is neither file nor folder are rows of the manifest, which is written last. A name is bytes: in keys and manifest
it is percent-encoded. Files are read as they lie there, and no link is followed.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from infra.archive.bucket import ArchiveBucket, ArchivedObject, Clash, Content, Unsound, concurrently
from infra.archive.manifest import UNPROVEN
from infra.aws.parts import Altered
from infra.errors import PermanentError
from infra.plain_files import plain_bytes
from trainer.contract import (
    COMMITTED_NAME,
    OWN_FOLDER,
    UNRECOGNISED_NAME,
    UnrecognisedFile,
    attempt_folder,
    entry_path,
    parse_manifest,
)
from trainer.contract.frozen import Frozen
from trainer.contract.tree import path_of, tree_of

_MANIFEST = "manifest.json"
_SAFE = "/-_.~!*'() =+@,:"
_LONGEST_KEY = 900
"""Bytes. S3 takes 1,024."""
_AT_ONCE = 16
"""Files at once: a small one waits for S3 four times, and the large ones share the transfer's memory limit."""
_NO_ACCOUNT = "its supervisor left no account of it: this is all that lies there and is not sealed as it is"


class CopiedFile(Frozen):
    path: str
    """Below the job's folder, percent-encoded."""
    object: ArchivedObject


class UnprovenManifest(Frozen):
    """All that was copied as it is. No byte of it is known to be a checkpoint."""

    campaign: str
    identity: str
    attempt: int
    why: str
    """Why it is not recognised."""
    fits: str
    """The format that would recognise it; empty if none is known."""
    files: tuple[CopiedFile, ...]
    links: dict[str, str]
    """Path -> target, both percent-encoded."""
    empty_folders: tuple[str, ...]
    not_copied: tuple[str, ...]
    """Pipes, sockets and devices: they hold no bytes."""


@dataclass
class Left:
    """Unrecognised content of a job's folder, by paths below it."""

    folder: Path
    why: str
    fits: str = ""
    files: list[Path] = field(default_factory=list)
    links: list[Path] = field(default_factory=list)
    empty_folders: list[Path] = field(default_factory=list)
    others: list[Path] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.files or self.links or self.others)


def left_of(root: Path, entire: bool) -> Left:
    """Return what is to be copied as it is: what the supervisor's account names, or, if there is no account of the
    job's end, all that no sealed checkpoint came from. Raises `OSError` for what cannot be listed.

    `root`: the campaign's folder on the shared tier. `entire`: all of the job's folder.
    """
    base, account = root / OWN_FOLDER, account_of(root)
    left = Left(base, account.why, account.fits) if account is not None else Left(base, _NO_ACCOUNT)
    if account is not None and not entire:
        entries, seals = [entry_path(base, entry) for entry in account.entries], dict[Path, float]()
    else:
        entries, seals = [base], {} if entire else _seal_times(root)
    for entry in entries:
        _walk(left, entry, seals)
    if account is not None and account.files and not left:
        raise PermanentError(
            "what the job left and no format recognises is not on the shared tier",
            seen=f"{account.files} files by its supervisor's account, the newest {account.newest!r}; none in {base}",
            cure="look for it by `bivouac exec` while its nodes are there",
        )
    return left


def _seal_times(root: Path) -> dict[Path, float]:
    """Return the job's files and folders from which committed steps came -> when the newest of these was committed, in
    seconds since 1970. A step of which that cannot be read saves nothing from being copied."""
    seals = dict[Path, float]()
    for manifest in root.glob(f"step-*/{COMMITTED_NAME}"):
        with contextlib.suppress(OSError, ValueError):
            folder, committed_at = manifest.parent, manifest.lstat().st_mtime
            shards = (shard.file for shard in parse_manifest(plain_bytes(manifest)).shards)
            tree = tree_of(shards, partial(_shard_bytes, folder))
            if tree is not None and not tree.part and tree.root != ".":
                path = root / OWN_FOLDER / path_of(tree.root)
                seals[path] = max(committed_at, seals.get(path, 0.0))
    return seals


def _shard_bytes(folder: Path, name: str) -> bytes:
    return plain_bytes(folder / name)


def account_of(root: Path) -> UnrecognisedFile | None:
    """Return the supervisor's account of the job's folder at its end; None if there is none that can be read and
    trusted."""
    try:
        account = UnrecognisedFile.model_validate_json(plain_bytes(root / UNRECOGNISED_NAME))
        base = root / OWN_FOLDER
        for path in (entry_path(base, entry) for entry in account.entries):
            if any(parent.is_symlink() for parent in path.parents if parent.is_relative_to(base)):
                return None
    except (OSError, ValueError):
        return None
    return account if account.ended else None


def _walk(left: Left, start: Path, seals: Mapping[Path, float]) -> None:
    """Add all entries from `start` on, but not what was sealed and did not change since."""
    todo = [start]
    while todo:
        path = todo.pop()
        if path in seals and _is_unchanged(path, seals[path]):
            continue
        try:
            mode = path.lstat().st_mode
        except FileNotFoundError:
            continue
        if stat.S_ISDIR(mode):
            entries = [Path(entry.path) for entry in os.scandir(path)]
            left.empty_folders += [] if entries else [path]
            todo += entries
        else:
            kind = left.links if stat.S_ISLNK(mode) else left.files if stat.S_ISREG(mode) else left.others
            kind.append(path)


def _is_unchanged(path: Path, sealed_at: float) -> bool:
    """Return whether nothing of a file or folder was written after a step was sealed from it. One that we may not read
    counts as what was sealed: the archive's pod may read all, so it meets none."""
    try:
        return max(entry.lstat().st_mtime for entry in (path, *path.rglob("*"))) <= sealed_at
    except PermissionError:
        return True


class UnprovenCopier:
    """Copies unrecognised content to the archive bucket. Killed and run again, it goes on; nothing is overwritten."""

    def __init__(self, bucket: ArchiveBucket, campaign: str, identity: str, attempt: int) -> None:
        self.bucket, self.campaign, self.identity, self.attempt = bucket, campaign, identity, attempt
        self.folder = f"{UNPROVEN}/{attempt_folder(attempt)}"

    @property
    def manifest_key(self) -> str:
        return f"{self.bucket.prefix}/{self.folder}/{_MANIFEST}"

    def send(self, left: Left) -> dict[str, Any]:
        """Copy all of it, read every byte back, write the manifest last, and return the data of `archive.unproven`.

        Raises `PermanentError` if a file cannot be read, changes, or clashes with another object; S3's last error.
        """
        files = tuple(sorted(self._copy_files(left), key=lambda file: file.path))
        manifest = UnprovenManifest(
            campaign=self.campaign,
            identity=self.identity,
            attempt=self.attempt,
            why=left.why,
            fits=left.fits,
            files=files,
            links={encoded(left.folder, path): quote(os.fsencode(os.readlink(path)), _SAFE) for path in left.links},
            empty_folders=tuple(encoded(left.folder, path) for path in left.empty_folders),
            not_copied=tuple(encoded(left.folder, path) for path in left.others),
        )
        body = manifest.model_dump_json(indent=1).encode()
        self._place(f"{self.folder}/{_MANIFEST}", Content.of(body))
        size = sum(file.object.size_bytes for file in files)
        return {
            "prefix": self.bucket.place_of(self.folder),
            "files": len(files),
            "bytes": size,
            "why": left.why[:300],  # a pod has 4096 bytes for its last word
            "fits": left.fits,
        }

    def _copy_files(self, left: Left) -> Iterator[CopiedFile]:
        """Copy the files, a bounded number at once: there may be a hundred thousand small ones."""

        def copy(path: Path) -> CopiedFile:
            name = encoded(left.folder, path)
            try:
                content = Content.of_file(path)
            except OSError as error:
                raise PermanentError("a file cannot be read to be copied", seen=f"{name}: {error.strerror}") from error
            return CopiedFile(path=name, object=self._place(f"{self.folder}/{_key(name)}", content))

        return concurrently(copy, left.files, _AT_ONCE)

    def _place(self, name: str, content: Content) -> ArchivedObject:
        try:
            item = self.bucket.place(name, content)
            self.bucket.read_back(item, None)
        except (Clash, Unsound, Altered) as error:
            raise PermanentError(
                "what the job left is not copied whole",
                seen=str(error)[:500],
                cure="nothing is overwritten: look at it",
            ) from error
        return item


def encoded(folder: Path, path: Path) -> str:
    """Return a path below the job's folder as printable ASCII, another one for each other path."""
    return quote(os.fsencode(path.relative_to(folder)), _SAFE)


def _key(name: str) -> str:
    """Return the object's name for an encoded path: the path itself, or its digest where S3 would not take it."""
    if len(name) > _LONGEST_KEY:
        return f"long-names/{hashlib.sha256(name.encode()).hexdigest()}"
    return f"files/{name}"
