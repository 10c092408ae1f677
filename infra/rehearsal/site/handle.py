"""Start, enter and remove a site from the host. The host itself listens on nothing."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from infra.errors import PermanentError
from infra.folders import site_dir, sites_dir, tools_dir
from infra.record.process_start import start_ticks as _start_ticks
from infra.rehearsal.site.environment import bare
from infra.rehearsal.site.layout import AWS_ENDPOINT, REGION
from infra.spec import waits

ENTERED = "BIVOUAC_SITE"
"""Set in the environment of a process that runs inside a site."""
READY_WITHIN_S = 90.0
_ENDS_WITHIN_S, _SAY_EVERY_S = 30.0, 5.0
Progress = Callable[[str], None]


SUPERVISOR = "infra.rehearsal.site.supervisor"
FOLDER_VARIABLE = "BIVOUAC_SITE_FOLDER"
"""Holds the site's folder, in the environment of every process that entered the site."""
_NOT_OURS = (FileNotFoundError, ProcessLookupError, PermissionError)
"""How /proc says that a process has ended meanwhile, or is another user's; other errors say nothing of it."""


def boot() -> str:
    """Return the boot ID; process numbers of another boot mean nothing."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def supervisors(folder: Path) -> tuple[int, ...]:
    """Return a site's outer process and its PID 1, even if their starter died before it recorded them."""
    arguments = [b"-m", SUPERVISOR.encode(), os.fsencode(folder)]
    pids = []
    for pid in _pids():
        argv = _read(pid, "cmdline").split(b"\0")
        if any(argv[offset : offset + 3] == arguments for offset in range(len(argv) - 2)):
            pids.append(pid)
    return tuple(pids)


def processes_inside(folder: Path, inner_pid: int | None) -> tuple[int, ...]:
    """Return the processes that entered a site from outside, by its network or its folder; never our ancestors."""
    marker, ancestors = f"{FOLDER_VARIABLE}=".encode() + os.fsencode(folder), _ancestry()
    network = None if inner_pid is None else _network(inner_pid)
    if network == _network(os.getpid()):
        network = None
    return tuple(
        pid
        for pid in _pids()
        if pid not in ancestors
        and ((network is not None and _network(pid) == network) or marker in _read(pid, "environ").split(b"\0"))
    )


def end(pids: tuple[int, ...]) -> None:
    for pid in pids:
        with suppress(OSError):
            os.kill(pid, signal.SIGKILL)


def _pids() -> Iterator[int]:
    return (int(entry) for entry in os.listdir("/proc") if entry.isdigit())


def _read(pid: int, file_name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{file_name}").read_bytes()
    except _NOT_OURS:
        return b""


def _network(pid: int) -> str | None:
    try:
        return os.readlink(f"/proc/{pid}/ns/net")
    except _NOT_OURS:
        return None


def _ancestry() -> set[int]:
    pid, ancestors = os.getpid(), set[int]()
    while pid > 1 and pid not in ancestors:
        ancestors.add(pid)
        fields = _read(pid, "stat").rpartition(b")")[2].split()
        pid = int(fields[1]) if len(fields) > 1 else 0
    return ancestors


@dataclass(frozen=True)
class Site:
    """A running site, as `site.json` in its folder holds it."""

    name: str
    folder: str
    outer_pid: int
    outer_start: int
    """Start ticks of the outer process, to detect a reused PID."""
    inner_pid: int
    """PID 1 of the site in the host's numbering; its namespaces are entered through it."""
    user_namespace: bool
    environment: dict[str, str]
    boot: str = ""
    """Boot ID of the machine when the site was started."""

    def alive(self) -> bool:
        if self.boot and self.boot != boot():
            return False
        return _start_ticks(self.outer_pid) == self.outer_start and _start_ticks(self.inner_pid) is not None

    def entry(self, arguments: list[str]) -> list[str]:
        """Return the command line that runs `arguments` inside: the host's PIDs and files, the site's network."""
        join = ["nsenter", f"--target={self.inner_pid}", "--net"]
        if self.user_namespace:
            join += ["--user", "--preserve-credentials"]
        return [*join, "--", *arguments]


def ensure(name: str, progress: Progress, on_start: Callable[[Path], None] = lambda _: None) -> Site:
    """Return the running site of this name; start it if there is none. Concurrent callers get the same one.

    `on_start` is called with the site's folder before anything runs in it, so that its files survive a killed start.
    """
    folder = site_dir(name)
    with _lock(name, progress):
        site = find(name)
        if site is not None:
            return site
        if remove(name):
            progress("site: removed the leftovers of a killed start")
        folder.mkdir(parents=True, exist_ok=True)
        on_start(folder)
        from infra.rehearsal import (
            doctor,
            plugins,  # imported here: entering a running site must be quick
        )
        from infra.toolchain.ensure import ensure as ensure_tools

        doctor.refuse_unfit()
        progress("site: tools")
        ensure_tools()
        plugins.install(folder / "bin")
        progress("site: namespaces, emulated AWS")
        return _start_site(name, folder)


def find(name: str) -> Site | None:
    try:
        site = Site(**json.loads((site_dir(name) / "site.json").read_text()))
    except (FileNotFoundError, NotADirectoryError, ValueError, TypeError):
        return None
    return site if site.alive() else None


def enter(site: Site, arguments: list[str]) -> None:
    """Replace this process with the same program inside the site; does not return."""
    environment = {**bare(), **site.environment, ENTERED: site.name}
    command = site.entry(arguments)
    os.execvpe(command[0], command, environment)


def remove(name: str, say: Progress = lambda _: None) -> bool:
    """End a site, the processes that entered it and the leftovers of a killed start; remove its folder.

    Return True if any process was running. Raises `PermanentError` if processes or files stay.
    """
    folder, site = site_dir(name), find(name)
    inner = site.inner_pid if site is not None else None
    reported_at, started_at, was_alive = time.monotonic(), time.monotonic(), False
    # Look again each time: a process may have started another one, or become one, that was not yet the site's.
    while left := _living(folder, site, inner):
        was_alive = True
        end(left)
        if time.monotonic() - reported_at > _SAY_EVERY_S:
            reported_at = time.monotonic()
            say(f"site {name}: waiting for {len(left)} processes to end")
        if time.monotonic() - started_at > _ENDS_WITHIN_S:
            survivors = ", ".join(map(str, left))
            raise PermanentError(f"site {name} did not end", seen=f"processes {survivors}", cure=f"kill -9 {survivors}")
        time.sleep(0.05)
    _clear(folder)
    with suppress(OSError):
        folder.rmdir()
    if folder.exists():
        cure = "give it back to yourself (chown -R) or remove it by hand"
        raise PermanentError(f"the folder of site {name} cannot be removed", seen=folder, cure=cure)
    return was_alive


def _living(folder: Path, site: Site | None, inner: int | None) -> tuple[int, ...]:
    """Return the running processes of a site, or of a start that was killed."""
    recorded_pids = (site.outer_pid, site.inner_pid) if site is not None and site.alive() else ()
    supervisor_pids = supervisors(folder)
    inner = inner or max(supervisor_pids, key=lambda pid: (_start_ticks(pid) or 0, pid), default=None)
    pids = dict.fromkeys([*recorded_pids, *supervisor_pids, *processes_inside(folder, inner)])
    return tuple(pid for pid in pids if _start_ticks(pid) is not None)


def _start_site(name: str, folder: Path) -> Site:
    from infra.rehearsal.aws.strict import settings  # models: entering a running site must be quick

    rootless = os.geteuid() != 0
    command = ["unshare", *(["--user", "--map-root-user"] if rootless else []), "--net", "--mount", "--pid", "--fork"]
    command += ["--mount-proc", "--kill-child", sys.executable, "-P", "-m", SUPERVISOR, str(folder), REGION]
    (folder / "logs").mkdir(exist_ok=True)
    environment = {**bare(), "PATH": _path(folder)}
    with (folder / "logs" / "site.log").open("ab") as log:
        outer = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True, cwd="/"
        )
    inner_file, credentials = folder / "inside.json", folder / "aws" / "credentials.json"
    try:
        _wait(
            lambda: outer.poll() is not None or (inner_file.exists() and credentials.exists()),
            READY_WITHIN_S,
            f"site {name} was not ready",
        )
        if outer.poll() is not None:
            raise _not_started(folder, rootless)
    except BaseException:
        outer.kill()
        raise
    inner = int(Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text().split()[0])
    key, secret = (json.loads(credentials.read_text())[k] for k in ("access_key_id", "secret_access_key"))
    site = Site(
        name=name,
        folder=str(folder),
        outer_pid=outer.pid,
        outer_start=_start_ticks(outer.pid) or 0,
        inner_pid=inner,
        user_namespace=rootless,
        environment={
            "AWS_ENDPOINT_URL": AWS_ENDPOINT,
            "AWS_ACCESS_KEY_ID": key,
            "AWS_SECRET_ACCESS_KEY": secret,
            "AWS_REGION": REGION,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_EC2_METADATA_DISABLED": "true",
            "PATH": _path(folder),
            "PULUMI_HOME": str(folder / "pulumi"),
            FOLDER_VARIABLE: str(folder),
            "PULUMI_SKIP_UPDATE_CHECK": "true",
            waits.TIME_SCALE: str(settings.read(folder).time_scale or 1),
        },
        boot=boot(),
    )
    fresh = folder / "site.json.new"
    fresh.write_text(json.dumps(asdict(site), indent=1))
    fresh.replace(folder / "site.json")
    return site


def _path(folder: Path) -> str:
    return os.pathsep.join(
        [str(folder / "bin"), str(tools_dir()), str(Path(sys.executable).parent), os.environ["PATH"]]
    )


def _not_started(folder: Path, rootless: bool) -> PermanentError:
    tail = (folder / "logs" / "site.log").read_text(errors="replace").strip().splitlines()[-5:]
    cure = "see `bivouac doctor`" + ("; user namespaces may be forbidden here" if rootless else "")
    return PermanentError("the site could not be started", seen=" | ".join(tail) or "no output", cure=cure)


def _clear(folder: Path) -> None:
    for item in folder.iterdir() if folder.is_dir() else ():
        if item.is_dir() and not item.is_symlink():
            shutil.rmtree(item, ignore_errors=True)
        else:
            with suppress(OSError):
                item.unlink()


def _wait(probe: Callable[[], bool], seconds: float, otherwise: str) -> None:
    deadline = time.monotonic() + seconds
    while not probe():
        if time.monotonic() > deadline:
            raise PermanentError(otherwise, seen=f"after {seconds:.0f} s", cure="see the logs in the site's folder")
        time.sleep(0.05)


@contextmanager
def _lock(name: str, progress: Progress) -> Iterator[None]:
    """Allow one start at a time. The lock lies outside of the site's folder, which comes and goes."""
    path = sites_dir().parent / "locks" / f"site-{name}.lock"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        site_dir(name).mkdir(parents=True, exist_ok=True)
        lock = path.open("w")
    except OSError as error:
        cure = "make room, give the cache folder back to yourself (chown -R), or set BIVOUAC_CACHE to a folder of yours"
        problem = f"{error.filename}: {error.strerror}"
        raise PermanentError("the site's folder cannot be written", seen=problem, cure=cure) from error
    with lock:
        reported_at = 0.0
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() - reported_at > _SAY_EVERY_S:
                    reported_at = time.monotonic()
                    progress(f"site: another command is starting {name}, waiting for it")
                time.sleep(0.1)
        yield
