"""What a job's script itself knows of its checkpoints, held against what it was given, and what was told of it.

It reads the script's ledger, the manifests by their documented form, and events. It shares no code with what it judges.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.trainer.supervisor.histories import Attempt, History, Sealed

_TOKEN = re.compile(rb"<step=(\d+) attempt=(\d+)>")
_A_FEW = 10
_ALARMS = ("resumed_elsewhere", "loss_jumped")
_SAVES = ("begun", "finished")


def step_in(sealed: Sealed) -> int:
    """Return the step that a sealed checkpoint's own content tells, -1 if it tells none or two."""
    steps = {int(match.group(1)) for content in sealed.contents if (match := _TOKEN.search(content))}
    return steps.pop() if len(steps) == 1 else -1


@dataclass
class Ledger:
    """The script's own lines."""

    lines: list[dict[str, Any]]

    def of(self, kind: str, attempt: int = 0) -> list[dict[str, Any]]:
        return [line for line in self.lines if line["kind"] == kind and attempt in (0, line["attempt"])]

    def saves(self, before: int) -> list[dict[str, Any]]:
        """Return what was whole before an attempt, in its order, also where the script could not note its end."""
        return [line for line in self.lines if line["kind"] in _SAVES and line["attempt"] < before]

    def left(self, before: int) -> dict[str, tuple[int, str]]:
        """Return the roots of the job's folder when an attempt begins, with step and digest of each: without what the
        script has removed, and without what was later than the step that an attempt went on from."""
        roots: dict[str, tuple[int, str]] = {}
        for line in self.lines:
            if line["attempt"] >= before:
                break
            if line["kind"] == "finished":
                roots[line["root"]] = line["step"], line["digest"]
            elif line["kind"] == "removed":
                roots.pop(line["root"], None)
            elif line["kind"] == "resumed":
                roots = {root: content for root, content in roots.items() if content[0] <= line["step"]}
        return roots


def read(paths: Sequence[str | Path]) -> list[Ledger]:
    """Return each rank's ledger. What two ranks save is whole once both have noted their parts of it."""
    lines, *others = [_lines(Path(path)) for path in paths]
    if not others:
        return [Ledger(lines)]
    parts = [_part(line) for line in others[0] if line["kind"] == "part"]
    whole = [{**line, "kind": "begun"} if line["kind"] == "part" and _part(line) in parts else line for line in lines]
    saves = [line for line in whole if line["kind"] in _SAVES]
    return [Ledger(whole), Ledger(saves + [line for line in others[0] if line["kind"] not in _SAVES])]


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _part(line: Mapping[str, Any]) -> tuple[Any, ...]:
    return line["attempt"], line["step"], line["digest"]


@dataclass
class Judge:
    """Of one history."""

    history: History
    ledger: Ledger
    """Of the rank that is judged."""
    plan: Mapping[str, Any]
    damaged: Mapping[int, int] = field(default_factory=dict)
    """Attempt after which a step was damaged -> the step, by its content."""
    faults: list[str] = field(default_factory=list)

    def insist(self, holds: bool, what: str) -> None:
        if not holds:
            self.faults.append(what)

    def committed(self, before: int) -> dict[int, int]:
        """Return step -> newest attempt that was told to have committed it, of those that nobody has damaged since."""
        told: dict[int, int] = {}
        for mark in (self.history.camp.root / "sealed").iterdir():
            attempt, step = map(int, mark.name.rsplit("-", 1)) if not mark.name.endswith("--1") else (0, -1)
            self.insist(step >= 0, f"a step was called committed whose files tell no step or two: {mark.name}")
            if attempt < before and step >= 0:
                told[step] = max(told.get(step, 0), attempt)
        for attempt in sorted(self.damaged):
            if attempt < before and told.get(self.damaged[attempt], before) <= attempt:
                del told[self.damaged[attempt]]
        return told

    def resumed(self, attempt: Attempt) -> None:
        """Judge what an attempt was given."""
        (line,) = self.ledger.of("resumed", attempt.number) or ({},)
        if not line:
            # A node may have died while another one still laid the step back on its new disk.
            may_have_died = self.plan["nodes"] > 1 and set(attempt.codes) == {-9}
            return self.insist(may_have_died, f"attempt {attempt.number} never began: {attempt.ends}")
        told, saves = self.committed(attempt.number), self.ledger.saves(attempt.number)
        newest, step = max(told, default=0), int(line["step"])
        where = f"attempt {attempt.number}"
        self.insist(step >= newest, f"{where} resumed from {step}, and {newest} was committed")
        self.insist(not line["missing"], f"{where}: of the job's other files are gone: {line['missing']}")
        if line["root"]:
            least = told.get(step, 0)
            whole = {save["digest"] for save in saves if save["step"] == step and save["attempt"] >= least}
            self.insist(line["digest"] in whole, f"{where} was given other bytes for step {step} than it had saved")
        there = {root: tuple(content) for root, content in line["there"].items()}
        # A new disk has what a resume needs, and no older checkpoint.
        left = self.ledger.left(attempt.number) if self.plan["nodes"] == 1 else {}
        for root, content in left.items():
            if content[0] < step and root != line["root"]:
                self.insist(there.get(root) == content, f"{where}: the older checkpoint {root} is gone or changed")

    def told(self, attempt: Attempt) -> None:
        """Judge the steps and alarms of an attempt."""
        where, steps = f"attempt {attempt.number}", attempt.steps
        self.insist(steps == sorted(set(steps)), f"{where}: steps went back: {steps}")
        alarms = [event for kind in _ALARMS for event in attempt.events(kind)]
        lines = self.ledger.of("resumed", attempt.number)
        if lines and lines[0]["ignores"]:
            offered = lines[0]["step"]
            first = [event["first"] for event in attempt.events("resumed_elsewhere")]
            # Scripts count by a base of their own, so a few steps are no sign.
            well = len(first) == 1 and first[0] <= self.plan["say_every"]
            self.insist(well or (offered <= _A_FEW and not first), f"{where} began again, and told was {alarms}")
            return
        self.insist(not alarms, f"{where}: a false alarm: {alarms[:1]}")
        if steps and lines:
            step = lines[0]["step"]
            most = self.plan["steps"] + 1
            self.insist(step <= steps[0] and steps[-1] < most, f"{where}: went on from {step}, told {steps}")

    def end(self, attempt: Attempt) -> None:
        """Judge the last attempt's end."""
        end, where = attempt.end, f"attempt {attempt.number}"
        unsealed = self.ledger.of("never sealed", attempt.number)
        if unsealed:
            reasons = attempt.events("not_sealed")[:2]
            return self.faults.append(f"{where}: step {unsealed[0]['step']} was finished, and never sealed: {reasons}")
        if self.plan["ending"] == "fails":
            self.insist(end.exit_code == 70 and "the loss is not finite" in end.detail, f"{where} ended as {end}")
            return
        self.insist((end.exit_code, end.reason) == (0, "done"), f"{where} ended as {end}")
        last = self.plan["steps"] - self.plan["base"]
        self.insist(end.step == last, f"{where} ended at step {end.step}, and {last} was printed")

    def sealed_or_told(self, attempt: Attempt) -> str:
        """Judge what is left: the newest save is sealed, or told. Return which."""
        saves = [save for save in self.ledger.saves(attempt.number + 1) if save["kind"] == "finished"]
        if not saves:
            return "nothing"
        step, content = saves[-1]["step"], attempt.unrecognised
        sealed = {step_in(one): number for number, one in attempt.sealed.items()}
        events = attempt.events("not_sealed")
        entries = list(content["entries"]) if content else []
        self.insist(content is not None and content["ended"], "what is unrecognised at the end is not told")
        untold = [name for name in self.beside(0) if not _covers(entries, name)]
        self.insist(not untold or content is None, f"neither recognised nor told: {untold}; told is {entries[:5]}")
        lost = [
            name for node in range(1, self.plan["nodes"]) for name in self.beside(node) if not self.kept(name, node)
        ]
        self.insist(not lost, f"neither recognised nor copied from its disk: {lost}")
        if step in sealed:
            self.insist(
                max(attempt.sealed) == sealed[step], f"step {step} was saved last; the newest of {sealed} is not it"
            )
            tops = [(folder, folder / name) for folder in self.history.folders for name in saves[-1]["root"].split()]
            files = {
                path.relative_to(folder): hashlib.sha256(path.read_bytes()).hexdigest()
                for folder, top in tops
                for path in ([top] if top.is_file() else top.rglob("*"))
                if path.is_file() and not path.is_symlink()
            }
            wanted = Counter(files.values())
            held = Counter(hashlib.sha256(each).hexdigest() for each in attempt.sealed[sealed[step]].contents)
            self.older(attempt, entries)
            lacking = (wanted - held).total()
            self.insist(not lacking, f"{lacking} files of step {step} are not sealed")
            return "sealed"
        unrecognised = {name: (content or {}).get(name) for name in ("files", "newest", "why", "fits")}
        told = all(_covers(entries, name) for name in saves[-1]["root"].split())
        # A job that fails just after a save may have been about to write more of it: that is told, and held.
        enough = told and self.plan["ending"] == "fails"
        self.insist(enough, f"step {step} is not sealed, only {sealed}; {events[:1]}; {unrecognised}")
        return "told" if told or events else "lost"

    def older(self, attempt: Attempt, entries: Iterable[str]) -> None:
        """Judge what is told of checkpoints that the sealed one has overtaken: they would hold a teardown."""
        left = self.ledger.left(attempt.number + 1).items() if self.plan["nodes"] == 1 else ()
        paths = [(self.history.folders[0], root.split()) for root, _ in left]
        there = [names for folder, names in paths if all((folder / name).exists() for name in names)]
        held = [names for names in there if any(_covers(entries, name) for name in names)]
        self.insist(not held, f"checkpoints of the job are called unrecognised: {held}")

    def came_back(self, again: Ledger, attempt: int) -> None:
        """Judge what another attempt found on a disk that has the sealed steps alone."""
        (found,) = again.of("resumed", attempt)
        wanted = self.ledger.saves(attempt)[-1]
        roots = (wanted["root"], *(("last.ckpt",) if self.plan["last"] else ()))  # the same bytes under another name
        self.insist(
            (found["step"], found["digest"]) == (wanted["step"], wanted["digest"]) and found["root"] in roots,
            f"on a new disk came back {found['root']} of step {found['step']} for {wanted['root']} of {wanted['step']}",
        )

    def beside(self, node: int) -> Iterable[str]:
        """Return what lies in a node's folder besides checkpoints."""
        folder = self.history.folders[node]
        return [
            str(path.relative_to(folder)) for path in folder.rglob("*")
            if path.is_file() and path.name != "vocabulary" and path.read_bytes().startswith(b"mine: ")
        ]  # fmt: skip

    def kept(self, name: str, node: int) -> bool:
        """Return whether a file of a node's own disk came to the shared tier."""
        copy = self.history.camp.tier / f"own/node-{node:04d}" / name
        return copy.is_file() and copy.read_bytes() == (self.history.folders[node] / name).read_bytes()


def _covers(entries: Iterable[str], name: str) -> bool:
    """Return whether a path is one of the entries, or lies below one."""
    return any(name == entry or name.startswith(entry.rstrip("/") + "/") for entry in entries)
