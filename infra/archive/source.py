"""The checkpoints on the shared tier for the archiver: sound ones, and refused ones with reasons."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from infra.archive.manifest import ArchiveManifest
from infra.errors import PermanentError
from infra.plain_files import has_size, plain_bytes
from trainer.contract import COMMITTED_NAME, Manifest, parse_manifest, step_folder, step_of_folder
from trainer.contract.checkpoint import BANS, Ban, distrust, parse_bans
from trainer.contract.exits import limit_of


class Source:
    """One campaign's folder on the shared tier."""

    def __init__(self, root: Path, identity: str, committed_step: int, say: Callable[..., None]) -> None:
        """`root` has the campaign's name; `committed_step` is the newest in the record, -1 for none."""
        self.root, self.identity, self.committed_step, self._say = root, identity, committed_step, say
        self.refused: list[str] = []

    def steps(self) -> list[int]:
        """Return the steps with a manifest."""
        paths = self.root.glob(f"step-*/{COMMITTED_NAME}")
        return [step for path in paths if (step := step_of_folder(path.parent.name)) is not None]

    def sound(self) -> Iterator[tuple[Path, Manifest]]:
        """Yield committed checkpoints, newest first; their digests are compared later, during the upload. Raises
        `PermanentError` instead of passing over the newest step that was ever committed without a word."""
        for folder, manifest in self.candidates():
            self.refuse_lost(manifest)
            yield folder, manifest

    def candidates(self) -> Iterator[tuple[Path, Manifest]]:
        steps = {step: path for path in self.root.glob("step-*") if (step := step_of_folder(path.name)) is not None}
        bans = self.bans()
        for step, folder in sorted(steps.items(), reverse=True):
            try:
                manifest = parse_manifest(plain_bytes(folder / COMMITTED_NAME), step, self.root.name, self.identity)
            except FileNotFoundError:
                # It was never committed, so it is no checkpoint.
                continue
            except (OSError, ValueError) as error:
                if limit_of(error):
                    raise  # it says nothing of the step
                self.refuse(folder, f"{COMMITTED_NAME}: {error}")
                continue
            if reason := distrust(bans, manifest):
                self.refuse(folder, reason)
                continue
            wrong = next((s.file for s in manifest.shards if not has_size(folder / s.file, s.size_bytes)), None)
            if wrong is None and manifest.shards:
                yield folder, manifest
            else:
                self.refuse(folder, f"{wrong} is missing or has another size" if wrong else "it names no shards")

    def bans(self) -> tuple[Ban, ...]:
        """Return what the watch has left. Raises `PermanentError` for a file that cannot be read."""
        try:
            return parse_bans(self._notes())
        except (OSError, ValueError) as error:
            cure = "look at it by `bivouac exec`; remove it to do without"
            raise PermanentError("what the watch has left cannot be read", seen=error, cure=cure) from error

    def _notes(self) -> dict[str, bytes]:
        return {path.name: plain_bytes(path) for path in (self.root / BANS).glob("[!.]*")}

    def refuse(self, folder: Path, reason: str) -> None:
        self.refused.append(f"{folder.name}: {reason}"[:200])
        self._say("refused", tier="shared", folder=folder.name, why=reason[:500])

    def refuse_stale(self, manifest: ArchiveManifest, place: str) -> None:
        """Raise `PermanentError` if a newer step is committed than an archive has or lists as refused."""
        newer = {step for step in (*self.steps(), self.committed_step) if step > manifest.step}
        unnamed_steps = sorted((step for step in newer if not manifest.names(step)), reverse=True)
        if unnamed_steps:
            raise PermanentError(
                "the campaign has an archive that is older than its newest checkpoint",
                seen=f"{place} is of step {manifest.step}, newest committed step: {unnamed_steps[0]}",
                cure=f"nothing in the archive is overwritten: {self._by_hand()}, or move the older archive to another "
                "place and run the archive again",
            )

    def refuse_lost(self, golden: Manifest) -> None:
        """Raise `PermanentError` if the newest step that was ever committed is neither found nor refused."""
        newest = self.committed_step
        if golden.step < newest and not any(row.startswith(f"{step_folder(newest)}:") for row in self.refused):
            raise PermanentError(
                "the newest committed checkpoint is not on the shared tier",
                seen=f"step {newest} by the record, newest sound one in {self.root}: step {golden.step}",
                cure=f"check that this is the campaign's file system; {self._by_hand()}",
            )

    def _by_hand(self) -> str:
        return f"`bivouac checkpoints restore {self.root.name} FOLDER --tier shared` copies what is there"
