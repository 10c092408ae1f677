"""A prepared data set: made by the trainer's own tool in a process of its own, cached, carried to the data bucket."""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import signal
import stat
import subprocess
import sys
import tempfile
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

_PR_SET_PDEATHSIG = 1


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
    if not _is_whole(out):
        _run(spec, source, out, progress)
    return load(out)


def _is_whole(folder: Path) -> bool:
    """Whether a prepared set lies there with every shard in its size; digests are verified where it is read."""
    try:
        made = load(folder).manifest
        shards = (*made.train, *made.validation)
        return all((folder / shard.file).stat().st_size == 2 * shard.tokens for shard in shards)
    except (OSError, ValueError):
        return False


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

    Raises `UserError` for a source that cannot be used. The process ends with us, however we end.
    """
    command = [sys.executable, "-m", "trainer.data", *arguments]
    last: dict[str, Any] = {}
    # Its words go to a file: a pipe that nobody reads yet would hold it up.
    with (
        tempfile.TemporaryFile("w+") as words,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=words, text=True, errors="replace", preexec_fn=_end_with_parent
        ) as process,
    ):
        try:
            for line in process.stdout or ():
                last = _event(line) or last
                if last.get("event") == "progress":
                    progress(f"data: {last['stage']} {100 * last['part']:.0f} %")
            process.wait()
        except BaseException:
            process.kill()
            raise
        words.seek(0)
        refusal = words.read().strip()
    if process.returncode in (ExitCode.DATA, ExitCode.USER):
        what, seen, cure = _parts(refusal)
        raise UserError(what, seen=seen, cure=cure)
    if process.returncode == -signal.SIGKILL:
        cure = "set data.max_files or give it more memory, then run the same command again"
        raise BivouacError("preparing the data was killed", seen="SIGKILL, perhaps for want of memory", cure=cure)
    if process.returncode != 0 or last.get("event") != "prepared":
        what, seen, cure = _parts(refusal[-1000:])
        raise BivouacError(f"preparing the data failed: {what}", seen=seen, cure=cure)
    return last


def _end_with_parent() -> None:
    """Also where we are killed hard: two preparations must not write into one folder."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _event(line: str) -> dict[str, Any] | None:
    try:
        return dict(json.loads(line)) if line.startswith("{") else None
    except ValueError:
        return None


def _parts(words: str) -> tuple[str, str | None, str]:
    """What, seen, cure of the trainer's own sentence."""
    what, _, rest = words.partition("; seen: ")
    seen, _, cure = rest.partition("; cure: ")
    return what or "no word", seen or None, cure or "mend the source or the parameters"


def _input_digest(spec: Spec, source: Path) -> str:
    """Of the parameters and of every matching file's name, size and time: changes when a new preparation is due."""
    digest = hashlib.sha256(spec.data.model_dump_json().encode())
    digest.update(str(spec.training.model.vocabulary).encode())
    for path in sorted(source.glob(spec.data.pattern)):
        if "site-packages" not in path.parts and (status := _file_status(path)) is not None:
            digest.update(f"{path}:{status.st_size}:{status.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def _file_status(path: Path) -> os.stat_result | None:
    """None for what is no file, or is gone since it was listed: the preparation then tells."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status if stat.S_ISREG(status.st_mode) else None
