"""`go build` from a pinned module: go.sum pins every source file, so what is built is what was reviewed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
from pathlib import Path

from infra.rehearsal.toolchain.download import Unavailable
from infra.rehearsal.toolchain.progress import TransferProgress
from infra.rehearsal.toolchain.table import MODULES, Tool

USUAL_GO = Path("/usr/local/go/bin/go")  # where Go's own instructions put it, often without PATH


def go_version(module: Path) -> str:
    """The Go that would build `module`, for instance `go1.26.8`. Raises Unavailable."""
    answer = _answer(["env", "GOVERSION"], module)
    return answer.strip()


def build(tool: Tool, folder: Path, progress: TransferProgress) -> Path:
    """The executable, in `folder`. Raises Unavailable with the compiler's last words."""
    module, executable = MODULES / tool.module, folder / tool.name
    progress.begin(f"{tool.name} {tool.version}: building with {go_version(module)}", tool.usual_build)
    flags = f"-s -w {tool.flags}".strip()
    # -v names each package as it is compiled: what the progress line counts
    argv = ["build", "-v", "-trimpath", f"-ldflags={flags}", "-o", str(executable), tool.package]
    process = subprocess.Popen(
        [_executable(), *argv], cwd=module, env=_environment(folder), stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    lines: list[str] = []
    reader = _count_lines(process, lines)
    try:
        while process.poll() is None:
            progress.tick(f"{len(lines)} packages")
            reader.join(0.5)
    finally:
        _end(process)
    reader.join(5)
    if process.returncode:
        raise Unavailable(f"go build: {' | '.join(line.strip() for line in lines[-5:])}")
    progress.end("built")
    return executable


def copy_share(tool: Tool, target: Path) -> None:
    """The files of the pinned module that the tool needs beside it."""
    if not tool.share:
        return
    found = _answer(["list", "-m", "-f", "{{.Dir}}", tool.go_module], MODULES / tool.module).strip()
    for relative in tool.share:
        file = target / relative
        file.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(Path(found) / tool.share_root / relative, file)


def _count_lines(process: subprocess.Popen[str], lines: list[str]) -> threading.Thread:
    def read() -> None:
        for line in process.stderr or ():
            lines.append(line)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    return reader


def _end(process: subprocess.Popen[str]) -> None:
    """Go's compilers are in its process group: none of them survives an interrupted build."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def go() -> str | None:
    """The command `go`, on PATH or where Go's own instructions put it; None where there is none."""
    return shutil.which("go") or (str(USUAL_GO) if USUAL_GO.exists() else None)


def _answer(arguments: list[str], module: Path) -> str:
    try:
        answer = subprocess.run(
            [_executable(), *arguments], cwd=module, env=_environment(None), capture_output=True, text=True, timeout=300
        )
    except subprocess.TimeoutExpired as expired:
        raise Unavailable(f"go {arguments[0]} did not end") from expired
    if answer.returncode:
        raise Unavailable(f"go {arguments[0]}: {answer.stderr.strip()[-300:]}")
    return answer.stdout


def _executable() -> str:
    found = go()
    if found is None:
        raise Unavailable("no Go here")
    return found


def _environment(temporary: Path | None) -> dict[str, str]:
    fixed = {"GOFLAGS": "-buildvcs=false", "CGO_ENABLED": "0", "GOWORK": "off", "GOOS": "", "GOARCH": ""}
    return {**os.environ, **fixed, **({"GOTMPDIR": str(temporary)} if temporary else {})}
