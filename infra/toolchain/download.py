"""Download official releases, only with the checksum that the project publishes."""

from __future__ import annotations

import hashlib
import http.client
import re
import shutil
import tarfile
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from infra.errors import PermanentError
from infra.toolchain.progress import TransferProgress
from infra.toolchain.table import Tool, architecture

ANSWER_TIMEOUT_S = 5.0
CHUNK_BYTES = 1 << 20


class SourceUnavailable(Exception):
    """A source cannot provide the tool, for the reason in the text; another source may."""


class Downloads:
    """Downloads of one run. A host that did not answer is not tried again."""

    def __init__(self) -> None:
        self._silent: dict[str, str] = {}

    def fetch(self, tool: Tool, folder: Path, progress: TransferProgress) -> Path:
        """Unpack a tool into `folder` and `folder`/share. Raises SourceUnavailable; PermanentError: wrong checksum."""
        release, arch = tool.release, architecture()
        if release is None:
            raise SourceUnavailable("its project publishes no executables")
        base = release.publisher.base()
        if not base:
            raise SourceUnavailable(f"{release.publisher.variable} is empty")
        if arch not in release.arches:
            raise SourceUnavailable(f"no release for {arch}")
        values = {"version": release.version or tool.version, "arch": release.arches[arch]}
        url = f"{base}/{release.file.format(**values)}"
        checksum = self._checksum(f"{base}/{release.checksums.format(**values)}", url.rpartition("/")[2])
        progress.begin(f"{tool.name} {values['version']}: downloading {url}")
        file = folder / "download"
        digest = self._save(url, file, progress)
        if digest != checksum:
            cure = f"retry; if it persists, do not trust that server: {release.publisher.variable}= builds from source"
            raise PermanentError(f"the checksum of {url} is wrong", seen=f"{digest}, published {checksum}", cure=cure)
        executable = folder / tool.name
        if release.member:
            _unpack(file, release.member.format(**values), executable)
            for member, target in zip(release.share, tool.share, strict=False):
                (folder / "share" / target).parent.mkdir(parents=True, exist_ok=True)
                _unpack(file, member.format(**values), folder / "share" / target)
        else:
            file.rename(executable)
        executable.chmod(0o755)
        progress.end("checksum is right")
        return executable

    def _checksum(self, url: str, file: str) -> str:
        """Return the SHA-256 from a file that holds only it, or lines of `digest  file`."""
        with self._open(url) as answer:
            lines = [line.split() for line in answer.read(CHUNK_BYTES).decode(errors="replace").splitlines()]
        for words in lines:
            digest = words[0].lower() if words else ""
            if re.fullmatch(r"[0-9a-f]{64}", digest) and (words[1:] in ([], [file], [f"*{file}"])):
                return digest
        raise SourceUnavailable(f"{url} has no SHA-256 of {file}")

    def _save(self, url: str, file: Path, progress: TransferProgress) -> str:
        digest, size = hashlib.sha256(), 0
        try:
            with self._open(url) as answer, file.open("wb") as sink:
                total = int(answer.headers.get("Content-Length") or 0)
                while chunk := answer.read(CHUNK_BYTES):
                    digest.update(chunk)
                    sink.write(chunk)
                    size += len(chunk)
                    progress.tick(f"{size >> 20} of {total >> 20} MiB")
        except (OSError, http.client.HTTPException) as error:
            raise SourceUnavailable(f"{url} broke off after {size} bytes: {error}") from error
        return digest.hexdigest()

    def _open(self, url: str) -> Any:
        host = urllib.parse.urlsplit(url).netloc
        if host in self._silent:
            raise SourceUnavailable(self._silent[host])
        try:
            return _call_within(2 * ANSWER_TIMEOUT_S, lambda: urllib.request.urlopen(url, timeout=ANSWER_TIMEOUT_S))
        except urllib.error.HTTPError as error:
            raise SourceUnavailable(f"{url}: HTTP {error.code}") from error
        except (OSError, http.client.HTTPException) as error:
            self._silent[host] = f"{host} does not answer ({getattr(error, 'reason', error)})"
            raise SourceUnavailable(self._silent[host]) from error


def _call_within(seconds: float, call: Callable[[], Any]) -> Any:
    """Limit a call's time: a lookup at a silent name server has no timeout, so it is left on a daemon thread."""
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.append((call(), None))
        except BaseException as error:
            outcome.append((None, error))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if not outcome:
        raise TimeoutError(f"no answer within {seconds:.0f} s")
    answer, error = outcome[0]
    if error:
        raise error
    return answer


def _unpack(archive: Path, member: str, target: Path) -> None:
    try:
        with tarfile.open(archive) as tar, target.open("wb") as sink:
            content = tar.extractfile(member)
            if content is None:
                raise KeyError(member)
            shutil.copyfileobj(content, sink)
    except (tarfile.TarError, KeyError) as error:
        raise SourceUnavailable(f"{archive.name} holds no {member}") from error
