"""A job's attempts under real supervisors, one after the other, and what a person would know of each.

Nothing here reads a checkpoint by the product's code: digests, manifests and trees are read by their documented form.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.unit.trainer.supervised import Supervisors, events, kill_node, supervisor
from trainer.contract import Termination

PATIENCE_S = 120.0
"""After it a job gives up waiting for a seal and exits with `NEVER_SEALED`: long after a machine under load seals."""
NEVER_SEALED = 33
PRELUDE = """
import json, os, pathlib, signal, sys, time
folder = pathlib.Path(os.environ["BIVOUAC_CHECKPOINTS"])
folder.mkdir(parents=True, exist_ok=True)
resume, attempt = os.environ["BIVOUAC_RESUME_FROM"], int(os.environ["ATTEMPT"])
def lose_node():
    os.kill(os.getppid(), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)
def wait_for_seal(step):
    mark = pathlib.Path(os.environ["SEALED"]) / f"{attempt}-{step}"
    until = time.monotonic() + float(os.environ["PATIENCE"])
    while not mark.exists():
        if time.monotonic() > until:
            print("never sealed:", step, flush=True)
            os._exit(33)
        time.sleep(0.01)
def tell(**figures):
    print(json.dumps(figures), flush=True)
def note(**facts):  # not by a line: who takes the node with it may take its last lines too
    with open(os.environ["NOTES"], "a") as file:
        file.write(json.dumps(facts) + "\\n")
"""
"""The first lines of a test's job. Its supervisor is its parent, so it can take the whole node with it."""
PROBE = """
import hashlib, json, os
folder, resume, tree = os.environ["BIVOUAC_CHECKPOINTS"], os.environ["BIVOUAC_RESUME_FROM"], {}
for top, folders, files in os.walk(folder):
    for path in (os.path.join(top, name) for name in folders + files):
        below, mode = os.path.relpath(path, folder), os.lstat(path).st_mode & 0o777
        if os.path.islink(path):
            tree[below] = ["link", 0, os.readlink(path)]
        elif os.path.isdir(path):
            tree[below] = ["folder", mode, ""]
        else:
            content = open(path, "rb").read()
            tree[below] = ["file", mode, hashlib.sha256(content).hexdigest(), content[:64].decode("latin-1")]
with open(os.environ["NOTES"], "a") as file:
    file.write(json.dumps({"probe": [os.path.relpath(resume, folder) if resume else "", tree]}) + "\\n")
"""
_OWN_DISK = "node-{rank}/local/tiny/own"
_STEP, _TREE = re.compile(r"^step-(\d{8,})$"), re.compile(r"^tree-\d{4}\.json$")


@dataclass(frozen=True)
class Sealed:
    """A step whose files are as its manifest says."""

    attempt: int
    contents: Sequence[bytes]
    """Of the job's files, without our own tree."""


def sealed_steps(tier: Path) -> dict[int, Sealed]:
    """Return the sealed steps of a tier whose every file has the size and digest of the manifest."""
    sound = {}
    for place in tier.iterdir() if tier.is_dir() else ():
        match, manifest = _STEP.match(place.name), place / "manifest.json"
        if match is None or not manifest.exists():
            continue
        try:
            document = json.loads(manifest.read_text())
            rows = [(place / row["file"], row["size_bytes"], row["sha256"]) for row in document["shards"]]
        except (ValueError, KeyError, FileNotFoundError):  # the drill damages manifests, retention removes them
            continue
        contents = {path: path.read_bytes() for path, _, _ in rows if path.is_file()}
        if all(
            path in contents and (len(contents[path]), hashlib.sha256(contents[path]).hexdigest()) == (size, digest)
            for path, size, digest in rows
        ):
            files = [content for path, content in contents.items() if not _TREE.match(path.name)]
            sound[int(match.group(1))] = Sealed(document["attempt"], files)
    return dict(sorted(sound.items()))


@dataclass(frozen=True)
class Attempt:
    """What a person would know of an attempt that is over."""

    number: int
    codes: Sequence[int]
    """Of the nodes' supervisors; -9 of a lost node."""
    ends: Sequence[Termination | None]
    logs: Sequence[str]
    notes: Sequence[str]
    """Of each node's job, a line of JSON each."""
    sealed: Mapping[int, Sealed]
    """After the attempt: steps that are whole by their manifests."""
    unrecognised: Mapping[str, Any] | None

    def events(self, kind: str, node: int = 0) -> list[dict[str, Any]]:
        return events(self.logs[node], kind)

    @property
    def steps(self) -> list[int]:
        return [event["step"] for event in self.events("step")]

    @property
    def end(self) -> Termination:
        assert self.ends[0] is not None, f"node 0 left no termination message: {self.logs[0][-2000:]}"
        return self.ends[0]

    def value(self, name: str, node: int = 0) -> Any:
        """Return what the job has noted once by this name."""
        facts = [json.loads(line) for line in self.notes[node].splitlines()]
        values = [fact[name] for fact in facts if name in fact]
        assert len(values) == 1, f"{name} is noted {len(values)} times: {self.logs[node][-3000:]}"
        return values[0]


@dataclass(frozen=True)
class Offer:
    """What a job gets when it starts."""

    resume: str
    """Below the job's folder; empty: nothing."""
    tree: Mapping[str, Sequence[Any]]
    """Path below the job's folder -> kind, mode, digest or a link's target, first bytes."""
    attempt: Attempt

    def text(self, below: str = "") -> str:
        """Return the first bytes of the file, below what the job resumes from."""
        return str(self.tree["/".join(filter(None, (self.resume, below)))][3])


@dataclass(frozen=True)
class Case:
    """A job, and where it runs."""

    script: str
    steps: int = 40
    """What the spec expects."""
    format: str = "auto"
    nodes: int = 1
    has_disks: bool = False
    """Each node writes to a disk of its own."""
    more: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of the supervisor's configuration."""
    words: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    """Of the container."""
    keep: int = 2
    most_attempts: int = 4
    prelude: str = PRELUDE


class SupervisorsWithDisks(Supervisors):
    """Of nodes whose job writes to their own disks."""

    def start(
        self, attempt: int, *command: str, steps: int = 40, rank: int = 0, env: Mapping[str, str] | None = None
    ) -> subprocess.Popen[str]:
        own = {"folder": str(self.root / _OWN_DISK.format(rank=rank)), "tier": "local", "keep_local": 2}
        self.more = {**self.more, "checkpoints": {**self.more["checkpoints"], **own}}
        return super().start(attempt, *command, steps=steps, rank=rank, env=env)


class History:
    """The attempts of one job in a campaign of its own below `root`."""

    def __init__(
        self, case: Case, root: Path, patience_s: float = PATIENCE_S, step_of: Callable[[Sealed], int] | None = None
    ) -> None:
        """`step_of`: the job's own number of a sealed step, if its name has another one."""
        root.mkdir(parents=True, exist_ok=True)
        self.case, self.patience_s, self.step_of, self.attempts = case, patience_s, step_of, list[Attempt]()
        self.copies = 0
        supervisors = SupervisorsWithDisks if case.has_disks else Supervisors
        self.camp = supervisors(
            root, nodes=case.nodes, format=case.format, more=self._more(root), variables=case.variables
        )

    def _more(self, root: Path) -> dict[str, Any]:
        kept = {"format": self.case.format, "folder": str(root / "shared/tiny/own"), "keep": self.case.keep}
        more = dict(self.case.more)
        return {**more, "checkpoints": {**kept, **more.get("checkpoints", {})}}

    @property
    def folders(self) -> list[Path]:
        """Return where the job writes its checkpoints: one folder, or one on each node's disk."""
        if self.case.has_disks:
            return [self.camp.root / _OWN_DISK.format(rank=rank) for rank in range(self.case.nodes)]
        return [self.camp.tier / "own"]

    @property
    def last(self) -> Attempt:
        return self.attempts[-1]

    def play(self) -> History:
        """Run attempts until the node lives to the end of one."""
        for _ in range(self.case.most_attempts):
            if -9 not in self.attempt().codes:
                break
        return self

    def attempt(self, program: tuple[str, ...] = ()) -> Attempt:
        """Run the next attempt to its end. `program`: what Python runs in place of the supervisor."""
        self.camp.program = program or (supervisor(),)
        done = self._run(len(self.attempts) + 1, self.case.prelude + self.case.script)
        self.attempts.append(done)
        return done

    def copy(self, new_disk: bool = False, **changes: Any) -> History:
        """Return the same history on a copy of its disks, and of the case with `changes`. `new_disk`: of the sealed
        steps alone, as where the tier was lost and they came back."""
        self.copies += 1
        root = self.camp.root.with_name(f"{self.camp.root.name}-copy-{self.copies}")
        shutil.copytree(self.camp.root, root, symlinks=True)
        copied = History(replace(self.case, **changes), root, self.patience_s, self.step_of)
        copied.attempts = list(self.attempts)
        for folder in copied.folders if new_disk else ():
            shutil.rmtree(folder.parent if self.case.has_disks else folder)
        return copied

    def offer(self, new_disk: bool = False) -> Offer:
        """Return what the next attempt would get; it is tried on a copy."""
        done = self.copy(new_disk, prelude="", script=PROBE).attempt()
        resume, tree = done.value("probe")
        return Offer(resume, tree, done)

    def _run(self, number: int, script: str) -> Attempt:
        camp, case = self.camp, self.case
        marks = camp.root / "sealed"
        marks.mkdir(exist_ok=True)
        env = {"ATTEMPT": str(number), "SEALED": str(marks), "PATIENCE": str(self.patience_s), **case.env}
        notes = [camp.root / f"notes-{number}-{rank}" for rank in range(camp.nodes)]
        for rank, path in enumerate(notes):
            path.touch()
            (camp.root / f"node-{rank}/termination.json").unlink(missing_ok=True)
        command = (sys.executable, "-c", script, *case.words)
        started = [
            camp.start(number, *command, steps=case.steps, rank=rank, env={**env, "NOTES": str(path)})
            for rank, path in enumerate(notes)
        ]
        logs = [list[str]() for _ in started]
        followers = [
            threading.Thread(target=self._follow, args=(process, log, marks, number, started), daemon=True)
            for process, log in zip(started, logs, strict=True)
        ]
        for thread in followers:
            thread.start()
        for thread in followers:
            thread.join()
        return Attempt(
            number, [process.wait() for process in started], [_end(camp, rank) for rank in range(camp.nodes)],
            ["".join(log) for log in logs], [path.read_text() for path in notes], sealed_steps(camp.tier),
            _unrecognised(camp.tier),
        )  # fmt: skip

    def _follow(
        self,
        process: subprocess.Popen[str],
        log: list[str],
        marks: Path,
        attempt: int,
        gang: Sequence[subprocess.Popen[str]],
    ) -> None:
        """Keep the lines of a supervisor, and mark each step that it calls committed. Where nodes have disks of their
        own, the loss of one ends the attempt on all, as a steward ends it."""
        assert process.stdout is not None
        for line in process.stdout:
            log.append(line)
            for event in events(line, "committed"):
                step = int(event["step"])
                if self.step_of is not None:
                    sealed = sealed_steps(self.camp.tier).get(step)
                    if sealed is None:  # retention has removed it meanwhile
                        continue
                    step = self.step_of(sealed)
                (marks / f"{attempt}-{step}").touch()
        if self.case.has_disks and process.wait() == -signal.SIGKILL:
            for other in gang:
                if other.poll() is None:
                    kill_node(other)


def _end(camp: Supervisors, rank: int) -> Termination | None:
    path = camp.root / f"node-{rank}/termination.json"
    return Termination.model_validate_json(path.read_text()) if path.exists() else None


def _unrecognised(tier: Path) -> Mapping[str, Any] | None:
    path = tier / "unrecognised.json"
    return json.loads(path.read_text()) if path.exists() else None
