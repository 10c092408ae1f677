"""The archive Job: carries the golden checkpoint and the campaign's record to S3, and proves that they are there.

Proof is reading: every byte comes back from S3 into a fresh folder, digests are compared, and the model restored from
those bytes alone is evaluated; its loss must equal the recorded one exactly. The archive manifest is written last.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from boto3.exceptions import S3UploadFailedError
from botocore.exceptions import BotoCoreError, ClientError
from pydantic import BaseModel, ConfigDict

from infra.account import Account
from infra.actions.archive_bucket import ArchiveBucket, ArchivedObject, Content, Unsound
from infra.actions.archive_files import plain_bytes, sha256_of, workspace
from infra.errors import BivouacError, PermanentError
from infra.store import CampaignStore
from trainer.contract import (
    COMMITTED_NAME,
    CONFIG_FILE,
    DATA_MOUNT,
    LOCAL_CHECKPOINTS,
    SHARED_CHECKPOINTS,
    TERMINATION_LOG,
    ExitCode,
    Manifest,
    parse_manifest,
    step_of_folder,
)

CONFIG_PATH = "/config/archive.json"
MANIFEST_NAME = "archive-manifest.json"
_MIB = 2**20
_AT_ONCE = 8
Evaluate = Callable[[Path], float]
"""Held-out loss of a checkpoint folder."""
FAILURES = (BivouacError, OSError, ValueError, ClientError, BotoCoreError, S3UploadFailedError, Unsound)
"""How an archive fails; the Job tries again, or a person reads it."""


class ArchiveConfig(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    campaign: str
    region: str
    state_bucket: str
    archive_bucket: str
    image_manifest: str
    """Key in the state bucket."""


class ArchiveManifest(BaseModel):
    """What lies in the archive and how it was proven."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    campaign: str
    step: int
    tokens: int
    recorded_evaluation_loss: float | None
    restored_evaluation_loss: float
    """Of the model restored from the bytes that were read back."""
    objects: tuple[ArchivedObject, ...]
    refused: tuple[str, ...]
    """Newer checkpoints that were not sound, each with its reason."""


@dataclass(frozen=True)
class Places:
    """Where the Job finds things; a pod uses the contract's mounts."""

    shared: Path = Path(SHARED_CHECKPOINTS)
    config: Path = Path(CONFIG_FILE)
    data: Path = Path(DATA_MOUNT)


class SourceLost(Exception):
    """A checkpoint changed, or went, while it was being carried."""


class Archiver:
    """Carries one campaign; killed anywhere and run again, or run twice at once, it ends in one manifest."""

    def __init__(
        self, config: ArchiveConfig, bucket: ArchiveBucket, work: Path, places: Places, evaluate: Evaluate
    ) -> None:
        self.config, self.bucket, self.work, self.places, self.evaluate = config, bucket, work, places, evaluate
        self.state = CampaignStore(bucket.s3, config.state_bucket, config.campaign, "archive")
        self.refused: list[str] = []

    def run(self) -> ArchiveManifest:
        """Raises `PermanentError` when nothing sound can be archived, or S3's own errors in the end."""
        try:
            published = self._published()
            if published is not None:
                self._confirm(published)
                return published
            for folder, golden in self._sound():
                try:
                    return self._publish(self._carry(folder, golden))
                except SourceLost as error:
                    self._refuse(folder, str(error))
            raise PermanentError(
                "no sound checkpoint is on the shared tier",
                seen="; ".join(self.refused) or "none at all",
                cure="nothing can be archived; see the trainer's logs",
            )
        finally:
            self._abort_uploads()

    def _carry(self, folder: Path, golden: Manifest) -> ArchiveManifest:
        say("golden", step=golden.step, shards=len(golden.shards))
        files = {name: content for name, content in self._files(folder, golden)}
        self._check_room(golden)
        placed = [self._place(name, content, folder) for name, content in files.items()]
        # Small and many: most of their time is waiting for answers.
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            placed += pool.map(lambda item: self._place(item[0], item[1], folder), self._records().items())
        say("read-back", objects=len(placed), bytes=sum(item.size_bytes for item in placed))
        loss = self.evaluate(self.work / "golden" / folder.name)
        if golden.evaluation_loss is not None and loss != golden.evaluation_loss:
            raise PermanentError(
                "the restored model does not evaluate as the recorded one",
                seen=f"{loss!r} restored, {golden.evaluation_loss!r} recorded at step {golden.step}",
                cure="keep the cluster: compare the checkpoint's config and the image's versions",
            )
        return ArchiveManifest(
            campaign=self.config.campaign,
            step=golden.step,
            tokens=golden.tokens,
            recorded_evaluation_loss=golden.evaluation_loss,
            restored_evaluation_loss=loss,
            objects=tuple(placed),
            refused=tuple(self.refused),
        )

    def _sound(self) -> Iterator[tuple[Path, Manifest]]:
        """Checkpoints on the shared tier whose every shard has its recorded digest, newest first."""
        tier = self.places.shared / self.config.campaign
        steps = {step: path for path in tier.glob("step-*") if (step := step_of_folder(path.name)) is not None}
        for step, folder in sorted(steps.items(), reverse=True):
            try:
                manifest = parse_manifest(plain_bytes(folder / COMMITTED_NAME), step, self.config.campaign)
            except FileNotFoundError:
                # Never committed: no checkpoint.
                continue
            except (OSError, ValueError) as error:
                self._refuse(folder, f"{COMMITTED_NAME}: {error}")
                continue
            wrong = next((s.file for s in manifest.shards if sha256_of(folder / s.file) != s.sha256), None)
            if wrong is None and manifest.shards:
                yield folder, manifest
            else:
                self._refuse(folder, f"{wrong} does not have its digest" if wrong else "it names no shards")

    def _refuse(self, folder: Path, why: str) -> None:
        self.refused.append(f"{folder.name}: {why}"[:200])
        say("refused", tier="shared", folder=folder.name, why=why[:500])

    def _files(self, folder: Path, golden: Manifest) -> Iterator[tuple[str, Content]]:
        """Shards as the manifest names them: what the file holds by now does not change what is to be archived."""
        for shard in golden.shards:
            yield f"golden/{folder.name}/{shard.file}", Content(folder / shard.file, shard.size_bytes, shard.sha256)
        yield f"golden/{folder.name}/{COMMITTED_NAME}", Content.of(golden.serialize())
        yield "train.json", Content.of(self.places.config.read_bytes())
        for name in ("manifest.json", "tokenizer.json"):
            yield f"data/{name}", Content.of((self.places.data / name).read_bytes())

    def _records(self) -> dict[str, Content]:
        """Spec, plan, events and logs as they stand in the state bucket now, and the image manifest."""
        found = {}
        for key in [*self.bucket.patiently(lambda: self.state.keys("")), self.config.image_manifest]:
            if "/leases/" in key or "/bake/" in key:
                continue
            body = self.bucket.patiently(partial(self.state.get, key))
            if body is not None:
                found[f"record/{key.removeprefix(f'{self.state.prefix}/')}"] = Content.of(body)
        if "record/spec.json" not in found:
            seen = f"{len(found)} objects, no spec.json, in {self.config.state_bucket}"
            raise PermanentError("the campaign's record cannot be found", seen=seen, cure="check the state bucket")
        return found

    def _place(self, name: str, content: Content, folder: Path) -> ArchivedObject:
        """Send what is not there yet, and read it back; a claim that proves wrong is sent once more."""
        # Only the checkpoint is needed again, for the evaluation.
        target = self.work / name if name.startswith("golden/") else None
        if target is not None:
            target.parent.mkdir(parents=True, exist_ok=True)
        try:
            item = self.bucket.place(name, content)
            try:
                self.bucket.read_back(item, target)
            except Unsound as error:
                say("unsound", key=item.key, why=str(error))
                item = self.bucket.place(name, content, anew=True)
                self.bucket.read_back(item, target)
            return item
        except Exception as error:
            source = content.source
            if isinstance(source, Path) and sha256_of(source) != content.sha256:
                raise SourceLost(f"{source.relative_to(folder)} changed or went while it was carried") from error
            raise

    def _published(self) -> ArchiveManifest | None:
        """The manifest of an earlier try that got to its end: its objects are read back, none is sent again."""
        body = self.bucket.get(MANIFEST_NAME)
        return None if body is None else self._parse(body)

    def _confirm(self, published: ArchiveManifest) -> None:
        for item in published.objects:
            self.bucket.read_back(item, None)
        say("read-back", objects=len(published.objects), bytes=sum(item.size_bytes for item in published.objects))

    def _publish(self, manifest: ArchiveManifest) -> ArchiveManifest:
        """Last of all; when another archiver was first, its manifest is the campaign's."""
        there = self._parse(self.bucket.publish(MANIFEST_NAME, manifest.model_dump_json(indent=1).encode()))
        if there != manifest:
            say("another archiver was first", step=there.step)
            self._confirm(there)
        return there

    def _parse(self, body: bytes) -> ArchiveManifest:
        try:
            manifest = ArchiveManifest.model_validate_json(body)
        except ValueError as error:
            seen = f"{MANIFEST_NAME}: {str(error).splitlines()[0]}"
            cure = "look at it, move it away, and run the archive again: the shared tier still holds the checkpoint"
            raise PermanentError("the archive manifest is damaged", seen=seen, cure=cure) from error
        if manifest.campaign != self.config.campaign:
            raise PermanentError(
                "the archive manifest is of another campaign", seen=manifest.campaign, cure="look at it"
            )
        return manifest

    def _check_room(self, golden: Manifest) -> None:
        needed, free = sum(shard.size_bytes for shard in golden.shards), shutil.disk_usage(self.work).free
        if needed > free:
            seen = f"{self.work}: {needed / _MIB:.1f} MiB needed, {free / _MIB:.1f} MiB free"
            cure = "make room on the node's local disk; the shared tier still holds the checkpoint"
            raise PermanentError(
                "the checkpoint that is read back does not fit on the local disk", seen=seen, cure=cure
            )

    def _abort_uploads(self) -> None:
        """Also those of a try that was killed; the bucket's own rule would bill them for a week."""
        try:
            if count := self.bucket.abort_uploads():
                say("aborted", uploads=count)
        except (ClientError, BotoCoreError) as error:
            say("uploads not aborted", why=str(error)[:300])


def evaluate(checkpoint: Path) -> float:
    """Held-out loss of a checkpoint folder, by the trainer's own evaluation in a process of its own."""
    command = [sys.executable, "-m", "trainer.evaluate", "--checkpoint", str(checkpoint)]
    command += ["--config", CONFIG_FILE, "--data", DATA_MOUNT]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise PermanentError("the restored model could not be evaluated", seen=done.stderr[-500:], cure="see above")
    return float(json.loads(done.stdout.strip().splitlines()[-1])["evaluation_loss"])


def say(event: str, **fields: Any) -> None:
    sys.stdout.write(json.dumps({"event": event, **fields, "time": round(time.time(), 3)}) + "\n")
    sys.stdout.flush()


def main() -> int:
    config = ArchiveConfig.model_validate_json(Path(CONFIG_PATH).read_text())
    try:
        s3 = Account(config.region).client("s3")
        bucket = ArchiveBucket(s3, config.archive_bucket, f"campaigns/{config.campaign}", say)
        # The node's NVMe: a root volume need not hold a checkpoint.
        with workspace(Path(LOCAL_CHECKPOINTS)) as work:
            manifest = Archiver(config, bucket, work, Places(), evaluate).run()
    except FAILURES as error:
        _last_word(f"{error}"[:4000])
        say("failed", error=str(error))
        return int(ExitCode.STORAGE)
    summary = {
        "manifest": f"s3://{config.archive_bucket}/{bucket.prefix}/{MANIFEST_NAME}",
        "step": manifest.step,
        "recorded_evaluation_loss": manifest.recorded_evaluation_loss,
        "restored_evaluation_loss": manifest.restored_evaluation_loss,
        "objects": len(manifest.objects),
        "bytes": sum(item.size_bytes for item in manifest.objects),
        "refused": list(manifest.refused)[:5],
    }
    Path(TERMINATION_LOG).write_text(json.dumps(summary))
    say("archived", **summary)
    return 0


def _last_word(text: str) -> None:
    """The exit code matters more than the message."""
    with contextlib.suppress(OSError):
        Path(TERMINATION_LOG).write_text(text)


if __name__ == "__main__":
    sys.exit(main())
