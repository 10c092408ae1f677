"""A workload's code as one archive, the same bytes for the same files."""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from infra.data import weights
from infra.data.weights import WeightFile
from infra.errors import UserError
from infra.folders import cache_root, keep
from infra.plan.source_files import source_files
from infra.spec.workload.links import INIT
from infra.spec.workload.workload import Workload
from trainer.contract import DATA_MANIFEST_NAME
from trainer.contract.workload import source_name


class PackedSource(BaseModel):
    """What lies at the data mount of a workload's pods."""

    model_config = ConfigDict(frozen=True)

    folder: Path
    digest: str
    """SHA-256 of its manifest."""
    sha256: str
    """Of the packed code; empty without a source."""
    commit: str
    """The git commit, with `-dirty` if the working tree differs; empty outside of git."""
    files: int
    weights: tuple[WeightFile, ...] = ()
    """Files of the folder that the job starts from, which are not copied here."""


def pack(workload: Workload) -> PackedSource:
    """Pack the source of a workload, as it runs on its target, into this machine's cache. Raises `UserError` for one
    that cannot be packed, and for weights that are missing or too large."""
    content, files, commit = b"", 0, ""
    if workload.source is not None:
        root = Path(workload.source).expanduser()
        if not root.is_dir():
            raise UserError("there is no such folder", seen=root, cure="mend workload.source")
        found = source_files(root, workload.rehearsal.secrets)
        for why in found.refused:
            raise UserError(f"workload.source: {why.what}", seen=why.seen, cure=why.cure)
        files, commit = len(found.names), found.commit
        content = _tar(root, found.names)
    sha256 = hashlib.sha256(content).hexdigest() if content else ""
    local = workload.init_from if workload.init_from is not None and INIT not in workload.links else None
    begin = () if local is None else weights.listed(local)
    size = len(content) + sum(one.size_bytes for one in begin)
    told: dict[str, Any] = {"source": sha256, "bytes": size, "files": files}
    if begin:
        told["init_from"] = [one.model_dump() for one in begin]
    manifest = json.dumps(told, indent=1).encode()
    digest = hashlib.sha256(manifest).hexdigest()
    folder = cache_root() / "sources" / digest[:32]
    folder.mkdir(parents=True, exist_ok=True)
    if content:
        keep(folder / source_name(sha256), content, lambda note: None)
    keep(folder / DATA_MANIFEST_NAME, manifest, lambda note: None)
    return PackedSource(folder=folder, digest=digest, sha256=sha256, commit=commit, files=files, weights=begin)


def _tar(root: Path, names: Iterable[str]) -> bytes:
    """Return a tar without what differs between machines: times, owners, most mode bits."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name in names:
            path = root / name
            entry = tarfile.TarInfo(name)
            if path.is_symlink():
                entry.type, entry.linkname = tarfile.SYMTYPE, os.readlink(path)
                tar.addfile(entry)
                continue
            content = path.read_bytes()
            entry.size, entry.mode = len(content), 0o755 if os.access(path, os.X_OK) else 0o644
            tar.addfile(entry, io.BytesIO(content))
    return made.getvalue()
