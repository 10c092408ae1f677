"""A job whose ranks are forked from a process that has imported its modules: its ends, and its restarts in place."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from pathlib import Path

import pytest

from infra.record.events import fold
from infra.steward.seeing.trainer_events import TrainerEvents
from tests.unit.steward.seeing.test_watch_alarms import Store
from tests.unit.trainer.supervised import Supervisors, events
from tests.waiting import until
from trainer.contract import ExitCode
from trainer.supervisor import seal
from trainer.supervisor.warm.job import MOST

HEAVY = 'import os, pathlib\nwith open(pathlib.Path(__file__).with_name("imported"), "a") as file: file.write("x")\n'
SCRIPT = """
import json, os, pathlib, random, signal, sys, time
import heavy
folder = pathlib.Path(os.environ["BIVOUAC_CHECKPOINTS"])
rank, resume = int(os.environ["RANK"]), os.environ["BIVOUAC_RESUME_FROM"]
names = ("LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT",
         "TORCHELASTIC_RESTART_COUNT")
told = {name: os.environ[name] for name in names}
told.update(pid=os.getpid(), resume=resume, argv=sys.argv[1:], path=sys.path[0], name=__name__, random=random.random(),
            sigterm=signal.getsignal(signal.SIGTERM) == signal.SIG_DFL, fds=len(os.listdir("/proc/self/fd")))
here = pathlib.Path(__file__).parent
(here / f"rank-{rank}-{os.getpid()}.part").write_text(json.dumps(told))
(here / f"rank-{rank}-{os.getpid()}.part").rename(here / f"rank-{rank}-{os.getpid()}.json")
step = int((pathlib.Path(resume) / "state").read_text()) if resume else 0
while step < int(sys.argv[1]):
    time.sleep(0.02)
    step += 1
    if rank:
        continue
    print(json.dumps({"step": step, "loss": 1 / step}), flush=True)
    if step % 10 == 0:
        (folder / f"save-{step}").mkdir(parents=True)
        (folder / f"save-{step}" / "state").write_text(str(step))
        (folder / f"save-{step}" / "DONE").touch()
    if (here / "exits").exists():
        raise SystemExit(65)
"""
ENDLESS = 1_000_000


class Warm:
    """Supervisors of a job with its modules beside it."""

    words: tuple[str, ...] = ("train.py",)

    def __init__(self, root: Path, nodes: int = 1, warm: tuple[str, ...] = ("heavy",)) -> None:
        self.code = root / "code"
        self.code.mkdir()
        (self.code / "heavy.py").write_text(HEAVY)
        (self.code / "train.py").write_text(SCRIPT)
        self.camp = Supervisors(root, nodes, "torchrun", folder=self.code, more={"warm": warm}, ranks=2)
        self.said = ["" for _ in range(nodes)]

    def start(self, steps: int = ENDLESS) -> list[subprocess.Popen[str]]:
        nodes = range(self.camp.nodes)
        words = (*self.words, str(steps), "from $BIVOUAC_RESUME_FROM at $MASTER_PORT")
        started = [self.camp.start(1, *words, steps=steps, rank=rank) for rank in nodes]
        self.readers = [threading.Thread(target=self._read, args=one) for one in enumerate(started)]
        for reader in self.readers:
            reader.start()
        return started

    def _read(self, rank: int, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self.said[rank] += line

    def ended(self, started: list[subprocess.Popen[str]]) -> list[int]:
        codes = [process.wait() for process in started]
        for reader in self.readers:
            reader.join()
        return codes

    def ranks(self, rank: int) -> list[dict[str, object]]:
        """What each process of a rank found, the newest last."""
        files = sorted(self.code.glob(f"rank-{rank}-*.json"), key=lambda path: path.stat().st_mtime_ns)
        return [json.loads(path.read_text()) for path in files]

    def kill(self, rank: int, nth: int) -> None:
        """Kill the nth process of a rank once it has made a step and there is a checkpoint to go on from."""
        until(lambda: len(events(self.said[0], "restarted_in_place")) == nth - 1, "its start is told")
        until(lambda: len(self.ranks(rank)) == nth and seal.committed(self.camp.tier), "the rank trains")
        os.kill(int(str(self.ranks(rank)[-1]["pid"])), signal.SIGKILL)


def test_a_killed_rank_starts_all_ranks_of_both_nodes_again_without_imports(tmp_path: Path) -> None:
    job = Warm(tmp_path, nodes=2)
    started = job.start()
    until(lambda: all(len(job.ranks(rank)) == 1 for rank in range(4)), "all ranks run")
    job.kill(3, 1)
    until(lambda: all(len(job.ranks(rank)) == 2 for rank in range(4)), "all ranks run again")
    restored = until(lambda: events(job.said[0], "restored"), "node 0 has chosen")[0]["step"]
    assert [path for path in job.code.glob("imported") if path.read_text() == "xx"], "once on each node"
    first, second = ([job.ranks(rank)[start] for rank in range(4)] for start in (0, 1))
    assert not {row["pid"] for row in first} & {row["pid"] for row in second}
    assert len({row["random"] for row in first + second}) == 8, "each draws numbers of its own"
    for rank, row in enumerate(second):
        told = {"LOCAL_RANK": str(rank % 2), "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": str(rank // 2)}
        said = [str(ENDLESS), f"from {row['resume']} at {row['MASTER_PORT']}"]
        assert row == row | told | {"argv": said, "path": str(job.code), "name": "__main__", "sigterm": True}
        assert row["TORCHELASTIC_RESTART_COUNT"] == "1" and str(row["resume"]).endswith(f"save-{restored}")
        assert row["fds"] == 4, "three and the one that lists them"
    assert len({row["MASTER_PORT"] for row in first}) == len({row["MASTER_PORT"] for row in second}) == 1
    assert first[0]["MASTER_PORT"] != second[0]["MASTER_PORT"], "no rank of the first start can join the second"
    until(lambda: seal.committed(job.camp.tier)[0] > restored, "it trains on")
    for process in started:
        process.terminate()
    assert job.ended(started) == [ExitCode.INTERRUPTED] * 2
    (restart,), other = (events(said, "restarted_in_place") for said in job.said)
    assert (restart["culprit"], restart["of_node"], restart["cause"], restart["generation"]) == (
        3,
        "n1",
        "died of SIGKILL",
        1,
    )
    assert restart["step"] > restored and restart["seconds"] > 0 and not other, "node 0 alone tells it"
    store = Store()
    TrainerEvents(store).take("c-a1-0", restart)  # type: ignore[arg-type]
    assert fold(store.kept).restarted_in_place == 1
    sentences = [
        f"attempt 1 trains again in its pods after {restart['seconds']} s, since a process on n1: died of SIGKILL"
    ]
    assert [one.sentence() for one in store.kept] == sentences
    assert {event.get("generation") for event in events(job.said[0], "step")} == {None, 1}
    steps = [event["step"] for event in events(job.said[0], "step")]
    again = steps[len(steps) - 1 - steps[::-1].index(restored + 1) :]
    assert again == list(range(restored + 1, restored + 1 + len(again))), "on from there, step by step"


def test_after_so_many_restarts_a_death_ends_the_attempt(tmp_path: Path) -> None:
    job = Warm(tmp_path)
    started = job.start()
    for nth in range(1, MOST + 2):
        job.kill(1, nth)
    assert job.ended(started) == [ExitCode.INTERNAL]
    assert "died of SIGKILL" in job.camp.ended().detail and len(events(job.said[0], "restarted_in_place")) == MOST


def test_a_rank_that_ends_by_itself_is_not_started_again(tmp_path: Path) -> None:
    job = Warm(tmp_path)
    (job.code / "exits").touch()
    assert job.ended(job.start()) == [ExitCode.DATA]
    assert not events(job.said[0], "restarted_in_place") and len(job.ranks(0)) == 1


@pytest.mark.parametrize("words", [("train.py",), ("--module", "train")])
def test_a_job_that_has_done_its_steps_ends_well(words: tuple[str, ...], tmp_path: Path) -> None:
    job = Warm(tmp_path)
    job.words = words
    assert job.ended(job.start(20)) == [0] and seal.committed(job.camp.tier)[0] == 20
    (row,) = job.ranks(1)
    assert (row["argv"], row["path"], row["name"]) == (
        ["20", f"from  at {row['MASTER_PORT']}"],
        str(job.code),
        "__main__",
    )


SPOILS = """
import os, types
parent = os.getpid()
cuda = types.SimpleNamespace(_is_in_bad_fork=lambda: os.getpid() != parent)
"""


@pytest.mark.parametrize(
    ("module", "text", "why"),
    [
        ("absent", None, "absent cannot be imported before the ranks are forked: ModuleNotFoundError"),
        ("torch", SPOILS, "importing torch initialises CUDA, so no rank can be forked: leave it out"),
    ],
)
def test_a_module_that_cannot_be_imported_before_the_ranks_is_named(
    module: str, text: str | None, why: str, tmp_path: Path
) -> None:
    job = Warm(tmp_path, warm=("heavy", module))
    if text is not None:
        (job.code / f"{module}.py").write_text(text)
    assert job.ended(job.start()) == [ExitCode.USER]
    assert why in job.camp.ended().detail and not job.ranks(0)


def test_a_killed_warm_process_ends_the_attempt_and_its_ranks(tmp_path: Path) -> None:
    job = Warm(tmp_path)
    started = job.start()
    until(lambda: job.ranks(0) and job.ranks(1), "the ranks run")
    pid = int(str(job.ranks(0)[0]["pid"]))
    above = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(above, signal.SIGKILL)
    assert job.ended(started) == [ExitCode.INTERNAL] and not Path(f"/proc/{pid}").exists()
