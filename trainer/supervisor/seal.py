"""A job's finished checkpoints as committed steps of the campaign: linked, digested, sealed, kept, checked, laid back.

A step lies at `<tier>/<campaign>/step-N/attempt-K`, as the built-in trainer writes it: its manifest has the same form
(trainer.contract.checkpoint), so lists, archive and restores know it. A file's name in it is its path below the
job's own folder, quoted: `.metadata` of the checkpoint `step-20` becomes `step-20%2F%2F.metadata`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import secrets
import shutil
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Callable, Iterator, Sequence
from urllib.parse import quote, unquote

from trainer.supervisor.sealing.manifest import MANIFEST as MANIFEST
from trainer.supervisor.sealing.manifest import Identity as Identity
from trainer.supervisor.sealing.manifest import opened, serialize

DIGESTS = ".digests.json"
"""In a checkpoint whose writer has digested what it wrote (`bivouac_dcp`): sizes and SHA-256 of its files."""
_STEP = re.compile(r"^step-(\d{8})$")
_CHUNK, _AT_ONCE = 2 * 2**20, 4
"""Bytes read at a time, and files: each takes two chunks of memory."""
_BELOW = "//"
"""Stands between a checkpoint's path and a file's path in it."""


def seal(
    root: Path,
    files: Sequence[Path],
    folder: Path,
    tier: Path,
    step: int,
    identity: Identity,
    tokens: int,
    loss: float | None,
) -> Path:
    """Commit the files of a finished checkpoint, a file or a folder in the job's own folder, as a step below `tier`;
    return the manifest's path.

    Files are linked, so that the job may delete its own; across file systems they are copied. A step that this attempt
    has committed is left as it is; one of an earlier attempt was refused, and this one takes its place. Raises
    `OSError` where the tier cannot take it or a file is gone, `ValueError` for an empty one; nothing is left then.
    """
    place = tier / f"step-{step:08d}"
    manifest = place / MANIFEST
    if _attempt_of(manifest) == identity.attempt:
        return manifest
    if not files:
        raise ValueError(f"a checkpoint without a file: {root}")
    attempt = place / f"attempt-{identity.attempt:04d}"
    attempt.mkdir(parents=True, exist_ok=True)
    try:
        shards = linked(files, root, folder, attempt)
        sync(attempt)
        publish(manifest, serialize(identity, step, tokens, loss, shards))
    except OSError:
        if _attempt_of(manifest) == identity.attempt:
            manifest.unlink()
        shutil.rmtree(attempt, ignore_errors=True)  # links would keep the space of files that the job has removed
        with contextlib.suppress(OSError):  # another attempt's lies there
            place.rmdir()
        raise
    return manifest


def linked(files: Sequence[Path], root: Path, folder: Path, attempt: Path, rank: int = 0) -> list[dict[str, object]]:
    """Link the files into the attempt's folder; return their rows of the manifest, as files of `rank`."""
    top, told = str(root.relative_to(folder)), _told(root, files)
    targets: list[Path] = []
    digests: dict[Path, tuple[int, str]] = {}
    for path in files:
        target = attempt / _quoted(top if path == root else f"{top}{_BELOW}{path.relative_to(root)}")
        targets.append(target)
        if _link(path, target) and path in told:
            digests[target] = told[path]
    unread = [target for target in targets if target not in digests]
    digests.update(zip(unread, _digests(unread, durable=True)))
    rows: list[dict[str, object]] = []
    for target in targets:
        size, digest = digests[target]
        rows.append({"file": f"{attempt.name}/{target.name}", "size_bytes": size, "sha256": digest, "rank": rank})
    return rows


def _told(root: Path, files: Sequence[Path]) -> dict[Path, tuple[int, str]]:
    """Return size and SHA-256 of each file as its writer has noted them while it wrote; empty unless the note names
    these files, in these sizes, and `.metadata` as it stands: that one is another with each save, and is read here.

    What has changed since a file was written is found at a restart, where every byte is compared.
    """
    try:
        noted = json.loads((root / DIGESTS).read_bytes())["files"]
        told = {root / name: (int(size), str(digest)) for name, (size, digest) in noted.items()}
        sizes = {path: path.stat().st_size for path in files if path != root / DIGESTS}
        metadata = root / ".metadata"
        if sizes == {path: size for path, (size, _) in told.items()} and digest_of(metadata) == told[metadata]:
            return told
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        pass  # all of it is read
    return {}


def _attempt_of(manifest: Path) -> int:
    """Return the attempt that committed a step, -1 if there is none or it cannot be read."""
    try:
        return int(json.loads(manifest.read_bytes())["attempt"])
    except (OSError, ValueError, KeyError, TypeError):
        return -1


def committed(tier: Path) -> list[int]:
    """Return the committed steps of a tier, newest first."""
    return [step for step in begun(tier) if (tier / f"step-{step:08d}" / MANIFEST).exists()]


def begun(tier: Path) -> list[int]:
    """Return the steps of a tier that have a folder, newest first."""
    try:
        names = os.listdir(tier)
    except FileNotFoundError:
        return []
    return sorted((int(match.group(1)) for match in map(_STEP.match, names) if match), reverse=True)


def fault(tier: Path, step: int, campaign: str, identity: str) -> str:
    """Return why a committed step may not be used, empty if every byte of it is as its manifest says."""
    place = tier / f"step-{step:08d}"
    try:
        manifest = opened((place / MANIFEST).read_bytes(), step, campaign, identity)
        shards = manifest["shards"]
        for shard, (size, digest) in zip(shards, _digests([place / shard["file"] for shard in shards])):
            if (size, digest) != (shard["size_bytes"], shard["sha256"]):
                return "{}: {} of {} bytes, SHA-256 {}".format(shard["file"], size, shard["size_bytes"], digest)
    except FileNotFoundError as error:
        return f"{Path(str(error.filename)).name} is missing"
    except ValueError as error:
        return str(error)
    except (OSError, KeyError, TypeError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def origin(tier: Path, step: int) -> str:
    """Return the path of a committed step's checkpoint in the job's own folder: a file, or the folder of its files."""
    return _names(tier, step)[0].partition(_BELOW)[0]


def lay_back(tier: Path, step: int, path: Path, link: Callable[[Path, Path], None] | None = None) -> None:
    """Put a committed step's files at `path`, where the job's framework wrote them, and replace what stood there.

    Files are linked: a framework that writes into an old checkpoint would change the sealed one, which the next check
    would see. `link`: another way to lay out a file.
    """
    place = tier / f"step-{step:08d}"
    for left in path.parent.glob(f".*.{'[0-9a-f]' * 16}"):  # by a node that died at this point
        shutil.rmtree(left) if left.is_dir() and not left.is_symlink() else left.unlink()
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    shards = json.loads((place / MANIFEST).read_text())["shards"]
    for shard, name in zip(shards, _names(tier, step)):
        target = fresh / name.partition(_BELOW)[2]  # `fresh` itself, if the checkpoint is one file
        target.parent.mkdir(parents=True, exist_ok=True)
        (link or _link)(place / shard["file"], target)
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    os.replace(fresh, path)
    sync(path.parent)


def _names(tier: Path, step: int) -> list[str]:
    """Return the paths of a committed step's files below the job's own folder, `_BELOW` after the checkpoint's own."""
    shards = json.loads((tier / f"step-{step:08d}" / MANIFEST).read_text())["shards"]
    return [unquote(shard["file"].partition("/")[2]) for shard in shards]


def keep(tier: Path, most: int) -> list[int]:
    """Remove all committed steps but the newest `most`; return those that were removed."""
    gone = committed(tier)[most:]
    for step in gone:
        place = tier / f"step-{step:08d}"
        (place / MANIFEST).unlink()  # first: a step that is half gone is not committed
        shutil.rmtree(place, ignore_errors=True)
    return gone


def tidy(tier: Path) -> None:
    """Remove what was being sealed when its node died: nobody would use it, and its links hold room."""
    for step in set(begun(tier)) - set(committed(tier)):
        shutil.rmtree(tier / f"step-{step:08d}", ignore_errors=True)


def _digests(paths: list[Path], durable: bool = False) -> Iterator[tuple[int, str]]:
    """Yield `digest_of` of each file, in their order; some are read at once, since one processor digests less than a
    good disk reads."""
    with ThreadPoolExecutor(_AT_ONCE) as readers:
        yield from readers.map(partial(digest_of, durable=durable), paths)


def digest_of(path: Path, durable: bool = False) -> tuple[int, str]:
    """Return size and SHA-256 of a regular file; links are not followed. The next chunk is read while one is digested,
    past the page cache where it can be. `durable`: what its writer has left in this node's memory is on the disk."""
    digest, size = hashlib.sha256(), 0
    with open(os.open(str(path), os.O_RDONLY | os.O_NOFOLLOW), "rb", buffering=0) as file, ThreadPoolExecutor(
        1
    ) as ahead:
        if durable:
            os.fsync(file.fileno())
        most = min(_CHUNK, os.fstat(file.fileno()).st_size + 1)
        now, then = bytearray(most), bytearray(most)
        count = file.readinto(now) or 0
        while count:
            coming = ahead.submit(file.readinto, then) if count == most else None
            digest.update(memoryview(now)[:count])
            os.posix_fadvise(file.fileno(), size, count, os.POSIX_FADV_DONTNEED)
            size += count
            now, then = then, now
            count = (coming.result() if coming is not None else file.readinto(now)) or 0
    return size, digest.hexdigest()


def _quoted(path: str) -> str:
    name = quote(path, safe="")
    return "%2E" + name[1:] if name.startswith(".") else name


def _link(source: Path, target: Path) -> bool:
    """Link a file, or copy it; return whether it is linked."""
    target.unlink(missing_ok=True)
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        shutil.copyfile(source, target, follow_symlinks=False)
        return False
    return True


def publish(path: Path, content: bytes) -> None:
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    with open(temporary, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    sync(path.parent)


def sync(folder: Path) -> None:
    handle = os.open(str(folder), os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
