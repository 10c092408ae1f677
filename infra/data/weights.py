"""Weights on the driver's machine that a workload starts from: uploaded by content, beside its code."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

from infra.aws.account import Account
from infra.errors import UserError
from infra.spec.names import data_prefix
from trainer.contract.frozen import Frozen
from trainer.contract.workload import INIT_FOLDER

MOST_BYTES = 4 * 2**30
"""They pass the driver's network at each new campaign; more belongs in S3."""
_LEFT_OUT = {".git", ".cache"}


class WeightFile(Frozen, extra="ignore"):
    name: str
    """Path below the folder."""
    size_bytes: int
    sha256: str


def weight_files(folder: str) -> tuple[WeightFile, ...]:
    """Return the folder's files with their digests. Raises `UserError` for a missing, empty or very large one."""
    root = Path(folder).expanduser()
    if not root.is_dir():
        raise UserError("there is no such folder", seen=root, cure="mend `init_from`")
    paths = (path.relative_to(root) for path in root.rglob("*") if path.is_file())
    names = sorted(name for name in paths if not _LEFT_OUT & set(name.parts))
    if not names:
        raise UserError("the folder of the weights has no file", seen=root, cure="mend `init_from`")
    size = sum((root / name).stat().st_size for name in names)
    if size > MOST_BYTES:
        fact = f"{root}: {size / 2**30:.1f} GiB in {len(names)} files, at most {MOST_BYTES / 2**30:g} GiB"
        cure = "put them into S3 and name the prefix: init_from: s3://bucket/prefix"
        raise UserError("the weights are too large for this machine's network", seen=fact, cure=cure)
    return tuple(_file(root, name) for name in names)


def _file(root: Path, name: Path) -> WeightFile:
    with (root / name).open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    return WeightFile(name=name.as_posix(), size_bytes=(root / name).stat().st_size, sha256=sha256)


def folder_of(files: tuple[WeightFile, ...]) -> str:
    """Return a folder's name beside prepared data, which campaigns share: other weights have another one."""
    content = "".join(file.model_dump_json() for file in files)
    return f"{INIT_FOLDER}-{hashlib.sha256(content.encode()).hexdigest()[:16]}"


def upload(
    account: Account,
    bucket: str,
    folder: str,
    files: tuple[WeightFile, ...],
    digest: str,
    progress: Callable[[str], None],
    subfolder: str = INIT_FOLDER,
) -> None:
    """Upload the files to the folder `subfolder` of `datasets/<digest>/`.

    Raises `UserError` if one has changed since it was listed.
    """
    s3, root = account.client("s3"), Path(folder).expanduser()
    for number, file in enumerate(files, 1):
        progress(f"weights: {number} of {len(files)} to the data bucket")
        s3.upload_file(str(root / file.name), bucket, f"{data_prefix(digest)}{subfolder}/{file.name}")
    if weight_files(folder) != files:
        raise UserError("the weights changed while they were uploaded", seen=root, cure="run the same command again")
