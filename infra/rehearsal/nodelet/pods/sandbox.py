"""Containers as processes: a network namespace per pod, a root and a PID namespace per container."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

from infra.errors import PermanentError, TemporaryError
from infra.rehearsal.nodelet.pods.confinement import Confinement

RETRY = timedelta(seconds=2)
ENTER = Path(__file__).with_name("enter.py")
HOST_FOLDERS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
HOST_SETTINGS = ("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives", "ssl", "ca-certificates", "pki")
ACCOUNTS = {
    "/etc/passwd": "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
    "/etc/group": "root:x:0:\nnogroup:x:65534:\n",
    "/etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
    "/etc/host.conf": "multi on\n",
}


@dataclass(frozen=True)
class Bind:
    source: Path
    target: str
    read_only: bool = True


@dataclass(frozen=True)
class RootSpec:
    """The root and program of one container. The host's parts and `binds` are mounted in order, outer before inner."""

    root: Path
    """An empty folder to assemble the root in; if `persistent`, it is the root itself and keeps its changes."""
    hostname: str
    argv: list[str]
    env: dict[str, str]
    cwd: str = "/"
    binds: list[Bind] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    persistent: bool = False
    confined: Confinement | None = None
    """None means root with all rights of a machine's own programs."""

    def document(self) -> dict[str, Any]:
        links, host = host_parts()
        # The deeper one later: a volume at /tmp must not hide an interpreter that lies below it on this machine.
        sorted_binds = sorted((*host, *self.binds), key=lambda bind: bind.target.rstrip("/").count("/"))
        binds = [{"source": str(b.source), "target": b.target, "read_only": b.read_only} for b in sorted_binds]
        return {
            "root": str(self.root),
            "persistent": self.persistent,
            "hostname": self.hostname,
            "argv": self.argv,
            "env": self.env,
            "cwd": self.cwd,
            "links": {**links, "/var/run": "../run", **self.links},
            "tmpfs": {"/run": "size=65536k"},
            "files": {**ACCOUNTS, "/etc/hostname": self.hostname + "\n", **self.files},
            "binds": binds,
            "confined": None if self.confined is None else asdict(self.confined),
        }


def host_parts() -> tuple[dict[str, str], list[Bind]]:
    """Return the host's (links, read-only binds) for every root: programs, libraries, and this interpreter."""
    links: dict[str, str] = {}
    binds: list[Bind] = []
    for folder in HOST_FOLDERS:
        if os.path.islink(folder):
            links[folder] = os.readlink(folder)
        elif os.path.isdir(folder):
            binds.append(Bind(Path(folder), folder))
    binds += [Bind(Path("/etc") / name, f"/etc/{name}") for name in HOST_SETTINGS if os.path.exists(f"/etc/{name}")]
    targets = [bind.target for bind in binds]
    for prefix in interpreter_prefixes():
        if not any(prefix == parent or prefix.startswith(parent + "/") for parent in targets):
            binds.append(Bind(Path(prefix), prefix))
            targets.append(prefix)
    return links, binds


def interpreter_prefixes() -> list[str]:
    """Return every path by which a link or a setting may reach the environment or the base interpreter."""
    prefixes = [sys.prefix, os.path.realpath(sys.prefix), sys.base_prefix, os.path.realpath(sys.base_prefix)]
    hop = sys.executable
    while os.path.islink(hop):
        hop = os.path.normpath(os.path.join(os.path.dirname(hop), os.readlink(hop)))
        prefixes.append(os.path.dirname(os.path.dirname(hop)))
    return list(dict.fromkeys(prefix for prefix in prefixes if prefix != "/"))


def python_path() -> str:
    """Return the PATH of a container whose image sets none: the environment's programs come first."""
    return f"{sys.prefix}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class StartError(PermanentError):
    """The program could not be started; `stage` is spec, root or exec."""

    def __init__(self, stage: str, message: str) -> None:
        super().__init__(message)
        self.stage, self.message = stage, message


class PodNetwork:
    """A pod's network namespace, held open by a sleeping process."""

    def __init__(self) -> None:
        self._holder = subprocess.Popen(
            ["unshare", "--net", "--ipc", "sleep", "infinity"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env={"PATH": os.defpath},
            close_fds=True,
        )
        own_namespace = os.readlink("/proc/self/ns/ipc")
        deadline = time.monotonic() + 5
        while os.readlink(f"/proc/{self.pid}/ns/ipc") == own_namespace:
            if time.monotonic() > deadline or self._holder.poll() is not None:
                raise TemporaryError("no network namespace for the pod", cure="look at the console", delay=RETRY)
            time.sleep(0.001)

    @property
    def pid(self) -> int:
        return self._holder.pid

    def entry(self) -> list[str]:
        return ["nsenter", f"--net=/proc/{self.pid}/ns/net", f"--ipc=/proc/{self.pid}/ns/ipc"]

    def close(self) -> None:
        self._holder.kill()
        self._holder.wait()


class Standard(NamedTuple):
    """A program's standard streams, as `subprocess` takes them."""

    stdin: int
    stdout: int
    stderr: int


class Container:
    """One started program. It writes its output directly to a file."""

    def __init__(self, spec: RootSpec, log: Path, network: PodNetwork | None) -> None:
        """Start the program. Raises StartError if the root cannot be built or the program does not exist."""
        spec.root.mkdir(parents=True, exist_ok=True)
        self._document = spec.root.with_name(spec.root.name + ".json")
        self._document.write_text(json.dumps(spec.document()))
        entry = network.entry() if network else []
        with log.open("ab") as output:
            streams = Standard(subprocess.DEVNULL, output.fileno(), subprocess.STDOUT)
            self._process = _start_process(lambda status: [*entry, *isolation_command(self._document, status)], streams)

    def start_beside(self, argv: list[str], streams: Standard, terminal: bool) -> subprocess.Popen[bytes]:
        """Start a further program in the container, with the same environment, folder and rights.

        `terminal`: its standard input becomes its controlling terminal. Raises StartError.
        """
        spec = json.loads(self._document.read_text()) | {"argv": argv, "join": self._process.pid, "terminal": terminal}
        with tempfile.NamedTemporaryFile("w", dir=self._document.parent, prefix="exec-") as document:
            json.dump(spec, document)
            document.flush()
            path = Path(document.name)
            return _start_process(lambda status: join_command(path, status), streams)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the program; SIGKILL ends the process that waits for it, and so the program."""
        self._process.send_signal(number)

    def wait(self) -> int:
        """Return the exit code as a container runtime reports it: 128 + n for signal n."""
        code = self._process.wait()
        self._document.unlink(missing_ok=True)
        return 128 - code if code < 0 else code


def isolation_command(document: Path, status: int) -> list[str]:
    """Return the command line that runs `document` in new mount, PID and UTS namespaces."""
    return ["unshare", "--mount", "--pid", "--uts", *join_command(document, status)]


def join_command(document: Path, status: int) -> list[str]:
    """Return the command line that runs `document` in the namespaces of a container that runs."""
    return [sys.executable, "-I", "-S", str(ENTER), str(document), str(status)]


def _start_process(command: Callable[[int], list[str]], streams: Standard) -> subprocess.Popen[bytes]:
    """Start a command, which gets the descriptor for a refusal. Raises StartError."""
    reading, writing = os.pipe()
    try:
        process = subprocess.Popen(
            command(writing),
            stdin=streams.stdin,
            stdout=streams.stdout,
            stderr=streams.stderr,
            env={"PATH": os.defpath},
            pass_fds=(writing,),
            start_new_session=True,
        )
    except BaseException:
        os.close(reading)
        raise
    finally:
        os.close(writing)
    with os.fdopen(reading, "rb") as status:
        refusal = status.read()
    if refusal:
        process.wait()
        failure = json.loads(refusal)
        raise StartError(failure["stage"], failure["error"])
    return process


def remove_tree(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
