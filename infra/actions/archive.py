"""The archive Job: carries the golden checkpoint and the campaign's record to S3, and proves that they are there.

Proof is reading: every byte comes back from S3 into a fresh folder, digests are compared, and the model restored from
those bytes alone is evaluated; its loss must equal the recorded one exactly. The archive manifest is written last.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from boto3.exceptions import S3UploadFailedError
from botocore.exceptions import ClientError
from pydantic import BaseModel, ConfigDict

from infra.account import Account
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
    step_of_folder,
)

CONFIG_PATH = "/config/archive.json"
MANIFEST_NAME = "archive-manifest.json"
_CHUNK = 1 << 20


class ArchiveConfig(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    campaign: str
    region: str
    state_bucket: str
    archive_bucket: str
    image_manifest: str
    """Key in the state bucket."""


class ArchivedObject(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    key: str
    size_bytes: int
    sha256: str


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


class Archiver:
    def __init__(self, config: ArchiveConfig, account: Account, work: Path) -> None:
        self.config, self.work = config, work
        self.s3 = account.client("s3")
        self.state = CampaignStore(self.s3, config.state_bucket, config.campaign, "archive")
        self.prefix = f"campaigns/{config.campaign}"
        self.refused: list[str] = []

    def run(self) -> ArchiveManifest:
        published = self._published()
        if published is not None:
            self._read_back(list(published.objects))
            return published
        folder, golden = self._golden()
        say("golden", step=golden.step, shards=len(golden.shards))
        objects = [self._upload(key, path) for key, path in self._files(folder, golden)]
        objects += [self._copy(key, body) for key, body in self._records()]
        self._read_back(objects)
        restored = self.work / f"golden/step-{golden.step:08d}"
        loss = evaluate(restored)
        if golden.evaluation_loss is not None and loss != golden.evaluation_loss:
            raise PermanentError(
                "the restored model does not evaluate as the recorded one",
                seen=f"{loss!r} restored, {golden.evaluation_loss!r} recorded at step {golden.step}",
                cure="keep the cluster: compare the checkpoint's config and the image's versions",
            )
        manifest = ArchiveManifest(
            campaign=self.config.campaign,
            step=golden.step,
            tokens=golden.tokens,
            recorded_evaluation_loss=golden.evaluation_loss,
            restored_evaluation_loss=loss,
            objects=tuple(objects),
            refused=tuple(self.refused),
        )
        self._publish(manifest)
        return manifest

    def _golden(self) -> tuple[Path, Manifest]:
        """The newest checkpoint on the shared tier whose every shard has its recorded digest."""
        tier = Path(SHARED_CHECKPOINTS) / self.config.campaign
        steps = sorted((p for p in tier.glob("step-*") if step_of_folder(p.name) is not None), reverse=True)
        for folder in steps:
            try:
                manifest = Manifest.model_validate_json((folder / COMMITTED_NAME).read_bytes())
            except (OSError, ValueError) as error:
                self.refused.append(f"{folder.name}: {error}"[:200])
                continue
            wrong = next((s.file for s in manifest.shards if sha256_of(folder / s.file) != s.sha256), None)
            if wrong is None:
                return folder, manifest
            self.refused.append(f"{folder.name}: {wrong} does not have its digest")
            say("refused", tier="shared", folder=folder.name, file=wrong)
        raise PermanentError(
            "no sound checkpoint is on the shared tier",
            seen="; ".join(self.refused) or "none at all",
            cure="nothing can be archived; see the trainer's logs",
        )

    def _files(self, folder: Path, golden: Manifest) -> Iterator[tuple[str, Path]]:
        for name in [*dict.fromkeys(shard.file for shard in golden.shards), COMMITTED_NAME]:
            yield f"golden/{folder.name}/{name}", folder / name
        yield "train.json", Path(CONFIG_FILE)
        for name in ("manifest.json", "tokenizer.json"):
            yield f"data/{name}", Path(DATA_MOUNT) / name

    def _records(self) -> Iterator[tuple[str, bytes]]:
        """Spec, plan, events and logs as they stand in the state bucket now, and the image manifest."""
        for key in [*self.state.keys(""), self.config.image_manifest]:
            body = self.state.get(key)
            if body is not None and "/leases/" not in key and "/bake/" not in key:
                yield f"record/{key.removeprefix(f'{self.prefix}/')}", body

    def _upload(self, name: str, path: Path) -> ArchivedObject:
        key = f"{self.prefix}/{name}"
        digest, size = sha256_of(path), path.stat().st_size
        self.s3.upload_file(str(path), self.config.archive_bucket, key)
        say("uploaded", key=key, bytes=size)
        return ArchivedObject(key=key, size_bytes=size, sha256=digest)

    def _copy(self, name: str, body: bytes) -> ArchivedObject:
        key = f"{self.prefix}/{name}"
        self.s3.put_object(Bucket=self.config.archive_bucket, Key=key, Body=body)
        return ArchivedObject(key=key, size_bytes=len(body), sha256=hashlib.sha256(body).hexdigest())

    def _published(self) -> ArchiveManifest | None:
        """The manifest of an earlier try that got to its end: its objects are read back, none is sent again."""
        archive = CampaignStore(self.s3, self.config.archive_bucket, self.config.campaign, "archive")
        found = archive.get_json(MANIFEST_NAME)
        return None if found is None else ArchiveManifest.model_validate(found)

    def _read_back(self, objects: list[ArchivedObject]) -> None:
        """Download every object into the work folder and compare its digest."""
        for item in objects:
            target = self.work / item.key.removeprefix(f"{self.prefix}/")
            target.parent.mkdir(parents=True, exist_ok=True)
            digest, size = hashlib.sha256(), 0
            body = self.s3.get_object(Bucket=self.config.archive_bucket, Key=item.key)["Body"]
            with target.open("wb") as file:
                for chunk in body.iter_chunks(_CHUNK):
                    digest.update(chunk)
                    size += file.write(chunk)
            if digest.hexdigest() != item.sha256 or size != item.size_bytes:
                raise PermanentError(
                    "an archived object differs from what was sent",
                    seen=item.key,
                    cure="the Job tries again; the cluster stays until it succeeds",
                )
        say("read-back", objects=len(objects), bytes=sum(item.size_bytes for item in objects))

    def _publish(self, manifest: ArchiveManifest) -> None:
        """Last of all; when an earlier try got this far, its manifest stays."""
        key = f"{self.prefix}/{MANIFEST_NAME}"
        try:
            self.s3.put_object(
                Bucket=self.config.archive_bucket,
                Key=key,
                Body=manifest.model_dump_json(indent=1).encode(),
                IfNoneMatch="*",
            )
        except ClientError as error:
            if error.response["ResponseMetadata"]["HTTPStatusCode"] != 412:
                raise


def evaluate(checkpoint: Path) -> float:
    """Held-out loss of a checkpoint folder, by the trainer's own evaluation in a process of its own."""
    command = [
        sys.executable,
        "-m",
        "trainer.evaluate",
        "--checkpoint",
        str(checkpoint),
        "--config",
        CONFIG_FILE,
        "--data",
        DATA_MOUNT,
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise PermanentError("the restored model could not be evaluated", seen=done.stderr[-500:], cure="see above")
    return float(json.loads(done.stdout.strip().splitlines()[-1])["evaluation_loss"])


def sha256_of(path: Path) -> str | None:
    """Digest of a file, None when it cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None


def say(event: str, **fields: Any) -> None:
    print(json.dumps({"event": event, **fields, "time": round(time.time(), 3)}), flush=True)


def main() -> int:
    config = ArchiveConfig.model_validate_json(Path(CONFIG_PATH).read_text())
    try:
        # The node's NVMe: a root volume need not hold a checkpoint.
        with tempfile.TemporaryDirectory(dir=LOCAL_CHECKPOINTS) as work:
            manifest = Archiver(config, Account(config.region), Path(work)).run()
    except (BivouacError, OSError, ClientError, S3UploadFailedError) as error:
        Path(TERMINATION_LOG).write_text(str(error)[:4000])
        say("failed", error=str(error))
        return int(ExitCode.STORAGE)
    summary = {
        "manifest": f"s3://{config.archive_bucket}/campaigns/{config.campaign}/{MANIFEST_NAME}",
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


if __name__ == "__main__":
    sys.exit(main())
