"""What a node starts, by the spec's `launcher`: its command line, the job's variables, and what its end means."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any, Mapping

from trainer.contract import variables
from trainer.supervisor import activity, shell
from trainer.supervisor.place import Place
from trainer.supervisor.warm import ranks

_RANK_ENDED, _RANK = re.compile(r"^\s*exitcode\s*:\s*(-?\d+)"), re.compile(r"^\s*rank\s*:\s*(\d+) \(local_rank")
_ROOT_CAUSE = "Root Cause (first observed failure)"
_SIGNAL, _SIGNALS = 128, 64
"""`mpirun` ends with 128 and the number of the signal that ended a rank; other codes above are its own."""
_CULPRIT_S = 10.0
"""For the node whose rank failed to end first: the steward looks for the cause there."""


PACKAGES = "requirements"
"""Folder below the run's with the packages that the job brings."""


def make_launcher(job: Mapping[str, Any], place: Place) -> Launcher:
    if job.get("warm"):
        return Warm(job, place)
    kinds = {"torchrun": Torchrun, "mpirun": Mpirun, "none": Launcher}
    return kinds[job["launcher"]](job, place)


class Launcher:
    """The job's own command, once per node."""

    many = False
    """It starts a node's ranks."""
    elsewhere = False
    """Another node's rank ended the job."""
    rank: int | None = None
    """The rank that failed first, where the launcher says it."""

    def __init__(self, job: Mapping[str, Any], place: Place) -> None:
        self.job, self.place = job, place
        self.unset: set[str] = set()
        """Variables that the job's spec names and the container does not have."""

    def command(self, environment: Mapping[str, str]) -> list[str]:
        """Return the command line, with values of the job's whole environment for the variables in it."""
        return variables.words([str(word) for word in self.job["command"]], environment, self.unset)

    def environment(self, resume: str, run: str, extra_variables: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return the job's variables: its own, where its checkpoints go, from where it resumes (empty: from the start),
        the weights that it starts from then, and where the client of level 1 leaves its words. `extra_variables` come
        last."""
        host, _, port = self.place.rendezvous.rpartition(":")
        client = str(Path(sys.argv[0]).parent)  # the client lies beside the supervisor
        packages = os.path.join(run, PACKAGES) if self.job.get("requirements") else ""
        supervisor_variables = {
            "MASTER_ADDR": host,
            "MASTER_PORT": port,
            "NNODES": str(self.place.node_count),
            "NODE_RANK": str(self.place.node_rank),
            "BIVOUAC_CHECKPOINTS": str(self.job["checkpoints"]["folder"]),
            "BIVOUAC_RESUME_FROM": resume,
            "BIVOUAC_INIT_FROM": str(self.job.get("init_from") or ""),
            "BIVOUAC_SAVE_EVERY": str(self.job.get("save_every", "")),
            "BIVOUAC_RUN": run,
            **(extra_variables or {}),
        }
        texts = {str(name): str(value) for name, value in self.job.get("env", {}).items()}
        job_variables = variables.environment(texts, supervisor_variables, os.environ, self.unset)
        path = job_variables.get("PYTHONPATH", os.environ.get("PYTHONPATH"))
        python_path = os.pathsep.join(filter(None, (path, client, packages)))
        programs = f"{job_variables.get('PATH', os.environ.get('PATH', os.defpath))}:{packages}/bin"
        prompt = {"PYTHONUNBUFFERED": os.environ.get("PYTHONUNBUFFERED", "1")}  # a step is told when it is printed
        return {
            **prompt,
            **job_variables,
            **supervisor_variables,
            "PYTHONPATH": python_path,
            **({"PATH": programs} if packages else {}),
        }

    def missing_program(self, environment: Mapping[str, str]) -> str:
        """Return which program of the launcher's own this container lacks, in words; empty if none. `environment`: the
        job's whole one."""
        return ""

    def hear(self, line: str) -> None:
        """Take a line of the launcher's or the job's."""

    def exit_code(self, code: int, words: str, stopping: bool, own_code: int | None = None) -> int:
        """Return the job's exit code from the launcher's; `words`: its last ones; `own_code`: what they make of it."""
        return code


class Torchrun(Launcher):
    """torchrun with one node's ranks."""

    many = True
    _rank_code: int | None = None

    def command(self, environment: Mapping[str, str]) -> list[str]:
        place, (host, _, port) = self.place, self.place.rendezvous.rpartition(":")
        torchrun_path = shutil.which("torchrun", path=environment.get("PATH"))
        return [
            *(["torchrun"] if torchrun_path else ["python3", "-m", "torch.distributed.run"]),
            f"--nnodes={place.node_count}",
            f"--nproc-per-node={place.ranks_per_node}",
            f"--node-rank={place.node_rank}",
            f"--master-addr={host}",
            f"--master-port={port}",
            "--max-restarts=0",  # the steward alone restarts: a rank that comes back finds no peers
            *super().command(environment),
        ]  # fmt: skip

    def hear(self, line: str) -> None:
        """Take the rank that failed first, and its exit code, from torchrun's summary; torchrun itself ends with 1.
        Those that it has stopped for that come before it there."""
        if line.startswith(_ROOT_CAUSE):
            self._rank_code = self.rank = None
        if self.rank is None and (match := _RANK.match(line)):
            self.rank = int(match.group(1))
        if self._rank_code is None and (match := _RANK_ENDED.match(line)):
            self._rank_code = int(match.group(1))

    def exit_code(self, code: int, words: str, stopping: bool, own_code: int | None = None) -> int:
        return (self._rank_code or code) if code else 0


class Warm(Torchrun):
    """One node's ranks, forked from a process that has imported the job's modules (`warm.job` follows it)."""

    def command(self, environment: Mapping[str, str]) -> list[str]:
        request = {"warm": self.job["warm"], "command": Launcher.command(self, environment)}
        return [sys.executable, "-u", os.path.abspath(sys.argv[0]), ranks.CALL, json.dumps(request)]

    def note_failure(self, code: int) -> None:
        self._rank_code = code


class Mpirun(Launcher):
    """`mpirun` on node 0, for the ranks of all nodes; on the others what it calls there (`shell`)."""

    many = True
    _RANK = (
        re.compile(r"mpirun.* noticed that process rank (\d+) with PID \d+ on node \S+ exited on signal"),
        re.compile(r"^\s*Process name: \[\[\d+,\d+\],(\d+)\]"),
        re.compile(r"^MPI_ABORT was invoked on rank (\d+) "),
    )
    _DAEMON = re.compile(r"^\s*Remote daemon: \[\[\d+,0\],(\d+)\]")
    """Open MPI 4's words for the rank that ended the job, and for a node that it lost."""
    _culprit: int | None = None
    """Node that ended the job."""

    def command(self, environment: Mapping[str, str]) -> list[str]:
        if self.place.node_rank:
            return [sys.executable, os.path.abspath(sys.argv[0]), shell.LISTEN]
        return [
            "mpirun",
            "--hostfile", os.environ.get("BIVOUAC_MPI_HOSTS", shell.HOSTS),
            "-np", str(self.place.world_size),
            "--map-by", f"ppr:{self.place.ranks_per_node}:node",
            "--bind-to", "none",  # a rank per GPU has many threads; mpirun would put each on one core
            *super().command(environment),
        ]  # fmt: skip

    def environment(self, resume: str, run: str, extra_variables: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return the job's variables with those of Open MPI, on all nodes alike: of many, each starts some others."""
        return {
            **super().environment(resume, run, extra_variables),
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            "OMPI_MCA_plm_rsh_agent": f"{sys.executable} {os.path.abspath(sys.argv[0])} {shell.CALL}",
            "OMPI_MCA_plm_rsh_args": "",  # the operator's are ssh's
            "OMPI_MCA_orte_keep_fqdn_hostnames": "true",
            "OMPI_MCA_orte_leave_session_attached": "true",  # its daemons stay below the supervisor, which counts them
        }

    def missing_program(self, environment: Mapping[str, str]) -> str:
        # Each node looks for itself: without `mpirun` on node 0, the others would wait for its call without end.
        if shutil.which("mpirun", path=environment.get("PATH")):
            return ""
        return "the job's container has no `mpirun`: its image needs Open MPI 4 for launcher `mpirun`"

    def hear(self, line: str) -> None:
        if self._culprit is not None or self.place.node_rank:
            return
        for pattern in self._RANK:
            match = pattern.search(line)
            if match:
                self._culprit = int(match.group(1)) // self.place.ranks_per_node
                return
        match = self._DAEMON.match(line)
        if match:
            self._culprit = int(match.group(1))

    def exit_code(self, code: int, words: str, stopping: bool, own_code: int | None = None) -> int:
        """Tell the other nodes, and let the one whose rank failed end before this one."""
        if not self.place.node_rank:
            shell.tell_end(code if own_code is None else own_code, self._culprit, words)
            self.elsewhere = bool(code and self._culprit)
            if self.elsewhere and not stopping:
                activity.await_silence(shell.hosts()[self._culprit or 0], _CULPRIT_S)
        return _SIGNAL - code if _SIGNAL < code <= _SIGNAL + _SIGNALS else code
