"""The client of a training script: four calls that do nothing alone, and reach the supervisor where there is one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.root import ROOT
from tests.unit.trainer.supervised import Supervisors, events
from tests.waiting import until
from trainer.contract import ExitCode
from trainer.supervisor import seal

CLIENT = ROOT / "trainer/client"
JOB = """
import os, pathlib, sys, time
import bivouac
folder = pathlib.Path(os.environ["BIVOUAC_CHECKPOINTS"])
resume = bivouac.resume_from()
step = int((pathlib.Path(resume) / "state").read_text()) if resume else 0
print("begin after", step, flush=True)
while step < int(sys.argv[1]):
    step += 1
    time.sleep(float(sys.argv[2]))
    print('{"step": 999}')
    bivouac.beat(step, loss=1 / step, tokens=10 * step)
    stopping = bivouac.should_stop()
    if step % 10 == 0 or stopping:
        here = folder / f"at-{step}"
        here.mkdir(parents=True)
        (here / "state").write_text(str(step))
        bivouac.committed(str(here), step)
    if stopping:
        break
"""


@pytest.fixture
def camp(tmp_path: Path) -> Supervisors:
    return Supervisors(tmp_path, format="client", more={"progress": "client"})


def words(steps: int, seconds: float) -> tuple[str, ...]:
    return sys.executable, "-c", JOB, str(steps), str(seconds)


def test_without_a_supervisor_every_call_does_nothing(tmp_path: Path) -> None:
    code = "import bivouac as b; b.beat(1, loss=2.0); b.committed('x', 1); print(b.should_stop(), b.resume_from())"
    alone = {"PYTHONPATH": str(CLIENT)}
    done = subprocess.run([sys.executable, "-S", "-c", code], cwd=tmp_path, env=alone, capture_output=True, text=True)
    assert done.stdout.split() == ["False", "None"] and not list(tmp_path.iterdir()), done.stderr


@pytest.mark.parametrize("target", ["step-10", "{folder}/step-10", "../own/step-10/"])
def test_a_link_that_is_told_stands_for_what_it_leads_to_then(target: str, tmp_path: Path) -> None:
    folder = tmp_path / "own"
    (folder / "step-10").mkdir(parents=True)
    (folder / "step-10/state").write_text("ten")
    (folder / "latest").symlink_to(target.format(folder=folder))
    code = "import bivouac as b; b.committed('latest', 10); b.committed('step-10', 10)"
    env = {"PYTHONPATH": str(CLIENT), "BIVOUAC_RUN": str(tmp_path)}
    subprocess.run([sys.executable, "-S", "-c", code], cwd=folder, env=env, check=True)
    by_link, by_name = map(json.loads, (tmp_path / "told-0.jsonl").read_text().splitlines())
    assert by_link == by_name and by_name["folder"] == str(folder / "step-10") and by_name["version"][:2] == [1, 3]


def test_steps_and_checkpoints_are_those_that_the_job_tells(camp: Supervisors) -> None:
    process = camp.start(1, *words(25, 0.0), steps=25, env={"PYTHONPATH": str(CLIENT)})
    said = process.communicate()[0]
    told = events(said, "step")
    assert process.returncode == 0 and [one["step"] for one in told] == list(range(1, 26)), "999 is no step"
    assert [one["loss"] for one in told] == [1 / step for step in range(1, 26)]
    assert seal.committed(camp.tier) == [20, 10]
    manifest = json.loads((camp.tier / "step-00000020/manifest.json").read_text())
    assert manifest["tokens"] >= 200


def test_a_job_that_asks_saves_before_it_stops_and_goes_on_from_there(camp: Supervisors) -> None:
    first = camp.start(1, *words(10_000, 0.05), steps=10_000, env={"PYTHONPATH": str(CLIENT)})
    until(lambda: list(camp.root.rglob("asks")) or seal.committed(camp.tier), "it trains")
    first.terminate()
    said = first.communicate()[0]
    assert first.returncode == ExitCode.INTERRUPTED
    last = events(said, "step")[-1]["step"]
    assert seal.committed(camp.tier)[0] == last, "the step at which it was asked to stop"
    said = camp.start(2, *words(last + 5, 0.0), steps=last + 5, env={"PYTHONPATH": str(CLIENT)}).communicate()[0]
    assert f"begin after {last}" in said
