"""Running a node's tool: its output, or why it could not run."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import dataclass

from trainer.contract import Probe

_LONGEST = 240
"""Length in characters to which a tool's output is cut."""


class CannotLook(Exception):
    """The tool is missing, refused or silent; that does not judge the hardware."""


@dataclass(frozen=True)
class Output:
    code: int
    text: str
    """Standard output."""
    errors: str


Look = Callable[..., Output]
"""`look(*command, timeout_s=30)`. Raises `CannotLook`."""


def look(*command: str, timeout_s: float = 30.0) -> Output:
    """Run a tool; the caller judges its exit code. Raises `CannotLook` when it is missing or hangs."""
    try:
        run = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=timeout_s, check=False)
    except FileNotFoundError as error:
        raise CannotLook(f"there is no {command[0]} in the image") from error
    except subprocess.TimeoutExpired as error:
        raise CannotLook(f"{' '.join(command)} has not answered in {timeout_s:.0f} s") from error
    except OSError as error:
        raise CannotLook(f"{command[0]}: {error.strerror or error}") from error
    return Output(run.returncode, run.stdout, run.stderr)


def text_of(output: Output, tool: str) -> str:
    """Return standard output. Raises `CannotLook` with the tool's message when it failed."""
    if output.code != 0:
        words = " ".join((output.errors or output.text).split())[:_LONGEST]
        raise CannotLook(f"{tool} ended with {output.code}: {words or 'no output'}")
    return output.text


def blind(name: str, reason: object, target: str, cure: str = "") -> Probe:
    """Return a probe that could not look."""
    return Probe(name=name, ok=False, looked=False, seen=str(reason)[:_LONGEST], wanted=target, cure=cure)
