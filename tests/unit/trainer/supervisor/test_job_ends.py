"""What a job's supervisor says of it while it runs and once it has ended, judged by what the job told and sealed."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.waiting import until
from tests.worlds.supervisor_tier import JobNode, put
from trainer.contract import ExitCode
from trainer.supervisor import job as jobs
from trainer.supervisor.formats import Finished
from trainer.supervisor.job import SETTLED_S, Job, RankCount
from trainer.supervisor.place import Place


def running(node: JobNode, **config: Any) -> Job:
    """A job as it is once its ranks have started; `config`: in place of the node's own."""
    fresh = Job({**node.job.config, **config}, node.job.place, node.tier.parent, node.job.run_folder, node.tier)
    fresh.emit = node.job.emit  # type: ignore[method-assign]
    fresh.progress._emit = node.job.emit
    fresh.progress.begin(0, -1)
    return fresh


def tell(job: Job, *steps: int) -> None:
    for step in steps:
        job.progress.hear_line(json.dumps({"step": step, "loss": 0.5, "tokens": step * 8}))


def kinds(node: JobNode) -> list[str]:
    return [event["event"] for event in node.events if event["event"] != "step"]


def test_a_job_that_exits_0_at_its_last_step_is_done(tmp_path: Path) -> None:
    node = JobNode(tmp_path)
    job = running(node, steps=20)
    tell(job, *range(1, 21))
    assert job._end(0) == (ExitCode.DONE, "", "", None, None, ()) and kinds(node) == []
    assert job.newest_steps() == (20, -1) and job.tokens == 160 and job.loss == 0.5


def test_a_job_that_exits_0_before_its_estimate_is_done_and_that_is_said(tmp_path: Path) -> None:
    node = JobNode(tmp_path)
    job = running(node, steps=40)
    tell(job, *range(1, 21))
    end = job._end(0)
    assert (end.code, end.detail) == (ExitCode.DONE, "the job exited 0 at step 20 of 40, an estimate")
    assert [event for event in node.events if event["event"] == "ended_early"] == [
        {"event": "ended_early", "step": 20, "steps": 40}
    ]


def test_a_job_that_exits_0_after_its_estimate_is_done_and_not_early(tmp_path: Path) -> None:
    node = JobNode(tmp_path)
    job = running(node, steps=10)
    tell(job, *range(1, 21))
    assert job._end(0).detail == "the job exited 0 at step 20 of 10, an estimate" and kinds(node) == []


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({}, 'it printed no JSON line with a "step"'),
        ({"progress": "client"}, "it has not called `beat`"),
        ({"pattern": r"at (?P<step>\d+)"}, "no line that it printed fits `progress.pattern`"),
    ],
)
def test_a_job_that_exits_0_and_has_told_nothing_is_the_users_with_what_was_looked_for(
    config: dict[str, Any], words: str, tmp_path: Path
) -> None:
    node = JobNode(tmp_path)
    job = running(node, steps=40, **config)
    job.words.hear("bye")
    end = job._end(0)
    assert end.code == ExitCode.USER and kinds(node) == ["ended_early"]
    assert end.detail == f"the job exited 0 at step 0 of 40; no step is known: {words}; it said last: bye"


def test_another_node_leaves_the_judgement_to_node_0(tmp_path: Path) -> None:
    node = JobNode(tmp_path, rank=1, nodes=2)
    assert running(node, steps=40)._end(0).code == ExitCode.DONE and kinds(node) == []


@pytest.mark.parametrize(
    ("killed", "steps", "words"),
    [
        (False, (), 'stopped by SIGTERM; no step is known: it printed no JSON line with a "step"'),
        (True, (1, 2), "stopped by SIGTERM, killed when its grace was over"),
    ],
)
def test_a_job_that_was_asked_to_stop_is_interrupted_whatever_its_code(
    killed: bool, steps: tuple[int, ...], words: str, tmp_path: Path
) -> None:
    job = running(JobNode(tmp_path), steps=40)
    tell(job, *steps)
    job.stopping, job.killed = "SIGTERM", killed
    assert (job._end(1).code, job._end(1).detail) == (ExitCode.INTERRUPTED, words)
    assert job._end(0).code == ExitCode.INTERRUPTED


def test_a_job_that_fails_is_told_with_its_last_words(tmp_path: Path) -> None:
    job = running(JobNode(tmp_path), steps=40)
    job.words.hear("RuntimeError: shapes differ")
    end = job._end(1)
    assert end.code not in (ExitCode.DONE, ExitCode.INTERRUPTED) and "shapes differ" in end.detail


def test_the_status_has_step_phase_and_each_rank_of_this_node(tmp_path: Path) -> None:
    node = JobNode(tmp_path, rank=1, nodes=2)
    node.job.place = node.job.place._replace(ranks_per_node=3)
    job = running(node, steps=40)
    before = job.status()
    assert (before["phase"], before["step"], before["steps"], before["committed_step"]) == ("starting", 0, 40, -1)
    assert [row["rank"] for row in before["ranks"]] == [3, 4, 5] and not any(row["alive"] for row in before["ranks"])
    tell(job, 1, 2)
    job.process = SimpleNamespace(poll=lambda: None)  # type: ignore[assignment]
    status = job.status()
    assert (status["phase"], status["step"], status["tokens"], status["loss"]) == ("training", 2, 16, 0.5)
    assert all(row["alive"] and row["step"] == 2 for row in status["ranks"])
    job.process = SimpleNamespace(poll=lambda: 1)  # type: ignore[assignment]
    assert not any(row["alive"] for row in job.status()["ranks"])
    job.sealing.busy = True
    assert {(row["alive"], row["heartbeat_age_s"]) for row in job.status()["ranks"]} == {(True, 0.0)}


def test_a_sign_of_life_is_work_progress_or_sealing_whichever_came_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = running(JobNode(tmp_path))
    clock = SimpleNamespace(monotonic=lambda: 1000.0)
    monkeypatch.setattr(jobs, "time", clock)
    for part in (job, job.progress, job.sealing):
        job.heard, job.progress.heard, job.sealing.heard = 900.0, 900.0, 900.0
        part.heard = 990.0
        assert {row["heartbeat_age_s"] for row in job.status()["ranks"]} == {10.0}


def test_a_told_checkpoint_that_is_missing_is_refused_and_one_that_is_there_is_sealed(tmp_path: Path) -> None:
    node = JobNode(tmp_path, form="client")
    job = running(node)
    put(node.own / "step-10/state", "ten")
    for step in (10, 20):
        job._told_checkpoint({"step": step, "folder": str(node.own / f"step-{step}"), "rank": 0})
    assert job.sealing.told == {10: Finished(10, node.own / "step-10")}
    (refusal,) = [event for event in node.events if event["event"] == "not_sealed"]
    assert refusal["step"] == 20 and refusal["why"].endswith("step-20 was told by rank 0 and is not on node 0")


PLACE = Place("tiny", 1, "n0", "127.0.0.1", 0, 2, 8, "127.0.0.1:29500")
OWN = {"checkpoints": {"format": "huggingface", "tier": "shared"}}


@pytest.mark.parametrize(
    ("variables", "number"),
    [
        ({"LOCAL_WORLD_SIZE": "4", "WORLD_SIZE": "99"}, 4),
        ({"OMPI_COMM_WORLD_LOCAL_SIZE": "3"}, 3),
        ({"WORLD_SIZE": "6"}, 3),
        ({"PMI_SIZE": "2"}, 1),
        ({"LOCAL_WORLD_SIZE": "many"}, 8),
        ({}, 8),
    ],
)
def test_the_environment_of_a_rank_tells_how_many_there_are(
    variables: dict[str, str], number: int, tmp_path: Path
) -> None:
    rank = subprocess.Popen(["sleep", "1000"], env={"PATH": os.environ["PATH"], **variables})
    try:
        until(lambda: Path(f"/proc/{rank.pid}/environ").read_bytes(), "the kernel shows its variables")
        assert RankCount(OWN, PLACE).look([rank.pid], tmp_path) == number
        assert RankCount(OWN, PLACE).look([999_999_999, rank.pid], tmp_path) == number, "another has ended"
    finally:
        rank.kill()
        rank.wait()


@pytest.mark.parametrize(("tier", "files", "number"), [("shared", 4, 2), ("local", 4, 4), ("shared", 1, 1)])
def test_the_files_of_ranks_tell_how_many_there_are_once_they_have_stopped_rising(
    tier: str, files: int, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr(jobs, "time", SimpleNamespace(monotonic=lambda: now[0], time=time.time))
    count = RankCount({"checkpoints": {"format": "huggingface", "tier": tier}}, PLACE)
    for rank in range(files):
        put(tmp_path / f"checkpoint-10/rng_state_{rank}.pth")
    assert count.look([], tmp_path) == 8, "fewer files than GPUs may be a part"
    now[0] += SETTLED_S - 0.1
    assert count.look([], tmp_path) == 8
    now[0] += 0.1
    assert count.look([], tmp_path) == number
    put(tmp_path / "checkpoint-20/rng_state_0.pth")
    assert count.look([], tmp_path) == number, "it is known from then on"


def test_more_files_than_gpus_are_more_ranks_at_once(tmp_path: Path) -> None:
    for rank in range(20):
        put(tmp_path / f"run/checkpoint-10/random_states_{rank}.pkl")
    assert RankCount(OWN, PLACE).look([], tmp_path) == 10


def test_a_program_that_is_not_there_is_the_users(tmp_path: Path) -> None:
    job = running(JobNode(tmp_path), launcher="none", command=["/no/such/program"])
    end = job.run()
    assert end.code == ExitCode.USER and "No such file" in end.detail


def test_a_restored_checkpoint_on_a_nodes_own_disk_shows_no_further_ranks_of_this_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = JobNode(tmp_path, "huggingface", "local", nodes=2)
    job = running(node, launcher="none", command=["false"])

    def resume() -> str:
        for rank in (0, 1):
            put(node.own / f"checkpoint-10/rng_state_{rank}.pth")
        return str(node.own / "checkpoint-10")

    monkeypatch.setattr(job.sealing, "resume", resume)
    assert job.run().code != ExitCode.DONE and job.sealing.ranks_here == 1


def test_a_look_asks_node_0_and_a_question_for_the_disk_is_the_sealings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, asked = running(JobNode(tmp_path, rank=1, nodes=2)), list[str]()
    monkeypatch.setattr(job.progress, "ask_first_node", lambda: asked.append("node 0"))
    monkeypatch.setattr(job.sealing, "answer", lambda path: (200, path.encode()))
    job._look()
    assert asked == ["node 0"] and job.answer("/checkpoints") == (200, b"/checkpoints")


def test_a_look_that_fails_is_told_once_for_each_reason_and_the_next_one_seals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TOKEN", "hunter22")
    node, looks = JobNode(tmp_path), list[int]()
    job = running(node, secrets=["TOKEN"])
    reasons = ["changed during iteration", "changed during iteration", "no room at hunter22"]

    def look() -> None:
        looks.append(len(looks))
        if len(looks) <= len(reasons):
            raise RuntimeError(reasons[looks[-1]])
        job._over.set()

    monkeypatch.setattr(job.sealing, "look", look)
    monkeypatch.setattr(jobs, "_LOOK_S", 0.0)
    monkeypatch.setattr(jobs, "AGAIN_S", 0.0)
    monkeypatch.setattr(jobs.family, "give_way", lambda: None)
    job._seal_while_it_runs()
    assert [event for event in node.events if event["event"] in ("not_sealed", "look_failed")] == [
        {"event": "look_failed", "why": f"RuntimeError: {reason}"} for reason in reasons[1:]
    ]
    err = capsys.readouterr().err
    assert looks == [0, 1, 2, 3] and err.count("in look") == 3 and "hunter22" not in err and "no room at" in err
