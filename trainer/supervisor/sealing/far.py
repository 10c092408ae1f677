"""The shared tier for nodes that write to disks of their own: small notes, and files that come whole or not at all.

`parts/attempt-K/node-R.json` is a node's address. In `parts/attempt-K/step-N/`, `asked.json` is node 0's word that the
checkpoint is finished, and `node-R.json` has the files of node R, once they lie on the shared tier.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import shutil
from functools import partial
from pathlib import Path
from typing import Any, Dict, NamedTuple, Sequence, Tuple

from trainer.contract.exits import limit_of
from trainer.contract.sealed import patient, step_folder
from trainer.supervisor import seal
from trainer.supervisor.place import Place
from trainer.supervisor.sealing.copying import copy

Wanted = Tuple[int, str]
"""Size and SHA-256 of a file."""
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
Row = Dict[str, Any]
"""A file as a manifest names it."""
_PARTS, _OVER = "parts", "over.json"


class SharedFolder:
    """A campaign's folder on a file system that all nodes mount. Names are relative to it."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def write_note(self, name: str, content: bytes) -> None:
        """Write a note, in place of an older one."""
        path = self.root / name
        seal.make(path.parent)
        seal.publish(path, content)

    def get(self, name: str) -> bytes | None:
        try:
            return (self.root / name).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder; none if there is no such folder."""
        try:
            return sorted(name for name in os.listdir(self.root / folder) if not name.startswith("."))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def remove(self, folder: str) -> None:
        shutil.rmtree(self.root / folder, ignore_errors=True)

    def digest(self, name: str) -> Wanted | None:
        """Return size and SHA-256 of a file there, None if it cannot be read. Raises the `OSError` of a limit."""
        try:
            return patient(partial(seal.digest_of, self.root / name))
        except OSError as error:
            if limit_of(error):
                raise
            return None

    def send(self, source: Path, name: str, expected: Wanted) -> None:
        """Copy a file of this node there and read it back. Raises `ValueError` for other bytes than wanted."""
        target = self.root / name
        seal.make(target.parent)
        with _fresh(target) as fresh:
            copy(source, fresh)
            copy_digest = seal.digest_of(fresh)
            if copy_digest != expected:
                raise ValueError(
                    f"{source.name} changed after it was written: {_words(copy_digest)}, was {_words(expected)}"
                )

    def fetch(self, name: str, target: Path, expected: Wanted) -> str:
        """Copy a file to this node; return why it may not be used, empty for a sound one. What may pass is waited for.
        Raises `OSError` where this node has no room or a limit."""
        seal.make(target.parent)
        try:
            with _fresh(target) as fresh:
                copy_digest = patient(partial(_copied, self.root / name, fresh))
                if copy_digest != expected:
                    raise ValueError(f"{name}: {_words(copy_digest)}, wanted {_words(expected)}")
        except FileNotFoundError:
            return f"{name} is missing"
        except ValueError as error:
            return str(error)
        except OSError as error:
            if error.errno in _NO_ROOM or limit_of(error):
                raise
            return f"{name}: {error.strerror}"
        return ""


def _copied(source: Path, target: Path) -> Wanted:
    """Copy a file once more, also where a part of it is there."""
    target.unlink(missing_ok=True)
    return copy(source, target)


@contextlib.contextmanager
def _fresh(target: Path):  # type: ignore[no-untyped-def]
    """Yield a path beside `target`, which takes its place, durably, unless an error is raised."""
    fresh = target.with_name(f".{secrets.token_hex(8)}.partial")
    try:
        yield fresh
        os.replace(fresh, target)
        seal.sync(target.parent)
    finally:
        with contextlib.suppress(FileNotFoundError):
            fresh.unlink()


def _words(size_and_digest: Wanted) -> str:
    return f"{size_and_digest[0]} bytes, SHA-256 {size_and_digest[1]}"


class Asked(NamedTuple):
    """A checkpoint that node 0 calls finished."""

    step: int
    root: str
    """Its path below the job's own folder, the same one on each node."""
    files: list[str]
    """Names of node 0's files of it."""
    sealing: int = 0
    """How often this attempt has sealed the step before."""
    part: Sequence[str] = ()
    """Paths of node 0's files below `root`, where that also holds other things; empty: all of it is the checkpoint."""


class FarParts:
    def __init__(self, shared_folder: SharedFolder, place: Place) -> None:
        self._far, self._place = shared_folder, place
        self._folder = f"{_PARTS}/attempt-{place.attempt:04d}"

    def begin(self) -> None:
        """Tell this node's address. Node 0 forgets what earlier attempts have left."""
        if self._place.node_rank == 0:
            for name in self._far.names(_PARTS):
                if f"{_PARTS}/{name}" < self._folder:
                    self._far.remove(f"{_PARTS}/{name}")
        self._write_note(_node(self._place.node_rank), self._place.pod_ip)

    def address(self, node: int) -> str:
        return str(self._get(_node(node)) or "")

    def ask(self, request: Asked) -> None:
        self._write_note(f"{step_folder(request.step)}/asked.json", request._asdict())

    def requests(self) -> dict[int, Asked]:
        """Return the checkpoints that are asked for."""
        notes = (self._get(f"{name}/asked.json") for name in self._far.names(self._folder) if name.startswith("step-"))
        requests = (Asked(**note) for note in notes if note is not None)
        return {request.step: request for request in requests}

    def give(self, step: int, rows: Sequence[Row]) -> None:
        self._write_note(f"{step_folder(step)}/{_node(self._place.node_rank)}", list(rows))

    def rows_by_node(self, step: int) -> dict[int, list[Row]]:
        """Return node -> its files of a step."""
        notes = ((node, self._get(f"{step_folder(step)}/{_node(node)}")) for node in range(self._place.node_count))
        return {node: note for node, note in notes if note is not None}

    def forget(self, step: int) -> None:
        self._far.remove(f"{self._folder}/{step_folder(step)}")

    def end(self) -> None:
        """Tell that node 0 asks for nothing more."""
        self._write_note(_OVER, True)

    def is_over(self) -> bool:
        return self._get(_OVER) is not None

    def _write_note(self, name: str, note: Any) -> None:
        self._far.write_note(f"{self._folder}/{name}", json.dumps(note).encode())

    def _get(self, name: str) -> Any:
        content = self._far.get(f"{self._folder}/{name}")
        return None if content is None else json.loads(content)


def merge_rows(rows_by_node: dict[int, list[Row]]) -> list[Row]:
    """Return the files of all nodes, those that several nodes wrote alike once. Raises `ValueError` where two nodes
    wrote other bytes under one name: no folder could hold both."""
    by_name: dict[str, Row] = {}
    writers: dict[str, int] = {}
    for node, rows in sorted(rows_by_node.items()):
        for row in rows:
            first_row = by_name.setdefault(row["file"], row)
            writers.setdefault(row["file"], node)
            if (first_row["size_bytes"], first_row["sha256"]) != (row["size_bytes"], row["sha256"]):
                name = row["file"].partition("-")[2].partition("-")[2]
                raise ValueError(f"nodes {writers[row['file']]} and {node} wrote different files named {name}")
    if not by_name:
        raise ValueError("no node has a file of it")
    return [by_name[name] for name in sorted(by_name)]


def _node(node: int) -> str:
    return f"node-{node:04d}.json"
