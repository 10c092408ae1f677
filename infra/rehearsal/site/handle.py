"""A site from the host's side: pitched, entered, struck. The host itself listens on nothing."""

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
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from infra.errors import PermanentError
from infra.rehearsal import providers
from infra.rehearsal.paths import site_dir, sites_dir, tools_dir
from infra.rehearsal.site.layout import AWS_ENDPOINT, REGION
from infra.rehearsal.toolchain.ensure import ensure as ensure_tools

ENTERED = "BIVOUAC_SITE"
"""Set in the environment of a process that runs inside a site."""
READY_WITHIN_S = 90.0
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Site:
    """A running site; `site.json` in its folder holds the same."""

    name: str
    folder: str
    outer_pid: int
    outer_start: int
    """Start ticks of the outer process, so that a reused PID is never mistaken for it."""
    inner_pid: int
    """PID 1 of the site, as the host numbers it: the namespaces are entered through it."""
    user_namespace: bool
    environment: dict[str, str]

    def alive(self) -> bool:
        return _start_ticks(self.outer_pid) == self.outer_start and _start_ticks(self.inner_pid) is not None

    def entry(self, arguments: list[str]) -> list[str]:
        """The command line that runs something inside: same PID namespace and files as here, the site's network."""
        join = ["nsenter", f"--target={self.inner_pid}", "--net"]
        if self.user_namespace:
            join += ["--user", "--preserve-credentials"]
        return [*join, "--", *arguments]


def ensure(name: str, progress: Progress) -> Site:
    """The running site of this name; pitched if there is none. Two callers at once get the same one."""
    folder = site_dir(name)
    with _locked(folder):
        site = find(name)
        if site is not None:
            return site
        _clear(folder)
        progress("site: tools")
        ensure_tools()
        providers.install(folder / "bin")
        progress("site: namespaces, emulated AWS")
        return _pitch(name, folder)


def find(name: str) -> Site | None:
    try:
        site = Site(**json.loads((site_dir(name) / "site.json").read_text()))
    except (OSError, ValueError, TypeError):
        return None
    return site if site.alive() else None


def running() -> list[Site]:
    names = sorted(p.name for p in sites_dir().iterdir()) if sites_dir().is_dir() else []
    return [site for name in names if (site := find(name)) is not None]


def enter(site: Site, arguments: list[str]) -> None:
    """Become the same program inside the site; does not return."""
    environment = {**os.environ, **site.environment, ENTERED: site.name}
    command = site.entry(arguments)
    os.execvpe(command[0], command, environment)


def strike(name: str) -> bool:
    """End a site and remove its folder; whether there was one running."""
    folder = site_dir(name)
    site = find(name)
    if site is not None:
        os.kill(site.outer_pid, signal.SIGKILL)
        _wait(
            lambda: _start_ticks(site.inner_pid) is None and _start_ticks(site.outer_pid) is None,
            15.0,
            f"site {name} did not end",
        )
    _clear(folder)
    shutil.rmtree(folder, ignore_errors=True)
    return site is not None


def _pitch(name: str, folder: Path) -> Site:
    rootless = os.geteuid() != 0
    command = [
        "unshare",
        *(["--user", "--map-root-user"] if rootless else []),
        "--net",
        "--mount",
        "--pid",
        "--fork",
        "--mount-proc",
        "--kill-child",
        sys.executable,
        "-m",
        "infra.rehearsal.site.supervisor",
        str(folder),
        REGION,
    ]
    (folder / "logs").mkdir(exist_ok=True)
    environment = {**os.environ, "PATH": _path(folder)}
    for key in [k for k in environment if k.startswith(("AWS_", "KUBECONFIG", "PULUMI_"))]:
        del environment[key]
    with (folder / "logs" / "site.log").open("ab") as log:
        outer = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True, cwd="/"
        )
    inside, credentials = folder / "inside.json", folder / "aws" / "credentials.json"
    try:
        _wait(
            lambda: outer.poll() is not None or (inside.exists() and credentials.exists()),
            READY_WITHIN_S,
            f"site {name} was not ready",
        )
        if outer.poll() is not None:
            raise _not_pitched(folder, rootless)
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
            "BIVOUAC_SITE_FOLDER": str(folder),
            "PULUMI_SKIP_UPDATE_CHECK": "true",
        },
    )
    (folder / "site.json").write_text(json.dumps(asdict(site), indent=1))
    return site


def _path(folder: Path) -> str:
    return os.pathsep.join(
        [str(folder / "bin"), str(tools_dir()), str(Path(sys.executable).parent), os.environ["PATH"]]
    )


def _not_pitched(folder: Path, rootless: bool) -> PermanentError:
    tail = (folder / "logs" / "site.log").read_text(errors="replace").strip().splitlines()[-5:]
    cure = "see `bivouac doctor`" + ("; user namespaces may be forbidden here" if rootless else "")
    return PermanentError("the site could not be pitched", seen=" | ".join(tail) or "no output", cure=cure)


def _clear(folder: Path) -> None:
    """Remove what an earlier site of this name left, but not the lock that we hold."""
    for item in folder.iterdir() if folder.is_dir() else ():
        if item.name == "lock":
            continue
        shutil.rmtree(item, ignore_errors=True) if item.is_dir() and not item.is_symlink() else item.unlink()


def _start_ticks(pid: int) -> int | None:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in ("Z", "X") else int(fields[19])


def _wait(done: Callable[[], bool], seconds: float, otherwise: str) -> None:
    until = time.monotonic() + seconds
    while not done():
        if time.monotonic() > until:
            raise PermanentError(otherwise, seen=f"after {seconds:.0f} s", cure="see the logs in the site's folder")
        time.sleep(0.05)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / "lock").open("w")
    except PermissionError as error:
        cure = "give the cache folder back to yourself (chown -R), or set BIVOUAC_CACHE to a folder of yours"
        raise PermanentError("the site's folder is another user's", seen=str(error.filename), cure=cure) from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
