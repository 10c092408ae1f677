"""Sealing where each node writes to its own disk: every node seals its files, and node 0 commits what all have sealed.

A committed step is whole on the shared tier, in the form that every other one has, so restarts, archive and lists need
nothing else. A node's disk keeps its own files of the newest steps, with the same names, and what it was given.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
from functools import partial
from pathlib import Path
from typing import Any, Iterator, Mapping, NamedTuple, Sequence

from trainer.contract.sealed import MANIFEST, serialize, step_folder
from trainer.contract.tree import path_of
from trainer.supervisor import activity, ends, formats, seal
from trainer.supervisor.formats import Finished
from trainer.supervisor.formats.names import may_be_first_rank
from trainer.supervisor.place import Place
from trainer.supervisor.sealing import listing
from trainer.supervisor.sealing.copying import side_by_side
from trainer.supervisor.sealing.disks import Disks, Stopped
from trainer.supervisor.sealing.far import Asked, FarParts, Row, SharedFolder, merge_rows
from trainer.supervisor.sealing.shared import AGAIN_S, JobState, Sealing, Version
from trainer.supervisor.sealing.survey import Mark, mark_of, survey

LOCAL = "/local-checkpoints"
"""`trainer.contract.LOCAL_CHECKPOINTS`."""
_PAUSE_S = 0.2
"""Between two looks at the other nodes' notes."""
_REST_S, _REST_FAILED_S = 600.0, 60.0
"""For the nodes to bring the last checkpoint to the shared tier once the job has ended well, or failed."""


class _Begun(NamedTuple):
    """A checkpoint that node 0 has asked for, and what was known then."""

    at: float
    tokens: int
    loss: float | None
    version: Version | None


class LocalSealing(Sealing):
    def __init__(
        self, config: Mapping[str, Any], place: Place, tier: Path, job: JobState, ranks: int, disk: Path
    ) -> None:
        """`disk`: the campaign's folder on this node's disk."""
        super().__init__(config, place, tier, job, ranks)
        self.disk, self.far = disk, SharedFolder(tier)
        self.parts = FarParts(self.far, place)
        self._begun: dict[int, _Begun] = {}
        self._given: dict[int, int] = {}
        """Steps that are not committed and of which this node's files lie on the shared tier -> which sealing it is."""
        self._answered: dict[int, int] = {}
        """The same of those that are."""
        self._of_others: dict[tuple[str, str], Mark] = {}
        """Files that were laid back here and that other nodes have written: as they stand, those seal them."""
        self._passed_over: set[int] = set()
        """Later steps on this node's disk, which not all nodes could make whole: they stay until the job is beyond."""
        self._away = 0.0
        """Until when the shared tier is not asked again."""
        self.disks = Disks(self.far, disk, place, config["identity"], job)

    @property
    def ranks(self) -> int:
        return self.ranks_here

    def answer(self, path: str) -> listing.Answer | None:
        return listing.answer(path, self.disk, self.place.campaign, self.place.node_name)

    # Before the job begins.

    def resume(self, generation: int = 0) -> str:
        """Return where the job resumes, empty from the start. All nodes have the whole checkpoint on their disks then,
        of the newest step that every one of them could make whole. `generation` is 0: only jobs that write to the
        shared tier restart in place."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.parts.begin()
        try:
            if self.place.node_rank == 0:
                self.disks.recall()
            choice = self.choose() if self.place.node_rank == 0 else self.disks.follow()
        except Stopped:
            return ""
        step, path = int(choice["step"]), str(choice["path"])
        if self.place.node_rank == 0:
            self.disks.tell(choice)
        else:
            laid_path = self.laid_back(step if step >= 0 else None)
            path = str(laid_path) if step >= 0 else ""
        seal.tidy(self.disk)
        self._passed_over = {later_step for later_step in seal.committed(self.disk) if later_step > step}
        self.committed = step
        return path

    def fault(self, step: int) -> str:
        return self.disks.fault(step)

    def laid_back(self, step: int | None) -> Path:
        path = self.lay(self.disk, step)
        if step is not None:
            tree, manifest = seal.tree(self.disk, step), (self.disk / step_folder(step) / MANIFEST).read_bytes()
            nodes = {row["file"]: row["rank"] // self.place.ranks_per_node for row in json.loads(manifest)["shards"]}
            writers = {file.rpartition("/")[2]: node % self.place.node_count for file, node in nodes.items()}
            root = self.folder / path_of(tree.root)
            part = [root / path_of(name) for name in tree.files] if tree.part else ()
            for name, mark in survey(root, self.folder, part).marks.items():
                if writers[tree.files[name].shard] != self.place.node_rank:
                    self._of_others[tree.root, name] = mark
        return path

    # While it runs.

    def look(self) -> None:
        if time.monotonic() < self._away:
            return
        try:
            self._look()
        except OSError as error:
            self.tell_failed_look(ends.of_error(error, self.tier))
            self._away = time.monotonic() + AGAIN_S

    def _look(self) -> None:
        if self.place.node_rank == 0:
            for checkpoint in self.due_checkpoints():
                if checkpoint.step not in self._begun:
                    self._ask(checkpoint)
        requests = self.parts.requests()
        for step in sorted(requests):
            news = requests[step].sealing > max(self._given.get(step, -1), self._answered.get(step, -1))
            if step >= self.committed and news and not self.waits(step):
                self._give(requests[step])
        if self.place.node_rank == 0:
            self._commit()
        self._settle(set(self.parts.requests()))
        self.accounts.look(self.committed)
        self._failed_look = ""

    def _ask(self, checkpoint: Finished) -> None:
        with self.trying(checkpoint.step, self.disk):
            version, files = self._version(checkpoint), self.files(checkpoint)
            manifest = self.far.get(f"{step_folder(checkpoint.step)}/{MANIFEST}")
            sealing = seal.next_sealing(manifest, f"attempt-{self.place.attempt:04d}")
            pending = _Begun(time.monotonic(), self.job.tokens, self.job.loss, version)
            folder, part = checkpoint.root, [str(path.relative_to(checkpoint.root)) for path in checkpoint.files]
            if not part and may_be_first_rank(folder.name) and folder.is_file():  # the other ranks' lie elsewhere
                folder, part = folder.parent, [folder.name]
            root = os.path.relpath(os.path.realpath(str(folder)), os.path.realpath(str(self.folder)))
            self._begun[checkpoint.step] = pending
            names = [file.name for path in files for file in formats.files_of(path)]
            self.parts.ask(Asked(checkpoint.step, root, names, sealing, part))

    def _give(self, request: Asked) -> None:
        """Seal this node's files of a checkpoint on its disk, and bring them to the shared tier."""
        root = self.folder / request.root
        files, part = self._own_files(root, request), bool(request.part)
        if files is None or not formats.whole_ranks(self.format, files, self.ranks, request.files):
            return  # its ranks still write
        place = self.disk / step_folder(request.step)
        attempt, rank = place / f"attempt-{self.place.attempt:04d}", self.place.node_rank * self.place.ranks_per_node
        with self.trying(request.step, self.disk), _as_before_unless_done(place):
            newer = None if part else formats.newer_beside(root)
            if newer and (missing_names := formats.missing(Finished(request.step, root), files, newer)):
                raise ValueError(f"the job removes it: {missing_names[0]} is missing")
            rows: list[Row] = []
            if files:
                checkpoint = seal.survey_of(root, files, self.folder, part)
                seal.sweep(place, seal.content(place / MANIFEST))
                seal.make(attempt)
                own_entries = {
                    name: entry
                    for name, entry in checkpoint.files.items()
                    if self._of_others.get((checkpoint.root, name)) != entry.mark
                }
                own_checkpoint = checkpoint._replace(files=own_entries)
                rows = seal.copy_checkpoint(own_checkpoint, attempt, self.place.node_rank, rank, request.sealing)
                if change := seal.difference(checkpoint, root, files, self.folder, part):
                    raise ValueError(change)
                seal.sync(attempt)
            list(side_by_side(partial(self._send, request.step), rows))
            self.parts.give(request.step, rows)
            self._given[request.step] = request.sealing
            self.note_copied(Finished(request.step, root, tuple(files) if request.part else ()))

    def _own_files(self, root: Path, request: Asked) -> list[Path] | None:
        """Return this node's files of a checkpoint; none if none of its ranks wrote any, and None while parts of it
        that this node knows are not finished."""
        if not request.part:
            if root.exists():
                return formats.files_of(root)
            return None if self._written_like([root]) else []  # its ranks' files have names of their own
        alike = (
            checkpoint.files
            for checkpoint in self._recognise()
            if checkpoint.root == root and checkpoint.step == request.step
        )
        if files := list(next(alike, ())):
            return files
        if formats.is_begun(self.format, self.folder, root, request.step):
            return None
        parts = [root / name for name in request.part]
        if own_files := self._written_like(parts):  # none of this step, or none that is whole, is one that may come
            files = formats.of_step(own_files, parts, request.step)
            return files if files and formats.have_ended(files) else None
        return [path for path in parts if path.exists()]

    def _written_like(self, parts: Sequence[Path]) -> list[Path]:
        """Return what this node's ranks have written in this attempt under names like these but for the numbers; none
        where the job itself tells what belongs to a checkpoint."""
        if not formats.KINDS[self.format]:
            return []
        marks = set(self._of_others.values())
        paths = [path for path in formats.of_series(parts) if self.recogniser.is_of_attempt(path)]
        return [path for path in paths if mark_of(path.stat()) not in marks]

    def _send(self, step: int, row: Row) -> None:
        name = f"{step_folder(step)}/{row['file']}"
        self.far.send(self.disk / name, name, (row["size_bytes"], row["sha256"]))

    def _commit(self) -> None:
        """Commit the newest step of which all nodes' files are there; older ones have been overtaken."""
        committed_steps = set()
        for step in sorted(self._begun, reverse=True):
            rows_by_node = self.parts.rows_by_node(step)
            if step >= self.committed and len(rows_by_node) == self.place.node_count:
                self._commit_step(step, rows_by_node)
                committed_steps.add(step)
        for step in [
            step for step in self._begun if step in committed_steps or step < self.committed or self.waits(step)
        ]:
            del self._begun[step]
            self.parts.forget(step)
            if self.far.get(f"{step_folder(step)}/{MANIFEST}") is None:
                self.far.remove(step_folder(step))

    def _commit_step(self, step: int, rows_by_node: dict[int, list[Row]]) -> None:
        pending = self._begun[step]
        try:
            rows = merge_rows(rows_by_node)
        except ValueError as error:  # copying it all again would not help
            self.job.emit("not_sealed", step=step, why=str(error))
            self.put_off[step] = math.inf
            return
        with self.trying(step, self.tier):
            content = serialize(self.identity, step, pending.tokens, pending.loss, rows)
            self.far.write_note(f"{step_folder(step)}/{MANIFEST}", content)
            seal.sweep(self.tier / step_folder(step), content)
            self.note_sealed(step, pending.version)
            seconds = round(time.monotonic() - pending.at, 3)
            self.job.emit("committed", step=step, tier="shared", seconds=seconds, nodes=len(rows_by_node))
            self.prune()

    def _settle(self, requested_steps: set[int]) -> None:
        """Learn whether the steps are committed to which this node gave its files. `requested_steps` may be old."""
        for step, sealing in sorted(self._given.items()):
            content = self.far.get(f"{step_folder(step)}/{MANIFEST}")
            place, attempt = self.disk / step_folder(step), f"attempt-{self.place.attempt:04d}"
            if content is not None and seal.next_sealing(content, attempt) > sealing:
                seal.make(place)  # none of this node's ranks may have written any of it
                seal.publish(place / MANIFEST, content)
                seal.sweep(place, content)
                self.committed = max(self.committed, step)
                self._answered[step] = sealing
                self._passed_over.discard(step)
                seal.keep(self.disk, int(self.checkpoints["keep_local"]), self._passed_over, is_whole=False)
            elif step in requested_steps:
                continue
            else:
                seal.sweep(place, seal.content(place / MANIFEST))
            del self._given[step]

    # When it is over.

    def finish(self, code: int) -> None:
        """Bring the last checkpoint to the shared tier, as long as the nodes that it needs are there. Node 0 waits for
        the others' files, and they for its word that nothing more is asked for: it may see the checkpoint last."""
        well = not code or bool(self.job.stopping)
        deadline = time.monotonic() + (_REST_S if well else _REST_FAILED_S)
        self.put_off, self._away = {}, 0.0
        self.recogniser.ended, self.recogniser.failed = not code, bool(code)
        self.look()
        while time.monotonic() < deadline and (
            self._lacks() if self.place.node_rank == 0 else well and self._may_come()
        ):
            self.busy = True
            time.sleep(_PAUSE_S)
            self.look()
        self.busy = False
        self.accounts.look(self.committed, job_ended=True)
        if self.place.node_rank == 0:
            with contextlib.suppress(OSError):  # a full tier; the other nodes see that this one is gone
                self.parts.end()
        self.look()

    def _lacks(self) -> bool:
        """Return whether a step lacks files of nodes that still serve."""
        for step in self._begun:
            lacking = set(range(self.place.node_count)) - set(self.parts.rows_by_node(step))
            if not self.waits(step) and all(map(self._serves, lacking)):
                return True
        return False

    def _may_come(self) -> bool:
        """Return whether node 0 may still ask for a checkpoint."""
        has_failed = any(map(self.waits, self.put_off))
        return not has_failed and not self.parts.is_over() and self._serves(0)

    def _serves(self, node: int) -> bool:
        address = self.parts.address(node)
        return bool(address) and activity.serves(address)


def make_sealing(
    config: Mapping[str, Any], place: Place, tier: Path, local: Path, job: JobState, ranks: int
) -> Sealing:
    """Return the sealing of a job by the tier that it writes to."""
    if config["checkpoints"].get("tier") != "local":
        return Sealing(config, place, tier, job, ranks)
    return LocalSealing(config, place, tier, job, ranks, local / place.campaign)


@contextlib.contextmanager
def _as_before_unless_done(place: Path) -> Iterator[None]:
    """Remove what was copied for a step that could not be sealed."""
    try:
        yield
    except (OSError, ValueError):
        seal.sweep(place, seal.content(place / MANIFEST))
        raise
