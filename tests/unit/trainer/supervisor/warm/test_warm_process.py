"""The warm process alone: what the ranks that it forks find, and what it tells of their ends."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.root import ROOT
from tests.waiting import HUNG_S

LOOK = """
import json, os, signal, sys
facts = {"path": sys.path[0], "argv": sys.argv, "name": __name__, "rank": os.environ["RANK"],
         "threads": os.environ.get("OMP_NUM_THREADS"), "fds": len(os.listdir("/proc/self/fd")),
         "term": signal.getsignal(signal.SIGTERM) == signal.SIG_DFL,
         "int": signal.getsignal(signal.SIGINT) == signal.default_int_handler}
os.write(1, (json.dumps(facts) + "\\n").encode())
"""


class WarmProcess:
    """It runs in `folder` with so many ranks; `start` starts them and `end` says how each ended."""

    def __init__(self, folder: Path, command: list[str], warm: tuple[str, ...] = (), ranks: int = 2) -> None:
        request = json.dumps({"warm": warm, "command": command})
        program = "import json, sys; from trainer.supervisor.warm import ranks; sys.exit(ranks.main(json.loads(%r)))"
        place = {
            "campaign": "c", "attempt": 1, "node_name": "n", "pod_ip": "127.0.0.1", "node_rank": 2, "node_count": 3,
            "ranks_per_node": ranks, "rendezvous": "127.0.0.1:1",
        }  # fmt: skip
        self._line, child = socket.socketpair()
        self._line.settimeout(HUNG_S)
        variables = {f"BIVOUAC_{name.upper()}": str(value) for name, value in place.items()}
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        environment = {**os.environ, "PYTHONPATH": path, "BIVOUAC_WARM_SOCKET": str(child.fileno())}
        environment.pop("OMP_NUM_THREADS", None)
        self.process = subprocess.Popen(
            [sys.executable, "-c", program % request], cwd=folder, env={**environment, **variables},
            pass_fds=(child.fileno(),), stdout=subprocess.PIPE,
        )  # fmt: skip
        child.close()
        self._ends = self._line.makefile("r")

    def start(self, **variables: str) -> None:
        self._line.sendall((json.dumps({"variables": variables, "command": []}) + "\n").encode())

    def end(self) -> dict[str, Any]:
        return dict(json.loads(self._ends.readline()))

    def finish(self) -> tuple[int, list[str]]:
        """Give no more orders; return its exit code and all lines."""
        self._line.shutdown(socket.SHUT_WR)
        output, _ = self.process.communicate(timeout=HUNG_S)
        return self.process.returncode, output.decode().splitlines()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._ends.close(), self._line.close()
        if self.process.stdout is not None:
            self.process.stdout.close()


@pytest.fixture
def opened() -> Iterator[list[WarmProcess]]:
    processes: list[WarmProcess] = []
    yield processes
    for process in processes:
        process.close()


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_rank_is_as_if_an_interpreter_of_its_own_ran_the_script(
    ranks: int, tmp_path: Path, opened: list[WarmProcess]
) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code/look.py").write_text(LOOK)
    opened.append(warm := WarmProcess(tmp_path, ["code/look.py", "--fast"], ranks=ranks))
    warm.start()
    ends = [warm.end() for _ in range(ranks)]
    assert sorted((end["rank"], end["code"]) for end in ends) == [(2 * ranks + local, 0) for local in range(ranks)]
    assert [end["left"] for end in ends] == list(range(ranks))[::-1]
    code, lines = warm.finish()
    facts = sorted((json.loads(line) for line in lines), key=lambda row: int(row["rank"]))
    common = {
        "path": str(tmp_path / "code"), "argv": ["code/look.py", "--fast"], "name": "__main__", "fds": 4, "term": True,
        "int": True, "threads": "1" if ranks > 1 else None,
    }  # fmt: skip
    assert (code, facts) == (0, [{**common, "rank": str(2 * ranks + local)} for local in range(ranks)])


def test_a_module_of_a_package_that_is_called_as_ours_is_the_jobs(tmp_path: Path, opened: list[WarmProcess]) -> None:
    (tmp_path / "code/trainer/supervisor").mkdir(parents=True)
    for name in ("__init__.py", "supervisor/__init__.py", "supervisor/place.py"):
        (tmp_path / "code/trainer" / name).write_text("MINE = True\n")
    (tmp_path / "code/look.py").write_text("import trainer.supervisor.place as ours\nprint(ours.MINE, flush=True)\n")
    opened.append(warm := WarmProcess(tmp_path, ["code/look.py"], warm=("trainer.supervisor.place",), ranks=1))
    warm.start()
    assert warm.end()["code"] == 0 and warm.finish() == (0, ["True"])


def test_the_words_of_the_next_ranks_begin_a_line_after_a_rank_that_was_killed(
    tmp_path: Path, opened: list[WarmProcess]
) -> None:
    script = (
        "import os, signal\nos.write(1, b'half')\nos.environ.get('DIES') and os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    (tmp_path / "script.py").write_text(script)
    opened.append(warm := WarmProcess(tmp_path, ["script.py"], ranks=1))
    warm.start(DIES="1")
    assert warm.end() == {"rank": 2, "code": -signal.SIGKILL, "left": 0}
    warm.start()
    assert warm.end()["code"] == 0 and warm.finish() == (0, ["half", "half"])


def test_a_failed_rank_is_its_exit_code_and_ends_the_process_as_failed(
    tmp_path: Path, opened: list[WarmProcess]
) -> None:
    (tmp_path / "script.py").write_text("import os\nraise SystemExit(int(os.environ['LOCAL_RANK']) * 7)\n")
    opened.append(warm := WarmProcess(tmp_path, ["script.py"]))
    warm.start()
    assert {end["rank"]: end["code"] for end in (warm.end(), warm.end())} == {4: 0, 5: 7}
    assert warm.finish() == (1, [])


def test_the_end_of_a_process_that_a_module_has_forked_is_no_ranks(tmp_path: Path, opened: list[WarmProcess]) -> None:
    forks = "import os\nreader, writer = os.pipe()\nchild = os.fork()\nif not child:\n    os.read(reader, 1)\n"
    forks += "    os._exit(9)\n"
    (tmp_path / "forks.py").write_text(forks)
    gone = "import forks, os\nos.write(forks.writer, b'x')\nwhile os.path.exists(f'/proc/{forks.child}'): pass\n"
    (tmp_path / "script.py").write_text(gone)
    opened.append(warm := WarmProcess(tmp_path, ["script.py"], warm=("forks",), ranks=1))
    warm.start()
    assert warm.end() == {"rank": 2, "code": 0, "left": 0} and warm.finish() == (0, [])


@pytest.mark.parametrize("is_in_bad_fork", [False, True])
def test_a_module_that_imports_torch_is_refused_only_where_it_has_initialised_cuda(
    is_in_bad_fork: bool, tmp_path: Path, opened: list[WarmProcess]
) -> None:
    torch = f"import types\ncuda = types.SimpleNamespace(_is_in_bad_fork=lambda: {is_in_bad_fork})\n"
    (tmp_path / "torch.py").write_text(torch)
    (tmp_path / "script.py").write_text("")
    opened.append(warm := WarmProcess(tmp_path, ["script.py"], warm=("torch",), ranks=1))
    if is_in_bad_fork:
        code, (line,) = warm.finish()
        assert code == 64 and "importing torch initialises CUDA" in line
    else:
        warm.start()
        assert warm.end()["code"] == 0 and warm.finish() == (0, [])


@pytest.mark.parametrize(("ranks", "text"), [(1, "None"), (2, "1")])
def test_several_ranks_have_one_thread_each_as_under_torchrun(
    ranks: int, text: str, tmp_path: Path, opened: list[WarmProcess]
) -> None:
    (tmp_path / "script.py").write_text(
        "import os\nos.write(1, f\"{os.environ.get('OMP_NUM_THREADS')}\\n\".encode())\n"
    )
    opened.append(warm := WarmProcess(tmp_path, ["script.py"], ranks=ranks))
    warm.start()
    assert [warm.end()["code"] for _ in range(ranks)] == [0] * ranks and warm.finish() == (0, [text] * ranks)
