"""Which checkpoints of a job are finished, and of which step: what is seen over several looks at its folder."""

from __future__ import annotations

import math
import os
import time
from pathlib import Path
from typing import Iterable, Iterator, NamedTuple, Sequence

from trainer.supervisor.formats import content, versions
from trainer.supervisor.formats.find import FORMATS
from trainer.supervisor.formats.layouts import is_state
from trainer.supervisor.formats.names import PLAIN, STEP, family_place, lap_of, number_of, series
from trainer.supervisor.formats.told_steps import ToldSteps, is_far
from trainer.supervisor.formats.tree import Finished, listing
from trainer.supervisor.formats.versions import Version, first_written_at, version_of, written_at

SETTLES_S, QUIET_S = 2.0, 10.0
"""For how long a checkpoint without a last write has not changed before it counts, while the job runs: where the job
has told a step after it, and where it has not, since between two files it may gather what it writes next."""
_RESTS, _LONGEST_REST_S, _SHORT_S = 100.0, 60.0, 0.01
"""Pause after a look that is not short, in times of its length: looks take a hundredth of a core."""
_FIRST_TIME = 10**9
"""A larger number in a name that is no step is a time."""


class _Sight(NamedTuple):
    version: Version
    since: float
    before: Version
    """The one before of this name, or of another checkpoint of such a name; empty: none."""

    @property
    def is_anew(self) -> bool:
        """Return whether all files of the version before have come anew."""
        return len(self.version) == len(self.before) and first_written_at(self.version) > written_at(self.before)


class Recogniser:
    """A job's view of its own folder. Steps are found by, in this order: a step in the name (`step=30`), the content of
    the file, a plain number in the name (`ckpt_30.pt`). What counts epochs or saves, and what is written again and
    again under one name, gets the step that the job had told last when it was written; a later version of it always a
    larger one."""

    def __init__(self) -> None:
        self.ended = self.failed = False
        """The job has ended well, and what a checkpoint lacks now will not come; or not, and the failure may have come
        between two files."""
        self.planned_steps = 0
        """The steps that the run is estimated to take, 0 if nobody has said."""
        self.named_by_job: set[Path] = set()
        """What the job has told by the client: its own word on what is finished there counts."""
        self._sights: dict[Path, _Sight] = {}
        self._steps: dict[Path, tuple[Version, int]] = {}
        """Root -> the version that was given a step last, and the step."""
        self._doubts: dict[int, int] = {}
        """Step that the job's lines have given -> by how much it may be too large."""
        self._sealed: dict[Path, Finished] = {}
        self._unions: dict[tuple[Path, ...], tuple[Finished, ...]] = {}
        """Files of a checkpoint that was found in parts -> the parts."""
        self.told_steps = ToldSteps()
        self._foreign: dict[Path, Version] = {}
        """What a file or folder was whose number was beyond the job's steps."""
        self._counted: set[str] = set()
        """Series of which a checkpoint is sealed as the step that its name says."""
        self._miscounted: set[str] = set()
        """Series whose numbers are no steps of this run."""
        self._rests_until = 0.0
        self._begun = time.time() - 1.0
        self._newest: dict[str, tuple[Path, Version]] = {}
        """Folder and pattern of a name -> the checkpoint of such a name that was seen last."""
        self._ordinals: dict[str, tuple[int, int]] = {}
        """Folder and pattern of a name -> the largest number that was given a step, and the step."""
        self._first_written: dict[Path, int] = {}
        """File or folder with a plain number that is no newer step -> when it was written, in ns: as it was sealed, or
        at the first look."""

    def finished_checkpoints(self, name: str, folder: Path, ranks: int, sealed_step: int) -> Iterator[Finished]:
        """Yield what counts as finished and is not committed, each with its step. Raises `OSError`."""
        cpu_start_s = time.thread_time()
        checkpoints = sorted(
            map(self._with_possible_step, FORMATS[name](folder, ranks, sealed_step)),
            key=lambda checkpoint: (checkpoint.step, checkpoint.ordinal, _rank(checkpoint)),
        )
        has_numbers = any(checkpoint.step >= 0 or checkpoint.ordinal >= 0 for checkpoint in checkpoints)
        complete_checkpoints: list[Finished] = []
        unsettled_steps: set[int] = set()
        for checkpoint in checkpoints:
            if self.named_by_job & {checkpoint.root, *checkpoint.root.parents}:
                continue
            if self._is_part(checkpoint, sealed_step):
                pass
            elif 0 <= checkpoint.step <= sealed_step:
                rules = (self._takes_turns, self._counts_anew, self._counts_epochs)
                if not any(rule(checkpoint, sealed_step) for rule in rules):
                    continue
                checkpoint = checkpoint._replace(step=-1, ordinal=max(checkpoint.ordinal, 0))
            elif has_numbers and checkpoint.step < 0 and checkpoint.ordinal < 0:
                continue  # without a number: an export beside checkpoints from which the job goes on
            elif checkpoint.step < 0 and self._is_old(checkpoint, sealed_step):
                continue
            sight = self._sight(checkpoint)
            is_settled = self.ended or not checkpoint.settles or self._is_settled(sight)
            if not sight.version or not is_settled or (checkpoint.lacks and not self.ended):
                unsettled_steps |= {checkpoint.step} if checkpoint.plain and checkpoint.step >= 0 else set()
                continue
            step = checkpoint.step if checkpoint.step >= 0 else self._step_of(checkpoint, sight, sealed_step)
            if step > sealed_step or self._is_part(checkpoint, sealed_step):
                complete_checkpoints.append(checkpoint._replace(step=step, ordinal=-1, settles=False))
        # What has settled waits for what else is of its step.
        yield from (
            checkpoint
            for checkpoint in complete_checkpoints
            if not (checkpoint.plain and checkpoint.step in unsettled_steps)
        )
        cpu_s = time.thread_time() - cpu_start_s
        self._rests_until = time.monotonic() + (min(_LONGEST_REST_S, _RESTS * cpu_s) if cpu_s > _SHORT_S else 0.0)

    def whole(self, checkpoints: Iterable[Finished]) -> dict[int, Finished]:
        """Return the checkpoint of each step. Those of one step that no framework wrote are one, with what is sealed of
        it; of others the last counts, since each of Lightning's files is all of it."""
        by_step: dict[int, list[Finished]] = {}
        for checkpoint in checkpoints:
            parts = by_step.get(checkpoint.step, []) if checkpoint.plain else []
            if any(not part.plain for part in parts):
                continue  # a framework's own has all that a resume needs; what else has its step may be an export
            by_step[checkpoint.step] = [*(part for part in parts if part.plain), checkpoint]
        return {step: self._union([*self._parts(parts[-1]), *parts]) for step, parts in by_step.items()}

    def _union(self, parts: Sequence[Finished]) -> Finished:
        if len(parts) == 1:
            return parts[0]
        tops = tuple(sorted({path for part in parts for path in part.tops}))
        root = Path(os.path.commonpath([str(path.parent) for path in tops]))
        self._unions[tops] = tuple(parts)
        return Finished(parts[0].step, root, tops, plain=True)

    def _with_possible_step(self, checkpoint: Finished) -> Finished:
        """Return a checkpoint without a step that this run cannot have reached: its number counts samples or tokens, or
        it is of another run. The job's own steps say so, or until there are any, the estimate."""
        own_series, number = series(checkpoint.face), number_of(checkpoint.face.name)
        is_named = number is not None and number.value == checkpoint.step
        if not checkpoint.plain or not is_named:
            return checkpoint
        is_counted = own_series in self._counted
        if not is_counted and self.told_steps.are_passed_by(checkpoint.step, self.planned_steps):
            self._miscounted.add(own_series)
            self._foreign[checkpoint.face] = version_of(checkpoint)
        version = self._foreign.get(checkpoint.face)
        is_foreign = version is not None and version == version_of(checkpoint)  # also once the job is that far
        if not is_foreign and (is_counted or self.told_steps.are_several):
            self._miscounted.discard(own_series)
        if is_foreign or own_series in self._miscounted:
            return checkpoint._replace(step=-1, ordinal=checkpoint.step)
        return checkpoint

    def _is_part(self, checkpoint: Finished, sealed_step: int) -> bool:
        """Return whether a checkpoint is another part of the sealed step, which stands as it was sealed."""
        if checkpoint.step != sealed_step or not checkpoint.plain or not self._parts(checkpoint):
            return False
        return written_at(version_of(checkpoint)) >= self._begun

    def _parts(self, checkpoint: Finished) -> list[Finished]:
        """Return what is sealed of a checkpoint's step, stands as it was then, and is of other series."""
        own_series = {series(path) for path in checkpoint.tops}
        of_step = [part for part in self._sealed.values() if part.step == checkpoint.step and part.plain]
        standing = [part for part in of_step if self._steps[part.face][0] == version_of(part)]
        return standing if own_series.isdisjoint(series(path) for part in of_step for path in part.tops) else []

    def _counts_anew(self, checkpoint: Finished, sealed_step: int) -> bool:
        """Return whether the step in a name begins again in each epoch, as of `epoch1_iter100`: its epoch is later than
        that of all sealed ones of its series, or it is the next one in the same."""
        lap, number = lap_of(checkpoint.face), number_of(checkpoint.face.name)
        if lap is None or number is None:
            return False
        own_series = series(checkpoint.face)
        faces = [face for face in self._sealed if series(face) == own_series]
        orders = [(lap_of(face), number_of(face.name)) for face in faces]
        sealed_orders = [
            (sealed_lap, number_sealed.value)
            for sealed_lap, number_sealed in orders
            if sealed_lap is not None and number_sealed
        ]
        return bool(sealed_orders) and (lap, number.value) > max(sealed_orders)

    def _counts_epochs(self, checkpoint: Finished, sealed_step: int) -> bool:
        """Return whether a plain number counts less than steps, as of `weights/net_3.pt`: it is the largest of its
        series, was written once the job had told a step beyond the sealed one, and no other series has steps."""
        if not checkpoint.plain or checkpoint.ordinal < 0 or self._counted - {series(checkpoint.face)}:
            return False
        if checkpoint.face in self._sealed or not self.is_of_attempt(checkpoint.face):
            return False
        if versions.has_larger_kin(checkpoint):
            return False
        return self.told_steps.before(written_at(version_of(checkpoint)), -1) > sealed_step

    def _takes_turns(self, checkpoint: Finished, sealed_step: int) -> bool:
        """Return whether the plain number in a name is no step, as of `ckpt.0.pt` and `ckpt.1.pt` by turns: what lies
        there was written again, after the job had told a step beyond the newest sealed one. One file shows it: looks
        into all old checkpoints would take long."""
        if checkpoint.ordinal < 0:
            return False
        names = sorted(listing(checkpoint.face).files)
        path = checkpoint.face / names[0] if names else checkpoint.face
        try:
            changed_ns = path.stat().st_mtime_ns
        except OSError:
            return False
        sealed_version, _ = self._steps.get(checkpoint.face, ((), -1))
        known_ns = next((row[2] for row in sealed_version if row[0] == str(path)), changed_ns)
        is_rewritten = changed_ns != self._first_written.setdefault(checkpoint.face, known_ns)
        is_newer = is_rewritten and changed_ns / 1e9 > self.sealed_until(sealed_step)
        if not is_newer or self.told_steps.before(changed_ns / 1e9, -1) <= sealed_step:
            return False
        return not versions.has_later_kin(checkpoint)  # else it is a step that was saved again, and the run has gone on

    def _sight(self, checkpoint: Finished) -> _Sight:
        """Return what a checkpoint is now, since when, and what came before it under its name or its family's."""
        version, last_sight = version_of(checkpoint), self._sights.get(checkpoint.face)
        if last_sight is not None and last_sight.version == version:
            return last_sight
        place = family_place(checkpoint.face)
        face, kin = self._newest.get(place[0], (checkpoint.face, ())) if place is not None else (checkpoint.face, ())
        previous_version = kin if face != checkpoint.face else () if last_sight is None else last_sight.version
        if last_sight is not None and last_sight.before and not last_sight.is_anew:
            previous_version = last_sight.before
        if place is not None:
            self._newest[place[0]] = (checkpoint.face, version)
        self._sights[checkpoint.face] = sight = _Sight(version, time.monotonic(), previous_version)
        return sight

    def _is_settled(self, sight: _Sight) -> bool:
        """Return whether a version is done: it has not changed for a while, or all of it is new and the job trains on,
        or has failed."""
        age, now = time.monotonic() - sight.since, sight.version
        if not self.failed and not self.told_steps.follow(written_at(now)):
            return age >= QUIET_S
        if not sight.is_anew:
            return not self.failed and age >= SETTLES_S
        has_rested = time.time() - written_at(now) >= SETTLES_S if self.failed else age >= SETTLES_S / 2
        states = (content.state(Path(name)) for name, _, _ in now if is_state(name))
        return has_rested or all(state == content.WHOLE for state in states)

    @property
    def rests(self) -> bool:
        """Return whether it is too early for the next look: a folder of very many entries is looked at less often."""
        return not self.ended and time.monotonic() < self._rests_until

    def note_restored(self, checkpoint: Finished) -> None:
        """Note that a sealed step has been laid back: it is none that the job has written."""
        self._sights.pop(checkpoint.face, None)
        number = number_of(checkpoint.face.name)
        if number is not None and number.kind in (STEP, PLAIN) and is_far(number.value, checkpoint.step):
            self._miscounted.add(series(checkpoint.face))
        self._sight(checkpoint)
        self.note_sealed(checkpoint)

    def note_sealed(self, checkpoint: Finished) -> None:
        """Note that a step is sealed, as it was when it was found finished; it counts once it is committed."""
        is_told = checkpoint.root in self.named_by_job or checkpoint.files in self._unions
        sight = None if is_told else self._sights.get(checkpoint.face)
        self._sealed[checkpoint.face] = checkpoint
        number = number_of(checkpoint.face.name)
        if number is not None and number.value == checkpoint.step:
            self._counted.add(series(checkpoint.face))
        self._steps[checkpoint.face] = (version_of(checkpoint) if sight is None else sight.version, checkpoint.step)
        if (place := family_place(checkpoint.face)) is not None and not self.told_steps.are_passed_by(
            place[1], self.planned_steps
        ):
            self._ordinals[place[0]] = (place[1], checkpoint.step)

    def doubt_of(self, step: int) -> int:
        """Return by how much a step may be larger than the one that its checkpoint holds: 0 for one that a name or
        content tells."""
        return self._doubts.get(step, 0)

    def stands(self, checkpoint: Finished) -> bool:
        """Return whether a checkpoint is still as it was when it was found finished."""
        parts = self._unions.get(checkpoint.files, (checkpoint,))
        sights = [(self._sights.get(part.face), part) for part in parts]
        is_as_seen = all(sight is None or sight.version == version_of(part) for sight, part in sights)
        return checkpoint.root in self.named_by_job or is_as_seen

    def is_of_attempt(self, path: Path) -> bool:
        """Return whether a file was written since this attempt began. Raises `OSError`."""
        return path.stat().st_mtime >= self._begun

    def sealed_checkpoints(self, sealed_step: int) -> list[Finished]:
        """Return the checkpoints that are sealed as they stand."""
        of_steps = (checkpoint for checkpoint in self._sealed.values() if checkpoint.step <= sealed_step)
        return [checkpoint for checkpoint in of_steps if self._steps[checkpoint.face][0] == version_of(checkpoint)]

    def sealed_until(self, sealed_step: int, of_framework: bool = False) -> float:
        """Return when the newest of what is sealed was written, in seconds since 1970; infinite where nothing is.
        `of_framework`: of what a framework has written."""
        of_steps = ((face, checkpoint) for face, checkpoint in self._sealed.items() if checkpoint.step <= sealed_step)
        versions = [self._steps[face][0] for face, checkpoint in of_steps if not (of_framework and checkpoint.plain)]
        return max(map(written_at, versions), default=float("inf"))

    def sealed_series(self, sealed_step: int) -> set[str]:
        """Return the series of which something is sealed up to a step."""
        of_steps = (checkpoint for checkpoint in self._sealed.values() if checkpoint.step <= sealed_step)
        return {series(path) for checkpoint in of_steps for path in checkpoint.tops}

    def _is_old(self, checkpoint: Finished, sealed_step: int) -> bool:
        """Return whether a checkpoint without a known step is older than this attempt or no newer than a sealed one."""
        place, newest_s = family_place(checkpoint.face), written_at(version_of(checkpoint))
        overtaken = place is not None and place[1] < self._ordinals.get(place[0], (-1, -1))[0]
        # An export may be sealed before the framework's own checkpoint of its step.
        sealed_s = self.sealed_until(sealed_step, of_framework=not checkpoint.plain)
        adds_nothing = checkpoint.face not in self._sealed and newest_s <= sealed_s < math.inf
        return overtaken or newest_s < self._begun or adds_nothing

    def _step_of(self, checkpoint: Finished, sight: _Sight, sealed_step: int) -> int:
        note = self._steps.get(checkpoint.face)
        if note is not None and note[0] == sight.version:
            return note[1]
        newest_step = max([sealed_step, *(step for _, step in self._steps.values())])
        is_count = checkpoint.ordinal < _FIRST_TIME and not self.told_steps.are_passed_by(
            checkpoint.ordinal, self.planned_steps
        )
        ordinal = checkpoint.ordinal if is_count else -1
        step = max(self.told_steps.before(written_at(sight.version), ordinal), newest_step + 1, 0)
        self._steps[checkpoint.face] = (sight.version, step)
        self._doubts[step] = self.told_steps.doubtful_steps(written_at(sight.version))
        if (place := family_place(checkpoint.face)) is not None and not self.told_steps.are_passed_by(
            place[1], self.planned_steps
        ):
            self._ordinals[place[0]] = (place[1], step)
        return step


def _rank(checkpoint: Finished) -> int:
    """Return which of two checkpoints of one step a job goes on from: the larger one."""
    return 0 if "best" in checkpoint.face.name else 1 if checkpoint.face.name.startswith("last") else 2
