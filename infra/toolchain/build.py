"""`go build` from a pinned module: go.sum pins every source file, so the reviewed source is what is built."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
from pathlib import Path

from infra.toolchain.download import SourceUnavailable
from infra.toolchain.progress import TransferProgress
from infra.toolchain.table import MODULES, Tool

USUAL_GO = Path("/usr/local/go/bin/go")  # Go's own instructions install it here, often without PATH


def go_version(module: Path) -> str:
    """Return the Go that would build `module`, for instance `go1.26.8`. Raises SourceUnavailable."""
    answer = _answer(["env", "GOVERSION"], module)
    return answer.strip()


def build(tool: Tool, folder: Path, progress: TransferProgress) -> Path:
    """Build the executable in `folder`. Raises SourceUnavailable with the compiler's last lines."""
    if not tool.package:
        raise SourceUnavailable("it does not build from its Go module")
    module, executable = MODULES / tool.module, folder / tool.name
    progress.begin(f"{tool.name} {tool.version}: building with {go_version(module)}", tool.usual_build)
    flags = f"-s -w {tool.flags}".strip()
    # -v prints each package as it is compiled; the progress line counts them
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
        raise SourceUnavailable(f"go build: {' | '.join(line.strip() for line in lines[-5:])}")
    progress.end("built")
    return executable


def copy_share(tool: Tool, target: Path) -> None:
    """Copy the files of the pinned module that the tool needs beside it."""
    if not tool.share:
        return
    folder_text = _answer(["list", "-m", "-f", "{{.Dir}}", tool.go_module], MODULES / tool.module).strip()
    for relative in tool.share:
        file = target / relative
        file.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(Path(folder_text) / tool.share_root / relative, file)


def _count_lines(process: subprocess.Popen[str], lines: list[str]) -> threading.Thread:
    def read() -> None:
        for line in process.stderr or ():
            lines.append(line)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    return reader


def _end(process: subprocess.Popen[str]) -> None:
    """Kill the process group: Go's compilers in it would survive an interrupted build."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def go() -> str | None:
    """Return the command `go`, on PATH or at Go's usual place, or None."""
    return shutil.which("go") or (str(USUAL_GO) if USUAL_GO.exists() else None)


def _answer(arguments: list[str], module: Path) -> str:
    try:
        answer = subprocess.run(
            [_executable(), *arguments], cwd=module, env=_environment(None), capture_output=True, text=True, timeout=300
        )
    except subprocess.TimeoutExpired as expired:
        raise SourceUnavailable(f"go {arguments[0]} did not end") from expired
    if answer.returncode:
        raise SourceUnavailable(f"go {arguments[0]}: {answer.stderr.strip()[-300:]}")
    return answer.stdout


def _executable() -> str:
    path = go()
    if path is None:
        raise SourceUnavailable("Go is not installed")
    return path


def _environment(temporary: Path | None) -> dict[str, str]:
    settings = {"GOFLAGS": "-buildvcs=false", "CGO_ENABLED": "0", "GOWORK": "off", "GOOS": "", "GOARCH": ""}
    return {**os.environ, **settings, **({"GOTMPDIR": str(temporary)} if temporary else {})}
