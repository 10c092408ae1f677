"""A prepared data set: made by the trainer's own tool in a process of its own, cached, carried to the data bucket."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from infra.account import Account
from infra.errors import BivouacError, UserError
from infra.folders import cache_root
from infra.names import data_prefix
from infra.spec import Spec
from infra.store import is_missing
from infra.survey import source_folder
from trainer.contract import DATA_MANIFEST_NAME, DataManifest, ExitCode


class DataSet(BaseModel):
    model_config = ConfigDict(frozen=True)

    folder: Path
    digest: str
    """SHA-256 of its manifest."""
    manifest: DataManifest


def prepare(spec: Spec, progress: Callable[[str], None]) -> DataSet:
    """The prepared data of a spec: from the cache when source and parameters are unchanged, else made now.

    Raises `UserError` for a missing, empty or unreadable source.
    """
    source = source_folder(spec.data)
    if not source.is_dir():
        raise UserError("the data folder is missing", seen=source, cure="mend `data.source`: a folder of text files")
    out = cache_root() / "data" / _input_digest(spec, source)[:32]
    if not (out / DATA_MANIFEST_NAME).exists():
        _run(spec, source, out, progress)
    return load(out)


def load(folder: Path) -> DataSet:
    raw = (folder / DATA_MANIFEST_NAME).read_bytes()
    return DataSet(
        folder=folder, digest=hashlib.sha256(raw).hexdigest(), manifest=DataManifest.model_validate_json(raw)
    )


def upload(account: Account, bucket: str, data: DataSet, progress: Callable[[str], None]) -> None:
    """Carry the set to `datasets/<digest>/`, manifest last; done already when the manifest is there."""
    s3, prefix = account.client("s3"), data_prefix(data.digest)
    key = f"{prefix}{DATA_MANIFEST_NAME}"
    try:
        s3.head_object(Bucket=bucket, Key=key)
        return
    except s3.exceptions.ClientError as error:
        if not is_missing(error):
            raise
    files = [path for path in sorted(data.folder.iterdir()) if path.is_file() and path.name != DATA_MANIFEST_NAME]
    for number, path in enumerate(files, 1):
        progress(f"data: {number} of {len(files)} to the data bucket")
        s3.upload_file(str(path), bucket, f"{prefix}{path.name}")
    s3.upload_file(str(data.folder / DATA_MANIFEST_NAME), bucket, key)


def _run(spec: Spec, source: Path, out: Path, progress: Callable[[str], None]) -> None:
    arguments = [str(source), str(out), f"--pattern={spec.data.pattern}", f"--held-out={spec.data.held_out}"]
    arguments += [f"--seed={spec.data.seed}", f"--vocabulary={spec.training.model.vocabulary}"]
    if spec.data.max_files is not None:
        arguments.append(f"--max-files={spec.data.max_files}")
    run_tool(arguments, progress)


def run_tool(arguments: list[str], progress: Callable[[str], None]) -> dict[str, Any]:
    """`python -m trainer.data` in a process of its own; returns its last event: digest, tokens, unigram loss.

    Raises `UserError` for a source that cannot be used.
    """
    command = [sys.executable, "-m", "trainer.data", *arguments]
    last: dict[str, Any] = {}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        for line in process.stdout or ():
            last = json.loads(line) if line.startswith("{") else last
            if last.get("event") == "progress":
                progress(f"data: {last['stage']} {100 * last['part']:.0f} %")
        refusal = (process.stderr.read() if process.stderr else "").strip()
    if process.returncode in (ExitCode.DATA, ExitCode.USER):
        raise UserError("the data cannot be prepared", seen=refusal, cure="mend the source or the parameters")
    if process.returncode != 0:
        raise BivouacError("preparing the data failed", seen=refusal[-500:], cure="see above")
    return last


def _input_digest(spec: Spec, source: Path) -> str:
    """Of the parameters and of every matching file's name, size and time: changes when a new preparation is due."""
    digest = hashlib.sha256(spec.data.model_dump_json().encode())
    digest.update(str(spec.training.model.vocabulary).encode())
    for path in sorted(source.glob(spec.data.pattern)):
        if path.is_file() and "site-packages" not in path.parts:
            status = path.stat()
            digest.update(f"{path}:{status.st_size}:{status.st_mtime_ns}\n".encode())
    return digest.hexdigest()
