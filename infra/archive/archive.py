"""The archive Job: it copies the golden checkpoint and the campaign's record to S3 and proves that they are there.

The proof is a read: every byte comes back from S3 into a new folder, digests are compared, and the model restored from
those bytes is evaluated. Its loss must equal the recorded one exactly, or, if training stopped between two evaluations
or shared sequences among ranks, the loss of the shared tier's copy before the upload; or come as near as the spec says,
and then the proof is another. The same bytes give the exported model. The archive manifest is written last.

What else the job left, and no format recognises, is copied as it is, and never called a checkpoint.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from infra.archive import judged
from infra.archive.bucket import ArchiveBucket, ArchivedObject, Clash, Content, Unsound, concurrently, forget_copies
from infra.archive.files import workspace
from infra.archive.from_s3 import places_of, source_of
from infra.archive.judged import Unproven
from infra.archive.manifest import (
    DATA,
    EXPORT,
    GOLDEN,
    JOB_EXPORT,
    MANIFEST_NAME,
    RECORD,
    SOURCE,
    ArchiveManifest,
    EvaluationProof,
    parse,
)
from infra.archive.model import model_on
from infra.archive.model_card import job_card, model_card
from infra.archive.settings import ArchiveConfig, Model, Places
from infra.archive.surroundings import Leftovers, OnlyCopied, held_out, records_of
from infra.aws.account import Account
from infra.aws.parts import Altered
from infra.errors import BivouacError, PermanentError
from infra.plain_files import plain_bytes, sha256_of
from infra.record.identity import archive_prefix
from infra.record.store import CampaignStore
from infra.spec.names import ARCHIVE_WORK, copies_prefix
from trainer.contract import (
    COMMITTED_NAME,
    DATA_MANIFEST_NAME,
    ExitCode,
    Manifest,
    step_folder,
)
from trainer.contract.exits import TERMINATION_LOG
from trainer.contract.workload import WORKLOAD_CONFIG, Judgement, WorkloadConfig

CONFIG_PATH = "/config/archive.json"
CARD, JOB_CARD = f"{EXPORT}/README.md", "README.md"
_MIB = 2**20
_AT_ONCE = 8
FAILURES = (BivouacError, OSError, ValueError, ClientError, BotoCoreError, Altered, Unsound, Clash)
"""Errors that end a try; the Job tries again, or a person reads the message."""


class SourceLost(Exception):
    """A checkpoint changed or vanished during its upload."""


class Archiver:
    """Archives one campaign. If it is killed and run again, or runs twice at once, the result is one manifest."""

    def __init__(self, config: ArchiveConfig, bucket: ArchiveBucket, work: Path, places: Places, model: Model) -> None:
        self.config, self.bucket, self.work, self.places, self.model = config, bucket, work, places, model
        folder = f"{config.bucket_root}campaigns/{config.campaign}"
        self.state = CampaignStore(bucket.s3, config.state_bucket, config.campaign, "archive", folder)
        self.source = source_of(config, bucket.s3, places, work, say)
        self.leftovers = Leftovers(config, bucket, places, self.source)
        self.copied: dict[str, Any] = {}
        """The data of `archive.unproven`; empty if there was nothing to copy as it is."""

    def run(self) -> ArchiveManifest:
        """Archive; raise `PermanentError` if nothing sound can be archived, or S3's errors after the last try.

        Raises `OnlyCopied` if no checkpoint was ever committed and what the job left is safe as it is; `Unproven` if
        the checkpoint is archived and something that belongs to it is not.
        """
        manifest = self._earlier_manifest()
        if manifest is not None:
            self.source.refuse_stale(manifest, self.bucket.place_of(MANIFEST_NAME))
            self._confirm(manifest)
        for folder, golden in self.source.sound() if manifest is None else ():
            try:
                manifest = self._carry(folder, golden)
                manifest = self._publish(manifest.model_copy(update={"unproven": self.leftovers.manifest_key()}))
                break
            except SourceLost as error:
                self.source.refuse(folder, str(error))
                # The copy that was read back takes the room that the next checkpoint needs.
                shutil.rmtree(self.work / GOLDEN, ignore_errors=True)
            except Unproven as unproven:
                copy = self.leftovers.copy_beside(unproven.summary["step"])
                unproven.summary |= {"copied": copy} if copy else {}
                raise
        if manifest is None:
            self.leftovers.end()
        self.copied = self.leftovers.copy_beside(manifest.step)
        # Only now: a later try continues parts that a killed or failed try has sent.
        self._abort_uploads()
        return manifest

    def _carry(self, folder: Path, golden: Manifest) -> ArchiveManifest:
        say("golden", step=golden.step, shards=len(golden.shards))
        self._check_room(golden)
        if self.config.workload:
            return self._carried_as_it_is(folder, golden)
        reference, proof = golden.evaluation_loss, EvaluationProof.RECORDED
        if reference is None or golden.layout.splits:  # ranks that share a sequence sum in another order
            reference, proof = self._evaluated_here(folder, golden), EvaluationProof.EVALUATED
        objects = self._place_all(self._checkpoint(folder, golden) | self._surroundings())
        restoration = self.work / GOLDEN / folder.name
        export = self.work / EXPORT
        shutil.rmtree(export, ignore_errors=True)
        loss = self.model.evaluate(restoration, export)
        proof = judged.proof_by(loss, reference, proof, self.config.tolerance)
        tolerance = self.config.tolerance if loss != reference else None
        say("evaluated", step=golden.step, loss=loss, reference=reference, proof=proof, tolerance=tolerance)
        records = records_of(self.bucket, self.state, self.config.image_manifest, self.work)
        objects += self._place_all(self._exported(export, golden, loss, records))
        objects += self._place_all(records)
        return self._manifest(golden, objects, proof, reference, loss).model_copy(update={"tolerance": tolerance})

    def _carried_as_it_is(self, folder: Path, golden: Manifest) -> ArchiveManifest:
        """Archive a workload's checkpoint, code and record. Every byte is read back from S3 and compared.

        Raises `Unproven` after that if its own evaluation or export is missing or bad.
        """
        config_bytes = self.places.config.with_name(WORKLOAD_CONFIG).read_bytes()
        job, files = WorkloadConfig.model_validate_json(config_bytes), {WORKLOAD_CONFIG: Content.of(config_bytes)}
        if job.source:
            files[f"{SOURCE}/source.tar"] = Content.of_file(self.places.data / Path(job.source).name)
        if job.requirements:
            files[f"{SOURCE}/requirements.tar"] = Content.of_file(self.places.data / Path(job.requirements).name)
        objects = self._place_all(self._checkpoint(folder, golden) | files)
        verdict = judged.read(self.source.root, golden.step, self.config.judgement, self.config.unjudged)
        # Another try's export may differ, and nothing in the archive is overwritten: each has a folder of its own.
        place = f"{JOB_EXPORT}/{self.config.judgement[:12]}" if verdict is not None and verdict.files else ""
        export_objects, reason = self._job_export(verdict, place)
        records = records_of(self.bucket, self.state, self.config.image_manifest, self.work)
        facts: dict[str, Any] = {}
        if verdict is not None and not reason:
            tolerance = job.judging.tolerance if job.judging and verdict.exported is not None else None
            facts = {"metrics": verdict.metrics, "export_metrics": verdict.exported, "tolerance": tolerance}
            facts["export"] = place
            texts = {name: content.source for name, content in records.items() if isinstance(content.source, bytes)}
            records[JOB_CARD] = Content.of(job_card(golden, texts, **facts).encode())
        objects += export_objects + self._place_all(records)
        if reason:
            raise Unproven(reason, golden.step, objects)
        return self._manifest(golden, objects, judged.proof_of(verdict)).model_copy(update=facts)

    def _job_export(self, judgement: Judgement | None, place: str) -> tuple[list[ArchivedObject], str]:
        """Archive what the job has exported. Return its objects, and why the job's judgement proves nothing."""
        if judgement is None or judgement.why:
            return [], judgement.why if judgement is not None else ""
        try:
            contents = judged.export_contents(self.source.root, judgement)
            return self._place_all({f"{place}/{name}": content for name, content in contents.items()}), ""
        except PermanentError as error:
            return [], f"the export is not archived: {error}"

    def _manifest(
        self, golden: Manifest, archived_objects: list[ArchivedObject], proof: EvaluationProof, *losses: float
    ) -> ArchiveManifest:
        """Return the manifest. `losses`: the one to be equalled, and that of what was read back; none of a workload."""
        reference, loss = losses or (None, None)
        say("read-back", objects=len(archived_objects), bytes=sum(item.size_bytes for item in archived_objects))
        return ArchiveManifest(
            campaign=self.config.campaign,
            identity=self.config.identity,
            step=golden.step,
            tokens=golden.tokens,
            proof=proof,
            recorded_evaluation_loss=golden.evaluation_loss,
            reference_evaluation_loss=reference,
            restored_evaluation_loss=loss,
            objects=tuple(archived_objects),
            refused=tuple(row for row in self.source.refused if not row.startswith(f"{step_folder(golden.step)}:")),
        )

    def _evaluated_here(self, folder: Path, golden: Manifest) -> float:
        """Return the loss of a step that training did not evaluate, measured on the shared tier before the upload."""
        try:
            loss = self.model.evaluate(folder, None)
        except PermanentError as error:
            if wrong := _damaged_file(folder, golden):
                raise SourceLost(f"{wrong} does not have its digest") from error
            raise
        say("evaluated before upload", step=golden.step, loss=loss)
        return loss

    def _checkpoint(self, folder: Path, golden: Manifest) -> dict[str, Content]:
        """Return the shards with the manifest's digests, even if the files have changed since."""
        files = {shard.file: Content(folder / shard.file, shard.size_bytes, shard.sha256) for shard in golden.shards}
        files[COMMITTED_NAME] = Content.of(golden.serialize())
        return {f"{GOLDEN}/{folder.name}/{name}": content for name, content in files.items()}

    def _surroundings(self) -> dict[str, Content]:
        """Return the other inputs of an evaluation: configuration, tokenizer, held-out split."""
        contents = {"train.json": Content.of(self.places.config.read_bytes())}
        return contents | {f"{DATA}/{name}": content for name, content in held_out(self.places.data).items()}

    def _exported(self, target: Path, golden: Manifest, loss: float, records: dict[str, Content]) -> dict[str, Content]:
        """Return the model that was exported from the bytes that were read back, with its card."""
        data = json.loads(plain_bytes(self.places.data / DATA_MANIFEST_NAME))
        texts = {name: content.source for name, content in records.items() if isinstance(content.source, bytes)}
        (target / CARD.rpartition("/")[2]).write_text(model_card(golden, loss, data, texts))
        files = (path for path in sorted(target.rglob("*")) if path.is_file())
        contents = {path.relative_to(target).as_posix(): Content.of_file(path) for path in files}
        say("exported", files=len(contents), bytes=sum(content.size_bytes for content in contents.values()))
        return {f"{EXPORT}/{name}": content for name, content in contents.items()}

    def _place_all(self, contents: dict[str, Content]) -> list[ArchivedObject]:
        """Place objects concurrently: large files share the transfer's memory limit, small ones mostly wait for S3."""
        objects = concurrently(lambda item: self._place(*item), contents.items(), _AT_ONCE)
        return sorted(objects, key=lambda item: item.key)

    def _place(self, name: str, content: Content) -> ArchivedObject:
        """Upload what is missing, and read it back. An existing object is never replaced, even if it proves wrong.

        Record and model card may change between two tries; the first try's versions are kept.
        """
        # Only the checkpoint is needed on disk, for the evaluation.
        target = self.work / name if name.startswith(f"{GOLDEN}/") else None
        if target is not None:
            target.parent.mkdir(parents=True, exist_ok=True)
        try:
            item = self.bucket.place(
                name, content, first_stays=name.startswith(f"{RECORD}/") or name in (CARD, JOB_CARD)
            )
            self.bucket.read_back(item, target)
            return item
        except (Clash, Unsound) as error:
            raise PermanentError(
                "the archive has another object in the place of this campaign's file",
                seen=str(error),
                cure="nothing in the archive is overwritten: look at it, move it away, and run the archive again; the "
                "shared tier still holds the checkpoint",
            ) from error
        except Altered as error:
            if target is not None:
                raise SourceLost(str(error)) from error
            raise PermanentError("a file changed or went while it was archived", seen=f"{name}: {error}") from error

    def _earlier_manifest(self) -> ArchiveManifest | None:
        """Return the manifest of an earlier complete try; its objects are read back and not sent again."""
        body = self.bucket.get(MANIFEST_NAME)
        return None if body is None else parse(body, self.config.campaign, self.config.identity)

    def _confirm(self, manifest: ArchiveManifest) -> None:
        for item in manifest.objects:
            self.bucket.read_back(item, None)
        say("read-back", objects=len(manifest.objects), bytes=sum(item.size_bytes for item in manifest.objects))

    def _publish(self, manifest: ArchiveManifest) -> ArchiveManifest:
        """Write the manifest, last of all; if another archiver was first, its manifest is the campaign's."""
        body = self.bucket.publish(MANIFEST_NAME, manifest.model_dump_json(indent=1).encode())
        winner = parse(body, self.config.campaign, self.config.identity)
        if winner != manifest:
            say("another archiver was first", step=winner.step)
            self.source.refuse_stale(winner, self.bucket.place_of(MANIFEST_NAME))
            self._confirm(winner)
        return winner

    def _check_room(self, golden: Manifest) -> None:
        # The checkpoint once as it is read back, and its weights again for the export.
        weights = [shard for shard in golden.shards if "model_states" in shard.file or shard.is_frozen]
        needed_bytes = sum(shard.size_bytes for shard in (*golden.shards, *weights))
        free = shutil.disk_usage(self.work).free
        if needed_bytes > free:
            room = f"{self.work}: {needed_bytes / _MIB:.1f} MiB needed, {free / _MIB:.1f} MiB free"
            cure = "make room on the node's local disk; the shared tier still holds the checkpoint"
            raise PermanentError("the local disk has no room to read the checkpoint back", seen=room, cure=cure)

    def _abort_uploads(self) -> None:
        """Abort incomplete uploads, also of killed tries; the bucket's lifecycle rule would bill them for a week."""
        try:
            if count := self.bucket.abort_uploads():
                say("aborted", uploads=count)
        except (ClientError, BotoCoreError) as error:
            say("uploads not aborted", why=str(error)[:300])


def _damaged_file(folder: Path, golden: Manifest) -> str | None:
    return next((shard.file for shard in golden.shards if sha256_of(folder / shard.file) != shard.sha256), None)


def say(event: str, **fields: Any) -> None:
    sys.stdout.write(json.dumps({"event": event, **fields, "time": round(time.time(), 3)}) + "\n")
    sys.stdout.flush()


def main() -> int:
    config = ArchiveConfig.model_validate_json(Path(CONFIG_PATH).read_text())
    try:
        s3 = Account(config.region).client("s3")
        prefix = f"{config.bucket_root}{archive_prefix(config.campaign, config.identity)}"
        bucket = ArchiveBucket(s3, config.archive_bucket, prefix, say)
        # On the node's NVMe, since a root volume may be too small for a checkpoint.
        with workspace(Path(ARCHIVE_WORK)) as work:
            places = places_of(config, s3, work, say)
            archiver = Archiver(config, bucket, work, places, model_on(places.data))
            manifest = archiver.run()
    except (Unproven, OnlyCopied) as unproven:
        last_word(json.dumps(unproven.summary))
        say("unproven", **unproven.summary)
        return 0  # another try of this program would see the same
    except FAILURES as error:
        last_word(f"{error}"[:4000])
        say("failed", error=str(error))
        return int(ExitCode.STORAGE)
    copies = f"{config.bucket_root}{copies_prefix(config.campaign, config.identity)}"
    summary = {
        "copies_left": forget_copies(s3, config.archive_bucket, copies, say, manifest.step),
        "manifest": f"s3://{config.archive_bucket}/{bucket.prefix}/{MANIFEST_NAME}",
        **manifest.summary(),
    }
    summary |= {"copied": archiver.copied} if archiver.copied else {}
    Path(TERMINATION_LOG).write_text(json.dumps(summary))
    say("archived", **summary)
    return 0


def last_word(text: str) -> None:
    """Write the pod's termination message, if possible; the exit code matters more."""
    with contextlib.suppress(OSError):
        Path(TERMINATION_LOG).write_text(text)


if __name__ == "__main__":
    sys.exit(main())
