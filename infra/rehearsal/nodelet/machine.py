"""One emulated EC2 instance as its hypervisor sees it: power, network cable, and a root shell."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import infra
from infra.errors import PermanentError
from infra.rehearsal.nodelet.harm.hands import HARMS
from infra.rehearsal.nodelet.pods.sandbox import Bind, RootSpec, isolation_command, python_path
from infra.rehearsal.site import network

UPLINK = "uplink"
"""The machine's end of its cable; at boot it goes under the machine's own bridge."""
ENTERED = ("net", "uts", "ipc", "mount")
LOCAL_DISK = "/mnt/k8s-disks/0"
START_WITHIN_S, END_WITHIN_S = 60.0, 60.0
_WATCHED_S = 1.0
Which = Literal["all", "top", "busiest"]
BOOTED = "booted"
"""File that appears in the machine's folder when its network and metadata service are up."""
FOLDERS = ("nvme", "host", "images", "pods", "logs", "root", "metadata")


@dataclass(frozen=True)
class MachineConfig:
    """A machine's settings at power-on; saved as `machine.json` in its folder."""

    instance_id: str
    hostname: str
    """Also the Node's name: "ip-10-42-1-17.ec2.internal"."""
    address: str
    """Private address, on link in 10/8."""
    pod_addresses: tuple[str, ...]
    kind: Literal["node", "builder"]
    instance_type: str
    zone: str
    region: str
    account: str
    endpoint_url: str
    role_arn: str
    """Role of the instance profile; empty without one."""
    agent_key: tuple[str, str]
    """Access key of the emulator's own principal, which may assume the role."""
    user_data: str
    """Decoded user data: MIME with a NodeConfig."""
    capacity: dict[str, str]
    """Extended resources of the hardware; each is offered only while its device plugin is installed."""
    tags: dict[str, str]
    fsx_root: str
    """Host folder with one folder per file system id."""
    tools: str
    """Host folder of the programs that replace public images."""
    work: str
    """Host folder of this machine: its disks, pods and logs. It is deleted with the machine."""
    lifecycle: str = "on-demand"
    """`spot`: EC2 may take it, and its metadata say so two minutes before."""

    def save(self) -> Path:
        path = Path(self.work) / "machine.json"
        path.touch(mode=0o600)
        path.write_text(json.dumps(asdict(self), indent=1))
        return path

    @classmethod
    def load(cls, path: Path) -> MachineConfig:
        fields: dict[str, Any] = json.loads(path.read_text())
        key, secret = fields.pop("agent_key")
        return cls(**{**fields, "agent_key": (key, secret), "pod_addresses": tuple(fields["pod_addresses"])})


class Machine:
    """A running machine. `start` makes it, in the network namespace that holds `bridge`."""

    def __init__(self, config: MachineConfig, process: subprocess.Popen[bytes], cable: str) -> None:
        self.config, self.pid = config, process.pid
        self._process, self._cable = process, cable
        self._runs: set[int] = set()
        self._numbers = itertools.count()
        self._lock = threading.Lock()

    @classmethod
    def start(cls, config: MachineConfig, bridge: str = "camp0") -> Machine:
        """Power on and plug in; returns before the machine has booted."""
        work = Path(config.work)
        for folder in FOLDERS:
            (work / folder).mkdir(parents=True, exist_ok=True)
        (work / BOOTED).unlink(missing_ok=True)
        # The shell is PID 1 and only reaps: a container's orphans become its children.
        command = ["unshare", "--net", "--mount", "--pid", "--uts", "--ipc", "--fork", "--kill-child", "--mount-proc"]
        command += ["sh", "-c", '"$@"; exit $?', "init", sys.executable, "-P", "-m", "infra.rehearsal.nodelet"]
        with (work / "logs" / "console.log").open("ab") as console:
            process = subprocess.Popen(
                [*command, str(config.save())],
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=subprocess.STDOUT,
                cwd=work,
                env={"PATH": python_path(), "PYTHONPATH": str(Path(infra.__file__).parents[1]), "LANG": "C.UTF-8"},
                start_new_session=True,
            )
        try:
            _wait_for_namespaces(process)
            return cls(config, process, network.join(process.pid, bridge, UPLINK, None))
        except BaseException:
            process.kill()
            process.wait()
            raise

    def alive(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        """Cut the power: on return every process in the machine has ended, pods included. May be called twice."""
        processes = descendants({self.pid}) - {self.pid} if self.alive() else set()
        self._process.kill()
        self._process.wait()
        deadline = time.monotonic() + END_WITHIN_S
        while any(_runs(pid) for pid in processes) and time.monotonic() < deadline:
            time.sleep(0.005)

    def kill_rank(self) -> None:
        """Kill the process that works most at this moment: on a node that trains it is a rank."""
        self.signal("", "busiest", signal.SIGKILL)

    def signal(self, process: str, selection: Which, number: signal.Signals) -> int:
        """Send a signal to the machine's processes with `process` in their command line; return to how many.

        `selection`: all of them, the `top` ones, whose parents are none of them, or the one that works most.
        """
        pids = self._processes(process, selection)
        for pid in pids:
            _signal(pid, number)
        return len(pids)

    def harm(self, kind: str, fields: Mapping[str, str]) -> int:
        """Harm processes or containers as `harm/hands.py` has it, and return how many: of all, or the busiest process
        with `which: busiest`. Raises `LookupError` for another kind."""
        processes = self._processes("", "busiest") if fields.get("which") == "busiest" else self._tree()
        return HARMS[kind](processes, fields)

    def freeze(self) -> None:
        """Stop every process where it is; the kernel still answers for the machine's addresses."""
        frozen: set[int] = set()
        while processes := self._tree() - frozen:
            for pid in processes:
                _signal(pid, signal.SIGSTOP)
            frozen |= processes

    def thaw(self) -> None:
        for pid in self._tree():
            _signal(pid, signal.SIGCONT)

    def link(self, is_up: bool) -> None:
        """Pull the cable or plug it in."""
        network.set_link(self._cable, is_up)

    def run(self, script: str, timeout_s: float, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """Run a root shell script in the machine; its writes outside /tmp and /run stay on the machine's disk.

        Wait for the machine to boot. Raises subprocess.TimeoutExpired after `timeout_s` (and ends everything the script
        started), PermanentError if the machine is down.
        """
        self._await_boot()
        document, refusal = self._prepare(script, env or {})
        with refusal.open("wb") as status:
            process = subprocess.Popen(
                [*self._entry(), *isolation_command(document, status.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                env={"PATH": os.defpath},
                pass_fds=(status.fileno(),),
                start_new_session=True,
            )
        try:
            output, err = self._output(process, timeout_s)
            if reason := refusal.read_text():
                raise PermanentError("the script could not be started", seen=reason)
        finally:
            document.unlink(missing_ok=True)
            refusal.unlink(missing_ok=True)
        return subprocess.CompletedProcess(script, process.returncode, output, err)

    def _await_boot(self) -> None:
        deadline, boot_file = time.monotonic() + START_WITHIN_S, Path(self.config.work) / BOOTED
        while self.alive() and not boot_file.exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        if not self.alive() or not boot_file.exists():
            cure = "see logs/console.log in its folder"
            raise PermanentError("the machine is down", seen=self.config.instance_id, cure=cure)

    def _output(self, process: subprocess.Popen[str], timeout_s: float) -> tuple[str, str]:
        with self._lock:
            self._runs.add(process.pid)
        try:
            return process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            # Spare nsenter: it reaps its child, which no other process in the site might do, and then ends.
            for pid in descendants({process.pid}) - {process.pid}:
                _signal(pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=END_WITHIN_S)
            process.kill()
            process.communicate()
            raise
        finally:
            with self._lock:
                self._runs.discard(process.pid)

    def _entry(self) -> list[str]:
        # nsenter enters mnt last, so the other namespaces' paths still resolve.
        flags = [f"--{kind}=/proc/{self.pid}/ns/{kind if kind != 'mount' else 'mnt'}" for kind in ENTERED]
        return ["nsenter", *flags, f"--pid=/proc/{self.pid}/ns/pid_for_children"]

    def _prepare(self, script: str, env: dict[str, str]) -> tuple[Path, Path]:
        """Return the files for the description of the run and for a refusal to start."""
        work, number = Path(self.config.work), next(self._numbers)
        file = f"/run/scripts/{number}.sh"
        environment = {
            "PATH": python_path(),
            "HOME": "/root",
            "LANG": "C.UTF-8",
            "AWS_REGION": self.config.region,
            "AWS_DEFAULT_REGION": self.config.region,
            "AWS_ENDPOINT_URL": self.config.endpoint_url,
        }
        spec = RootSpec(
            root=work / "root",
            hostname=self.config.hostname,
            argv=["/bin/sh", file] if not script.startswith("#!") else [file],
            env={**environment, **env},
            binds=[Bind(work / "nvme", LOCAL_DISK, read_only=False)],
            files={file: script, "/etc/hosts": f"127.0.0.1 localhost\n{self.config.address} {self.config.hostname}\n"},
            persistent=True,
        )
        document = work / f"run-{number}.json"
        document.touch(mode=0o600)
        document.write_text(json.dumps(spec.document()))
        return document, document.with_suffix(".refusal")

    def _processes(self, process: str, selection: Which) -> set[int]:
        pids = {pid for pid in self._tree() if process in _command_line(pid)}
        if selection == "top":
            return pids - {child for pid in pids for child in descendants({pid}) - {pid}}
        if selection == "all" or not pids:
            return pids
        busy_before = _cpu_ticks(pids)
        time.sleep(_WATCHED_S)
        _, busiest = max((ticks - busy_before.get(pid, ticks), pid) for pid, ticks in _cpu_ticks(pids).items())
        return {busiest}

    def _tree(self) -> set[int]:
        with self._lock:
            return descendants({self.pid, *self._runs})


def descendants(roots: set[int]) -> set[int]:
    """Return `roots` and the processes below them. Orphans are included: their parent is their namespace's init."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        children.setdefault(int(fields[1]), []).append(int(path.parent.name))
    processes, fresh = set(roots), list(roots)
    while fresh:
        fresh = [child for parent in fresh for child in children.get(parent, []) if child not in processes]
        processes.update(fresh)
    return processes


def _cpu_ticks(pids: set[int]) -> dict[int, int]:
    """Return pid -> processor time so far, in clock ticks, of those that still run."""
    ticks = dict[int, int]()
    for pid in pids:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks[pid] = int(fields[11]) + int(fields[12])
    return ticks


def _command_line(pid: int) -> str:
    """Return a process's command line, its words parted by spaces; of one that has ended, nothing."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def _runs(pid: int) -> bool:
    """Return True for a live process, not for a zombie, which its new parent may reap late."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _wait_for_namespaces(process: subprocess.Popen[bytes]) -> None:
    """Wait for `unshare`, which makes all namespaces in one call: if one differs from ours, all exist."""
    own_namespace, deadline = os.readlink("/proc/self/ns/net"), time.monotonic() + START_WITHIN_S
    while os.readlink(f"/proc/{process.pid}/ns/net") == own_namespace:
        if process.poll() is not None or time.monotonic() > deadline:
            cure = "see logs/console.log in the machine's folder; the site needs CAP_SYS_ADMIN in its user namespace"
            raise PermanentError("no namespaces for the machine", seen=f"exit code {process.poll()}", cure=cure)
        time.sleep(0.002)
