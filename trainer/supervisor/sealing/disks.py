"""What nodes with disks of their own do before the job begins: each makes whole the step that all of them go on from.

Node 0 asks by notes `resume/attempt-K/M/asked.json` on the shared tier, the others answer beside them, and what it has
chosen is in `resume/attempt-K.json`.
"""

from __future__ import annotations

import contextlib
import json
import time
from functools import partial
from pathlib import Path
from typing import Any, Mapping, Protocol

from trainer.contract.exits import limit_of
from trainer.contract.sealed import MANIFEST, read_manifest, step_folder
from trainer.supervisor import seal
from trainer.supervisor.place import Place
from trainer.supervisor.sealing.copying import side_by_side
from trainer.supervisor.sealing.far import Row, SharedFolder

_PAUSE_S = 0.2
"""Between two looks at the other nodes' notes."""


class Stopped(Exception):
    """The job is to stop before it has begun."""


class Hears(Protocol):
    """The job, as far as it is told here."""

    stopping: str

    def emit(self, event: str, **fields: object) -> None: ...


class Disks:
    def __init__(self, shared_folder: SharedFolder, disk: Path, place: Place, identity: str, job: Hears) -> None:
        """`disk`: the campaign's folder on this node's disk. Its methods raise `Stopped`."""
        self.far, self.disk, self.place, self.identity, self.job = shared_folder, disk, place, identity, job
        self._resumes = f"resume/attempt-{place.attempt:04d}"

    # Node 0.

    def fault(self, step: int) -> str:
        """Have all nodes make a step whole on their disks; return why one of them could not, empty if all could. What
        is damaged on the shared tier is brought there again by a node that has it."""
        answers = self._ask("whole", step)
        if any(answers.values()):
            self._ask("send", step, (self.far.get(f"{step_folder(step)}/{MANIFEST}") or b"").decode(errors="replace"))
            answers = self._ask("whole", step)
        return "; ".join(f"node {node}: {answer}" for node, answer in answers.items() if answer)

    def tell(self, choice: Mapping[str, Any]) -> None:
        self.far.write_note(f"{self._resumes}.json", json.dumps(choice).encode())

    def recall(self) -> None:
        """Commit again the newest step that the nodes' disks have and the shared tier has lost."""
        newest = max(seal.committed(self.far.root), default=-1)
        lost_manifests: dict[int, str] = {}
        for answer in self._ask("list").values():
            for step, manifest in json.loads(answer).items():
                if int(step) > newest and seal.attempt_of(manifest) > seal.attempt_of(lost_manifests.get(int(step))):
                    lost_manifests[int(step)] = manifest
        for step in sorted(lost_manifests, reverse=True):
            self._ask("send", step, lost_manifests[step])
            if seal.in_size(self.far.root / step_folder(step), lost_manifests[step].encode()):
                self.far.write_note(f"{step_folder(step)}/{MANIFEST}", lost_manifests[step].encode())
                self.job.emit("recalled", step=step)
                return

    def _ask(self, act: str, step: int = -1, manifest: str = "") -> dict[int, str]:
        """Have all nodes do something for a step; return what each says of it."""
        name = f"{self._resumes}/{len(self.far.names(self._resumes)):04d}"
        self.far.write_note(f"{name}/asked.json", json.dumps([act, step, manifest]).encode())
        answers = {0: self._do(act, step, manifest)}
        for node in range(1, self.place.node_count):
            answers[node] = str(self._await_note(f"{name}/node-{node:04d}.json"))
        return answers

    def _do(self, act: str, step: int, manifest: str) -> str:
        if act == "list":
            return json.dumps({step: text for step in seal.committed(self.disk) if (text := self._manifest_of(step))})
        return self._made_whole(step) if act == "whole" else self._sent_back(step, manifest)

    def _manifest_of(self, step: int) -> str:
        """Return the manifest of a step on this node's disk, empty for one that may not be used. Raises a limit's
        `OSError`."""
        try:
            content = (self.disk / step_folder(step) / MANIFEST).read_bytes()
            read_manifest(content, step, self.place.campaign, self.identity)
        except (OSError, ValueError, KeyError, TypeError) as error:
            if limit_of(error):
                raise
            return ""
        return content.decode()

    def _sent_back(self, step: int, manifest: str) -> str:
        """Bring to the shared tier what this node's disk has soundly of a step, and the tier has not."""
        with contextlib.suppress(ValueError, KeyError, TypeError):
            shards = read_manifest(manifest.encode(), step, self.place.campaign, self.identity)["shards"]
            list(side_by_side(partial(self._lend_shard, step), shards))
        return ""

    def _lend_shard(self, step: int, shard: Row) -> None:
        name, size_and_digest = f"{step_folder(step)}/{shard['file']}", (shard["size_bytes"], shard["sha256"])
        try:
            if self.far.digest(name) != size_and_digest and seal.digest_of(self.disk / name) == size_and_digest:
                self.far.send(self.disk / name, name, size_and_digest)
        except ValueError:
            pass  # it is damaged here too
        except OSError as error:  # it is not here
            if limit_of(error):
                raise

    def follow(self) -> dict[str, Any]:
        """Do what node 0 asks for, until it has chosen; return its choice."""
        number = 0
        while True:
            name = f"{self._resumes}/{number:04d}"
            request = self.far.get(f"{name}/asked.json")
            if request is not None:
                answer = self._do(*json.loads(request))
                self.far.write_note(f"{name}/node-{self.place.node_rank:04d}.json", json.dumps(answer).encode())
                number += 1
                continue
            choice = self.far.get(f"{self._resumes}.json")
            if choice is not None:
                return dict(json.loads(choice))
            self._pause()

    def _await_note(self, name: str) -> Any:
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
            content = self.far.get(f"{step_folder(step)}/{MANIFEST}") or b""
            shards = read_manifest(content, step, self.place.campaign, self.identity)["shards"]
        except (ValueError, KeyError, TypeError) as error:
            return f"its manifest: {error}"
        results = list(side_by_side(partial(self._bring_shard, step), shards))
        if wrong := next((fault for fault, _ in results if fault), ""):
            return wrong
        seal.publish(self.disk / step_folder(step) / MANIFEST, content)
        seal.sweep(self.disk / step_folder(step), content)
        self.job.emit(
            "made_whole",
            step=step,
            files=len(results),
            bytes_brought=sum(brought_bytes for _, brought_bytes in results),
        )
        return ""

    def _bring_shard(self, step: int, shard: Row) -> tuple[str, int]:
        """Return why a file of a step cannot be had, and the bytes that were brought."""
        name = f"{step_folder(step)}/{shard['file']}"
        own_path, expected = self.disk / name, (shard["size_bytes"], shard["sha256"])
        try:
            if (own_digest := seal.digest_of(own_path)) == expected:
                return "", 0
            self.job.emit("refused_file", step=step, file=shard["file"], seen=own_digest[1], wanted=expected[1])
        except OSError as error:  # it is not here, or cannot be read
            if limit_of(error):
                raise
        return self.far.fetch(name, own_path, expected), shard["size_bytes"]
