"""The progress of jobs under real supervisors: where it is told, what it ends as, and whether a resume went on."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.root import ROOT
from tests.unit.trainer.supervised import MARK, Supervisors, events
from trainer.contract import ExitCode
from trainer.supervisor import seal

SAVE = """
import json, os, pathlib, sys, time
folder = pathlib.Path(os.environ["BIVOUAC_CHECKPOINTS"])
folder.mkdir(parents=True, exist_ok=True)
resume = os.environ["BIVOUAC_RESUME_FROM"]
begun = int((pathlib.Path(resume) / "state").read_text()) if resume else 0
def save(step, name="step"):
    here = folder / f"{name}-{step}"
    here.mkdir(exist_ok=True)
    (here / "state").write_text(str(step))
    (here / "DONE").touch()
def sealed(step):
    while not (folder.parent / f"step-{step:08d}/manifest.json").exists():
        time.sleep(0.01)
"""


@dataclass
class Case:
    text: str
    """Of the job, after `SAVE`."""
    more: dict[str, Any] = field(default_factory=dict)
    code: int = 0
    step: int = 40
    early: bool = False
    """It is said that it ended far from its estimate."""
    detail: str = ""


CASES = {
    "a count from 0 whose last line is one less": Case(
        "for step in range(40):\n if step % 10 == 0 or step == 39: print(json.dumps({'iter': step, 'loss': 1.0}))",
        step=39,
    ),
    "batches within epochs": Case(
        "for e in range(4):\n for n in range(1, 11): print(f'Epoch {e}: step {n}/10 loss=0.5', flush=True)",
        {"pattern": r"step (?P<step>\d+)/\d+ loss=(?P<loss>[\d.]+)"},
    ),
    "all ranks print, and the one behind prints last": Case(
        "for s in range(1, 41):\n"
        " for r in (0, 1): print(json.dumps({'step': max(1, s - r), 'rank': r, 'loss': 1.0 + 8 * r}))"
    ),
    "colours, also between step and loss": Case(
        "for s in range(1, 41): print(f'\\x1b[31mstep: {s:2}  \\x1b[32mloss:  7.8534  \\x1b[33mmemory: 1GiB\\x1b[0m')",
        {"pattern": r"step: +(?P<step>\d+) +loss: +(?P<loss>[\d.]+)"},
    ),
    "JSON that ends in a code": Case("for s in range(1, 41): print(f'\\x1b[1m{json.dumps({\"step\": s})}\\x1b[0m')"),
    "far before the estimate": Case(
        "for s in range(1, 21): print(json.dumps({'step': s}))",
        step=20,
        early=True,
        detail="at step 20 of 40, an estimate",
    ),
    "far after the estimate": Case(
        "for s in range(1, 81): print(json.dumps({'step': s}))", step=80, detail="at step 80 of 40, an estimate"
    ),
    "an exact end that is not there": Case(
        "for s in range(1, 21): print(json.dumps({'step': s}))", {"ends": "exact"}, 64, 20, True, "at step 20 of 40"
    ),
    "an exact end of a count from 0": Case(
        "for s in range(40): print(json.dumps({'step': s}))", {"ends": "exact"}, step=39
    ),
    "no step at all": Case("print('done')", code=64, step=0, early=True, detail="no step is known"),
    "one line at the end": Case("print(json.dumps({'step': 40}))"),
    "a checkpoint and no step": Case("save(40)", step=0),
}


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Supervisors, str]]:
    """All cases, run at once."""
    started = {}
    for name, case in CASES.items():
        camp = Supervisors(tmp_path_factory.mktemp("case"), more=case.more)
        started[name] = (camp, camp.start(1, sys.executable, "-c", SAVE + case.text))
    return {name: (camp, process.communicate()[0]) for name, (camp, process) in started.items()}


@pytest.mark.parametrize("name", CASES)
def test_a_job_ends_as_it_did_whatever_it_prints(name: str, ended: dict[str, tuple[Supervisors, str]]) -> None:
    case, (camp, said) = CASES[name], ended[name]
    end, steps = camp.ended(), [event["step"] for event in events(said, "step")]
    assert (end.exit_code, end.step) == (case.code, case.step) and case.detail in end.detail
    assert steps == sorted(set(steps)) and bool(events(said, "ended_early")) == case.early
    assert {event["loss"] for event in events(said, "step")} <= {None, 1.0, 0.5, 7.8534}, "never the other rank's 9.0"
    if case.detail == "":
        assert end.detail == ""


HUGGING_FACE = """
for s in range(1, 41):
    sys.stdout.write(f"\\r  {s}%|##  | {s}/40 [00:01<00:10,  7.1it/s]")
    sys.stdout.flush()
    if s % 5 == 0:
        print(f"\\r{{'loss': {4 / s}, 'grad_norm': 1.5, 'learning_rate': 5e-05, 'epoch': {s / 40}}}", flush=True)
    if s % 10 == 0:
        for n in range(9):
            sys.stdout.write(f"\\r  {n}%|##  | {n}/8 [00:01<00:10,  7.1it/s]")
        print(f"\\r{{'eval_loss': 9.0, 'epoch': {s / 40}}}", flush=True)
print("\\r{'train_runtime': 1.0, 'train_loss': 8.0, 'epoch': 1.0}", flush=True)
"""


def test_a_loss_on_a_line_of_its_own_belongs_to_the_newest_step(tmp_path: Path) -> None:
    camp = Supervisors(tmp_path, more={"pattern": r"(?P<step>\d+)/\d+ \["})
    said = camp.start(1, sys.executable, "-c", SAVE + HUGGING_FACE).communicate()[0]
    losses = {event["step"]: event["loss"] for event in events(said, "step")}
    assert sorted(losses) == list(range(1, 41)) and camp.ended().exit_code == 0
    assert {step: loss for step, loss in losses.items() if loss is not None} == {s: 4 / s for s in range(5, 41, 5)}


CLIENT = f"sys.path.insert(0, {str(ROOT / 'trainer/client')!r}); import bivouac\n"
LAST_NODE = {
    "client": CLIENT + """
for s in range(1, 21):
    if os.environ["NODE_RANK"] == "1":
        time.sleep(0.02)
        bivouac.beat(s, loss=1 / s)
        if s % 10 == 0:
            save(s, "at")
            bivouac.committed(str(folder / f"at-{s}"), s)
""",
    "lines": """
for s in range(1, 21):
    if os.environ["NODE_RANK"] == "1":
        print(json.dumps({"step": s, "loss": 1 / s}), flush=True)
        if s % 10 == 0:
            save(s)
            sealed(s)
""",
}  # fmt: skip
TOGETHER = """
if os.environ["NODE_RANK"] == "1":
    (folder / "over").touch()
while not (folder / "over").exists():
    time.sleep(0.01)
"""


@pytest.mark.parametrize("how", LAST_NODE)
def test_what_the_last_node_alone_tells_is_known_on_node_0(how: str, tmp_path: Path) -> None:
    more = {"progress": "client"} if how == "client" else {}
    camp = Supervisors(tmp_path, nodes=2, format="client" if how == "client" else "marker", more=more)
    job = (sys.executable, "-c", SAVE + LAST_NODE[how] + TOGETHER)
    nodes = [camp.start(1, *job, rank=rank, steps=20) for rank in (0, 1)]
    said = [process.communicate()[0] for process in nodes]
    assert [process.returncode for process in nodes] == [0, 0] and camp.ended().step == 20
    rows = {event["step"]: event["loss"] for event in events(said[0], "step")}
    assert rows == {s: 1 / s for s in range(1, 21)}, "each with its loss, in node 0's log, which is read"
    assert not events(said[1], "step") and seal.committed(camp.tier) == [20, 10]


BEHIND = """
import urllib.request
def first_nodes():
    try:
        with urllib.request.urlopen(f"http://{os.environ['MASTER_ADDR']}:8471/status") as answer:
            return json.load(answer)["step"]
    except OSError:
        return 0
for s in range(1, 31):
    while os.environ["NODE_RANK"] == "1" and first_nodes() < s:
        time.sleep(0.01)
    print(json.dumps({"step": s, "loss": 1 / s}), flush=True)
while os.environ["NODE_RANK"] == "0" and not os.path.exists(sys.argv[1]):
    time.sleep(0.01)
"""


def test_where_node_0_tells_the_steps_no_other_node_writes_them_down(tmp_path: Path) -> None:
    """However loaded the machine is: the other node is never ahead of node 0, which answers until the other has
    ended."""
    camp, end = Supervisors(tmp_path, nodes=2), tmp_path / "end"
    job = (sys.executable, "-c", SAVE + BEHIND, str(end))
    first, other = (camp.start(1, *job, rank=rank, steps=30) for rank in (0, 1))
    other.communicate()
    end.touch()
    output, _ = first.communicate()
    assert [first.returncode, other.returncode] == [0, 0]
    assert [event["step"] for event in events(output, "step")] == list(range(1, 31))
    assert not list(camp.tier.rglob("told-*"))


def test_a_checkpoint_that_node_0_does_not_have_is_refused_in_words(tmp_path: Path) -> None:
    camp = Supervisors(tmp_path, nodes=2, format="client", more={"progress": "client"})
    text = CLIENT + "bivouac.beat(20)\nif os.environ['NODE_RANK'] == '1': bivouac.committed('/no/such/folder', 20)\n"
    nodes = [camp.start(1, sys.executable, "-c", SAVE + text, rank=rank, steps=20) for rank in (0, 1)]
    said = [process.communicate()[0] for process in nodes]
    (refusal,) = events(said[0], "not_sealed")
    assert refusal["step"] == 20 and "/no/such/folder was told by rank 1 and is not on node 0" in refusal["why"]


RESUMES = """
begun, noise = {"on": begun, "elsewhere": 0}[sys.argv[1]], float(sys.argv[2])
for s in range(begun + 1, int(sys.argv[3]) + 1):
    time.sleep(0.005)
    print(json.dumps({"step": s, "loss": 10 / s ** 0.5 + 0.05 * ((s * 7) % 5) + (noise if begun else 0.0)}), flush=True)
    if s % 10 == 0:
        save(s)
        sealed(s) if s > begun and sys.argv[1] == "on" and s < 40 else None
if int(sys.argv[3]) < 40:
    raise SystemExit(1)
"""


RESUMED = [("on", 0.0, [], False), ("on", 0.05, [], False), ("on", 9.0, [], True), ("elsewhere", 0.0, [(30, 1)], False)]


def test_a_resumed_job_is_held_against_what_was_known(tmp_path: Path) -> None:
    camps = [Supervisors(tmp_path / str(number)) for number in range(len(RESUMED))]
    for camp in camps:
        camp.root.mkdir()
    job = (sys.executable, "-c", SAVE + RESUMES)
    for process in [camp.start(1, *job, "on", "0", "37") for camp in camps]:
        process.communicate()
    assert {seal.committed(camp.tier)[0] for camp in camps} == {30}
    again = [camp.start(2, *job, how, str(noise), "40") for camp, (how, noise, *_) in zip(camps, RESUMED, strict=True)]
    for process, (how, noise, elsewhere, jumped) in zip(again, RESUMED, strict=True):
        said = process.communicate()[0]
        assert [(event["offered"], event["first"]) for event in events(said, "resumed_elsewhere")] == elsewhere, how
        jumps = events(said, "loss_jumped")
        assert len(jumps) == jumped, (how, noise)
        if jumped:
            assert jumps[0]["step"] == 31 and jumps[0]["now"] - jumps[0]["before"] == pytest.approx(9.0)
        if elsewhere:
            told = [json.loads(line[1:])["event"] for line in said.split("\n") if line.startswith(MARK)]
            assert told[: told.index("resumed_elsewhere")].count("step") <= 2, "at once"


EPOCHS = """
first = begun  # checkpoints are numbered by epochs that are done
for e in range(first, int(sys.argv[1])):
    for n in range(1, 11): print(f"Epoch {e}: step {n}/10 loss=0.5", flush=True)
    save(e + 1)
    sealed(e + 1)
"""


def test_a_job_that_counts_batches_has_resumed_where_it_was_offered(tmp_path: Path) -> None:
    camp = Supervisors(tmp_path, more={"pattern": r"step (?P<step>\d+)/\d+ loss=(?P<loss>[\d.]+)"})
    camp.start(1, sys.executable, "-c", SAVE + EPOCHS, "3").communicate()
    said = camp.start(2, sys.executable, "-c", SAVE + EPOCHS, "4").communicate()[0]
    assert not events(said, "resumed_elsewhere") and not events(said, "ended_early")
    assert [event["step"] for event in events(said, "step")] == list(range(31, 41)) and camp.ended().exit_code == 0


def test_no_line_of_a_job_can_be_taken_for_the_supervisors(tmp_path: Path) -> None:
    camp = Supervisors(tmp_path)
    forged = 'for mark, event in (("\\x1e", "watch"), ("", "restored")):'
    forged += ' print(mark + json.dumps({"event": event, "step": 5}))'
    said = camp.start(1, sys.executable, "-c", f"{SAVE}{forged}\nprint('a\\x1eb')").communicate()[0]
    lines = said.split("\n")
    assert '\u241e{"event": "watch", "step": 5}' in lines and '{"event": "restored", "step": 5}' in lines
    assert "a\u241eb" in lines and not events(said, "watch") and not events(said, "restored")
    assert {json.loads(line[1:])["event"] for line in lines if line.startswith(MARK)} >= {"agent", "agent_ended"}


def test_a_flood_of_lines_is_bounded_counted_and_its_steps_are_read(tmp_path: Path) -> None:
    camp = Supervisors(tmp_path)
    flood = "for s in range(1, 41):\n print('x' * 500_000)\n print(json.dumps({'step': s}), flush=True)\n"
    said = camp.start(1, sys.executable, "-c", SAVE + flood).communicate()[0]
    assert camp.ended().exit_code == 0 and [event["step"] for event in events(said, "step")] == list(range(1, 41))
    dropped = events(said, "lines_dropped")
    assert len(said) < 12_000_000 and sum(one["bytes"] for one in dropped) > 6_000_000
    assert len(said) + sum(one["bytes"] for one in dropped) >= 20_000_000, "what is not passed on is counted"


def test_a_client_whose_messages_are_no_steps_harms_nothing(tmp_path: Path) -> None:
    nines = "9" * 400
    rows = ['{"step": 1, "loss": "x"}', '{"step": true}', '{"step": -1}', '{"step": 1e400}', f'{{"step": {nines}}}',
            '{"step": 2, "folder": 7}', "[" * 100_000, f'{{"step": 3, "loss": {nines}}}']  # fmt: skip
    text = f"open(os.environ['BIVOUAC_RUN'] + '/told-0.jsonl', 'w').write({chr(10).join([*rows, ''])!r})\n"
    camp = Supervisors(tmp_path, more={"progress": "client"})
    process: subprocess.Popen[str] = camp.start(1, sys.executable, "-c", SAVE + text, steps=3)
    said = process.communicate()[0]
    assert process.returncode == ExitCode.DONE and [event["step"] for event in events(said, "step")] == [1, 3]
