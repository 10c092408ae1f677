"""Shows any error to the person at the terminal without a traceback."""

from __future__ import annotations

import errno
import json
import os
import sys
import tempfile
import traceback
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from infra.console.plain_console import PlainConsole, say
from infra.errors import BivouacError, PermanentError, UserError

_REMOTE = ("botocore", "boto3", "lightkube", "httpx2", "pulumi")
"""Libraries whose errors are about the outside world, not faults of ours."""


class FileError(BivouacError):
    """An error of the file system."""

    exit_code = 74


class NoPermission(BivouacError):
    exit_code = 77


def refusal(error: Exception) -> BivouacError:
    """Return one of our errors for any error."""
    if isinstance(error, BivouacError):
        return error
    # botocore's classes are not imported: half of the commands do not need them.
    if type(error).__module__.startswith(_REMOTE):
        from infra.aws.account import explained

        return explained(error)
    if isinstance(error, ModuleNotFoundError):
        return PermanentError("a Python package is missing", seen=error.name, cure="make setup")
    if isinstance(error, OSError):
        return of_file(error)
    return _fault(error)


def of_file(error: OSError) -> BivouacError:
    """Return the file system's error, with the variables that move its folders."""
    path = error.filename if error.filename is not None else "a file"
    fact = f"{path}: {error.strerror or error}"
    cure = "or set BIVOUAC_CACHE and BIVOUAC_RESULTS to folders elsewhere; then run the same command again"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return FileError("the disk is full (space or inodes)", seen=fact, cure=f"make room (df, df -i), {cure}")
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return NoPermission("a file or folder may not be used", seen=fact, cure=f"make it yours, {cure}")
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return FileError("too many open files", seen=fact, cure="ulimit -n 4096, then run the same command again")
    return FileError("an operation on a file failed", seen=fact, cure=f"mend its cause, {cure}")


def _fault(error: Exception) -> BivouacError:
    """Return the error for a fault of ours, with its traceback in a file for whoever mends it."""
    text = "".join([f"{sys.argv}\n", *traceback.format_exception(error)])
    try:
        number, name = tempfile.mkstemp(prefix=f"bivouac-fault-{datetime.now(UTC):%Y%m%dT%H%M%S}-", suffix=".txt")
        with os.fdopen(number, "w") as file:
            file.write(text)
        cure = f"report it with {Path(name)}"
    except OSError:
        cure = "report it"
    words = " ".join(str(error).split())[:300]
    frames = traceback.extract_tb(error.__traceback__)[-1:]
    place = f" ({Path(frames[0].filename).name}:{frames[0].lineno})" if frames else ""
    return PermanentError(
        "this is a fault of bivouac", seen=f"{type(error).__name__}: {words}{place}", cure=f"{cure}; then run it again"
    )


def tell_usage(error: Any) -> int:
    """Print click's message for an invalid command line; return the exit code."""
    if "--json" in sys.argv:
        return tell(UserError(error.format_message(), seen=" ".join(sys.argv[1:]), cure="see bivouac --help"))
    error.show()
    return UserError.exit_code


def tell(error: BivouacError) -> int:
    """Print an error: on stderr for people, with --json on stdout. Return the exit code."""
    if "--json" in sys.argv:
        seen_text = None if error.seen is None else str(error.seen)
        body = {"kind": type(error).__name__, "what": error.what, "seen": seen_text, "cure": error.cure}
        print(json.dumps({"ok": False, "error": body}, indent=2), flush=True)
        return error.exit_code
    stderr = PlainConsole(stderr=True, highlight=False)
    stderr.print("[bold red]error[/]: ", end="")
    say(stderr, str(error))
    return error.exit_code
