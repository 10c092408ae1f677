"""Sealing where each node writes to its own disk: every node seals its files, and node 0 commits what all have sealed.

A committed step is whole on the shared tier, in the form that every other one has, so restarts, archive and lists need
nothing else. A node's disk keeps its own files of the newest steps, with the same names, and what it was given.
"""

from __future__ import annotations

import contextlib
import json
import math
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Iterator, Mapping, NamedTuple

from trainer.supervisor import activity, ends, formats, seal
from trainer.supervisor.formats import Finished
from trainer.supervisor.place import Place
from trainer.supervisor.sealing import listing
from trainer.supervisor.sealing.far import SharedFolder
from trainer.supervisor.sealing.manifest import MANIFEST, opened, serialize
from trainer.supervisor.sealing.parts import Asked, Parts, Row, together
from trainer.supervisor.sealing.shared import AGAIN_S, Sealing, Told

LOCAL = "/local-checkpoints"
"""`trainer.contract.LOCAL_CHECKPOINTS`."""
_PAUSE_S, _AT_ONCE = 0.2, 4
"""Between two looks at the other nodes' notes; files that are copied at once."""
_REST_S, _REST_FAILED_S = 600.0, 60.0
"""For the nodes to bring the last checkpoint to the shared tier once the job has ended well, or failed."""


class Stopped(Exception):
    """The job is to stop before it has begun."""


class _Begun(NamedTuple):
    """A checkpoint that node 0 has asked for, and what was known then."""

    at: float
    tokens: int
    loss: float | None


class LocalSealing(Sealing):
    def __init__(self, config: Mapping[str, Any], place: Place, tier: Path, job: Told, ranks: int, disk: Path) -> None:
        """`disk`: the campaign's folder on this node's disk."""
        super().__init__(config, place, tier, job, ranks)
        self.disk, self.far = disk, SharedFolder(tier)
        self.parts = Parts(self.far, place)
        self._begun: dict[int, _Begun] = {}
        self._given: set[int] = set()
        """Steps that are not committed and of which this node's files lie on the shared tier."""
        self._away = 0.0
        """Until when the shared tier is not asked again."""
        self._resumes = f"resume/attempt-{place.attempt:04d}"

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
        for step in seal.begun(self.disk):
            if self.far.get(f"{_step(step)}/{MANIFEST}") is None:
                shutil.rmtree(self.disk / _step(step), ignore_errors=True)
        try:
            chosen = self.chosen() if self.place.node_rank == 0 else self._followed()
        except Stopped:
            return ""
        step, path = int(chosen["step"]), str(chosen["path"])
        if self.place.node_rank == 0:
            self.far.put(f"{self._resumes}.json", json.dumps(chosen).encode())
        else:
            laid = self.laid_back(step if step >= 0 else None)
            path = str(laid) if step >= 0 else ""
        seal.tidy(self.disk)
        for later in seal.committed(self.disk):
            if later > step:
                shutil.rmtree(self.disk / _step(later), ignore_errors=True)
        self.committed = step
        return path

    def fault(self, step: int) -> str:
        """Have all nodes make a step whole on their disks; return why one of them could not, empty if all could."""
        number = len(self.far.names(self._resumes))
        self.far.put(f"{self._resumes}/{number:04d}/step.json", json.dumps(step).encode())
        found = {0: self._made_whole(step)}
        for node in range(1, self.place.node_count):
            found[node] = str(self._awaited(f"{self._resumes}/{number:04d}/node-{node:04d}.json"))
        return "; ".join(f"node {node}: {why}" for node, why in found.items() if why)

    def laid_back(self, step: int | None) -> Path:
        return self.laid(self.disk, step)

    def _followed(self) -> dict[str, Any]:
        """Make whole what node 0 asks for, until it has chosen; return its choice."""
        number = 0
        while True:
            asked = self.far.get(f"{self._resumes}/{number:04d}/step.json")
            if asked is not None:
                why = self._made_whole(int(json.loads(asked)))
                name = f"{self._resumes}/{number:04d}/node-{self.place.node_rank:04d}.json"
                self.far.put(name, json.dumps(why).encode())
                number += 1
                continue
            chosen = self.far.get(f"{self._resumes}.json")
            if chosen is not None:
                return dict(json.loads(chosen))
            self._pause()

    def _awaited(self, name: str) -> Any:
        while True:
            content = self.far.get(name)
            if content is not None:
                return json.loads(content)
            self._pause()

    def _pause(self) -> None:
        if self.job.stopping:
            raise Stopped
        time.sleep(_PAUSE_S)

    def _made_whole(self, step: int) -> str:
        """Bring what this node's disk lacks of a step, or has otherwise than its manifest says, from the shared tier;
        return why it cannot be used, empty for a sound one."""
        try:
            content = self.far.get(f"{_step(step)}/{MANIFEST}") or b""
            shards = opened(content, step, self.place.campaign, self.config["identity"])["shards"]
        except (ValueError, KeyError, TypeError) as error:
            return f"its manifest: {error}"
        with ThreadPoolExecutor(_AT_ONCE) as copiers:
            found = list(copiers.map(partial(self._brought, step), shards))
        if wrong := next((why for why, _ in found if why), ""):
            return wrong
        seal.publish(self.disk / _step(step) / MANIFEST, content)
        self.job.emit("made_whole", step=step, files=len(found), bytes_brought=sum(came for _, came in found))
        return ""

    def _brought(self, step: int, shard: Row) -> tuple[str, int]:
        """Return why a file of a step cannot be had, and the bytes that were brought."""
        name = f"{_step(step)}/{shard['file']}"
        own, wanted = self.disk / name, (shard["size_bytes"], shard["sha256"])
        try:
            if (seen := seal.digest_of(own)) == wanted:
                return "", 0
            self.job.emit("refused_file", step=step, file=shard["file"], seen=seen[1], wanted=wanted[1])
        except OSError:
            pass  # it is not here, or cannot be read
        return self.far.bring(name, own, wanted), shard["size_bytes"]

    # While it runs.

    def look(self) -> None:
        if time.monotonic() < self._away:
            return
        try:
            self._look()
        except OSError as error:
            self.job.emit("not_sealed", step=self.committed, why=ends.of_error(error, self.tier)[:500])
            self._away = time.monotonic() + AGAIN_S

    def _look(self) -> None:
        if self.place.node_rank == 0:
            for found in self.finished():
                if found.step not in self._begun:
                    self._ask(found)
        asked = self.parts.asked()
        for step in sorted(asked):
            if step > self.committed and step not in self._given and not self.waits(step):
                self._give(asked[step])
        if self.place.node_rank == 0:
            self._commit()
        self._settle(set(self.parts.asked()))
        self.accounts.look(self.committed)

    def _ask(self, found: Finished) -> None:
        with self.trying(found.step, self.disk):
            names = [path.name for path in self.files(found)]
            self._begun[found.step] = _Begun(time.monotonic(), self.job.tokens, self.job.loss)
            self.parts.ask(Asked(found.step, str(found.root.relative_to(self.folder)), names))

    def _give(self, asked: Asked) -> None:
        """Seal this node's files of a checkpoint on its disk, and bring them to the shared tier."""
        root = self.folder / asked.root
        files = formats.files_of(root) if root.exists() else []
        if not formats.whole_ranks(self.format, files, self.ranks, asked.files):
            return  # its ranks still write
        attempt = self.disk / _step(asked.step) / f"attempt-{self.place.attempt:04d}"
        with self.trying(asked.step, self.disk), _removed_unless_done(attempt):
            newer = formats.newer_beside(root)
            if newer and (gone := formats.missing(Finished(asked.step, root), files, newer)):
                raise ValueError(f"the job removes it: {gone[0]} is missing")
            attempt.mkdir(parents=True, exist_ok=True)
            rows = seal.linked(files, root, self.folder, attempt, self.place.node_rank * self.place.ranks_per_node)
            seal.sync(attempt)
            with ThreadPoolExecutor(_AT_ONCE) as copiers:
                list(copiers.map(partial(self._send, asked.step), rows))
            self.parts.give(asked.step, rows)
            self._given.add(asked.step)
            self.recogniser.sealed(Finished(asked.step, root))

    def _send(self, step: int, row: Row) -> None:
        name = f"{_step(step)}/{row['file']}"
        self.far.send(self.disk / name, name, (row["size_bytes"], row["sha256"]))

    def _commit(self) -> None:
        """Commit the newest step of which all nodes' files are there; older ones have been overtaken."""
        for step in sorted(self._begun, reverse=True):
            given = self.parts.given(step)
            if step > self.committed and len(given) == self.place.node_count:
                self._commit_step(step, given)
        for step in [step for step in self._begun if step <= self.committed or self.waits(step)]:
            del self._begun[step]
            self.parts.forget(step)
            if self.far.get(f"{_step(step)}/{MANIFEST}") is None:
                self.far.remove(_step(step))

    def _commit_step(self, step: int, given: dict[int, list[Row]]) -> None:
        begun = self._begun[step]
        try:
            rows = together(given)
        except ValueError as error:  # copying it all again would not help
            self.job.emit("not_sealed", step=step, why=str(error))
            self.put_off[step] = math.inf
            return
        with self.trying(step, self.tier):
            content = serialize(self.identity, step, begun.tokens, begun.loss, rows)
            self.far.put(f"{_step(step)}/{MANIFEST}", content)
            self.committed = step
            seconds = round(time.monotonic() - begun.at, 3)
            self.job.emit("committed", step=step, tier="shared", seconds=seconds, nodes=len(given))
            self.prune()

    def _settle(self, asked: set[int]) -> None:
        """Learn whether the steps are committed to which this node gave its files. `asked` may be a moment old."""
        for step in sorted(self._given):
            content = self.far.get(f"{_step(step)}/{MANIFEST}")
            place = self.disk / _step(step)
            if content is not None and json.loads(content)["attempt"] == self.place.attempt:
                seal.publish(place / MANIFEST, content)
                self.committed = max(self.committed, step)
                seal.keep(self.disk, int(self.checkpoints["keep_local"]))
            elif step in asked:
                continue
            elif not (place / MANIFEST).exists():
                shutil.rmtree(place, ignore_errors=True)
            self._given.discard(step)

    # When it is over.

    def finish(self, code: int) -> None:
        """Bring the last checkpoint to the shared tier, as long as the nodes that it needs are there. Node 0 waits for
        the others' files, and they for its word that nothing more is asked for: it may see the checkpoint last."""
        well = not code or bool(self.job.stopping)
        until = time.monotonic() + (_REST_S if well else _REST_FAILED_S)
        self.put_off, self._away = {}, 0.0
        self.recogniser.ended = not code
        self.look()
        while time.monotonic() < until and (self._lacks() if self.place.node_rank == 0 else well and self._may_come()):
            self.busy = True
            time.sleep(_PAUSE_S)
            self.look()
        self.busy = False
        self.accounts.look(self.committed, ended=True)
        if self.place.node_rank == 0:
            with contextlib.suppress(OSError):  # a full tier; the other nodes see that this one is gone
                self.parts.end()
        self.look()

    def _lacks(self) -> bool:
        """Return whether a step lacks files of nodes that still serve."""
        for step in self._begun:
            lacking = set(range(self.place.node_count)) - set(self.parts.given(step))
            if not self.waits(step) and all(map(self._serves, lacking)):
                return True
        return False

    def _may_come(self) -> bool:
        """Return whether node 0 may still ask for a checkpoint."""
        failed = any(map(self.waits, self.put_off))
        return not failed and not self.parts.over() and self._serves(0)

    def _serves(self, node: int) -> bool:
        address = self.parts.address(node)
        return bool(address) and activity.serves(address)


def of(config: Mapping[str, Any], place: Place, tier: Path, local: Path, job: Told, ranks: int) -> Sealing:
    """Return the sealing of a job by the tier that it writes to."""
    if config["checkpoints"].get("tier") != "local":
        return Sealing(config, place, tier, job, ranks)
    return LocalSealing(config, place, tier, job, ranks, local / place.campaign)


@contextlib.contextmanager
def _removed_unless_done(folder: Path) -> Iterator[None]:
    """Remove what was linked for a checkpoint that could not be sealed: it would hold the room of removed files."""
    try:
        yield
    except (OSError, ValueError):
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _step(step: int) -> str:
    return f"step-{step:08d}"
