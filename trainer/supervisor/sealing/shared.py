"""Sealing where all nodes write into one folder, on the shared tier: node 0 seals and lays back for all."""

from __future__ import annotations

import contextlib
import errno
import json
import time
from pathlib import Path
from typing import Any, Dict, Iterator, Mapping, Protocol, Sequence, Tuple

from trainer.contract.sealed import newest_sound
from trainer.contract.tree import path_of
from trainer.supervisor import ends, formats, seal
from trainer.supervisor.accounting import Accounts
from trainer.supervisor.formats import Finished, Recogniser
from trainer.supervisor.place import Place
from trainer.supervisor.sealing import listing
from trainer.supervisor.sealing.survey import Mark, survey, told_version

CHOICE_S = 1200.0
"""For node 0 to compare all of a checkpoint with its digests, and to copy it back."""
AGAIN_S = 30.0
"""Between two tries to seal a checkpoint that could not be sealed; the last one is at the job's end."""


Version = Tuple[Path, Dict[str, Mark]]
"""A checkpoint's root and files as they stood: another one, once the job has written it again."""


class NoSoundSeal(Exception):
    """The tier has sealed checkpoints, and none may be used: a start from the beginning would be a person's choice."""


class JobState(Protocol):
    """What is known of the job that runs."""

    stopping: str

    @property
    def tokens(self) -> int: ...
    @property
    def loss(self) -> float | None: ...
    def emit(self, event: str, **fields: object) -> None: ...
    def wait_for(self, path: Path, seconds: float) -> None: ...


class Sealing:
    def __init__(self, config: Mapping[str, Any], place: Place, tier: Path, job: JobState, ranks: int) -> None:
        """`tier`: the campaign's folder on the shared tier. `ranks`: of one node, 0 if they are not known."""
        self.config, self.place, self.tier, self.job = config, place, tier, job
        self.checkpoints = config["checkpoints"]
        self.folder = Path(self.checkpoints["folder"])
        self.format = str(self.checkpoints["format"])
        self.ranks_here = ranks
        self.committed = -1
        self.recogniser = Recogniser()
        self.recogniser.planned_steps = int(config.get("steps") or 0)
        self.accounts = Accounts(config, place, tier, job, self.recogniser)
        self.told: dict[int, Finished] = {}
        """Checkpoints that the job has told by the client, by their steps."""
        self._told_as: dict[int, Version | None] = {}
        """What each was then."""
        self._sealed_as: Version | None = None
        """What the newest one was that this attempt has sealed."""
        self.refused: dict[int, str] = {}
        """Committed steps that were found unsound before this start, and why. They count for no retention."""
        self.put_off: dict[int, float] = {}
        """Step -> when to try again."""
        self.busy = False
        """A checkpoint is being read or copied, which takes minutes: life signs go on meanwhile."""
        self.heard = time.monotonic()
        """When that was over last."""
        self._failed_look = ""
        """Why the last look failed."""

    def answer(self, path: str) -> listing.Answer | None:
        """Return the answer to a question for what is on this node's disk, None for one of something else."""
        return listing.answer(path, None, self.place.campaign, self.place.node_name)

    def resume(self, generation: int = 0) -> str:
        """Return where the job resumes, empty from the start. Node 0 checks and lays back; the others wait for it.
        `generation`: restarts in place of this attempt."""
        name = f"attempt-{self.place.attempt:04d}" + (f"-generation-{generation}" if generation else "")
        choice = self.tier / "resume" / f"{name}.json"
        if self.place.node_rank == 0:
            seal.make(choice.parent)
            seal.publish(choice, json.dumps(self.choose()).encode())
        self.job.wait_for(choice, CHOICE_S)
        if self.job.stopping:
            return ""
        decision = json.loads(choice.read_text())
        self.committed = decision["step"]
        return str(decision["path"])

    def choose(self) -> dict[str, Any]:
        """Lay the newest sound step back where the job's framework looks for it, and remove later ones: they are
        damaged or were never sealed, and the job would write over them or take them up. Raises `NoSoundSeal`."""
        self.tidy()
        self.refused, self._sealed_as = {}, None
        self.told.clear()  # by ranks that are gone
        step = newest_sound(seal.committed(self.tier), self._is_sound)
        if step is not None:
            path = self.laid_back(step)
            self.job.emit("restored", step=step)
            return {"step": step, "path": str(path)}
        if self.refused:
            newest, fault = max(self.refused.items())
            raise NoSoundSeal(f"none of its {len(self.refused)} sealed checkpoints is sound; step {newest}: {fault}")
        self.laid_back(None)
        self.job.emit("started_fresh", step=0)
        return {"step": -1, "path": ""}

    def _is_sound(self, step: int) -> bool:
        if reason := self.fault(step):
            self.refused[step] = reason
            self.job.emit("refused_step", step=step, why=reason)
        return not reason

    def tidy(self) -> None:
        seal.tidy(self.tier)

    def fault(self, step: int) -> str:
        """Return why a committed step may not be used, empty for a sound one."""
        return seal.fault(self.tier, step, self.place.campaign, self.config["identity"])

    def laid_back(self, step: int | None) -> Path:
        """Lay a step (None: none) into the job's own folder, without later ones; return its path."""
        return self.lay(self.tier, step)

    def lay(self, tier: Path, step: int | None) -> Path:
        if step is None:
            formats.forget_later(self.format, self.folder, None)
            return self.folder
        tree = seal.tree(tier, step)
        path = self.folder / path_of(tree.root)
        checkpoint = Finished(step, path, tuple(path / path_of(name) for name in tree.tops) if tree.part else ())
        path.parent.mkdir(parents=True, exist_ok=True)
        sealed_at = (tier / f"step-{step:08d}" / seal.MANIFEST).stat().st_mtime
        try:
            seal.lay_back(tier, step, path)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            # What goes now may be what takes the room.
            formats.forget_later(self.format, self.folder, checkpoint, sealed_at)
            seal.lay_back(tier, step, path)
        formats.forget_later(self.format, self.folder, checkpoint, sealed_at)
        if not all((path / path_of(name)).exists() for name in tree.through):  # it led to a later one
            seal.lay_back(tier, step, path)
        self.recogniser.note_restored(checkpoint)
        return checkpoint.face if len(checkpoint.files) == 1 else formats.offered(path, checkpoint.files)

    def look(self) -> None:
        """Seal what the job has finished. Node 0 does it for all: the folder is shared."""
        if self.place.node_rank == 0 and self.folder.is_dir():
            for checkpoint in self.due_checkpoints():
                self._seal(checkpoint)
        self.accounts.look(self.committed)
        self._failed_look = ""

    def tell_failed_look(self, reason: str) -> None:
        """Tell why nobody knows what there is to seal, once until it is another reason or a look goes well. It says
        nothing of any step."""
        if reason != self._failed_look:
            self.job.emit("look_failed", why=reason[:500])
        self._failed_look = reason

    def finish(self, code: int) -> None:
        """Do what is left, now that the job has ended with `code`."""
        self.put_off.clear()
        self.recogniser.ended, self.recogniser.failed = not code, bool(code)
        self.look()
        self.accounts.look(self.committed, job_ended=True)

    def tell(self, checkpoint: Finished, version: Sequence[int] | None = None) -> None:
        """Note a checkpoint that the job has told by the client. `version`: what it was then; what is written again
        before it was heard of is none."""
        if version is not None and list(version) != told_version(checkpoint.root):
            reason = f"{checkpoint.root.name} was written again after the job had told step {checkpoint.step}"
            self.job.emit("not_sealed", step=checkpoint.step, why=reason)
            return
        self._told_as[checkpoint.step] = self._version(checkpoint)
        self.told[checkpoint.step] = checkpoint
        self.recogniser.named_by_job.add(checkpoint.root)

    def due_checkpoints(self) -> list[Finished]:
        """Return the finished checkpoints that are to be sealed now."""
        for step, checkpoint in list(self.told.items()):
            is_overtaken = any(
                newer.root == checkpoint.root and newer.step > step for newer in list(self.told.values())
            )
            if step < self.committed or is_overtaken or not checkpoint.root.exists() or self._is_sealed(checkpoint):
                del self.told[step]
        self.recogniser.named_by_job |= {checkpoint.root for checkpoint in self.told.values()}
        checkpoints: list[Finished] = []
        with contextlib.suppress(OSError):  # the job has removed a folder while it was listed: the next look is soon
            checkpoints += () if self.recogniser.rests else self._recognise()
        due = {**self.recogniser.whole(checkpoints), **self.told}
        return [due[step] for step in sorted(due) if not self.waits(step)]

    def _is_sealed(self, checkpoint: Finished) -> bool:
        """Return whether what the job tells again is what this attempt has sealed."""
        return checkpoint.step == self.committed and self._sealed_as == (self._version(checkpoint) or ())

    def _version(self, checkpoint: Finished) -> Version | None:
        """Return what a checkpoint is now; None if it cannot be sealed now."""
        try:
            return checkpoint.root, survey(checkpoint.root, self.folder, checkpoint.files).marks
        except (OSError, ValueError):
            return None

    def waits(self, step: int) -> bool:
        return time.monotonic() < self.put_off.get(step, 0.0)

    def _recognise(self) -> Iterator[Finished]:
        return self.recogniser.finished_checkpoints(self.format, self.folder, self.ranks, self.committed)

    @property
    def ranks(self) -> int:
        """Ranks that write into the folder, 0 if they are not known."""
        return self.ranks_here * self.place.node_count

    @property
    def identity(self) -> seal.Identity:
        place, config = self.place, self.config
        return seal.Identity(
            place.campaign, config["identity"], place.attempt, place.world_size, config["config_digest"],
            config.get("data_digest", ""), place.code_digest, place.image_digest,
        )  # fmt: skip

    def files(self, checkpoint: Finished) -> Sequence[Path]:
        """Return a checkpoint's files. Raises `ValueError` for one that the job removes, or has written again."""
        if self.told.get(checkpoint.step) == checkpoint and self._is_overwritten(checkpoint):
            del self.told[checkpoint.step]  # whatever it holds now, it is not that step
            raise ValueError(f"{checkpoint.root.name} was written again after the job had told step {checkpoint.step}")
        if not self.recogniser.stands(checkpoint):
            raise ValueError(f"{checkpoint.root.name} has changed since it was found finished")
        files = checkpoint.files or formats.files_of(checkpoint.root)
        # The newest one is looked for after the files: it may have come, and this one be half removed, meanwhile.
        if missing := formats.missing(
            checkpoint, list(files), max([checkpoint, *self.told.values(), *self._recognise()])
        ):
            raise ValueError(f"the job removes it: {missing[0]} is missing")
        return files

    def _is_overwritten(self, checkpoint: Finished) -> bool:
        """Return whether a file of a checkpoint that the job has told is another one now. More files are no harm."""
        old_version, now = self._told_as.get(checkpoint.step), self._version(checkpoint)
        if old_version is None or now is None:
            return False
        return any(now[1].get(path, mark) != mark for path, mark in old_version[1].items())

    def _seal(self, checkpoint: Finished) -> None:
        start_s = time.monotonic()
        with self.trying(checkpoint.step, self.tier):
            version, files = self._version(checkpoint), self.files(checkpoint)
            seal.seal(
                checkpoint.root, files, self.folder, self.tier, checkpoint.step, self.identity,
                self.job.tokens, self.job.loss, part=bool(checkpoint.files),
            )  # fmt: skip
            self.note_sealed(checkpoint.step, version)
            self.note_copied(checkpoint)
            self.job.emit(
                "committed", step=checkpoint.step, tier="shared", seconds=round(time.monotonic() - start_s, 3)
            )
            self.prune()

    def note_copied(self, checkpoint: Finished) -> None:
        """Note that the files of a checkpoint are where they are sealed, and tell what a resume from it will miss."""
        self.recogniser.note_sealed(checkpoint)
        if lack := formats.lacks(checkpoint.root):
            self.job.emit("weights_only", why=lack)

    def note_sealed(self, step: int, version: Version | None) -> None:
        """Note that this attempt has sealed a step."""
        self.committed, self._sealed_as = step, version
        if version is not None and self._told_as.get(step) == version:
            self.told.pop(step, None)  # the job may write its next step into the same place at once
        self.refused.pop(step, None)

    @contextlib.contextmanager
    def trying(self, step: int, place: Path) -> Iterator[None]:
        """Tell what keeps a step from being sealed, and put it off."""
        self.busy = True
        try:
            yield
        except (OSError, ValueError) as error:
            reason = ends.of_error(error, place) if isinstance(error, OSError) else str(error)
            self.job.emit("not_sealed", step=step, why=reason[:500])
            self.put_off[step] = time.monotonic() + AGAIN_S
        finally:
            self.busy, self.heard = False, time.monotonic()

    def prune(self) -> None:
        removed_steps = seal.keep(self.tier, int(self.checkpoints["keep"]), self.refused)
        if removed_steps:
            self.job.emit("pruned", steps=removed_steps)
