"""The job's own evaluation and export under a real supervisor: what it comes to, and each way in which it fails."""

from __future__ import annotations

import errno
import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.unit.trainer.supervised import SECRET, Supervisors, supervisor
from tests.waiting import HUNG_S, until
from trainer.contract import ExitCode
from trainer.contract.workload import Judgement
from trainer.supervisor import seal
from trainer.supervisor.judge import Judge, apart, numbers
from trainer.supervisor.redact import Redactor

WEIGHTS = {"a": 1.0, "b": 2.0, "c": 4.0}
EVALUATE = """
import json, os, pathlib
place = pathlib.Path(os.environ["BIVOUAC_EXPORT"] or os.environ["BIVOUAC_RESUME_FROM"])
weights = json.loads((place / "weights").read_text())
print("my token is", os.environ["TOKEN"])
print(json.dumps({"early": 0}))
print(json.dumps({"loss": sum(weights.values()), "tensors": len(weights), "of": str(place), "ok": True}))
print("done")
"""
EXPORT = """
import json, os, pathlib
weights = json.loads((pathlib.Path(os.environ["BIVOUAC_RESUME_FROM"]) / "weights").read_text())
out = pathlib.Path(os.environ["BIVOUAC_EXPORT"]) / "deep"
out.mkdir()
(out / "b").write_text("second")
(out.parent / "weights").write_text(json.dumps({name: one for name, one in weights.items() if name not in LOST}))
"""


def python(text: str) -> list[str]:
    return [sys.executable, "-c", text]


def shell(text: str) -> list[str]:
    return ["sh", "-c", text]


class Judging:
    """A campaign whose training is over, with sealed checkpoints, and its judge."""

    def __init__(self, root: Path) -> None:
        self.camp = Supervisors(root, program=(supervisor(), "evaluate"))
        (self.camp.tier / "export").mkdir(parents=True)
        for step in (20, 30):
            self.seal(step)

    def seal(self, step: int) -> None:
        root, identity = self.camp.tier / f"own/save-{step}", seal.Identity("tiny", "one", 1, 1, "c", "", "", "")
        root.mkdir(parents=True)
        (root / "weights").write_text(json.dumps(WEIGHTS | {"a": float(step)}))
        seal.seal(root, [root / "weights"], root.parent, self.camp.tier, step, identity, 0, None)

    def start(self, evaluate: list[str] | None, export: list[str] | None = None, **more: Any) -> subprocess.Popen[str]:
        asked = {"evaluate": evaluate or [], "export": export or [], "tolerance": 0.01}
        self.camp.more = {"judging": {**asked, "evaluate_s": HUNG_S, "export_s": HUNG_S, **more}}
        return self.camp.start(0, "the", "training")

    def run(self, *given: Any, **more: Any) -> tuple[Judgement, int, str]:
        """Return what it came to, whose digest the termination message must tell, its exit code and its words."""
        process = self.start(*given, **more)
        said, body = process.communicate()[0], (self.camp.tier / "export/judgement.json").read_bytes()
        assert self.told()["judgement"] == hashlib.sha256(body).hexdigest()
        return Judgement.model_validate_json(body), process.returncode, said

    def told(self) -> dict[str, Any]:
        return dict(json.loads((self.camp.root / "node-0/termination.json").read_text()))


@pytest.fixture
def judging(tmp_path: Path) -> Judging:
    return Judging(tmp_path)


def test_the_newest_checkpoint_and_what_is_exported_from_it_evaluate_alike(judging: Judging) -> None:
    (judging.camp.tier / "export/model").mkdir()
    (judging.camp.tier / "export/model/left").write_text("by an earlier try")
    found, code, said = judging.run(python(EVALUATE), python(EXPORT.replace("LOST", "()")))
    assert (code, found.step, found.why) == (0, 30, "")
    assert found.metrics == found.exported == {"loss": 36.0, "tensors": 3.0}, "the last line, its numbers alone"
    assert SECRET not in said and said.count("my token is [secret]") == 2
    model = judging.camp.tier / "export/model"
    assert [(file.name, file.size_bytes, file.sha256) for file in found.files] == [
        (name, (model / name).stat().st_size, hashlib.sha256((model / name).read_bytes()).hexdigest())
        for name in ("deep/b", "weights")
    ]


def test_without_an_export_the_checkpoint_alone_is_evaluated_and_the_reverse(judging: Judging) -> None:
    found, code, _ = judging.run(python(EVALUATE))
    assert (code, found.exported, found.files) == (0, None, ()) and found.metrics["loss"] == 36.0
    found, code, _ = judging.run(None, python(EXPORT.replace("LOST", "()")))
    assert (code, found.metrics, found.exported, len(found.files)) == (0, {}, None, 2)


def test_a_damaged_newest_checkpoint_is_left_out_and_without_any_nothing_is_judged(judging: Judging) -> None:
    def damage(step: int) -> None:
        (shard,) = (judging.camp.tier / f"step-{step:08d}/attempt-0001").glob("*[!n]")
        shard.write_text("?")

    damage(30)
    assert judging.run(python(EVALUATE))[0].step == 20
    damage(20)
    found, code, _ = judging.run(python(EVALUATE))
    assert (code, found.step, found.why) == (ExitCode.USER, -1, "no sealed checkpoint is sound")


SOUND = "echo '{\"loss\": 1}'"
LOST, WHOLE = (python(EXPORT.replace("LOST", lost)) for lost in ("('b',)", "()"))
AT, OF_THE_EXPORT = "the evaluation of the checkpoint", "the evaluation of the export"
HOSTILE = [
    (python(EVALUATE), LOST, {}, "loss: 36.0 of the checkpoint, 34.0 of the export"),
    (shell('cat "$BIVOUAC_RESUME_FROM/weights"'), WHOLE, {}, f"{OF_THE_EXPORT}: the job exited with 1"),
    (shell("true"), None, {}, f"{AT} printed no JSON line with a number"),
    (shell("echo '{\"loss\": NaN, \"top\": 1}'"), None, {}, "no finite number: loss: nan"),
    (shell("echo '{\"loss\": 1e999}'"), None, {}, "no finite number: loss: inf"),
    (shell(f"{SOUND}; echo RuntimeError: shapes; exit 1"), None, {}, "exited with 1; it said last: RuntimeError: shap"),
    (shell("sleep 600 & sleep 600"), None, {"evaluate_s": 0.3}, f"{AT} did not end within 0.3 s"),
    (["/no/such/program"], None, {}, f"{AT}: the command does not start"),
    (python("import json; print(json.dumps({str(n): n for n in range(13)}))"), None, {}, "printed 13 numbers: at most"),
    (shell(SOUND), shell("true"), {}, "the export wrote no file"),
    (shell(SOUND), shell('ln -s /etc/passwd "$BIVOUAC_EXPORT/a"'), {}, "'a', which is neither a file nor a folder"),
    (shell(SOUND), shell("exit 3"), {}, "the export: the job exited with 3"),
    (shell(f"echo $TOKEN; {SOUND}; exit 1"), None, {}, "it said last"),
]  # fmt: skip


@pytest.mark.parametrize(("evaluate", "export", "more", "why"), HOSTILE, ids=lambda one: str(one)[-40:])
def test_each_failure_is_said_and_nothing_is_handed_over(
    evaluate: Any, export: Any, more: dict[str, Any], why: str, judging: Judging
) -> None:
    found, code, said = judging.run(evaluate, export, **more)
    assert (code, found.step, found.files) == (ExitCode.USER, 30, ()) and why in found.why, found.why
    assert judging.told()["detail"] == found.why and SECRET not in found.why + said
    assert seal.fault(judging.camp.tier, 30, "tiny", "one") == "", "the checkpoint is as it was"


@pytest.mark.parametrize(
    ("error", "judged"),
    [
        (FileNotFoundError(errno.ENOENT, "No such file", "/bivouac-export/model/x"), True),
        (OSError(errno.EIO, "Input/output error"), False),
        (OSError(errno.EMFILE, "Too many open files"), False),
        (BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"), False),
    ],
)
def test_only_what_the_jobs_commands_did_to_files_is_a_judgement_of_them(
    error: OSError, judged: bool, tmp_path: Path
) -> None:
    judge = Judge.__new__(Judge)

    def fail(findings: dict[str, Any]) -> None:
        raise error

    judge._judge, judge.out, judge.secrets, judge.stopping = fail, tmp_path, Redactor(()), ""  # type: ignore[method-assign]
    judge.emit = lambda event, **fields: None  # type: ignore[method-assign]
    if judged:
        assert judge.run().code == ExitCode.USER
    else:
        with pytest.raises(OSError, match=str(error.strerror)):
            judge.run()
    assert (tmp_path / "judgement.json").exists() is judged, "without one the steward tries again"


def test_a_judge_that_is_stopped_tells_no_judgement_not_even_an_earlier_one(judging: Judging) -> None:
    judging.run(shell(SOUND))
    (began := judging.camp.root / "began").unlink(missing_ok=True)
    process = judging.start(shell(f"touch {began}; sleep 600"))
    until(began.exists)
    process.terminate()
    process.communicate()
    assert process.returncode == ExitCode.INTERRUPTED and judging.told()["judgement"] == ""
    assert not (judging.camp.tier / "export/judgement.json").exists()


@pytest.mark.parametrize(
    ("checkpoint", "export", "tolerance", "wrong"),
    [
        ({"loss": 2.0}, {"loss": 2.019, "more": 1.0}, 0.01, 0),
        ({"loss": 2.0}, {"loss": 2.021}, 0.01, 1),
        ({"loss": -2.0}, {"loss": -2.019}, 0.01, 0),
        ({"loss": 2.0, "top": 0.5}, {"loss": 2.0}, 0.01, 1),
        ({"loss": 0.0}, {"loss": 0.001}, 0.01, 1),
        ({"loss": 0.0}, {"loss": 0.0}, 0.0, 0),
    ],
)
def test_a_metric_of_the_export_is_within_the_tolerance_of_the_checkpoints(
    checkpoint: dict[str, float], export: dict[str, float], tolerance: float, wrong: int
) -> None:
    assert len(apart(checkpoint, export, tolerance)) == wrong


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ('{"loss": 2, "ok": true, "name": "x", "deep": {"a": 1}}', {"loss": 2.0}),
        ('INFO {"loss": 2}', {"loss": 2.0}),
        ('{"loss": 2} and more', {}),
        ("[1, 2]", {}),
        ("{" * 9999, {}),
        (f'{{"a": {"[" * 99999}', {}),
        (f'{{"loss": 1{"0" * 400}}}', {"loss": float("inf")}),
    ],
    ids=lambda one: str(one)[:30],
)
def test_a_line_has_numbers(line: str, found: dict[str, float]) -> None:
    assert numbers(line) == found
