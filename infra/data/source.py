"""A workload's code as one archive, the same bytes for the same files."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable
from pathlib import Path
from shutil import copyfile
from typing import Any

from infra.data import requirements, weights
from infra.data.requirements import ImagePython
from infra.data.tar import write_tar
from infra.data.weights import WeightFile
from infra.errors import UserError
from infra.folders import cache_root, keep
from infra.plan.source_files import source_files
from infra.spec.workload.links import INIT
from infra.spec.workload.workload import Workload
from trainer.contract import DATA_MANIFEST_NAME
from trainer.contract.frozen import Frozen
from trainer.contract.workload import requirements_name, source_name


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
        root = Path(workload.source).expanduser()
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
    begin = () if local is None else weights.weight_files(local)
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
