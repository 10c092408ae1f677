"""The shared tier as a prefix of an S3 bucket, for campaigns without a file system between the nodes.

`<prefix>/step-<8 digits>/manifest.json` and shards below `attempt-<4 digits>/`, as in a folder, and `<prefix>/fence/`.
S3 has neither rename nor link: an object appears whole, and the manifest after all that it names, by a conditional
write. So an upload that is cut leaves the step uncommitted. Every shard is read back before its manifest is written.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

from trainer.buckets.prefix import Prefix
from trainer.builtin.checkpoint.fetching import fetch_into
from trainer.builtin.checkpoint.retention import Claim, TierSteps, claim_of, twin_of
from trainer.contract import (
    COMMITTED_NAME,
    Manifest,
    Shard,
    attempt_folder,
    step_folder,
    step_of_folder,
)
from trainer.contract.checkpoint import BANS
from trainer.errors import Fenced, StorageError, lasting
from trainer.events import emit

_FENCE = "fence"


@dataclass(frozen=True)
class BucketTier(TierSteps):
    """One campaign's prefix."""

    url: str
    """`s3://bucket/prefix`, without a slash at its end; the prefix is this campaign's alone."""
    campaign: str
    identity: str = ""
    name: str = "shared"

    @cached_property
    def prefix(self) -> Prefix:
        return Prefix(self.url)

    @property
    def marks(self) -> BucketTier:
        """Where the fence lies."""
        return self

    def __str__(self) -> str:
        return self.url

    def times(self) -> dict[str, float]:
        """Return name -> when it was made, of the fence's marks."""
        objects = self.prefix.listed(f"{_FENCE}/")
        return {name.partition("/")[2]: info.modified_s for name, info in objects.items()}

    def mark(self, name: str) -> None:
        """Make a mark of the fence; a second time changes nothing."""
        self.prefix.put(f"{_FENCE}/{name}", b"")

    def notes(self) -> dict[str, bytes]:
        """Return name -> content of what attempts have left for later ones."""
        names = self.prefix.listed(f"{BANS}/")
        contents = {name.partition("/")[2]: self.prefix.get(name) for name in names}
        return {name: content[0] for name, content in contents.items() if content is not None}

    def leave(self, name: str, content: bytes) -> None:
        """Leave a note for later attempts."""
        self.prefix.put(f"{BANS}/{name}", content)

    def take(self, step: int, shard: Shard, source: Path, older_manifest: Manifest | None) -> None:
        """Upload a shard and read it back. Have S3 copy it if `older_manifest`, a step of this tier, has the same
        bytes. Raises `StorageError` for other bytes than the shard's."""
        name = _name(step, shard.file)
        if self._copy_twin(shard, name, older_manifest):
            return
        self.prefix.upload(name, source)
        actual_digest = self.prefix.digest(name)
        if actual_digest != shard.sha256:
            raise StorageError(
                "a shard is not in S3 as it was written",
                f"{self.url}/{name}: {actual_digest}, wanted {shard.sha256}",
                "suspect the node's disk; the next attempt takes another copy or an older step",
            )

    def _copy_twin(self, shard: Shard, name: str, older: Manifest | None) -> bool:
        twin = twin_of(shard, older)
        if older is None or twin is None:
            return False
        try:
            self.prefix.copy(_name(older.step, twin.file), name)
        except OSError:
            return False
        return self.prefix.digest(name) == shard.sha256

    def adopt(self, step: int, shard: Shard, file: Path) -> None:
        """Give a verified file its place here."""
        self.take(step, shard, file, None)

    def settle(self, step: int) -> None:
        """Do nothing: an object that S3 has answered for is durable."""

    def publish(self, manifest: Manifest, attempt: int) -> None:
        """Commit a step: the manifest appears, whole, after everything that it names.

        It replaces the manifest of an attempt up to `attempt`, the caller's. Raises `Fenced` for a newer one's.
        """
        name, content = _name(manifest.step, COMMITTED_NAME), manifest.serialize()
        is_published = False
        while not is_published:
            existing = self.prefix.get(name)
            if existing is None:
                is_published = self.prefix.put(name, content)
                continue
            if existing[0] == content:
                return
            claim = claim_of(manifest.step, existing[0], self.campaign, self.identity)
            if claim.manifest is not None and claim.manifest.attempt > attempt:
                detail = f"step {manifest.step} by attempt {claim.manifest.attempt}, this is attempt {attempt}"
                raise Fenced("a newer attempt has committed this step", detail, "let this attempt end")
            is_published = self.prefix.put(name, content, instead_of=existing[1])

    def steps(self) -> list[int]:
        numbers = {step_of_folder(name.partition("/")[0]) for name in self.prefix.listed()}
        return sorted((step for step in numbers if step is not None), reverse=True)

    def claims(self) -> Iterator[Claim]:
        for step in self.steps():
            try:
                content = self.prefix.get(_name(step, COMMITTED_NAME))
            except OSError as error:
                yield Claim(step, None, f"unreadable: {error}", passing=not lasting(error))
                continue
            if content is not None:
                yield claim_of(step, content[0], self.campaign, self.identity)

    def holds(self, manifest: Manifest, shards: Collection[Shard]) -> bool:
        """Return whether this checkpoint is here with these shards, by manifest and sizes."""
        try:
            existing = self.prefix.get(_name(manifest.step, COMMITTED_NAME))
            if existing is None or existing[0] != manifest.serialize():
                return False
            objects = self.prefix.listed(_name(manifest.step, ""))
        except OSError:
            return False
        sizes = {name: info.size_bytes for name, info in objects.items()}
        return all(sizes.get(_name(manifest.step, shard.file)) == shard.size_bytes for shard in shards)

    def fetch(self, step: int, shard: Shard, target: Path) -> int:
        """Fetch a shard durably and check its digest. Return the bytes of this fetch, fewer than the shard's after a
        resume. Raises `OSError` or `StorageError`; see `fetching`."""
        return fetch_into(target, shard, partial(self.prefix.read_part, _name(step, shard.file)))

    def hours(self, step: int) -> float:
        name = _name(step, COMMITTED_NAME)
        info = self.prefix.listed(name).get(name)
        return 0.0 if info is None else max(0.0, time.time() - info.modified_s) / 3600

    def free_bytes(self) -> int:
        return 2**63 - 1  # S3 is never full

    def drop(self, step: int, attempt: int) -> bool:
        try:
            if any(number > attempt for number in self._attempts(step)):
                return False
            self.prefix.remove(_name(step, COMMITTED_NAME))
            self.prefix.forget(_name(step, ""))
        except OSError as error:
            emit("not_removed", step=step, tier=self.name, why=f"{self.url}: {error}"[:300])
            return False
        return True

    def drop_other_attempts(self, manifest: Manifest) -> None:
        """Remove earlier attempts' shards of this step: its manifest does not name them."""
        for number in self._attempts(manifest.step):
            if number < manifest.attempt:
                self.prefix.forget(_name(manifest.step, f"{attempt_folder(number)}/"))

    def clean(self, known_commits: Collection[tuple[int, int]], attempt: int) -> list[str]:
        """Remove what ended attempts left unfinished, before this one writes: uploads that were cut, and shards without
        a manifest. `known_commits`: (step, attempt) of the manifests that any rank has seen."""
        removals = [f"upload of {name}" for name in self.prefix.abort_uploads(lambda name: _in_scope(name, attempt))]
        objects = self.prefix.listed()
        for step in self.steps():
            if _name(step, COMMITTED_NAME) in objects:
                continue
            for number in self._attempts(step):
                if number <= attempt and (step, number) not in known_commits:
                    self.prefix.forget(_name(step, f"{attempt_folder(number)}/"))
                    removals.append(_name(step, attempt_folder(number)))
        return removals

    def _attempts(self, step: int) -> list[int]:
        """Return the attempts with shards at a step."""
        begin = _name(step, "attempt-")
        numbers = {name.removeprefix(begin).partition("/")[0] for name in self.prefix.listed(begin)}
        return sorted(int(number) for number in numbers if number.isdigit())


def _name(step: int, file: str) -> str:
    return f"{step_folder(step)}/{file}"


def _in_scope(name: str, attempt: int) -> bool:
    """Return whether a name is of an attempt up to this one."""
    number = name.partition("/attempt-")[2].partition("/")[0]
    return number.isdigit() and int(number) <= attempt
