"""What nodes with disks of their own tell each other of one checkpoint, by notes on the shared tier.

`parts/attempt-K/node-R.json` is a node's address. In `parts/attempt-K/step-N/`, `asked.json` is node 0's word that the
checkpoint is finished, and `node-R.json` has the files of node R, once they lie on the shared tier.
"""

from __future__ import annotations

import json
from typing import Any, Dict, NamedTuple, Sequence

from trainer.contract.sealed import step_folder
from trainer.supervisor.place import Place
from trainer.supervisor.sealing.far import SharedFolder

Row = Dict[str, Any]
"""A file as a manifest names it."""
_PARTS, _OVER = "parts", "over.json"


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


class Parts:
    def __init__(self, far: SharedFolder, place: Place) -> None:
        self._far, self._place = far, place
        self._folder = f"{_PARTS}/attempt-{place.attempt:04d}"

    def begin(self) -> None:
        """Tell this node's address. Node 0 forgets what earlier attempts have left."""
        if self._place.node_rank == 0:
            for name in self._far.names(_PARTS):
                if f"{_PARTS}/{name}" < self._folder:
                    self._far.remove(f"{_PARTS}/{name}")
        self._put(_node(self._place.node_rank), self._place.pod_ip)

    def address(self, node: int) -> str:
        return str(self._get(_node(node)) or "")

    def ask(self, asked: Asked) -> None:
        self._put(f"{step_folder(asked.step)}/asked.json", asked._asdict())

    def asked(self) -> dict[int, Asked]:
        """Return the checkpoints that are asked for."""
        notes = (self._get(f"{name}/asked.json") for name in self._far.names(self._folder) if name.startswith("step-"))
        found = (Asked(**note) for note in notes if note is not None)
        return {one.step: one for one in found}

    def give(self, step: int, rows: Sequence[Row]) -> None:
        self._put(f"{step_folder(step)}/{_node(self._place.node_rank)}", list(rows))

    def given(self, step: int) -> dict[int, list[Row]]:
        """Return node -> its files of a step."""
        notes = ((node, self._get(f"{step_folder(step)}/{_node(node)}")) for node in range(self._place.node_count))
        return {node: note for node, note in notes if note is not None}

    def forget(self, step: int) -> None:
        self._far.remove(f"{self._folder}/{step_folder(step)}")

    def end(self) -> None:
        """Tell that node 0 asks for nothing more."""
        self._put(_OVER, True)

    def over(self) -> bool:
        return self._get(_OVER) is not None

    def _put(self, name: str, note: Any) -> None:
        self._far.put(f"{self._folder}/{name}", json.dumps(note).encode())

    def _get(self, name: str) -> Any:
        content = self._far.get(f"{self._folder}/{name}")
        return None if content is None else json.loads(content)


def together(given: dict[int, list[Row]]) -> list[Row]:
    """Return the files of all nodes, those that several nodes wrote alike once. Raises `ValueError` where two nodes
    wrote other bytes under one name: no folder could hold both."""
    found: dict[str, Row] = {}
    wrote: dict[str, int] = {}
    for node, rows in sorted(given.items()):
        for row in rows:
            first = found.setdefault(row["file"], row)
            wrote.setdefault(row["file"], node)
            if (first["size_bytes"], first["sha256"]) != (row["size_bytes"], row["sha256"]):
                name = row["file"].partition("-")[2].partition("-")[2]
                raise ValueError(f"nodes {wrote[row['file']]} and {node} wrote different files named {name}")
    if not found:
        raise ValueError("no node has a file of it")
    return [found[name] for name in sorted(found)]


def _node(node: int) -> str:
    return f"node-{node:04d}.json"
