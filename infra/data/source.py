"""A workload's code as one archive, the same bytes for the same files, and the weights that it starts from."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable
from pathlib import Path
from shutil import copyfile
from typing import Any

from infra.aws.account import Account
from infra.data import requirements
from infra.data.requirements import ImagePython, write_tar
from infra.errors import UserError
from infra.folders import cache_root, keep
from infra.plan.source_files import source_files
from infra.spec.models.hub import named_folder, way_to
from infra.spec.names import data_prefix
from infra.spec.workload.links import INIT
from infra.spec.workload.workload import Workload
from trainer.contract import DATA_MANIFEST_NAME
from trainer.contract.frozen import Frozen
from trainer.contract.workload import INIT_FOLDER, requirements_name, source_name

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
    root = named_folder(folder)
    if not root.is_dir():
        raise UserError("there is no such folder", seen=root, cure=way_to(folder, "mend `init_from`"))
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


def weights_folder(files: tuple[WeightFile, ...]) -> str:
    """Return a folder's name beside prepared data, which campaigns share: other weights have another one."""
    content = "".join(file.model_dump_json() for file in files)
    return f"{INIT_FOLDER}-{hashlib.sha256(content.encode()).hexdigest()[:16]}"


def upload_weights(
    account: Account,
    bucket: str,
    folder: str,
    files: tuple[WeightFile, ...],
    digest: str,
    progress: Callable[[str], None],
    subfolder: str = INIT_FOLDER,
    bucket_root: str = "",
) -> None:
    """Upload the files to the folder `subfolder` of `datasets/<digest>/`, below the bucket's folder `bucket_root`.

    Raises `UserError` if one has changed since it was listed.
    """
    s3, root = account.client("s3"), named_folder(folder)
    for number, file in enumerate(files, 1):
        progress(f"weights: {number} of {len(files)} to the data bucket")
        s3.upload_file(str(root / file.name), bucket, f"{bucket_root}{data_prefix(digest)}{subfolder}/{file.name}")
    if weight_files(folder) != files:
        raise UserError("the weights changed while they were uploaded", seen=root, cure="run the same command again")


class PackedSource(Frozen, extra="ignore"):
    """What lies at the data mount of a workload's pods."""

    folder: Path
    digest: str
    """SHA-256 of its manifest."""
    sha256: str
    """Of the packed code; empty without a source."""
    commit: str
    """The git commit, with `-dirty` if the working tree differs; empty outside of git."""
    files: int
    requirements: str = ""
    """SHA-256 of the packed packages that the job brings; empty: none."""
    packages: tuple[str, ...] = ()
    """`name==version` of each."""
    weights: tuple[WeightFile, ...] = ()
    """Files of the folder that the job starts from, which are not copied here."""


def pack(
    workload: Workload, python: ImagePython | None = None, say: Callable[[str], None] = lambda step: None
) -> PackedSource:
    """Pack the source of a workload, as it runs on its target, and the packages that it requires for the job's `python`
    (None: none) into this machine's cache. Raises `UserError` for what cannot be packed, and for weights that are
    missing or too large."""
    content, files, commit, packages = b"", 0, "", None
    if workload.source is not None:
        root = Path(str(workload.source)).expanduser()
        if not root.is_dir():
            raise UserError("there is no such folder", seen=root, cure="mend workload.source")
        listing = source_files(root, workload.rehearsal.secrets)
        for refusal in listing.facts.refused:
            raise UserError(f"workload.source: {refusal.what}", seen=refusal.seen, cure=refusal.cure)
        files, commit = len(listing.names), listing.commit
        buffer = io.BytesIO()
        write_tar(root, listing.names, buffer)
        content = buffer.getvalue()
        if python is not None:
            packages = requirements.resolve(workload, root, python, say)
    sha256 = hashlib.sha256(content).hexdigest() if content else ""
    local = workload.init_from if workload.init_from is not None and INIT not in workload.links else None
    begin = () if local is None else weight_files(local)
    size = len(content) + sum(file.size_bytes for file in begin)
    content_facts: dict[str, Any] = {"source": sha256, "bytes": size, "files": files}
    if packages is not None:
        content_facts |= {"requirements": packages.sha256, "bytes": size + packages.tar.stat().st_size}
    if begin:
        content_facts["init_from"] = [file.model_dump() for file in begin]
    manifest = json.dumps(content_facts, indent=1).encode()
    digest = hashlib.sha256(manifest).hexdigest()
    folder = cache_root() / "sources" / digest[:32]
    folder.mkdir(parents=True, exist_ok=True)
    if packages is not None:
        copyfile(packages.tar, folder / requirements_name(packages.sha256))
    if content:
        keep(folder / source_name(sha256), content, lambda note: None)
    keep(folder / DATA_MANIFEST_NAME, manifest, lambda note: None)
    return PackedSource(
        folder=folder, digest=digest, sha256=sha256, commit=commit, files=files, weights=begin,
        requirements=packages.sha256 if packages else "", packages=packages.listed if packages else (),
    )  # fmt: skip
