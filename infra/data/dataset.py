"""A prepared data set: made by the trainer's tool in its own process, cached, uploaded to the data bucket."""

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

from infra.aws.account import Account
from infra.errors import BivouacError, UserError
from infra.extras import refuse_missing
from infra.folders import own_module
from infra.record.objects import or_none
from infra.spec.campaign import Spec
from infra.spec.names import data_prefix
from infra.spec.recipe import folder_of, recipe_of
from trainer.contract import DATA_MANIFEST_NAME, DataManifest, ExitCode
from trainer.contract.frozen import Frozen
from trainer.contract.recipe import Recipe


def trainer_command(module: str, *arguments: str) -> list[str]:
    """Return the command line of `python -m trainer.builtin.MODULE`. Raises `UserError` without the extra `trainer`."""
    refuse_missing("trainer")
    return own_module(f"trainer.builtin.{module}", *arguments)


_PR_SET_PDEATHSIG = 1


class DataSet(Frozen, extra="ignore"):
    folder: Path
    digest: str
    """SHA-256 of its manifest."""
    manifest: DataManifest


def prepare(spec: Spec, progress: Callable[[str], None]) -> DataSet:
    """Return the prepared data of a spec, from the cache if source and parameters are unchanged.

    Raises `UserError` for a missing, empty or unreadable source.
    """
    folder = folder_of(spec)
    run_tool(recipe_of(spec), folder, None, progress)
    return load(folder)


def load(folder: Path) -> DataSet:
    raw = (folder / DATA_MANIFEST_NAME).read_bytes()
    return DataSet(
        folder=folder, digest=hashlib.sha256(raw).hexdigest(), manifest=DataManifest.model_validate_json(raw)
    )


def upload(
    account: Account, bucket: str, folder: Path, digest: str, progress: Callable[[str], None], root: str = ""
) -> None:
    """Upload a folder to `datasets/<digest>/`, manifest last; if the manifest is there, nothing is left to do.

    `root`: folder of the bucket that this is below, with a slash.
    """
    if is_uploaded(account, bucket, digest, root):
        return
    s3, prefix = account.client("s3"), f"{root}{data_prefix(digest)}"
    files = [path for path in files_of(folder) if path.name != DATA_MANIFEST_NAME]
    for number, path in enumerate(files, 1):
        progress(f"data: {number} of {len(files)} to the data bucket")
        s3.upload_file(str(path), bucket, f"{prefix}{path.name}")
    s3.upload_file(str(folder / DATA_MANIFEST_NAME), bucket, f"{prefix}{DATA_MANIFEST_NAME}")


def files_of(folder: Path) -> list[Path]:
    """Return the files that are uploaded of a folder, sorted."""
    return [path for path in sorted(folder.iterdir()) if path.is_file() and not path.name.startswith(".")]


def is_uploaded(account: Account, bucket: str, digest: str, root: str = "") -> bool:
    """Return whether a folder with this digest is whole in the bucket."""
    s3 = account.client("s3")
    key = f"{root}{data_prefix(digest)}{DATA_MANIFEST_NAME}"
    return or_none(lambda: s3.head_object(Bucket=bucket, Key=key)) is not None


def add(account: Account, bucket: str, path: Path, digest: str) -> None:
    """Upload one more file to the folder of a digest, from which the file system imports what is new."""
    account.client("s3").upload_file(str(path), bucket, f"{data_prefix(digest)}{path.name}")


def run_tool(recipe: Recipe, folder: Path | None, cores: int | None, progress: Callable[[str], None]) -> dict[str, Any]:
    """Run `python -m trainer.builtin.data` in its own process; return its last event: digest, tokens, unigram loss;
    without `folder`, which only lists the sources, what was listed.

    Raises `UserError` for an unusable source. The process ends with this one, however this one ends.
    """
    command = trainer_command(
        "data", recipe.model_dump_json(), *([str(folder)] if folder else []), *([f"--cores={cores}"] if cores else [])
    )
    event: dict[str, Any] = {}
    # stderr goes to a file: a pipe that nobody reads would block the tool.
    with (
        tempfile.TemporaryFile("w+") as words,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=words, text=True, errors="replace", preexec_fn=_end_with_parent
        ) as process,
    ):
        try:
            for line in process.stdout or ():
                event = _event(line) or event
                if event.get("event") == "progress":
                    progress(f"data: {event['stage']} {100 * event['part']:.0f} %{_left(event.get('left_s'))}")
            process.wait()
        except BaseException:
            process.kill()
            raise
        words.seek(0)
        refusal = words.read().strip()
    if process.returncode in (ExitCode.DATA, ExitCode.USER):
        problem, fact, cure = parts_of(refusal)
        raise UserError(problem, seen=fact, cure=cure)
    if process.returncode == -signal.SIGKILL:
        cure = "set data.max_files or give it more memory, then run the same command again"
        raise BivouacError("preparing the data was killed", seen="SIGKILL, perhaps out of memory", cure=cure)
    if process.returncode != 0 or event.get("event") != ("prepared" if folder else "listed"):
        problem, fact, cure = parts_of(refusal[-1000:])
        raise BivouacError(f"preparing the data failed: {problem}", seen=fact, cure=cure)
    return event


def _left(seconds: float | None) -> str:
    return f", {timedelta(seconds=round(seconds))} left" if seconds else ""


def _end_with_parent() -> None:
    """Let the kernel kill the child when its parent dies: two preparations must not write into one folder."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _event(line: str) -> dict[str, Any] | None:
    try:
        return dict(json.loads(line)) if line.startswith("{") else None
    except ValueError:
        return None


def parts_of(words: str) -> tuple[str, str | None, str]:
    """Split the trainer's message into what, seen and cure."""
    problem, _, tail = words.partition("; seen: ")
    fact, _, cure = tail.partition("; cure: ")
    return problem or "no message", fact or None, cure or "correct the source or the parameters"
