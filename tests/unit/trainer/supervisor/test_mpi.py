"""`mpirun` under supervisors: what each node starts, whom an end is blamed on, and the shell between the nodes."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import random
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.unit.trainer.supervised import Supervisors, events
from tests.waiting import HUNG_S, until
from trainer.contract import ExitCode
from trainer.supervisor import launcher, shell
from trainer.supervisor.place import Place

CONFIG = {"launcher": "mpirun", "command": ["./solve", "--fast"], "checkpoints": {"folder": "/c"}, "env": {"A": "b"}}


def place(node_rank: int = 0) -> Place:
    return Place("c", 1, "n", "10.0.0.1", node_rank, 3, 4, "x-launcher.x:29500", "", "")


def test_node_0_starts_mpirun_for_all_nodes_and_the_others_wait_for_its_call() -> None:
    first, second = (launcher.make_launcher(CONFIG, place(rank)).command({}) for rank in (0, 1))
    words = " ".join(first)
    assert words.startswith("mpirun ") and words.endswith(" ./solve --fast")
    assert "--hostfile /etc/mpi/hostfile" in words and "-np 12" in words and "ppr:4:node" in words
    assert "--bind-to none" in words
    assert second[-1] == shell.LISTEN and "mpirun" not in second


def test_each_node_has_the_jobs_variables_and_calls_others_by_the_supervisors_file() -> None:
    for rank in (0, 1):
        told = launcher.make_launcher(CONFIG, place(rank)).environment("", "/run")
        assert told["A"] == "b" and told["NODE_RANK"] == str(rank) and told["MASTER_ADDR"] == "x-launcher.x"
        assert told["OMPI_MCA_plm_rsh_agent"].endswith(f" {shell.CALL}") and told["OMPI_MCA_plm_rsh_args"] == ""
        assert told["OMPI_ALLOW_RUN_AS_ROOT"] == told["OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] == "1"


WORDS = {
    "mpirun noticed that process rank 6 with PID 1430 on node x-worker-0 exited on signal 9 (Killed).": 1,
    "  Process name: [[26716,1],11]": 2,
    "MPI_ABORT was invoked on rank 5 in communicator MPI_COMM_WORLD": 1,
    "  Remote daemon: [[32153,0],2] on node x-worker-1": 2,
    "  Process name: [[26716,1],3]": 0,
}
"""Open MPI 4.1.4's words, and the node that they blame where each has four ranks."""


@pytest.mark.parametrize("line", WORDS)
def test_an_end_is_blamed_on_the_node_that_mpirun_names_first(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[int, int | None, str]] = []
    monkeypatch.setattr(shell, "tell_end", lambda *given: told.append(given))
    monkeypatch.setattr(shell, "hosts", lambda: ["x-launcher", "x-worker-0", "x-worker-1"])
    waited: list[str] = []
    monkeypatch.setattr(launcher.activity, "await_silence", lambda host, seconds: waited.append(host))
    mpirun = launcher.make_launcher(CONFIG, place())
    for one in ("step 4 of 9", line, "  Process name: [[26716,1],1]"):
        mpirun.hear(one)
    node = WORDS[line]
    assert mpirun.exit_code(137, "; it said last: x", False) == -9, "128 and the signal"
    assert told == [(137, node, "; it said last: x")] and mpirun.elsewhere is (node != 0)
    assert waited == ([] if node == 0 else [f"x-worker-{node - 1}"]), "its end is to be seen first"
    assert mpirun.exit_code(1, "", True, own_code=64) == 1 and told[1] == (64, node, ""), (
        "they have no words to judge by"
    )
    mpirun.exit_code(137, "", True)
    assert len(waited) == bool(node), "a job that is stopped blames nobody"


def test_a_code_of_mpiruns_own_is_no_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shell, "tell_end", lambda *_: None)
    lost_a_node = launcher.make_launcher(CONFIG, place())
    assert lost_a_node.exit_code(205, "", False) == 205 and lost_a_node.exit_code(64, "", False) == 64


def test_a_job_that_ends_well_blames_nobody_and_tells_all(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[int, int | None, str]] = []
    monkeypatch.setattr(shell, "tell_end", lambda *given: told.append(given))
    mpirun = launcher.make_launcher(CONFIG, place())
    assert mpirun.exit_code(0, "", False) == 0 and told == [(0, None, "")] and not mpirun.elsewhere
    assert launcher.make_launcher(CONFIG, place(1)).exit_code(64, "", False) == 64 and len(told) == 1, (
        "only node 0 tells"
    )


# --- the shell between two nodes ---


class Pair:
    """Node 0's end of the shell, and a node that listens as its supervisor starts it."""

    def __init__(self, root: Path) -> None:
        self.camp = Supervisors(root, nodes=2, launcher="mpirun")
        self.key, self.address = root / "id_rsa", self.camp.addresses[1]
        place = {"POD_IP": self.address, "NODE_RANK": "1", "CAMPAIGN": "c", "ATTEMPT": "1", "NODE_NAME": "n"}
        place |= {"NODE_COUNT": "2", "RANKS_PER_NODE": "1", "RENDEZVOUS": "x:1"}
        self.environment = os.environ | self.camp.variables | {f"BIVOUAC_{k}": v for k, v in place.items()}
        command, own = [*self._file(), shell.LISTEN], self.environment | {"OWN": "of node 1"}
        self.node = subprocess.Popen(command, env=own, stdout=subprocess.PIPE, text=True)
        until(self._up, "the node listens")

    def _file(self) -> list[str]:
        return ["python3", *self.camp.program]

    def _up(self) -> bool:
        with socket.socket() as one:
            return one.connect_ex((self.address, shell.PORT)) == 0

    def call(self, *words: str) -> int:
        return subprocess.run([*self._file(), shell.CALL, *words], env=self.environment, timeout=HUNG_S).returncode


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    made = Pair(tmp_path)
    for name, value in made.camp.variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(shell, "hosts", lambda: ["localhost", made.address])
    yield made
    made.node.kill()
    made.node.communicate()


def test_a_command_runs_on_the_called_node_with_its_variables_and_its_code_comes_back(
    pair: Pair, tmp_path: Path
) -> None:
    said = tmp_path / "said"
    assert pair.call("-o", "ConnectionAttempts=10", pair.address, f'echo "$OWN" > {said};', "exit", "7") == 7
    assert said.read_text() == "of node 1\n"
    pair.node.send_signal(signal.SIGTERM)
    shell.tell_end(0, None, "")
    assert pair.node.wait(timeout=HUNG_S) == 0, "who asks the job to stop asks node 0's mpirun"


@pytest.mark.parametrize(("code", "node", "ends"), [(0, None, 0), (137, 1, 137), (64, 0, 75), (64, None, 75)])
def test_a_node_ends_as_node_0_says_with_the_code_where_its_own_rank_failed(
    pair: Pair, code: int, node: int | None, ends: int
) -> None:
    shell.tell_end(code, node, "; it said last: ValueError")
    said, _ = pair.node.communicate(timeout=HUNG_S)
    assert pair.node.returncode == ends
    assert bool(code) == ("it said last: ValueError" in said)


def unsigned(word: str, asked: str, key: bytes) -> str:
    return "0" * 64


def of_another_key(word: str, asked: str, key: bytes) -> str:
    return hmac.new(b"another", (word + asked).encode(), hashlib.sha256).hexdigest()


def of_any_call(word: str, asked: str, key: bytes) -> str:
    return hmac.new(key, asked.encode(), hashlib.sha256).hexdigest()


def of_any_command(word: str, asked: str, key: bytes) -> str:
    return hmac.new(key, word.encode(), hashlib.sha256).hexdigest()


def rightly(word: str, asked: str, key: bytes) -> str:
    return hmac.new(key, (word + asked).encode(), hashlib.sha256).hexdigest()


def test_what_is_not_signed_with_the_jobs_key_for_this_very_call_is_not_run(pair: Pair, tmp_path: Path) -> None:
    done, words = tmp_path / "done", set()
    text = json.dumps({"command": f"touch {done}"})
    ways: list[Callable[[str, str, bytes], str]] = [unsigned, of_another_key, of_any_call, of_any_command, rightly]
    for sign in ways:
        with socket.create_connection((pair.address, shell.PORT), timeout=HUNG_S) as line, line.makefile("rwb") as file:
            word = file.readline().decode().strip()
            words.add(word)
            file.write((json.dumps([text, sign(word, text, pair.key.read_bytes())]) + "\n").encode())
            file.flush()
            assert file.readline() == (b"0\n" if sign is rightly else b""), f"{sign.__name__}: the node hangs up"
        assert done.exists() is (sign is rightly), sign.__name__
    assert len(words) == len(ways), "each call has a word of its own"
    shell.tell_end(0, None, "")
    assert pair.node.wait(timeout=HUNG_S) == 0, "it goes on listening"


def test_a_node_that_is_gone_does_not_keep_the_others_from_hearing_of_the_end(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = f"127.251.{random.randint(0, 250)}.9"
    monkeypatch.setattr(shell, "hosts", lambda: ["localhost", gone, pair.address])
    shell.tell_end(0, None, "")
    assert pair.node.wait(timeout=HUNG_S) == 0 and gone in capsys.readouterr().err


def test_a_remote_shell_without_a_command_is_refused() -> None:
    assert shell.call(["-o", "x", "somewhere"]) == 255


# --- whole supervisors, with a program in place of mpirun ---

MPIRUN = """#!/bin/sh
# One rank on node 1, as Open MPI's remote launcher would start its daemon there.
host=$(sed -n 2p "$BIVOUAC_MPI_HOSTS" | cut -d' ' -f1)
$OMPI_MCA_plm_rsh_agent $OMPI_MCA_plm_rsh_args "$host" "echo rank 1 on node \\$NODE_RANK; $JOB"
code=$?
echo '{"step": 9}'
if [ $code -ne 0 ]; then echo "  Process name: [[1,1],1]"; fi
exit $code
"""


@pytest.mark.parametrize(("job", "ends"), [("true", [0, 0]), ("exit 64", [64, 64])])
def test_two_supervisors_carry_a_job_of_mpirun_and_the_one_whose_rank_fails_says_so(
    tmp_path: Path, job: str, ends: list[int]
) -> None:
    camp = Supervisors(tmp_path, nodes=2, launcher="mpirun")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/mpirun").write_text(MPIRUN)
    (tmp_path / "bin/mpirun").chmod(0o755)
    own = {"PATH": f"{tmp_path}/bin{os.pathsep}{os.environ['PATH']}", "JOB": job}
    nodes = [camp.start(1, "anything", steps=9, rank=rank, env=own) for rank in range(2)]
    said = [node.communicate(timeout=HUNG_S)[0] for node in nodes]
    assert [node.returncode for node in nodes] == ends, said
    assert "rank 1 on node 1" in said[1] and [event["step"] for event in events(said[0], "step")] == [9]
    if any(ends):
        assert [camp.ended(rank).reason for rank in range(2)] == ["peer-lost", "user"]
        assert camp.ended(1).exit_code == ExitCode.USER


def test_without_mpirun_each_node_says_so_at_once_and_none_waits_for_another(tmp_path: Path) -> None:
    camp = Supervisors(tmp_path, nodes=2, launcher="mpirun")
    (tmp_path / "bin").mkdir()
    nodes = [camp.start(1, "anything", steps=9, rank=rank, env={"PATH": f"{tmp_path}/bin"}) for rank in range(2)]
    for rank, node in enumerate(nodes):
        node.communicate(timeout=HUNG_S)
        assert (node.returncode, camp.ended(rank).reason) == (ExitCode.USER, "user")
        assert "has no `mpirun`" in camp.ended(rank).detail and "Open MPI 4" in camp.ended(rank).detail
