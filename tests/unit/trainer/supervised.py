"""Supervisors of a job's nodes, each a process with an address of its own on loopback."""

from __future__ import annotations

import atexit
import compileall
import contextlib
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.addresses import own_network, own_port
from tests.root import ROOT
from trainer.contract import Termination
from trainer.supervisor.pack import pack

JOB = """
import json, os, pathlib, sys, time
folder = pathlib.Path(os.environ["BIVOUAC_CHECKPOINTS"])
folder.mkdir(parents=True, exist_ok=True)
resume = os.environ["BIVOUAC_RESUME_FROM"]
begun = int((pathlib.Path(resume) / "state").read_text()) if resume else 0
print("my token is", os.environ["TOKEN"])
for step in range(begun + 1, int(sys.argv[1]) + 1):
    time.sleep(float(sys.argv[2]))
    print(json.dumps({"step": step, "loss": 1 / step}), flush=True)
    if step % 10 == 0:
        (folder / f"save-{step}").mkdir()
        (folder / f"save-{step}" / "state").write_text(str(step))
        (folder / f"save-{step}" / "DONE").touch()
"""
SECRET = "hunter22"


_UNPACKING = threading.Lock()


def supervisor() -> str:
    """Return a folder that Python runs: the file of a pod, unpacked, with the client beside it.

    It starts in 0.11 s. The file compiles its modules at each start (0.25 s), and the checkout's contract imports its
    models for other programs (0.29 s).
    """
    with _UNPACKING:  # cases are played by threads
        return _unpacked()


@functools.cache
def _unpacked() -> str:
    root = Path(tempfile.mkdtemp(prefix="bivouac-supervisor-"))
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    pack(root / "supervisor.pyz")
    with zipfile.ZipFile(root / "supervisor.pyz") as packed:
        packed.extractall(root / "supervisor")
    compileall.compile_dir(root / "supervisor", quiet=1)
    return str(root / "supervisor")


@dataclass
class Supervisors:
    """Of one campaign, whose tiers lie below `root`."""

    root: Path
    nodes: int = 1
    launcher: str = "none"
    format: str = "marker"
    folder: Path = ROOT
    """Where the job starts."""
    more: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of the configuration."""
    secret: str = SECRET
    program: tuple[str, ...] = field(default_factory=lambda: (supervisor(),))
    variables: Mapping[str, str] = field(default_factory=dict)
    """Of the supervisor itself."""
    without: tuple[str, ...] = ()
    """Variables of this machine that its container does not have."""
    ranks: int = 1
    """On each node."""
    addresses: list[str] = field(init=False)
    port: int = field(init=False)

    def __post_init__(self) -> None:
        net, self.port = own_network(), own_port()  # torch listens on it at every address of the machine
        self.addresses = [f"{net}.{1 + rank}" for rank in range(self.nodes)]
        if self.launcher == "mpirun":
            self._as_the_operator_does()

    def _as_the_operator_does(self) -> None:
        """Write the hosts and the key."""
        hosts, key = (self.root / name for name in ("hostfile", "id_rsa"))
        hosts.write_text("".join(f"{name} slots={self.ranks}\n" for name in ("localhost", *self.addresses[1:])))
        key.write_text("the key of this attempt")
        self.variables = {"BIVOUAC_MPI_HOSTS": str(hosts), "BIVOUAC_MPI_KEY": str(key)}

    @property
    def tier(self) -> Path:
        return self.root / "shared/tiny"

    def start(
        self, attempt: int, *command: str, steps: int = 40, rank: int = 0, env: Mapping[str, str] | None = None
    ) -> subprocess.Popen[str]:
        """Start the supervisor of one node, as its pod's environment does."""
        checkpoints = {"format": self.format, "folder": str(self.tier / "own"), "keep": 2}
        config = {
            "identity": "one", "command": command, "launcher": self.launcher, "checkpoints": checkpoints,
            "config_digest": "config", "steps": steps, "secrets": ["TOKEN"], "grace_s": 60, "folder": str(self.folder),
            "env": dict(env or {}), **self.more,
        }  # fmt: skip
        home = self.root / f"node-{rank}"
        home.mkdir(exist_ok=True)
        (home / "workload.json").write_text(json.dumps(config))
        (home / "secrets.json").write_text(json.dumps({"TOKEN": self.secret}))
        place = {
            "CAMPAIGN": "tiny", "ATTEMPT": str(attempt), "NODE_NAME": f"n{rank}", "POD_IP": self.addresses[rank],
            "NODE_RANK": str(rank), "NODE_COUNT": str(self.nodes), "RANKS_PER_NODE": str(self.ranks),
            "RENDEZVOUS": f"{self.addresses[0]}:{self.port + attempt}", "WORKLOAD": str(home / "workload.json"),
            "SHARED": str(self.root / "shared"), "LOCAL": str(home / "local"), "SECRETS": str(home / "secrets.json"),
            "TERMINATION_LOG": str(home / "termination.json"), "EXPORTS": str(self.tier / "export"),
        }  # fmt: skip
        bare = {name: value for name, value in os.environ.items() if name not in self.without}
        environment = bare | {f"BIVOUAC_{name}": value for name, value in place.items()}
        environment |= self.variables
        environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
        return subprocess.Popen(
            [sys.executable, *self.program], cwd=ROOT, env=environment,
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def job(self, steps: int, seconds: float) -> tuple[str, ...]:
        """Return the command of a job without torch."""
        return sys.executable, "-c", JOB, str(steps), str(seconds)

    def ended(self, rank: int = 0) -> Termination:
        return Termination.model_validate_json((self.root / f"node-{rank}/termination.json").read_text())


MARK = "\x1e"
"""Begins the supervisor's own lines, and no line of a job."""


def events(text: str, kind: str) -> list[dict[str, Any]]:
    """The supervisor's own events of a kind. Lines end in a line feed alone: `splitlines` would end one at the mark."""
    lines = (json.loads(line[1:]) for line in text.split("\n") if line.startswith(MARK))
    return [line for line in lines if line["event"] == kind]


def printed(text: str, kind: str) -> list[dict[str, Any]]:
    """The events that the job has printed by itself."""
    lines = (json.loads(line) for line in text.split("\n") if line.startswith('{"event"'))
    return [line for line in lines if line["event"] == kind]


def kill_node(process: subprocess.Popen[str]) -> None:
    """Kill a supervisor and all that it started, at once, as a lost node does."""
    children = {int(one): stat_parent(int(one)) for one in os.listdir("/proc") if one.isdigit()}
    doomed = {process.pid}
    while more := {pid for pid, parent in children.items() if parent in doomed} - doomed:
        doomed |= more
    for pid in doomed:
        with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
            os.kill(pid, signal.SIGKILL)


def stat_parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0
