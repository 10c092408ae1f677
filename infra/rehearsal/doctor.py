"""Check that this machine can run rehearsals. Each check tries the thing itself; each failure has its cure."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.requirements import Requirement

from infra.errors import PermanentError
from infra.folders import cache_root
from infra.toolchain import build
from infra.toolchain.ensure import locate
from infra.toolchain.table import TOOLS

if TYPE_CHECKING:
    from infra.console.tables import Listing

PYTHON_FROM = (3, 11)
CORES_FROM = 2
MEMORY_FROM_GIB = 6.0
DISK_FROM_GIB, DISK_TO_BUILD_GIB = 5.0, 15.0  # Go's build cache takes about 6 GB and its modules 3
DISK_OF_PACKAGES_GIB = 6.5  # `du` of a .venv in November 2026: 6.0, most of it torch and what it brings
CLONE = Path(__file__).absolute().parents[2]
UTIL_LINUX = ("unshare", "nsenter", "setpriv")
SETUP = {"make": ("make",), "git": ("git",), "C compiler": ("cc", "gcc", "clang")}
"""Programs that setting up needs, by subject. Running a site that is set up does not need them."""
TRIAL_TIMEOUT_S = 30

# Each step prints its name when done, so that the first one missing is the one that failed.
TRIAL = """
import ctypes, os, sys
def step(name): print(name, flush=True)
step("namespaces")
libc = ctypes.CDLL(None, use_errno=True)
# Import before the mount, which may hide the folder of the packages.
from pyroute2 import IPRoute
if libc.mount(b"tmpfs", sys.argv[1].encode(), b"tmpfs", 0, None):
    sys.exit("mount: " + os.strerror(ctypes.get_errno()))
step("mount")
with IPRoute() as links:
    links.link("add", ifname="camp0", kind="bridge")
    step("bridge")
    links.link("add", ifname="camp1", kind="veth", peer="camp2")
    step("veth")
"""
STEPS = ("namespaces", "mount", "bridge", "veth")


@dataclass(frozen=True)
class Diagnosis:
    subject: str
    seen: str
    ok: bool
    cure: str = ""


def diagnose() -> tuple[Diagnosis, ...]:
    """Return all findings, good and bad, in about a second. Changes nothing on the host."""
    tools, packages = _tools(), _packages()
    building, installing = (any(not finding.ok for finding in needs) for needs in (tools, packages))
    return (
        _python(),
        *_paths(),
        *packages,
        *tools,
        _go(is_required=building),
        *_programs(),
        *_for_setup(),
        _namespaces(),
        *_machine(),
        *_disks(DISK_TO_BUILD_GIB if building else DISK_FROM_GIB, DISK_OF_PACKAGES_GIB if installing else 0.0),
    )


def render(findings: tuple[Diagnosis, ...]) -> Listing:
    from rich.text import Text

    from infra.console.tables import Listing

    table = Listing("", "", "seen", "~cure")
    for finding in findings:
        mark = Text("ok", "green") if finding.ok else Text("missing", "red")
        table.row(mark, finding.subject, finding.seen, finding.cure)
    return table


def _python() -> Diagnosis:
    ok = sys.version_info[:2] >= PYTHON_FROM
    minimum = ".".join(map(str, PYTHON_FROM))
    return Diagnosis(
        "python", f"{platform.python_version()} {sys.executable}", ok, "" if ok else f"Python {minimum} or newer"
    )


def _paths() -> list[Diagnosis]:
    """Check the path of the clone, and of the virtual environment if it lies elsewhere."""
    packages = Path(sys.prefix).absolute()
    needs = [_path("clone's path", CLONE, "clone it into")]
    if not packages.is_relative_to(CLONE):
        needs.append(_path("packages' path", packages, "make the virtual environment in"))
    return needs


def _path(subject: str, folder: Path, advice: str) -> Diagnosis:
    """Check a path for signs that break tools: PATH splits at colons; setuptools expands `$` when it builds a wheel."""
    bad = [sign for sign in "$:\n" if sign in str(folder)]
    cure = f"{advice} a folder without dollar signs, colons and line ends in its path"
    return Diagnosis(subject, str(folder), not bad, cure if bad else "")


def _packages() -> list[Diagnosis]:
    """Return the declared packages that are missing or of a wrong version, or one row if all are there."""
    bad = []
    for line in metadata.requires("bivouac") or ():
        requirement = Requirement(line)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": "rehearsal"}):
            continue
        try:
            installed_version = metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            installed_version = "none"
        if installed_version == "none" or not requirement.specifier.contains(installed_version, prereleases=True):
            bad.append(
                Diagnosis(
                    requirement.name,
                    installed_version,
                    False,
                    f"{requirement.name}{requirement.specifier} is needed: make setup",
                )
            )
    return bad or [Diagnosis("packages", "all that bivouac declares", True)]


def refuse_unfit() -> None:
    """Raise `PermanentError`, with every cure, for what no tool build can provide; call it before anything starts."""
    bad = [finding for finding in (*_paths(), *_packages(), *_programs(), _namespaces()) if not finding.ok]
    if bad:
        problems = "; ".join(f"{finding.subject}: {finding.seen}" for finding in bad)
        cure = "; ".join(finding.cure for finding in bad)
        raise PermanentError("this machine cannot rehearse", seen=problems, cure=cure)


def _tools() -> list[Diagnosis]:
    findings = []
    for tool in TOOLS:
        program = locate(tool)
        if program:
            findings.append(Diagnosis(tool.name, f"{program.version} ({program.origin}) {program.path}", True))
        else:
            minutes = int(tool.usual_build.total_seconds() / 60)
            cure = f"make setup (a download, or about {minutes} min with Go)"
            findings.append(Diagnosis(tool.name, f"no {tool.version}", False, cure))
    return findings


def _go(is_required: bool) -> Diagnosis:
    go = build.go()
    if go is None:
        cure = "needed only if releases cannot be downloaded: install Go 1.26" if is_required else ""
        return Diagnosis("go", "none" if is_required else "none, and not needed", not is_required, cure)
    try:
        answer = subprocess.run([go, "version"], capture_output=True, text=True, timeout=TRIAL_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Diagnosis("go", f"{go}: {error}", not is_required, "reinstall Go 1.26" if is_required else "")
    return Diagnosis("go", answer.stdout.removeprefix("go version ").strip() or answer.stderr.strip(), True)


def _programs() -> list[Diagnosis]:
    programs = {name: shutil.which(name) for name in UTIL_LINUX}
    return [
        Diagnosis(name, path or "not on PATH", path is not None, "" if path else "install util-linux 2.36 or newer")
        for name, path in programs.items()
    ]


def _for_setup() -> list[Diagnosis]:
    findings = []
    for subject, commands in SETUP.items():
        path = next((path for name in commands if (path := shutil.which(name))), None)
        cure = "" if path else f"install {' or '.join(commands)}"
        findings.append(Diagnosis(subject, path or "not on PATH", path is not None, cure))
    return findings


def _namespaces() -> Diagnosis:
    """Try the namespaces: kernel settings, containers and security modules forbid different parts of them."""
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    unshare = ["unshare", *user, "--net", "--pid", "--mount", "--fork", "--mount-proc", "--kill-child"]
    try:
        answer = subprocess.run(
            [*unshare, sys.executable, "-P", "-c", TRIAL, "/tmp"],
            capture_output=True,
            text=True,
            timeout=TRIAL_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Diagnosis("namespaces", str(error), False, "install util-linux 2.36 or newer")
    missing = next((step for step in STEPS if step not in answer.stdout.split()), None)
    user_kind = "as root" if not user else "without root"
    if missing is None:
        rights = "" if not user else "; file rights of pods cannot be rehearsed: all are one user"
        works = f"user, mount, network and process namespaces, bridge and veth work {user_kind}{rights}"
        return Diagnosis("namespaces", works, True)
    words = answer.stderr.strip().splitlines()[-1:] or ["no message"]
    return Diagnosis(
        "namespaces", f"{missing} fails {user_kind}: {words[0]}", False, _namespace_cure(missing, bool(user), words[0])
    )


def _namespace_cure(step: str, rootless: bool, words: str = "") -> str:
    if step in ("bridge", "veth"):
        return f"load the kernel module: sudo modprobe {step}"
    if rootless and _sysctl("kernel/apparmor_restrict_unprivileged_userns") == "1":
        return (
            "AppArmor forbids it (Ubuntu 23.10 and newer): sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0"
        )
    if rootless and _sysctl("kernel/unprivileged_userns_clone") == "0":
        return "the kernel forbids it (Debian): sudo sysctl kernel.unprivileged_userns_clone=1"
    if rootless and _sysctl("user/max_user_namespaces") == "0":
        return "the kernel forbids it: sudo sysctl user.max_user_namespaces=15000"
    if rootless and (limit := _sysctl("user/max_user_namespaces")) is not None and "No space left" in words:
        return f"the limit of {limit} user namespaces is reached: sudo sysctl user.max_user_namespaces={int(limit) * 4}"
    if "No space left" in words:
        return "a limit of namespaces is reached: raise user.max_net_namespaces and its like (sysctl user)"
    return "in a container: run it privileged, or with --security-opt seccomp=unconfined --cap-add SYS_ADMIN"


def _sysctl(name: str) -> str | None:
    path = Path("/proc/sys") / name
    return path.read_text().strip() if path.exists() else None


def _machine() -> list[Diagnosis]:
    cores, memory = len(os.sched_getaffinity(0)), _memory_gib()
    return [
        _at_least("cores", cores, CORES_FROM, "", "a machine with more cores; here timeouts will expire"),
        _at_least(
            "memory", memory, MEMORY_FROM_GIB, " GiB available", "end other programs, or fewer nodes in the spec"
        ),
    ]


def _disks(for_cache: float, for_packages: float) -> list[Diagnosis]:
    """Check the free space of the cache and of the Python packages, in one row if they share a file system."""
    cache, packages = _standing(cache_root()), _standing(Path(sys.prefix))
    room = "make room, or set BIVOUAC_CACHE"
    if cache.stat().st_dev == packages.stat().st_dev:
        location = f" GiB free for {cache_root()} and {sys.prefix}"
        return [_at_least("disk", _free_gib(cache), for_cache + for_packages, location, room)]
    return [
        _at_least("disk", _free_gib(cache), for_cache, f" GiB free for {cache_root()}", room),
        _at_least(
            "disk of packages", _free_gib(packages), for_packages, f" GiB free for {sys.prefix}", "make room there"
        ),
    ]


def _at_least(subject: str, value: float, minimum: float, unit: str, cure: str) -> Diagnosis:
    ok = value >= minimum
    return Diagnosis(subject, f"{value:.3g}{unit}", ok, "" if ok else f"{minimum:g} are needed: {cure}")


def _memory_gib() -> float:
    """Return the memory available now, within the limit of an enclosing control group."""
    lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    available = int(lines["MemAvailable"].split()[0]) * 1024
    limit, current = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")
    if limit.exists() and current.exists() and (text := limit.read_text().strip()) != "max":
        available = min(available, int(text) - int(current.read_text()))
    return available / 2**30


def _free_gib(folder: Path) -> float:
    return shutil.disk_usage(folder).free / 2**30


def _standing(folder: Path) -> Path:
    """Return the nearest existing folder, which is on the file system that `folder` would be on."""
    return next(path for path in (folder, *folder.absolute().parents) if path.exists())
