"""A place with checkpoints: a folder or a prefix of a bucket, with `step-<8 digits>` of manifest and shards."""

from __future__ import annotations

import hashlib
import shutil
from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from botocore.exceptions import BotoCoreError, ClientError

from infra.aws.parts import Altered
from infra.aws.transfer import Transfer
from infra.errors import UserError
from infra.plain_files import open_plain, plain_bytes
from infra.record.objects import delete_objects, is_missing, object_or_none
from trainer.contract import COMMITTED_NAME, Manifest, Shard, parse_manifest, step_folder, step_of_folder
from trainer.contract.exits import limit_of
from trainer.contract.listing import Listed, list_folder, parse_row
from trainer.contract.rows import row_of
from trainer.contract.sealed import patient

_CHUNK = 4 * 2**20
SHARED = "shared"


class Place(ABC):
    """A place with steps; `name` is its name for people."""

    name: str

    tier: ClassVar[str]
    """Tier that the rows of a place outside of a campaign name."""

    @abstractmethod
    def list_steps(self, tier: str, campaign: str = "") -> list[Listed]:
        """Return every step, committed or not, newest first."""

    def rows(self) -> list[Listed]:
        """Return every step of a place outside of a campaign."""
        return self.list_steps(self.tier)

    def shared_rows(self, campaign: str) -> list[Listed]:
        """Return the rows of the place as a campaign's shared tier."""
        return self.list_steps(SHARED, campaign)

    @abstractmethod
    def manifest_bytes(self, step: int) -> bytes | None: ...

    @abstractmethod
    def content(self, step: int, name: str) -> bytes:
        """Return a small shard's bytes, unverified. Raises `Altered` if it is not there, or cannot be read."""

    @abstractmethod
    def fault(self, step: int, shard: Shard) -> str | None:
        """Read a whole shard; return its fault, None if it is sound."""

    @abstractmethod
    def fetch(self, step: int, shard: Shard, target: Path) -> int:
        """Copy a shard to `target`, which appears only complete and verified; return bytes left from an earlier try.

        Raises `Altered` if the place does not have the shard's bytes.
        """

    @abstractmethod
    def newest(self) -> int:
        """Return the newest step with a manifest, -1 for none. Raises `OSError`."""

    @abstractmethod
    def send(self, step: int, shard: Shard, s3: Any, bucket: str, key: str) -> None:
        """Copy a shard, unverified, to an object of a bucket."""

    @abstractmethod
    def remove(self, step: int) -> None:
        """Remove a step, manifest first, so that an interrupted removal leaves no checkpoint."""

    def manifest(self, step: int) -> Manifest:
        """Return a step's manifest; raise `UserError` if it is not committed here or damaged."""
        content = self.manifest_bytes(step)
        if content is None:
            steps = ", ".join(str(row.step) for row in self.rows()[:10]) or "none"
            raise UserError(
                f"step {step} is not committed here", seen=f"{self.name} holds {steps}", cure="name another"
            )
        try:
            return parse_manifest(content, step)
        except ValueError as error:
            cure = "use another copy of this step, or another step"
            raise UserError(
                f"the manifest of step {step} is damaged", seen=f"{self.name}: {error}", cure=cure
            ) from error


@dataclass(frozen=True)
class FolderPlace(Place):
    tier = "folder"

    root: Path

    @property
    def name(self) -> str:  # type: ignore[override]
        return str(self.root)

    def list_steps(self, tier: str, campaign: str = "") -> list[Listed]:
        return list_folder(self.root, tier, campaign)

    def newest(self) -> int:
        folders = [path.parent.name for path in self.root.glob(f"step-*/{COMMITTED_NAME}")]
        return max((step for name in folders if (step := step_of_folder(name)) is not None), default=-1)

    def send(self, step: int, shard: Shard, s3: Any, bucket: str, key: str) -> None:
        s3.upload_file(str(self.root / step_folder(step) / shard.file), bucket, key)

    def manifest_bytes(self, step: int) -> bytes | None:
        try:
            return (self.root / step_folder(step) / COMMITTED_NAME).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def content(self, step: int, name: str) -> bytes:
        try:
            return plain_bytes(self.root / step_folder(step) / name)
        except OSError as error:
            if limit_of(error):
                raise
            raise Altered(f"{name}: {error.strerror or error}") from error

    def fault(self, step: int, shard: Shard) -> str | None:

        def read() -> tuple[str, int]:
            with open_plain(self.root / step_folder(step) / shard.file) as file:
                return hashlib.file_digest(file, "sha256").hexdigest(), file.tell()

        try:
            digest, size = patient(read)
        except FileNotFoundError:
            return "missing"
        except OSError as error:
            if limit_of(error):
                raise
            return f"unreadable: {error.strerror or error}"
        return None if digest == shard.sha256 else f"{size} of {shard.size_bytes} bytes, SHA-256 {digest}"

    def fetch(self, step: int, shard: Shard, target: Path) -> int:
        partial = target.with_name(f".{target.name}.partial")
        try:
            with open_plain(self.root / step_folder(step) / shard.file) as source, partial.open("wb") as file:
                digest = hashlib.sha256()
                while chunk := source.read(_CHUNK):
                    digest.update(chunk)
                    file.write(chunk)
        except FileNotFoundError as error:
            raise Altered(f"{shard.file} is missing") from error
        if digest.hexdigest() != shard.sha256:
            partial.unlink()
            raise Altered(f"{shard.file}: {digest.hexdigest()}, not {shard.sha256}")
        partial.replace(target)
        return 0

    def remove(self, step: int) -> None:
        folder = self.root / step_folder(step)
        (folder / COMMITTED_NAME).unlink(missing_ok=True)
        with suppress(FileNotFoundError):  # the trainer's retention also removes steps
            shutil.rmtree(folder)


@dataclass(frozen=True)
class BucketPlace(Place):
    tier = "archive"

    s3: Any
    bucket: str
    prefix: str
    """Without a slash at its end; steps are directly below."""
    transfer: Transfer

    @property
    def name(self) -> str:  # type: ignore[override]
        return f"s3://{self.bucket}/{self.prefix}"

    def newest(self) -> int:
        try:
            names = [key.removeprefix(f"{self.prefix}/") for key, _ in self.objects(f"{self.prefix}/step-")]
        except (ClientError, BotoCoreError, UserError) as error:
            raise OSError(str(error)) from error
        folders = [name.partition("/")[0] for name in names if name.endswith(f"/{COMMITTED_NAME}")]
        return max((step for name in folders if (step := step_of_folder(name)) is not None), default=-1)

    def send(self, step: int, shard: Shard, s3: Any, bucket: str, key: str) -> None:
        s3.copy({"Bucket": self.bucket, "Key": self.key(step, shard.file)}, bucket, key, SourceClient=self.s3)

    def list_steps(self, tier: str, campaign: str = "") -> list[Listed]:
        sizes: dict[int, dict[str, int]] = {}
        for key, size in self.objects(f"{self.prefix}/" if self.prefix else ""):
            folder, _, name = key.removeprefix(f"{self.prefix}/").partition("/")
            if (step := step_of_folder(folder)) is not None:
                sizes.setdefault(step, {})[name] = size
        rows = (
            row_of(self.manifest_bytes(step), sizes[step].get, step, tier, campaign, "", partial(self._read, step))
            for step in sorted(sizes, reverse=True)
        )
        return [parse_row(row) for row in rows]

    def _read(self, step: int, name: str) -> bytes:
        try:
            return self.content(step, name)
        except Altered as error:
            raise OSError(str(error)) from error

    def objects(self, prefix: str) -> list[tuple[str, int]]:
        """Return (key, size) below a prefix; raise `UserError` if there is no such bucket."""
        pages = self.s3.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=prefix)
        try:
            return [(item["Key"], item["Size"]) for page in pages for item in page.get("Contents", ())]
        except ClientError as error:
            if is_missing(error):
                raise UserError("there is no such bucket", seen=self.bucket, cure="see `aws s3 ls`") from error
            raise

    def key(self, step: int, name: str) -> str:
        return "/".join(filter(None, (self.prefix, step_folder(step), name)))

    def get(self, key: str) -> bytes | None:
        return object_or_none(self.s3, self.bucket, key)

    def manifest_bytes(self, step: int) -> bytes | None:
        return self.get(self.key(step, COMMITTED_NAME))

    def content(self, step: int, name: str) -> bytes:
        body = self.get(self.key(step, name))
        if body is None:
            raise Altered(f"{name}: missing")
        return body

    def fault(self, step: int, shard: Shard) -> str | None:
        digest = hashlib.sha256()
        try:
            self._download(step, shard, None, 0, digest)
        except Altered as error:
            return str(error)
        hex_digest = digest.hexdigest()
        return None if hex_digest == shard.sha256 else f"SHA-256 {hex_digest}"

    def fetch(self, step: int, shard: Shard, target: Path) -> int:
        partial, digest = target.with_name(f".{target.name}.partial"), hashlib.sha256()
        with partial.open("ab+") as file:
            file.seek(0)
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
            resumed_bytes = file.tell()
            if resumed_bytes > shard.size_bytes:
                file.truncate(0)
                resumed_bytes, digest = 0, hashlib.sha256()
            self._download(step, shard, file, resumed_bytes, digest)
        if digest.hexdigest() != shard.sha256:
            partial.unlink()
            if resumed_bytes:
                # The bytes of an earlier try may be wrong.
                return self.fetch(step, shard, target)
            raise Altered(f"{shard.file}: {digest.hexdigest()}, not {shard.sha256}")
        partial.replace(target)
        return resumed_bytes

    def remove(self, step: int) -> None:
        self.remove_keys([self.key(step, COMMITTED_NAME)])
        self.remove_keys([key for key, _ in self.objects(self.key(step, ""))])

    def remove_keys(self, keys: list[str]) -> None:
        for error in delete_objects(self.s3, self.bucket, [{"Key": key} for key in keys]):
            refusal = f"{error.get('Key')}: {error.get('Code')}"
            raise UserError("an object cannot be removed", seen=refusal, cure="use credentials that may delete it")

    def _download(self, step: int, shard: Shard, file: Any, start: int, digest: Any) -> None:
        if start == shard.size_bytes:
            return
        try:
            self.transfer.download({"Key": self.key(step, shard.file)}, shard.size_bytes, file, start, digest)
        except ClientError as error:
            if is_missing(error):
                raise Altered("missing") from error
            if error.response["Error"]["Code"] == "InvalidRange":
                raise Altered(f"shorter than {shard.size_bytes} bytes") from error
            raise


def bucket_place(s3: Any, url: str) -> BucketPlace | None:
    """Return the place at `s3://bucket/prefix`; None for an empty URL."""
    bucket, _, prefix = url.removeprefix("s3://").partition("/")
    return BucketPlace(s3, bucket, prefix, Transfer(s3, bucket)) if url else None
