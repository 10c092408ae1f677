"""Interval copies: committed checkpoints of the shared tier in S3 while training runs, and back when it has none.

`send` copies the newest sound step and reads every byte back before its manifest is written; then it keeps the newest
few. `fetch` brings the newest copy whose every byte has its digest to the shared tier. The steward runs both as Jobs.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from infra.archive.archive import FAILURES, last_word, say
from infra.archive.bucket import ArchiveBucket, ArchivedObject, Clash, Content, Unsound, concurrently, forget_versions
from infra.archive.source import Source
from infra.aws.account import Account
from infra.aws.parts import Altered
from infra.aws.transfer import Transfer
from infra.checkpoints import work
from infra.checkpoints.place import BucketPlace
from infra.errors import BivouacError, PermanentError
from infra.spec.checkpoint import KEPT_COPIES
from infra.spec.names import copies_prefix
from trainer.contract import COMMITTED_NAME, SHARED_CHECKPOINTS, ExitCode, Manifest, Shard, parse_manifest, step_folder
from trainer.contract.checkpoint import distrust
from trainer.contract.frozen import Frozen

CONFIG = "copies.json"
_AT_ONCE = 4
"""Files at once, and parts: half of what an archive takes, since the node trains."""


class CopiesConfig(Frozen):
    campaign: str
    identity: str = ""
    region: str
    archive_bucket: str
    bucket_root: str = ""
    """Folder of all that the project writes there, with a slash; empty: the bucket's top."""
    above: int = -1
    """Newest step that the record calls copied; older ones are not worth a copy, newer ones in S3 are not believed."""


class Copies:
    """One campaign's interval copies and its folder on the shared tier."""

    def __init__(self, config: CopiesConfig, bucket: ArchiveBucket, shared: Path) -> None:
        """`bucket`: its prefix is the campaign's folder of copies."""
        self.config, self.bucket, self.root = config, bucket, shared / config.campaign
        transfer = bucket.transfer or Transfer(bucket.s3, bucket.bucket)
        self.place = BucketPlace(bucket.s3, bucket.bucket, bucket.prefix, transfer)

    def send(self) -> dict[str, Any]:
        """Copy the newest sound step and return a summary; raise `PermanentError` if there is none to copy."""
        start, source = time.monotonic(), Source(self.root, self.config.identity, -1, say)
        try:
            for folder, manifest in source.sound():
                if manifest.step <= self.config.above:
                    break
                try:
                    objects = self._send_step(folder, manifest)
                except Altered as error:
                    source.refuse(folder, str(error))
                    continue
                removed_steps, locked_count = self._retain(manifest.step)
                return {
                    "step": manifest.step,
                    "place": self.bucket.place_of(step_folder(manifest.step)),
                    "objects": len(objects),
                    "bytes": sum(item.size_bytes for item in objects),
                    "seconds": round(time.monotonic() - start, 1),
                    "removed": removed_steps,
                    "locked": locked_count,
                }
        finally:
            self._abort_uploads()
        raise PermanentError(
            "no step is newer than the newest copy and sound on the shared tier",
            seen="; ".join(source.refused) or f"none after step {self.config.above}",
            cure="if it was removed while it was copied, raise checkpoint.keep_shared (workload.checkpoints.keep)",
        )

    def fetch(self) -> dict[str, Any]:
        """Bring the newest sound copy to the shared tier and return a summary; raise `PermanentError` if there is none.

        A copy that is damaged, or that the watch distrusts, is refused, and the one before it is taken.
        """
        start, refusals = time.monotonic(), list[str]()
        bans = Source(self.root, self.config.identity, -1, say).bans()
        for step in (row.step for row in self.place.rows()):
            try:
                manifest = self._check(step)
                if reason := distrust(bans, manifest):
                    raise ValueError(reason)
                work.restore(self.place, step, self.root, lambda text: say("fetching", said=text))
            except (BivouacError, ValueError) as error:
                refusals.append(f"{step_folder(step)}: {error}"[:200])
                say("refused", tier="archive", folder=step_folder(step), why=str(error)[:500])
                if not (self.root / step_folder(step) / COMMITTED_NAME).exists():
                    shutil.rmtree(self.root / step_folder(step), ignore_errors=True)
                continue
            size = sum(shard.size_bytes for shard in manifest.shards)
            seconds = round(time.monotonic() - start, 1)
            return {"step": step, "bytes": size, "seconds": seconds, "refused": refusals[:5]}
        raise PermanentError(
            "no copy in S3 is sound",
            seen="; ".join(refusals)[:1000] or f"{self.place.name} is empty",
            cure=f"look at {self.place.name}: `bivouac checkpoints verify` reads every byte",
        )

    def _check(self, step: int) -> Manifest:
        content = self.place.manifest_bytes(step)
        if content is None:
            raise ValueError("no manifest: the copy was never finished, or is being removed")
        return parse_manifest(content, step, self.config.campaign, self.config.identity)

    def _send_step(self, folder: Path, manifest: Manifest) -> list[ArchivedObject]:
        """Place and read back all shards, then the manifest. What stands in its place and is another, or damaged, is
        removed and sent anew."""
        stored_manifest = self.place.manifest_bytes(manifest.step)
        if stored_manifest not in (None, manifest.serialize()):
            self._remove(manifest.step)
        try:
            return self._place(folder, manifest, self._frozen_keys(manifest))
        except (Clash, Unsound) as error:
            say("sent anew", step=manifest.step, why=str(error)[:300])
            self._remove(manifest.step)
            return self._place(folder, manifest, {})

    def _frozen_keys(self, manifest: Manifest) -> dict[str, str]:
        """Return digest -> key of an older copy's object, for frozen weights of the step."""
        digests, keys = {shard.sha256 for shard in manifest.shards if shard.is_frozen}, dict[str, str]()
        rows = [row for row in self.place.rows() if row.committed and row.step != manifest.step] if digests else []
        for row in rows:
            with contextlib.suppress(BivouacError):  # a damaged manifest names nothing
                shards = self.place.manifest(row.step).shards
                keys |= {entry.sha256: self.place.key(row.step, entry.file) for entry in shards}
        return {digest: key for digest, key in keys.items() if digest in digests}

    def _place(self, folder: Path, manifest: Manifest, frozen_keys: dict[str, str]) -> list[ArchivedObject]:
        def place_file(name: str, content: Content) -> ArchivedObject:
            item = self.bucket.place(f"{step_folder(manifest.step)}/{name}", content)
            self.bucket.read_back(item, None)
            return item

        def place(shard: Shard) -> ArchivedObject:
            if shard.sha256 in frozen_keys:
                key = self.place.key(manifest.step, shard.file)
                self.bucket.copy_within(key, frozen_keys[shard.sha256], shard.sha256)
            return place_file(shard.file, Content(folder / shard.file, shard.size_bytes, shard.sha256))

        return [
            *concurrently(place, manifest.shards, _AT_ONCE),
            place_file(COMMITTED_NAME, Content.of(manifest.serialize())),
        ]

    def _retain(self, newest: int) -> tuple[list[int], int]:
        """Remove all steps but the newest few up to `newest`: a later one was refused, or training has gone back behind
        it. Return them, and how many of their objects a lock keeps. What cannot be removed is tried again next time."""
        locked_count, removed_steps = 0, list[int]()
        try:
            rows = self.place.rows()
            kept_steps = [row.step for row in rows if row.committed and row.step <= newest][:KEPT_COPIES]
            for step in sorted({row.step for row in rows} - {*kept_steps, newest}):
                locked_count += self._remove(step)
                removed_steps.append(step)
        except (BivouacError, ClientError, BotoCoreError) as error:
            say("not removed", why=str(error)[:300])
        return removed_steps, locked_count

    def _remove(self, step: int) -> int:
        self.place.remove(step)
        return forget_versions(self.bucket.s3, self.bucket.bucket, self.place.key(step, ""))

    def _abort_uploads(self) -> None:
        with contextlib.suppress(ClientError, BotoCoreError):
            self.bucket.abort_uploads()


def main(arguments: list[str]) -> int:
    config = CopiesConfig.model_validate_json((Path("/config") / CONFIG).read_text())
    try:
        s3 = Account(config.region).client("s3")
        transfer = Transfer(s3, config.archive_bucket, at_once=_AT_ONCE)
        prefix = f"{config.bucket_root}{copies_prefix(config.campaign, config.identity)}"
        bucket = ArchiveBucket(s3, config.archive_bucket, prefix, say, transfer=transfer)
        copies = Copies(config, bucket, Path(SHARED_CHECKPOINTS))
        acts: dict[str, Callable[[], dict[str, Any]]] = {"send": copies.send, "fetch": copies.fetch}
        (act,) = arguments
        summary = acts[act]()
    except FAILURES as error:
        last_word(f"{error}"[:4000])
        say("failed", error=str(error))
        return int(ExitCode.STORAGE)
    last_word(json.dumps(summary))
    say(act, **summary)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
