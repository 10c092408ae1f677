"""The job's own view of its newest sealed checkpoint when training is over: `supervisor.pyz evaluate`.

Its commands evaluate the checkpoint, export it, and evaluate the export. Metrics that differ by more than the tolerance
mean that the export has lost weights. The checkpoints are read-only here. What came of it goes into a file beside what
was exported (trainer.contract.workload.Judgement); the termination message tells that file's digest.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Mapping, Sequence

from trainer.supervisor import ends, launcher, seal
from trainer.supervisor.ends import DONE, USER, End
from trainer.supervisor.failures import LastWords
from trainer.supervisor.job import Job
from trainer.supervisor.place import Place
from trainer.supervisor.progress.lines import bare

EXPORTED, JUDGEMENT = "model", "judgement.json"
"""`trainer.contract.workload`."""
_MOST, _LONGEST = 12, 40
"""Metrics, and characters of a name: they go through termination messages of 4096 bytes."""
_WORDS = 1000
"""Characters of a failure's sentence."""

_OF_THE_EXPORT = (FileNotFoundError, FileExistsError, NotADirectoryError, IsADirectoryError, PermissionError)
"""What the job's own commands can do to the files that are handed over."""


class Failed(Exception):
    """The job's own code has failed at it, in words."""


class Judge(Job):
    def __init__(self, config: Mapping[str, Any], place: Place, shared: Path, run: Path, export_folder: Path) -> None:
        super().__init__(config, place, shared, run)
        self.out = export_folder
        self.asked: Mapping[str, Any] = config["judging"]
        self.metrics: dict[str, float] = {}
        """What the running command has printed last."""
        self.judgement = ""
        """SHA-256 of the file; empty until it is written."""

    def run(self) -> End:
        findings: dict[str, Any] = {"step": -1, "why": "", "metrics": {}, "exported": None, "files": []}
        end = End(DONE)
        try:
            self._judge(findings)
        except (Failed, *_OF_THE_EXPORT) as error:  # another `OSError` is a node's, and no judgement
            failure_text = ends.of_error(error, self.out) if isinstance(error, OSError) else str(error)
            findings["why"] = self.secrets.text(failure_text)[:_WORDS]
            end = End(USER, findings["why"])
        if self.stopping:
            return self._signal_end()
        content = json.dumps(findings, indent=1).encode()
        seal.publish(self.out / JUDGEMENT, content)
        self.judgement = hashlib.sha256(content).hexdigest()
        self.emit(
            "judged",
            step=findings["step"],
            why=findings["why"],
            metrics=findings["metrics"],
            exported=findings["exported"],
        )
        return end

    def termination(self, end: End) -> dict[str, Any]:
        """Return the termination message with the digest of the judgement."""
        return {**super().termination(end), "judgement": self.judgement}

    def _judge(self, findings: dict[str, Any]) -> None:
        """Fill in what is found, as far as it comes. Raises `Failed`."""
        for left in (EXPORTED, JUDGEMENT):
            seal.remove(self.out / left)  # of an earlier try
        if not self._unpack_all():
            raise Failed(self.unfit.detail)
        findings["step"], checkpoint = self._laid_out()
        if self.asked["evaluate"]:
            findings["metrics"] = self._evaluate("the checkpoint", checkpoint, "")
        if not self.asked["export"]:
            return
        model = self.out / EXPORTED
        model.mkdir()
        self._command("the export", self.asked["export"], self.asked["export_s"], str(checkpoint), str(model))
        files = _files(model)
        if self.asked["evaluate"]:
            # It gets no checkpoint: a script that overlooks the export must not find the weights elsewhere.
            findings["exported"] = self._evaluate("the export", "", str(model))
            if wrong := apart(findings["metrics"], findings["exported"], self.asked["tolerance"]):
                raise Failed("the export does not evaluate as the checkpoint: " + "; ".join(wrong))
        findings["files"] = files

    def _laid_out(self) -> tuple[int, str]:
        """Return the newest sound step and its path, laid out by symbolic links, which no job writes through."""
        for step in seal.committed(self.tier):
            fault_text = seal.fault(self.tier, step, self.place.campaign, self.config["identity"])
            if not fault_text:
                path = self.run_folder / "checkpoints" / seal.origin(self.tier, step)
                path.parent.mkdir(parents=True)
                seal.lay_back(self.tier, step, path, os.symlink)
                return step, str(path)
            self.emit("refused_step", step=step, why=fault_text)
        raise Failed("no sealed checkpoint is sound")

    def _evaluate(self, subject: str, resume: str, export: str) -> dict[str, float]:
        name = f"the evaluation of {subject}"
        self._command(name, self.asked["evaluate"], self.asked["evaluate_s"], resume, export)
        printed_metrics = self.metrics
        if not printed_metrics:
            raise Failed(f'{name} printed no JSON line with a number, such as {{"loss": 2.13}}{self.words}')
        if wrong := [f"{metric}: {value}" for metric, value in printed_metrics.items() if not math.isfinite(value)]:
            raise Failed(f"{name} gave no finite number: {'; '.join(wrong)}"[:_WORDS])
        if len(printed_metrics) > _MOST or max(map(len, printed_metrics)) > _LONGEST:
            raise Failed(
                f"{name} printed {len(printed_metrics)} numbers: at most {_MOST}, with names of {_LONGEST} characters"
            )
        return printed_metrics

    def _command(self, subject: str, words: Sequence[str], seconds: float, resume: str, export: str) -> None:
        """Run a command to its end. Raises `Failed` where it fails or does not end in time."""
        scratch = self.run_folder / "scratch"
        scratch.mkdir(exist_ok=True)
        variables = {"BIVOUAC_EXPORT": export, "BIVOUAC_CHECKPOINTS": str(scratch)}
        job = launcher.Launcher({**self.config, "command": words}, self.place)
        environment = dict(os.environ, **job.environment(resume, str(self.run_folder), variables))
        self.metrics, self.words, self._over = {}, LastWords(), threading.Event()
        if self.stopping:
            raise Failed("stopped")
        if start_error := self._start(job.command(environment), environment):
            raise Failed(f"{subject}: {start_error}")
        in_time = self._over.wait(seconds)
        if not in_time:
            self.leave_nothing()
        code = self._await_exit()
        if not in_time:
            raise Failed(f"{subject} did not end within {seconds:g} s{self.words}")
        if code:
            raise Failed(f"{subject}: {ends.failure_end(code, self.words, (self.out, self.run_folder)).detail}")

    def _read(self) -> None:
        assert self.process is not None and self.process.stdout is not None
        for _, safe, _ in self.secrets.lines(self.process.stdout):
            self.words.hear(safe)
            self.pass_on(safe)
            self.metrics = numbers(bare(safe)) or self.metrics


def numbers(line: str) -> dict[str, float]:
    """Return the numbers of a JSON line, also those that are not finite; empty for any other line."""
    start = line.find("{")
    try:
        record = json.loads(line[start:]) if start >= 0 else None
    except (ValueError, RecursionError):
        return {}
    if not isinstance(record, dict):
        return {}
    figures = ((name, number) for name, number in record.items() if isinstance(number, (int, float)))
    return {name: _float(number) for name, number in figures if not isinstance(number, bool)}


def _float(number: float) -> float:
    try:
        return float(number)
    except OverflowError:
        return math.inf


def apart(checkpoint: Mapping[str, float], export: Mapping[str, float], tolerance: float) -> list[str]:
    """Return the metrics of the checkpoint that its export lacks, or has further away than the relative tolerance."""
    wrong = []
    for name, value in checkpoint.items():
        if name not in export:
            wrong.append(f"{name}: {value!r} of the checkpoint, none of the export")
        elif not abs(export[name] - value) <= tolerance * abs(value):
            values_text = f"{value!r} of the checkpoint, {export[name]!r} of the export"
            wrong.append(f"{name}: {values_text}, tolerance {tolerance:g}")
    return wrong


def _files(model: Path) -> list[dict[str, object]]:
    """Return the exported files with their digests, readable for the archive's pod. Raises `Failed`."""
    paths = []
    for path in sorted(model.rglob("*")):
        name = str(path.relative_to(model))
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            raise Failed(f"the export has {name!r}, which is neither a file nor a folder")
        if not name.isprintable():
            raise Failed(f"the export has a file that no archive can name: {name!r}")
        path.chmod(path.stat().st_mode | (0o755 if path.is_dir() else 0o644))
        if path.is_file():
            paths.append(path)
    if not paths:
        raise Failed("the export wrote no file into BIVOUAC_EXPORT")
    with ThreadPoolExecutor(4) as readers:
        digests = list(readers.map(partial(seal.digest_of, durable=True), paths))
    return [
        {"name": path.relative_to(model).as_posix(), "size_bytes": size, "sha256": digest}
        for path, (size, digest) in zip(paths, digests)
    ]
