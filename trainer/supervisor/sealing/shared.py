"""Sealing where all nodes write into one folder, on the shared tier: node 0 seals and lays back for all."""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path
from typing import Any, Iterator, Mapping, Protocol, Sequence

from trainer.supervisor import ends, formats, seal
from trainer.supervisor.accounting import Accounts
from trainer.supervisor.formats import Finished, Recogniser
from trainer.supervisor.place import Place
from trainer.supervisor.sealing import listing

CHOICE_S = 600.0
"""For node 0 to compare all of a checkpoint with its digests."""
AGAIN_S = 30.0
"""Between two tries to seal a checkpoint that could not be sealed; the last one is at the job's end."""


class NothingSound(Exception):
    """The tier has sealed checkpoints, and none may be used: a start from the beginning would be a person's choice."""


class Told(Protocol):
    """What is known of the job that runs."""

    stopping: str
    step_seconds: float | None
    tokens: int
    loss: float | None

    def emit(self, event: str, **fields: object) -> None: ...
    def wait_for(self, path: Path, seconds: float) -> None: ...


class Sealing:
    def __init__(self, config: Mapping[str, Any], place: Place, tier: Path, job: Told, ranks: int) -> None:
        """`tier`: the campaign's folder on the shared tier. `ranks`: of one node, 0 if they are not known."""
        self.config, self.place, self.tier, self.job = config, place, tier, job
        self.checkpoints = config["checkpoints"]
        self.folder = Path(self.checkpoints["folder"])
        self.format = str(self.checkpoints["format"])
        self.ranks_here = ranks
        self.committed = -1
        self.recogniser = Recogniser()
        self.accounts = Accounts(config, place, tier, job, self.recogniser)
        self.told: dict[int, Finished] = {}
        """Checkpoints that the job has told by the client, by their steps."""
        self.put_off: dict[int, float] = {}
        """Step -> when to try again."""
        self.busy = False
        """A checkpoint is being read or copied, which takes minutes: life signs go on meanwhile."""
        self.heard = time.monotonic()
        """When that was over last."""

    def answer(self, path: str) -> listing.Answer | None:
        """Return the answer to a question for what is on this node's disk, None for one of something else."""
        return listing.answer(path, None, self.place.campaign, self.place.node_name)

    def resume(self, generation: int = 0) -> str:
        """Return where the job resumes, empty from the start. Node 0 checks and lays back; the others wait for it.
        `generation`: restarts in place of this attempt."""
        name = f"attempt-{self.place.attempt:04d}" + (f"-generation-{generation}" if generation else "")
        choice = self.tier / "resume" / f"{name}.json"
        if self.place.node_rank == 0:
            choice.parent.mkdir(parents=True, exist_ok=True)
            seal.publish(choice, json.dumps(self.chosen()).encode())
        self.job.wait_for(choice, CHOICE_S)
        if self.job.stopping:
            return ""
        chosen = json.loads(choice.read_text())
        self.committed = chosen["step"]
        return str(chosen["path"])

    def chosen(self) -> dict[str, Any]:
        """Lay the newest sound step back where the job's framework looks for it, and remove later ones: they are
        damaged or were never sealed, and the job would write over them or take them up. Raises `NothingSound`."""
        self.tidy()
        refused: list[str] = []
        for step in seal.committed(self.tier):
            why = self.fault(step)
            if not why:
                path = self.laid_back(step)
                self.job.emit("restored", step=step)
                return {"step": step, "path": str(path)}
            self.job.emit("refused_step", step=step, why=why)
            refused.append(f"step {step}: {why}")
        if refused:
            raise NothingSound(f"none of its {len(refused)} sealed checkpoints is sound; {refused[0]}")
        self.laid_back(None)
        self.job.emit("started_fresh", step=0)
        return {"step": -1, "path": ""}

    def tidy(self) -> None:
        seal.tidy(self.tier)

    def fault(self, step: int) -> str:
        """Return why a committed step may not be used, empty for a sound one."""
        return seal.fault(self.tier, step, self.place.campaign, self.config["identity"])

    def laid_back(self, step: int | None) -> Path:
        """Lay a step (None: none) into the job's own folder, without later ones; return its path."""
        return self.laid(self.tier, step)

    def laid(self, tier: Path, step: int | None) -> Path:
        if step is None:
            formats.forget_later(self.format, self.folder, None)
            return self.folder
        path = self.folder / seal.origin(tier, step)
        path.parent.mkdir(parents=True, exist_ok=True)
        seal.lay_back(tier, step, path)
        formats.forget_later(self.format, self.folder, Finished(step, path))
        self.recogniser.restored(Finished(step, path))
        return path

    def look(self) -> None:
        """Seal what the job has finished. Node 0 does it for all: the folder is shared."""
        if self.place.node_rank == 0 and self.folder.is_dir():
            for found in self.finished():
                self._seal(found)
        self.accounts.look(self.committed)

    def finish(self, code: int) -> None:
        """Do what is left, now that the job has ended with `code`."""
        self.put_off.clear()
        self.recogniser.ended = not code
        self.look()
        self.accounts.look(self.committed, ended=True)

    def finished(self) -> list[Finished]:
        """Return the finished checkpoints that are to be sealed now."""
        for step in [step for step, one in self.told.items() if step <= self.committed or not one.root.exists()]:
            del self.told[step]
        found = list(self.told.values())
        self.recogniser.named_by_job |= {one.root for one in found}
        if self.recogniser.rests:
            return sorted(one for one in found if one.step > self.committed and not self.waits(one.step))
        with contextlib.suppress(OSError):  # the job has removed a folder while it was listed: the next look is soon
            found += self._found()
        return [one for one in sorted(found) if one.step > self.committed and not self.waits(one.step)]

    def waits(self, step: int) -> bool:
        return time.monotonic() < self.put_off.get(step, 0.0)

    def _found(self) -> Iterator[Finished]:
        return self.recogniser.finished(self.format, self.folder, self.ranks, self.committed)

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

    def files(self, found: Finished) -> Sequence[Path]:
        """Return a checkpoint's files. Raises `ValueError` for one that the job removes."""
        files = formats.files_of(found.root)
        # The newest one is looked for after the files: it may have come, and this one be half removed, meanwhile.
        if missing := formats.missing(found, files, max([found, *self.told.values(), *self._found()])):
            raise ValueError(f"the job removes it: {missing[0]} is missing")
        return files

    def _seal(self, found: Finished) -> None:
        begun = time.monotonic()
        with self.trying(found.step, self.tier):
            seal.seal(
                found.root, self.files(found), self.folder, self.tier, found.step, self.identity,
                self.job.tokens, self.job.loss,
            )  # fmt: skip
            self.committed = found.step
            self.recogniser.sealed(found)
            self.job.emit("committed", step=found.step, tier="shared", seconds=round(time.monotonic() - begun, 3))
            if why := formats.lacks(found.root):
                self.job.emit("weights_only", step=found.step, why=why)
            self.prune()

    @contextlib.contextmanager
    def trying(self, step: int, place: Path) -> Iterator[None]:
        """Tell what keeps a step from being sealed, and put it off."""
        self.busy = True
        try:
            yield
        except (OSError, ValueError) as error:
            why = ends.of_error(error, place) if isinstance(error, OSError) else str(error)
            self.job.emit("not_sealed", step=step, why=why[:500])
            self.put_off[step] = time.monotonic() + AGAIN_S
        finally:
            self.busy, self.heard = False, time.monotonic()

    def prune(self) -> None:
        gone = seal.keep(self.tier, int(self.checkpoints.get("keep", 3)))
        if gone:
            self.job.emit("pruned", steps=gone)
