"""Copies a file or a folder as one stream, out of a container or into it; the same program runs at both ends.

The stream is eight bytes, the sum of the sizes; a tar archive; and 32 bytes, the SHA-256 of all before. The receiver
unpacks beside the target, compares the digest, and renames: nothing half stands under the final name. In a container it
is `python3 -ISc BEGIN`, which reads this file from its standard input: Python 3.8 and its standard library are all it
needs. Modes and times are kept, owners are not.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import posixpath
import shutil
import stat
import sys
import tarfile
import tempfile
from typing import Any, BinaryIO, Callable, Iterator

BEGIN = "import sys; exec(compile(sys.stdin.buffer.read(int(sys.argv[1])), 'bivouac cp', 'exec'))"
"""What a container runs: `argv` is the length of this file in bytes, then `send` or `receive`, then a path."""
REFUSED = 64
_BLOCK = 2**18
_DIGEST_BYTES = 32
_SIZE_BYTES = 8
_TEMPORARY = ".bivouac-cp-"
Say = Callable[[str], None]


class CopyRefused(Exception):
    """What a person must change: what is wrong, the value seen, the cure."""

    def __init__(self, problem: str, value: str, cure: str) -> None:
        super().__init__(problem, value, cure)
        self.what, self.seen, self.cure = problem, value, cure


class Broken(Exception):
    """The stream ended early, or is not what was sent."""


class _Sealing:
    """A file to write to; `seal` adds the digest of all that was written."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._digest = file, hashlib.sha256()

    def write(self, data: bytes) -> int:
        self._digest.update(data)
        self._file.write(data)
        return len(data)

    def seal(self) -> None:
        self._file.write(self._digest.digest())
        self._file.flush()


class _Sealed:
    """A file to read from, all but the digest at its end, which `verify` compares."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._digest, self._held = file, hashlib.sha256(), b""

    def read(self, size: int) -> bytes:
        while len(self._held) < size + _DIGEST_BYTES:
            block = self._file.read(size + _DIGEST_BYTES - len(self._held))
            if not block:
                break
            self._held += block
        data = self._held[: max(0, min(size, len(self._held) - _DIGEST_BYTES))]
        self._held = self._held[len(data) :]
        self._digest.update(data)
        return data

    def verify(self) -> None:
        while self.read(_BLOCK):
            pass
        if self._held != self._digest.digest():
            raise Broken("what arrived is not what was sent, or the other side ended early")


# Sending.


def send(source: str, stream: BinaryIO, say: Say) -> None:
    """Write the stream of a file or folder. Links that lead out of the folder, and what is no file, are left out and
    told. Raises `CopyRefused`, `OSError`."""
    path = os.path.realpath(source)
    name = posixpath.basename(os.path.normpath(os.path.abspath(source)))
    if not os.path.lexists(path):
        raise CopyRefused("there is no such file or folder", source, "write the path of one that is there")
    if not name or not (os.path.isfile(path) or os.path.isdir(path)):
        raise CopyRefused("this can not be copied", source, "write the path of a file, or of a folder other than /")
    entries = [(member, file_path) for member, file_path in _entries(path, name) if _fit(member, file_path, say)]
    sealing = _Sealing(stream)
    sealing.write(sum(member.size for member, _ in entries).to_bytes(_SIZE_BYTES, "big"))
    with tarfile.open(fileobj=sealing, mode="w|", format=tarfile.PAX_FORMAT, bufsize=_BLOCK) as archive:  # type: ignore[call-overload]
        for member, file_path in entries:
            if not member.isreg():
                archive.addfile(member)
                continue
            with open(os.open(file_path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
                # A log may have grown meanwhile: its beginning is copied, as long as it is now.
                member.size = os.fstat(file.fileno()).st_size
                archive.addfile(member, file)
    sealing.seal()


def _entries(path: str, name: str) -> Iterator[tuple[tarfile.TarInfo, str]]:
    yield _member(path, name), path
    if not os.path.isdir(path):
        return
    for folder, folders, files in os.walk(path, onerror=_unreadable):
        folders.sort()
        inner = name if folder == path else posixpath.join(name, os.path.relpath(folder, path))
        for entry in sorted(folders + files):
            file_path = os.path.join(folder, entry)
            yield _member(file_path, posixpath.join(inner, entry)), file_path


def _unreadable(error: OSError) -> None:
    raise error


def _member(path: str, name: str) -> tarfile.TarInfo:
    """Describe a file by its name in the archive; of two hard links each is a file."""
    status = os.lstat(path)
    member = tarfile.TarInfo(name)
    member.mode, member.mtime = stat.S_IMODE(status.st_mode), int(status.st_mtime)
    if stat.S_ISREG(status.st_mode):
        member.size = status.st_size
    elif stat.S_ISDIR(status.st_mode):
        member.type = tarfile.DIRTYPE
    elif stat.S_ISLNK(status.st_mode):
        member.type, member.linkname = tarfile.SYMTYPE, os.readlink(path)
    else:
        member.type = tarfile.FIFOTYPE
    return member


def _fit(member: tarfile.TarInfo, path: str, say: Say) -> bool:
    if member.isfifo():
        say("left out, it is no file: " + path)
    elif member.issym() and _leads_out(member):
        say(f"left out, a link that leads out of the folder: {path} -> {member.linkname}")
    else:
        return True
    return False


def _leads_out(link: tarfile.TarInfo) -> bool:
    """Return whether a link's target lies outside of the folder that is copied."""
    goal = posixpath.normpath(posixpath.join(posixpath.dirname(link.name), link.linkname))
    return goal.split("/")[0] != link.name.split("/")[0]


# Receiving.


def receive(target: str, stream: BinaryIO, on_size: Callable[[int], None] | None = None) -> dict[str, Any]:
    """Read a stream into `target`, or into a folder that it names; return the final path, files and bytes.

    `on_size` gets the sum of the sizes. An existing file is replaced as a whole; a folder is never changed. Raises
    `CopyRefused`, `Broken`, `OSError`; then nothing new is there.
    """
    source = _Sealed(stream)
    size = int.from_bytes(source.read(_SIZE_BYTES), "big")
    if on_size is not None:
        on_size(size)
    into_folder = os.path.isdir(target)
    parent = target if into_folder else os.path.dirname(os.path.abspath(target))
    if not os.path.isdir(parent):
        raise CopyRefused("the folder to copy into does not exist", parent, "create it, or write another path")
    work = tempfile.mkdtemp(prefix=_TEMPORARY, dir=parent)
    try:
        unpacking = _Unpacking(work)
        try:
            with tarfile.open(fileobj=source, mode="r|", bufsize=_BLOCK) as archive:  # type: ignore[call-overload]
                for member in archive:
                    if not unpacking.name:
                        final = os.path.join(target, member.name) if into_folder else target
                        _refuse_taken(final, member)
                    unpacking.take(archive, member)
        except (tarfile.TarError, EOFError) as error:
            raise Broken(f"what arrived is not what was sent: {error}") from error
        source.verify()
        unpacking.finish()
        os.rename(os.path.join(work, unpacking.name), final)
        unpacking.finish_first(final)
    finally:
        _remove(work)
    return {"path": os.path.abspath(final), "files": unpacking.files, "bytes": unpacking.bytes}


def _refuse_taken(final: str, member: tarfile.TarInfo) -> None:
    is_folder = os.path.isdir(final) and not os.path.islink(final)
    if is_folder or (member.isdir() and os.path.lexists(final)):
        raise CopyRefused("something of this name is there", final, "remove it, or write another path")


class _Unpacking:
    """Files of an archive below one folder. Whoever made the archive is not trusted: it may name places elsewhere."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self.name = ""
        """The one file or folder that the archive holds."""
        self.files = self.bytes = 0
        self._folders: dict[str, tarfile.TarInfo] = {}
        self._links: list[tarfile.TarInfo] = []
        self._names: set[str] = set()

    def take(self, archive: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        parts = member.name.split("/")
        is_root = not self.name
        self.name = self.name or member.name
        has_parent = "/".join(parts[:-1]) in self._folders or (is_root and len(parts) == 1)
        if not has_parent or {"", ".", ".."} & set(parts) or member.name in self._names:
            raise CopyRefused("the archive names a path outside of the target", member.name, "do not trust its sender")
        self._names.add(member.name)
        path = os.path.join(self._folder, member.name)
        if member.isdir():
            os.mkdir(path, 0o700)
            self._folders[member.name] = member
        elif member.issym() and not _leads_out(member):
            self._links.append(member)
        elif member.isreg():
            self._write(archive, member, path)
        else:
            raise CopyRefused("the archive holds what is no file", member.name, "do not trust its sender")

    def _write(self, archive: tarfile.TarFile, member: tarfile.TarInfo, path: str) -> None:
        source = archive.extractfile(member)
        assert source is not None
        with open(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
            shutil.copyfileobj(source, file, _BLOCK)
            os.fchmod(file.fileno(), member.mode & 0o777)
        if os.path.getsize(path) != member.size:
            raise Broken("a file is not whole: " + member.name)
        os.utime(path, (member.mtime, member.mtime))
        self.files += 1
        self.bytes += member.size

    def finish(self) -> None:
        """Make the links, which nothing can be written through any more, then give the folders their modes."""
        if not self._names:
            raise Broken("nothing arrived")
        for link in self._links:
            os.symlink(link.linkname, os.path.join(self._folder, link.name))
        for name in sorted(set(self._folders) - {self.name}, reverse=True):
            _as_sent(os.path.join(self._folder, name), self._folders[name])

    def finish_first(self, path: str) -> None:
        """Give the copied folder itself its mode, with which it might not be moved."""
        if self.name in self._folders:
            _as_sent(path, self._folders[self.name])


def _as_sent(folder: str, member: tarfile.TarInfo) -> None:
    os.utime(folder, (member.mtime, member.mtime))
    os.chmod(folder, member.mode & 0o777)


def _remove(folder: str) -> None:
    for parent, folders, _ in os.walk(folder):
        for name in folders:
            with contextlib.suppress(OSError):
                os.chmod(os.path.join(parent, name), 0o700)
    shutil.rmtree(folder, ignore_errors=True)


def main(words: list[str]) -> int:
    """Run one end in a container; a refusal is a line of JSON on standard error."""
    do, path = words
    try:
        if do == "send":
            send(path, sys.stdout.buffer, lambda text: print(text, file=sys.stderr, flush=True))
        else:
            print(json.dumps(receive(path, sys.stdin.buffer)), flush=True)
    except CopyRefused as error:
        print(json.dumps({"what": error.what, "seen": error.seen, "cure": error.cure}), file=sys.stderr, flush=True)
        return REFUSED
    except (Broken, OSError) as error:
        fact = f"{path}: {error}"
        refusal = {"what": "the copy failed in the container", "seen": fact, "cure": "mend its cause, and copy again"}
        print(json.dumps(refusal), file=sys.stderr, flush=True)
        return 74
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[2:]))
