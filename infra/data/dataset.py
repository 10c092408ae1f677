"""A prepared data set: made by the trainer's own tool in a process of its own, cached, carried to the data bucket."""

from __future__ import annotations

import ctypes
import hashlib
import json
import signal
import subprocess
import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from infra.aws.account import Account
from infra.data.trainer_command import trainer_command
from infra.errors import BivouacError, UserError
from infra.record.objects import is_missing
from infra.spec.campaign import Spec
from infra.spec.names import data_prefix
from infra.spec.recipe import folder_of, recipe_of
from trainer.contract import DATA_MANIFEST_NAME, DataManifest, ExitCode
from trainer.contract.recipe import Recipe

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
    out = folder_of(spec)
    run_tool(recipe_of(spec), out, None, progress)
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
    names = [path.name for path in sorted(data.folder.iterdir()) if path.is_file() and not path.name.startswith(".")]
    files = [data.folder / name for name in names if name != DATA_MANIFEST_NAME]
    for number, path in enumerate(files, 1):
        progress(f"data: {number} of {len(files)} to the data bucket")
        s3.upload_file(str(path), bucket, f"{prefix}{path.name}")
    s3.upload_file(str(data.folder / DATA_MANIFEST_NAME), bucket, key)


def run_tool(recipe: Recipe, out: Path, cores: int | None, progress: Callable[[str], None]) -> dict[str, Any]:
    """`python -m trainer.data` in a process of its own; returns its last event: digest, tokens, unigram loss.

    Raises `UserError` for a source that cannot be used. The process ends with us, however we end.
    """
    command = trainer_command("data", recipe.model_dump_json(), str(out), *([f"--cores={cores}"] if cores else []))
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
                    progress(f"data: {last['stage']} {100 * last['part']:.0f} %{_left(last.get('left_s'))}")
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


def _left(seconds: float | None) -> str:
    return f", {timedelta(seconds=round(seconds))} left" if seconds else ""


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
