"""Checkpoints on a tier: `<tier>/<campaign>/step-<8 digits>/manifest.json` and shards below `attempt-<4 digits>/`.

Attempts never share a folder of shards: a stale attempt cannot touch the shards of a newer one, and a repeated step
replaces its predecessor by one rename of the manifest.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from trainer.builtin.checkpoint.bucket import BucketTier
from trainer.builtin.checkpoint.files import (
    PARTIAL,
    copy_durably,
    digest_on_disk,
    durable,
    link_durably,
    open_regular,
    sync_folder,
)
from trainer.builtin.checkpoint.retention import Claim as Claim
from trainer.builtin.checkpoint.retention import KeptLimits as KeptLimits
from trainer.builtin.checkpoint.retention import TierSteps, claim_of, twin_of
from trainer.contract import (
    COMMITTED_NAME,
    Manifest,
    Shard,
    attempt_folder,
    step_folder,
    step_of_folder,
)
from trainer.contract.checkpoint import BANS
from trainer.errors import Fenced, StorageError, lasting, limit_error
from trainer.events import emit

RESHAPING = ".universal-"
"""Prefix of folders in which a step is reshaped; step and attempt follow."""
_MANIFEST_LIMIT_BYTES = 256 * 2**20


@dataclass(frozen=True)
class Tier(TierSteps):
    """One tier's folder of one campaign; the folder has the campaign's name."""

    name: str
    root: Path
    identity: str = ""
    """The campaign's identity; manifests with another one are refused. Empty: the campaign's name is enough."""

    def folder(self, step: int) -> Path:
        return self.root / step_folder(step)

    def steps(self) -> list[int]:
        """Return the steps with a folder, committed or not, newest first."""
        numbers = map(step_of_folder, _names(self.root))
        return sorted((step for step in numbers if step is not None), reverse=True)

    def claims(self) -> Iterator[Claim]:
        """Yield the steps with a manifest file, newest first; never raise for a single one. Raises a limit's error."""
        for step in self.steps():
            try:
                with open_regular(self.folder(step) / COMMITTED_NAME) as file:
                    # `read` allocates the whole size that it is asked for.
                    content = file.read(min(_MANIFEST_LIMIT_BYTES, os.fstat(file.fileno()).st_size))
                yield claim_of(step, content, self.root.name, self.identity)
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                if (refused := limit_error(error, self.folder(step))) is not None:
                    raise refused from error
                passing = not lasting(error) and error.errno != errno.EINVAL
                yield Claim(step, None, f"unreadable: {error.strerror}", passing)

    @property
    def marks(self) -> Path:
        """Where the fence lies."""
        return self.root

    def notes(self) -> dict[str, bytes]:
        """Return name -> content of what attempts have left for later ones."""
        return {path.name: path.read_bytes() for path in (self.root / BANS).glob("[!.]*")}

    def leave(self, name: str, content: bytes) -> None:
        """Leave a note for later attempts."""
        folder = self.root / BANS
        folder.mkdir(parents=True, exist_ok=True)
        with durable(folder / name) as file:
            file.write(content)

    def take(self, step: int, shard: Shard, source: Path, older_manifest: Manifest | None) -> None:
        """Copy a shard here and read it back; link it if `older_manifest`, a step of this tier, has the same bytes."""
        target = self.folder(step) / shard.file
        if self._link_twin(shard, target, older_manifest):
            return
        copy_durably(source, target, accepts(shard, "local"))
        accepts(shard, self.name)(digest_on_disk(target))

    def fetch(self, step: int, shard: Shard, target: Path) -> int:
        """Copy a shard from here durably and check its digest. Return its bytes."""
        copy_durably(self.folder(step) / shard.file, target, accepts(shard, self.name))
        return shard.size_bytes

    def link_frozen(self, shard: Shard, step: int, reads_back: bool) -> bool:
        """Give a step the file of frozen weights that an earlier step has here. Return False where there is none, or
        with `reads_back` none with the shard's digest."""
        target = self.folder(step) / shard.file
        for other_step, twin in self.twins(shard, step) if shard.is_frozen else ():
            source = self.folder(other_step) / twin.file
            try:
                if not reads_back or digest_on_disk(source) == shard.sha256:
                    link_durably(source, target)
                    return True
            except OSError:
                continue
        return False

    def _link_twin(self, shard: Shard, target: Path, older_manifest: Manifest | None) -> bool:
        twin = twin_of(shard, older_manifest)
        if older_manifest is None or twin is None:
            return False
        try:
            link_durably(self.folder(older_manifest.step) / twin.file, target)
        except OSError:
            return False
        return digest_on_disk(target) == shard.sha256

    def adopt(self, step: int, shard: Shard, file: Path) -> None:
        """Give a verified file of this tier's disk its place."""
        link_durably(file, self.folder(step) / shard.file)

    def holds(self, manifest: Manifest, shards: Collection[Shard]) -> bool:
        """Return whether this checkpoint is here with these shards, by manifest and sizes."""
        is_claimed = any(claim.manifest == manifest for claim in self.claims())
        folder = self.folder(manifest.step)
        try:
            return is_claimed and all((folder / s.file).lstat().st_size == s.size_bytes for s in shards)
        except OSError:
            return False

    def settle(self, step: int) -> None:
        """Make the folders down to a step durable in their parents."""
        for path in (self.root.parent, self.root, self.folder(step)):
            sync_folder(path)

    def publish(self, manifest: Manifest, attempt: int) -> None:
        """Commit a step: the manifest appears, whole and durable, after everything that it names.

        It replaces the manifest of an attempt up to `attempt`, the caller's. Raises `Fenced` for a newer one's.
        """
        path, content = self.folder(manifest.step) / COMMITTED_NAME, manifest.serialize()
        try:
            _write(path, content, os.link)
        except FileExistsError:
            claim = next((claim for claim in self.claims() if claim.step == manifest.step), None)
            if claim is not None and claim.passing:
                cure = "mend the tier: it may be a newer attempt's"
                raise StorageError("the manifest of this step cannot be read", f"{path}: {claim.why}", cure) from None
            existing = None if claim is None else claim.manifest
            if existing is not None and existing.attempt > attempt:
                detail = f"step {manifest.step} by attempt {existing.attempt}, this is attempt {attempt}"
                raise Fenced("a newer attempt has committed this step", detail, "let this attempt end") from None
            if existing is None or existing.serialize() != content:
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                _write(path, content, os.replace)
        self.settle(manifest.step)

    def free_bytes(self) -> int:
        status = os.statvfs(self.root)
        return status.f_bavail * status.f_frsize

    def hours(self, step: int) -> float:
        """Return the hours since a step was published on this tier, by the machine's clock."""
        try:
            return (time.time() - (self.folder(step) / COMMITTED_NAME).lstat().st_mtime) / 3600
        except OSError:
            return 0.0

    def drop(self, step: int, attempt: int) -> bool:
        """Remove a step, its manifest first, unless an attempt after `attempt` made it. Return whether it is gone."""
        folder = self.folder(step)
        try:
            if any(number > attempt for number in _attempts(folder)):
                return False
            with contextlib.suppress(IsADirectoryError):
                (folder / COMMITTED_NAME).unlink(missing_ok=True)
            # Without this, a power loss could restore the manifest but not its shards.
            sync_folder(folder)
            shutil.rmtree(folder)
        except FileNotFoundError:
            return not folder.exists()
        except OSError as error:
            emit("not_removed", step=step, tier=self.name, why=f"{folder}: {error.strerror}")
            return False
        return True

    def drop_other_attempts(self, manifest: Manifest) -> None:
        """Remove earlier attempts' shards of this step: its manifest does not name them."""
        for number in _attempts(self.folder(manifest.step)):
            if number < manifest.attempt:
                shutil.rmtree(self.folder(manifest.step) / attempt_folder(number), ignore_errors=True)

    def clean(self, known_commits: Collection[tuple[int, int]], attempt: int) -> list[str]:
        """Remove unfinished files of ended attempts, before this one writes: temporary files, folders of reshaping, and
        folders of shards without a manifest. `known_commits`: (step, attempt) of the manifests any rank has seen."""
        removals = []
        for step in self.steps():
            folder = self.folder(step)
            is_claimed = os.path.lexists(folder / COMMITTED_NAME)
            attempts = [number for number in _attempts(folder) if number <= attempt]
            for number in attempts:
                if (step, number) not in known_commits and not is_claimed:
                    shutil.rmtree(folder / attempt_folder(number), ignore_errors=True)
                    removals.append(f"{folder.name}/{attempt_folder(number)}")
            for place in (folder, *(folder / attempt_folder(number) for number in attempts)):
                for partial in place.glob(f".*{PARTIAL}"):
                    partial.unlink(missing_ok=True)
                    removals.append(str(partial.relative_to(self.root)))
            if folder.is_dir() and not os.listdir(folder):
                folder.rmdir()
                removals.append(folder.name)
        for work in sorted(self.root.glob(f"{RESHAPING}*-*")):
            made_by = work.name.rpartition("-")[2]
            if made_by.isdigit() and int(made_by) <= attempt:
                shutil.rmtree(work, ignore_errors=True)
                removals.append(work.name)
        return removals


SharedTier = Tier | BucketTier


@dataclass(frozen=True)
class AnyTiers:
    """A node's own tier, and the one that outlives the node."""

    local: Tier
    shared: SharedTier

    def __iter__(self) -> Iterator[SharedTier]:
        return iter((self.local, self.shared))


@dataclass(frozen=True)
class Tiers(AnyTiers):
    """The shared tier is a folder."""

    shared: Tier

    def __iter__(self) -> Iterator[Tier]:
        return iter((self.local, self.shared))


def campaign_tiers(local: Path, shared: Path, campaign: str, identity: str = "") -> Tiers:
    return Tiers(Tier("local", local / campaign, identity), Tier("shared", shared / campaign, identity))


def tiers_in_s3(local: Path, url: str, campaign: str, identity: str = "") -> AnyTiers:
    """`url`: `s3://bucket/prefix` of the shared tier, the campaign's own."""
    return AnyTiers(Tier("local", local / campaign, identity), BucketTier(url, campaign, identity))


def accepts(shard: Shard, tier: str) -> Callable[[str], None]:
    """Return what raises `StorageError` for any digest but the shard's."""

    def accept(actual_digest: str) -> None:
        if actual_digest != shard.sha256:
            raise StorageError(
                f"a shard changed on the {tier} tier",
                f"{shard.file}: {actual_digest}, wanted {shard.sha256}",
                "suspect that disk; the next attempt takes another copy or an older step",
            )

    return accept


def _attempts(folder: Path) -> list[int]:
    """Return the attempts with a folder of shards at a step; none when the step is gone."""
    names = _names(folder)
    numbers = [int(digits) for name in names if (digits := name.removeprefix("attempt-")).isdigit()]
    return sorted(number for number in numbers if attempt_folder(number) in names)


def _names(folder: Path) -> list[str]:
    """Return the names in a folder; none if there is none. Raises `OSError` where it cannot be seen."""
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _write(path: Path, content: bytes, appear: Callable[[Path, Path], None]) -> None:
    with durable(path, appear) as file:
        file.write(content)
