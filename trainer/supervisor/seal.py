"""A job's finished checkpoints as committed steps of the campaign: copied, digested, sealed, kept, checked, laid back.

A step lies at `<tier>/<campaign>/step-N/attempt-K`, as the built-in trainer writes it: its manifest has the same form
(trainer.contract.checkpoint), so lists, archive and restores know it. Its shards have names of their own; the shard
`tree-R.json` of node R says which of the job's files each one is (trainer.contract.tree).
"""

from __future__ import annotations

import contextlib
import errno
import glob
import json
import os
import secrets
import shutil
from functools import partial
from pathlib import Path
from typing import Any, Callable, Collection, Sequence

from trainer.contract.exits import limit_of
from trainer.contract.sealed import MANIFEST as MANIFEST
from trainer.contract.sealed import Identity as Identity
from trainer.contract.sealed import patient, read_manifest, removable, serialize, step_folder, step_of_folder
from trainer.contract.tree import Tree, TreeFile, lay_out, path_of, sealing_of, shard_name, tree_name, tree_of
from trainer.supervisor.sealing.copying import copy, side_by_side
from trainer.supervisor.sealing.copying import digest_of as digest_of
from trainer.supervisor.sealing.survey import DIGESTS as DIGESTS
from trainer.supervisor.sealing.survey import Survey, is_within, survey, take, with_links

_LAID = ".bivouac-laid-back-"
"""What is being laid back has a name that begins so."""


def seal(
    root: Path,
    files: Sequence[Path],
    folder: Path,
    tier: Path,
    step: int,
    identity: Identity,
    tokens: int,
    loss: float | None,
    *,
    part: bool = False,
) -> Path:
    """Commit a finished checkpoint, a file or a folder in the job's own folder, as a step below `tier`; return the
    manifest's path.

    `files`: those that have to be there; with `part` these files and folders are all of it, and `root` also holds other
    things. They are copied: no format guarantees that a file is never written again. A step that lies there already is
    replaced once the new one is committed. Raises `OSError` where the tier cannot take it or a file is gone, and
    `ValueError` for an empty one, one that changes meanwhile, and one that cannot be laid back; then all is as before.
    """
    place = tier / step_folder(step)
    manifest, attempt = place / MANIFEST, place / f"attempt-{identity.attempt:04d}"
    checkpoint = survey_of(root, files, folder, part)
    previous_manifest = content(manifest)
    if attempt_of(previous_manifest) > identity.attempt:
        raise ValueError(f"attempt {attempt_of(previous_manifest)} has sealed this step")
    sweep(place, previous_manifest)  # of a sealing that failed
    make(attempt)
    try:
        shards = copy_checkpoint(checkpoint, attempt, 0, 0, next_sealing(previous_manifest, attempt.name))
        if change := difference(checkpoint, root, files, folder, part):
            raise ValueError(change)
        sync(attempt)
        publish(manifest, serialize(identity, step, tokens, loss, shards))
    except (OSError, ValueError):
        with contextlib.suppress(OSError):
            if previous_manifest is None:
                manifest.unlink(missing_ok=True)
            elif content(manifest) != previous_manifest:
                publish(manifest, previous_manifest)
            sweep(place, previous_manifest)
        raise
    sweep(place, content(manifest))
    return manifest


def survey_of(root: Path, files: Sequence[Path], folder: Path, part: bool) -> Survey:
    """Return the survey of a checkpoint that has these files. Raises `ValueError` where there is none, and
    `FileNotFoundError` for one that is gone."""
    if not files:
        raise ValueError(f"a checkpoint without a file: {root}")
    checkpoint = survey(root, folder, files if part else ())
    sources = {entry.source for entry in checkpoint.files.values()}
    for path in files:
        real_path = os.path.realpath(str(path))
        if real_path not in sources and not any(is_within(source, real_path) for source in sources):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    return checkpoint


def difference(checkpoint: Survey, root: Path, files: Sequence[Path], folder: Path, part: bool) -> str:
    """Return how a checkpoint differs from what it was; empty where it does not, and where it is being removed. Raises
    `ValueError` where it cannot be sealed any more."""
    try:
        return checkpoint.difference(survey(root, folder, files if part else ()))
    except FileNotFoundError:
        return ""


def next_sealing(manifest: bytes | None, attempt: str) -> int:
    """Return how often an attempt has sealed a step, by its manifest: new shards have other names."""
    numbers = (sealing_of(name) for name in _shard_names(manifest) if name.startswith(f"{attempt}/"))
    return max((number + 1 for number in numbers if number is not None), default=0)


def copy_checkpoint(checkpoint: Survey, attempt: Path, node: int, rank: int, sealing: int) -> list[dict[str, Any]]:
    """Copy a checkpoint's files into the attempt's folder; return their rows of the manifest, as files of `rank`.
    Raises `ValueError` for a file that was written since the survey."""
    files = {
        path: TreeFile(shard_name("/".join(filter(None, (checkpoint.root, path))), sealing), entry.mode)
        for path, entry in checkpoint.files.items()
    }
    copies = take(checkpoint, attempt, {path: file.shard for path, file in files.items()})
    root, kind, part = checkpoint.root, checkpoint.kind, checkpoint.part
    note = attempt / tree_name(node, sealing)
    publish(note, Tree(root, kind, files, checkpoint.links, checkpoint.folders, part, checkpoint.through).serialize())
    digests = [*((files[path].shard, digest) for path, digest in copies.items()), (note.name, digest_of(note))]
    return [
        {"file": f"{attempt.name}/{name}", "size_bytes": size, "sha256": digest, "rank": rank}
        for name, (size, digest) in digests
    ]


def content(path: Path) -> bytes | None:
    """Return a file's content, None if there is none."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def attempt_of(manifest: bytes | str | None) -> int:
    """Return the attempt that committed a step, -1 if none did or it cannot be read."""
    try:
        return int(json.loads(manifest or b"")["attempt"])
    except (ValueError, KeyError, TypeError):
        return -1


def _shard_names(manifest: bytes | None) -> set[str]:
    """Return the files that a manifest names; none if it cannot be read."""
    try:
        return {str(shard["file"]) for shard in json.loads(manifest or b"")["shards"]}
    except (ValueError, KeyError, TypeError):
        return set()


def sweep(place: Path, manifest: bytes | None) -> None:
    """Remove what lies in a step's folder and is not its manifest's: of earlier sealings, and of those that failed."""
    if manifest is None:
        shutil.rmtree(place, ignore_errors=True)
        return
    manifest_files = _shard_names(manifest)
    with contextlib.suppress(OSError):
        for path in place.glob("attempt-*/*"):
            if f"{path.parent.name}/{path.name}" not in manifest_files:
                path.unlink(missing_ok=True)
    for folder in place.glob("attempt-*"):
        with contextlib.suppress(OSError):  # the manifest's files are in it
            folder.rmdir()


def committed(tier: Path) -> list[int]:
    """Return the committed steps of a tier, newest first; those too of which it cannot be seen."""
    return [step for step in started_steps(tier) if _may_be_there(tier / step_folder(step) / MANIFEST)]


def _may_be_there(path: Path) -> bool:
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:  # not seen is not gone
        return True
    return True


def started_steps(tier: Path) -> list[int]:
    """Return the steps of a tier that have a folder, newest first."""
    try:
        steps = map(step_of_folder, os.listdir(tier))
    except FileNotFoundError:
        return []
    return sorted((step for step in steps if step is not None), reverse=True)


def fault(tier: Path, step: int, campaign: str, identity: str) -> str:
    """Return why a committed step may not be used, empty if every byte of it is as its manifest says. What may pass is
    waited for. Raises the `OSError` of a limit, which says nothing of the step."""
    place = tier / step_folder(step)
    try:
        manifest = read_manifest(patient((place / MANIFEST).read_bytes), step, campaign, identity)
        shards = manifest["shards"]
        paths = [place / shard["file"] for shard in shards]
        for shard, (size, digest) in zip(shards, side_by_side(lambda path: patient(partial(digest_of, path)), paths)):
            if (size, digest) != (shard["size_bytes"], shard["sha256"]):
                return "{}: {} of {} bytes, SHA-256 {}".format(shard["file"], size, shard["size_bytes"], digest)
        patient(lambda: tree(tier, step))
    except FileNotFoundError as error:
        return f"{Path(str(error.filename)).name} is missing"
    except ValueError as error:
        return str(error)
    except (OSError, KeyError, TypeError) as error:
        if limit_of(error):
            raise
        return f"{type(error).__name__}: {error}"
    return ""


def tree(tier: Path, step: int) -> Tree:
    """Return the job's own tree of a committed step. Raises `OSError` or `ValueError` for one that cannot be read."""
    place = tier / step_folder(step)
    job_tree = tree_of(sorted(_shard_names((place / MANIFEST).read_bytes())), lambda name: (place / name).read_bytes())
    if job_tree is None:
        raise ValueError("its files are not a job's")
    return job_tree


def origin(tier: Path, step: int) -> str:
    """Return the path of a committed step's checkpoint in the job's own folder: a file, or the folder of its files."""
    return path_of(tree(tier, step).root)


def lay_back(tier: Path, step: int, path: Path, link: Callable[[Path, Path], object] | None = None) -> None:
    """Put a committed step's files at `path`, where the job's framework wrote them, and replace what stood there.

    Files are copied: a trainer that saves again at the step it came from writes into them. Links to elsewhere in the
    job's folder are links again where that is as it was. `link`: another way to lay out a file, which leaves its
    permissions as they are.
    """
    place, job = tier / step_folder(step), tree(tier, step)
    rows = {row["file"].rpartition("/")[2]: row for row in json.loads((place / MANIFEST).read_bytes())["shards"]}
    if link is None:
        job = with_links(job, path, {name: (row["size_bytes"], row["sha256"]) for name, row in rows.items()})
    for left in (*path.parent.glob(f"{_LAID}*"), *path.parent.glob(f".{glob.escape(path.name)}.{'[0-9a-f]' * 16}")):
        remove(left)  # by a node that died at this point
    fresh = path.with_name(_LAID + secrets.token_hex(8))

    def lay_file(file_and_target: tuple[TreeFile, Path]) -> None:
        file, target = file_and_target
        if job.part:  # what else lies in the folder stays
            remove(target)
        (link or copy)(place / rows[file.shard]["file"], target)

    for top in job.tops if job.part else ():
        if top in job.folders:
            remove(path / path_of(top))
    lay_out(job, path if job.part else fresh, lambda files: list(side_by_side(lay_file, files)), modes=link is None)
    if not job.part:
        remove(path)
        os.replace(fresh, path)
    sync(path.parent)


def remove(path: Path) -> None:
    """Remove a file, a link or a folder, if there is one."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def keep(tier: Path, count: int, unsound: Collection[int] = (), is_whole: bool = True) -> list[int]:
    """Remove the steps that may go beside the newest `count` that are sound; return those that were removed.

    `unsound`: steps whose bytes were found wrong; those whose files are gone or cut count as such too. Those that
    cannot be looked at count as none and stay. Without `is_whole`, files may also be on other nodes.
    """
    steps = committed(tier)
    places = {step: tier / step_folder(step) for step in steps}
    broken, unseen = set(unsound), set()
    for step, place in places.items():
        try:
            if step not in broken and not in_size(place, is_whole=is_whole):
                broken.add(step)
        except OSError:
            unseen.add(step)
    removed_steps = removable(steps, count, broken | unseen, unseen)
    for step in removed_steps:
        (places[step] / MANIFEST).unlink()  # first: a step that is half gone is not committed
        shutil.rmtree(places[step], ignore_errors=True)
    return removed_steps


def in_size(place: Path, manifest: bytes | None = None, is_whole: bool = True) -> bool:
    """Return whether a step's manifest (None: the one that lies there) and the sizes of its files fit, as far as can be
    seen without reading them. Raises `OSError` where it cannot be seen."""
    try:
        manifest = (place / MANIFEST).read_bytes() if manifest is None else manifest
        body = json.loads(manifest)
        for shard in read_manifest(manifest, body["step"], body["campaign"], "")["shards"]:
            try:
                if os.lstat(place / shard["file"]).st_size != shard["size_bytes"]:
                    return False
            except (FileNotFoundError, NotADirectoryError):
                if is_whole:
                    return False
    except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError):
        return False
    return True


def tidy(tier: Path) -> None:
    """Remove what was being sealed when its node died: nobody would use it, and it takes room."""
    for step in set(started_steps(tier)) - set(committed(tier)):
        shutil.rmtree(tier / step_folder(step), ignore_errors=True)


def make(folder: Path) -> None:
    """Make a folder, and those above it, that everybody may read whatever the umask is: others archive them."""
    if not folder.is_dir():
        make(folder.parent)
        with contextlib.suppress(FileExistsError):
            folder.mkdir()
            folder.chmod(0o755)


def publish(path: Path, content: bytes) -> None:
    """Write a note, readable for all, durably and in one moment."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    with open(temporary, "wb") as file:
        os.fchmod(file.fileno(), 0o644)
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
