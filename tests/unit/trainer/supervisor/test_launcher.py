"""What each launcher starts, with which variables, and what its end means, word by word."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from trainer.supervisor import launcher, shell
from trainer.supervisor.place import Place

CHECKPOINTS = {"folder": "/tier/own"}


def made(kind: str = "none", node_rank: int = 0, **job: Any) -> launcher.Launcher:
    place = Place("c", 1, "n", "10.0.0.1", node_rank, 3, 4, "first.local:29500", "", "")
    config = {"launcher": kind, "command": ["train.py", "--out=$OUT"], "checkpoints": CHECKPOINTS, **job}
    return launcher.make_launcher(config, place)


@pytest.fixture(autouse=True)
def container(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PYTHONPATH", "PYTHONUNBUFFERED"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", "/bin")
    monkeypatch.setattr(sys, "argv", ["/pod/supervisor.pyz", "of its own"])


def test_the_variables_of_a_job_are_these_and_its_own_give_way_to_them() -> None:
    job = made(node_rank=2, init_from="/weights", save_every=50, env={"A": 1, "NNODES": "mine", "MASTER_PORT": 9})
    assert job.environment("/resume", "/run") == {
        "PYTHONUNBUFFERED": "1", "A": "1", "MASTER_ADDR": "first.local", "MASTER_PORT": "29500", "NNODES": "3",
        "NODE_RANK": "2", "BIVOUAC_CHECKPOINTS": "/tier/own", "BIVOUAC_RESUME_FROM": "/resume",
        "BIVOUAC_INIT_FROM": "/weights", "BIVOUAC_SAVE_EVERY": "50", "BIVOUAC_RUN": "/run", "PYTHONPATH": "/pod",
    }  # fmt: skip
    plain = made().environment("", "/run")
    assert (plain["BIVOUAC_RESUME_FROM"], plain["BIVOUAC_INIT_FROM"], plain["BIVOUAC_SAVE_EVERY"]) == ("", "", "")
    assert "PATH" not in plain and "A" not in plain


def test_variables_that_come_last_are_above_all_others() -> None:
    extra = {"BIVOUAC_CHECKPOINTS": "/scratch", "BIVOUAC_EXPORT": "/export"}
    variables = made(env={"BIVOUAC_EXPORT": "x"}).environment("", "/run", extra)
    assert (variables["BIVOUAC_CHECKPOINTS"], variables["BIVOUAC_EXPORT"]) == ("/scratch", "/export")


def test_packages_that_the_job_brings_come_behind_its_own_path_and_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    packages = f"/run/{launcher.PACKAGES}"
    variables = made(requirements="r.tar").environment("", "/run")
    assert variables["PYTHONPATH"] == f"/pod:{packages}" and variables["PATH"] == f"/bin:{packages}/bin"
    own = made(requirements="r.tar", env={"PYTHONPATH": "/mine:$PYTHONPATH", "PATH": "/own"})
    monkeypatch.setenv("PYTHONPATH", "/image")
    assert own.environment("", "/run")["PYTHONPATH"] == f"/mine:/image:/pod:{packages}"
    assert own.environment("", "/run")["PATH"] == f"/own:{packages}/bin"
    assert made().environment("", "/run")["PYTHONPATH"] == "/image:/pod"
    monkeypatch.delenv("PATH")
    assert made(requirements="r.tar").environment("", "/run")["PATH"] == f"{os.defpath}:{packages}/bin"


def test_a_step_is_told_when_it_is_printed_unless_the_container_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONUNBUFFERED", "")
    assert made().environment("", "/run")["PYTHONUNBUFFERED"] == ""
    assert made(env={"PYTHONUNBUFFERED": "x"}).environment("", "/run")["PYTHONUNBUFFERED"] == "x"


def test_a_command_has_its_variables_and_names_that_nobody_has_are_told() -> None:
    job = made(command=["sh", 5, "$OUT/$NONE"], env={"B": "$MISSED"})
    job.environment("", "/run")
    assert job.command({"OUT": "/o"}) == ["sh", "5", "/o/"] and job.unset == {"NONE", "MISSED"}
    assert job.missing_program({"PATH": ""}) == "", "its own command tells by itself"
    assert (job.many, job.elsewhere, job.rank, job.exit_code(9, "", False)) == (False, False, None, 9)


TORCHRUN = [
    "--nnodes=3", "--nproc-per-node=4", "--node-rank=1", "--master-addr=first.local", "--master-port=29500",
    "--max-restarts=0", "train.py", "--out=/o",
]  # fmt: skip


def test_torchrun_starts_this_nodes_ranks_or_torch_does_where_it_is_not_on_the_path(tmp_path: Path) -> None:
    torchrun = made("torchrun", 1)
    bare = torchrun.command({"OUT": "/o", "PATH": str(tmp_path)})
    assert bare == ["python3", "-m", "torch.distributed.run", *TORCHRUN] and torchrun.many
    (tmp_path / "torchrun").write_text("#!/bin/sh\n")
    (tmp_path / "torchrun").chmod(0o755)
    assert torchrun.command({"OUT": "/o", "PATH": str(tmp_path)}) == ["torchrun", *TORCHRUN]


def test_of_torchruns_summary_the_root_cause_counts_and_of_that_the_first_rank() -> None:
    torchrun = made("torchrun")
    for line in ("  rank      : 3 (local_rank: 3)", "  exitcode  : -15 (pid: 9)"):
        torchrun.hear(line)
    assert (torchrun.rank, torchrun.exit_code(1, "", False)) == (3, -15)
    torchrun.hear("Root Cause (first observed failure):")
    assert torchrun.rank is None and torchrun.exit_code(1, "", False) == 1
    lines = ("[0]:", "  rank      : 10 (local_rank: 2)", "  exitcode  : 64 (pid: 7)", "  rank      : 1 (local_rank: 1)")
    for line in (*lines, "  exitcode  : 65 (pid: 8)", "my  rank : 7 (local_rank: 7)"):
        torchrun.hear(line)
    assert (torchrun.rank, torchrun.exit_code(1, "", False), torchrun.exit_code(0, "", False)) == (10, 64, 0)


def test_a_warm_start_asks_the_process_that_has_imported_to_fork_the_command() -> None:
    warm = made("torchrun", warm=["torch"])
    *program, request = warm.command({"OUT": "/o"})
    assert program == [sys.executable, "-u", "/pod/supervisor.pyz", launcher.ranks.CALL]
    assert json.loads(request) == {"warm": ["torch"], "command": ["train.py", "--out=/o"]}
    assert isinstance(warm, launcher.Warm)
    warm.note_failure(67)
    assert warm.exit_code(1, "", False) == 67


def test_mpirun_has_its_hosts_and_its_shell_from_the_supervisor(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = made("mpirun"), made("mpirun", 1)
    assert first.many and second.many
    monkeypatch.setenv("BIVOUAC_MPI_HOSTS", "/hosts")
    assert first.command({"OUT": "/o"}) == [
        "mpirun", "--hostfile", "/hosts", "-np", "12", "--map-by", "ppr:4:node", "--bind-to", "none", "train.py",
        "--out=/o",
    ]  # fmt: skip
    monkeypatch.delenv("BIVOUAC_MPI_HOSTS")
    assert first.command({})[2] == shell.HOSTS
    assert second.command({}) == [sys.executable, "/pod/supervisor.pyz", shell.LISTEN]
    variables = first.environment("", "/run", {"LAST": "x"})
    assert variables["OMPI_MCA_plm_rsh_agent"] == f"{sys.executable} /pod/supervisor.pyz {shell.CALL}"
    assert variables["OMPI_MCA_orte_keep_fqdn_hostnames"] == variables["OMPI_MCA_orte_leave_session_attached"] == "true"
    assert variables["LAST"] == "x" and variables["MASTER_ADDR"] == "first.local"


@pytest.mark.parametrize(
    ("code", "ends"), [(0, 0), (1, 1), (128, 128), (129, -1), (137, -9), (192, -64), (193, 193), (255, 255)]
)
def test_above_128_mpirun_tells_a_signal_as_far_as_there_are_signals(
    monkeypatch: pytest.MonkeyPatch, code: int, ends: int
) -> None:
    monkeypatch.setattr(shell, "tell_end", lambda *_: None)
    assert made("mpirun").exit_code(code, "", False) == ends


def test_only_node_0_hears_whom_mpirun_blames_and_the_first_word_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    culprits = list[Any]()
    monkeypatch.setattr(shell, "tell_end", lambda code, culprit, words: culprits.append((code, culprit, words)))
    monkeypatch.setattr(shell, "hosts", lambda: ["a", "b", "c"])
    silences = list[tuple[str, float]]()
    monkeypatch.setattr(launcher.activity, "await_silence", lambda *call: silences.append(call))
    for rank in (0, 1):
        mpirun = made("mpirun", rank)
        mpirun.hear("  Remote daemon: [[32153,0],2] on node x-worker-1")
        mpirun.hear("  Process name: [[26716,1],4]")
        mpirun.exit_code(1, "words", False)
        assert mpirun.elsewhere is (rank == 0)
    assert culprits == [(1, 2, "words")] and silences == [("c", 10.0)]


def test_mpirun_is_looked_for_on_the_jobs_own_path(tmp_path: Path) -> None:
    for rank in (0, 1):
        assert "Open MPI 4" in made("mpirun", rank).missing_program({"PATH": str(tmp_path)})
    (tmp_path / "mpirun").write_text("#!/bin/sh\n")
    (tmp_path / "mpirun").chmod(0o755)
    assert made("mpirun").missing_program({"PATH": str(tmp_path)}) == ""
