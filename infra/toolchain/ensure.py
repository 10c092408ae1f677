"""Get every requested tool from the first source that has it: PATH, cache, official release, Go."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from infra.errors import PermanentError, UserError
from infra.folders import share_dir, tools_dir
from infra.toolchain.build import build, copy_share
from infra.toolchain.download import Downloads, SourceUnavailable
from infra.toolchain.origin import FoundTool, in_cache, on_path, version_of, write_stamp
from infra.toolchain.progress import TransferProgress
from infra.toolchain.table import ON_REQUEST, TOOLS, Tool, multiarch


def select(names: Iterable[str]) -> tuple[Tool, ...]:
    """Return the entries by name; no name means all of the set-up. Raises UserError that lists the known names."""
    by_name = {tool.name: tool for tool in (*TOOLS, *ON_REQUEST)}
    chosen_names = list(names) or [tool.name for tool in TOOLS]
    unknown = [name for name in chosen_names if name not in by_name]
    if unknown:
        raise UserError("unknown tool", seen=", ".join(unknown), cure=f"one of {', '.join(by_name)}")
    return tuple(by_name[name] for name in chosen_names)


def locate(tool: Tool, tools: Path | None = None) -> FoundTool | None:
    """Find a tool on PATH or in the cache, without getting it."""
    tools = tools or tools_dir()
    return on_path(tool, tools) or in_cache(tool, tools)


def ensure(
    names: Iterable[str] = (), *, tools: Path | None = None, progress: TransferProgress | None = None
) -> tuple[FoundTool, ...]:
    """Get the tools into `tools` (default: the cache's bin folder), one after the other: a build takes every core.

    Raises PermanentError that names every source that was tried.
    """
    tools, progress, downloads = tools or tools_dir(), progress or TransferProgress(), Downloads()
    return tuple(_ensure(tool, tools, progress, downloads) for tool in select(names))


def _ensure(tool: Tool, tools: Path, progress: TransferProgress, downloads: Downloads) -> FoundTool:
    try:
        return _present_tool(tool, tools, progress, downloads)
    except OSError as error:
        cure = f"make room, give {tools.parent} back to yourself (chown -R), or set BIVOUAC_CACHE to a folder of yours"
        problem = f"{error.filename or tools}: {error.strerror}"
        raise PermanentError(f"{tool.name} cannot be kept in the cache", seen=problem, cure=cure) from error


def _present_tool(tool: Tool, tools: Path, progress: TransferProgress, downloads: Downloads) -> FoundTool:
    if path := _at_hand(tool, tools):
        return path
    with _only_one(tool, tools, progress) as folder:
        if path := _at_hand(tool, tools):  # the former holder of the lock made it
            return path
        executable, origin = _make(tool, tools, folder, progress, downloads)
        version = _claim(tool, executable, origin)
        if not version.startswith(tool.accepts):
            cure = "put a version that runs on PATH"
            raise PermanentError(f"{tool.name} {tool.version} as {origin} does not run here", seen=version, cure=cure)
        executable.replace(tools / tool.name)
        write_stamp(tool, tools, version, origin)
        return FoundTool(tool.name, version, origin, tools / tool.name)


def _claim(tool: Tool, executable: Path, origin: str) -> str:
    """Return the version an executable reports; for one that cannot, the version of its checked release or table."""
    if origin == "unpacked" and not tool.version_argv:
        return tool.version
    if origin == "downloaded" and not tool.version_argv and tool.release is not None:
        return tool.release.version or tool.version
    return version_of(tool, executable) or "nothing"


def _at_hand(tool: Tool, tools: Path) -> FoundTool | None:
    """Find a tool, PATH first; link it into `tools`, so that one folder has everything."""
    program = on_path(tool, tools)
    if program is None:
        return in_cache(tool, tools)
    cached_tool = in_cache(tool, tools)
    if cached_tool and cached_tool.version == program.version and not cached_tool.path.is_symlink():
        return cached_tool  # the same version; a link would destroy what took minutes to build
    tools.mkdir(parents=True, exist_ok=True)
    _link(tools / tool.name, program.path)
    return program


def _link(link: Path, to: Path) -> None:
    if link.is_symlink() and link.readlink() == to:
        return
    temporary = link.with_name(f".{link.name}.{os.getpid()}")
    temporary.symlink_to(to)
    temporary.replace(link)


def _make(tool: Tool, tools: Path, folder: Path, progress: TransferProgress, downloads: Downloads) -> tuple[Path, str]:
    def compile_it(tool: Tool, folder: Path, progress: TransferProgress) -> Path:
        executable = build(tool, folder, progress)
        copy_share(tool, folder / "share")
        return executable

    sources = {
        "download": ("downloaded", downloads.fetch),
        "Debian": ("unpacked", _unpack),
        "build": ("built", compile_it),
    }
    refusals = []
    for source, (origin, get) in sources.items():
        try:
            executable = get(tool, folder, progress)
        except SourceUnavailable as reason:
            refusals.append(f"{source}: {reason}")
            if source == "download":
                progress.say(f"{tool.name} {tool.version}: no download ({reason})")
            continue
        _install_share(tool, tools, folder)
        return executable, origin
    raise PermanentError(
        f"{tool.name} {tool.version} could not be obtained",
        seen="; ".join([f"PATH and {tools}: none that begins with {tool.accepts}", *refusals]),
        cure=f"put {tool.name} {tool.version} on PATH, allow the download, or "
        + ("install Go 1.26" if tool.package else "let apt reach a mirror of Debian or Ubuntu"),
    )


def _install_share(tool: Tool, tools: Path, folder: Path) -> None:
    """Install the shared files. VERSION is written last, as the mark of completeness."""
    fresh, target = folder / "share", share_dir(tool.module, tools)
    if not fresh.exists():
        return
    for relative in tool.share:
        (fresh / relative).chmod(0o755)
    (fresh / "VERSION").write_text(f"{tool.version}\n")
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(target, ignore_errors=True)
    fresh.replace(target)
    for relative in tool.share if tool.beside else ():
        _link(tools / relative, target / relative)


def _wait(file: TextIO, progress: TransferProgress) -> None:
    while True:
        try:
            return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress.tick("not done yet")
            time.sleep(0.2)


@contextmanager
def _only_one(tool: Tool, tools: Path, progress: TransferProgress) -> Iterator[Path]:
    """Yield an empty work folder while no other process makes the same tool; always remove it afterwards."""
    folder = tools.parent / "work" / tool.name
    lock = tools.parent / "locks" / f"{tool.name}.lock"
    for folder_needed in (tools, folder.parent, lock.parent):
        folder_needed.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress.begin(f"{tool.name} {tool.version}: another process is making it, waiting", tool.usual_build)
            _wait(file, progress)
        shutil.rmtree(folder, ignore_errors=True)  # left by a killed process
        folder.mkdir()
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


_APT_TIMEOUT_S = 600


def _unpack(tool: Tool, folder: Path, progress: TransferProgress) -> Path:
    """Unpack a tool's executable into `folder`, and its other files into `folder`/share, without root. Apt checks the
    archive's signature and the package's digest. Raises SourceUnavailable."""
    package = tool.debian
    if package is None:
        raise SourceUnavailable("no Debian package has it")
    if missing := [name for name in ("apt-get", "dpkg-deb") if shutil.which(name) is None]:
        raise SourceUnavailable(f"{missing[0]} is not installed")
    progress.begin(f"{tool.name}: unpacking Debian's package {package.name}")
    names = (package.name, *package.also)
    try:
        _apt(folder, "download", *names)
    except SourceUnavailable:  # no lists are here, or they are old; the system's own need root
        list_options = _own_lists(folder)
        _apt(folder, *list_options, "-o", "APT::Update::Error-Mode=any", "update")
        _apt(folder, *list_options, "download", *names)
    content = folder / "unpacked"
    for name in names:
        archives = sorted(folder.glob(f"{name}_*.deb"))
        if len(archives) != 1:
            raise SourceUnavailable(f"apt-get left {len(archives)} archives of {name}")
        _run(folder, "dpkg-deb", "-x", str(archives[0]), str(content))
    for target, member in package.share.items():
        (folder / "share" / target).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(content / member.format(multiarch=multiarch()), folder / "share" / target)
    shutil.copy(content / package.member, folder / tool.name)
    progress.end("unpacked")
    return folder / tool.name


def _own_lists(folder: Path) -> list[str]:
    for name in ("lists/partial", "cache/archives/partial"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    return ["-o", f"Dir::State::Lists={folder / 'lists'}", "-o", f"Dir::Cache={folder / 'cache'}"]


def _apt(folder: Path, *arguments: str) -> None:
    _run(folder, "apt-get", "-qq", "-o", "Acquire::Retries=3", *arguments)


def _run(folder: Path, *argv: str) -> None:
    try:
        answer = subprocess.run(
            argv, cwd=folder, capture_output=True, text=True, errors="replace", timeout=_APT_TIMEOUT_S,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except subprocess.TimeoutExpired as expired:
        raise SourceUnavailable(f"{argv[0]} did not end") from expired
    if answer.returncode:
        raise SourceUnavailable(f"{argv[0]}: {' '.join(answer.stderr.split())[-300:]}")
