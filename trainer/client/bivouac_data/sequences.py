"""The feed of the built-in trainer for any loop: packed sequences of a prepared data set in its order, and its ledger.

    data = Sequences("/mounts/corpus", context=4096, global_batch=512, micro_batch=4, seed=1)
    data.load_state_dict(saved["data"])                       # if there is a checkpoint
    parts = iter(DataLoader(data, batch_size=None, num_workers=2))
    for step in range(begun + 1, steps + 1):
        fed = [next(parts) for _ in range(data.parts_per_step)]
        ...                                                   # part["tokens"]: micro_batch x (context + 1)
        data.done(step, fed)
        ...                                                   # {"data": data.state_dict()} into the checkpoint

Which sequence stands at a position is a function of data and seed alone: neither the number of ranks nor that of the
loader's workers changes what a step consumes. It needs numpy and torch, and Python 3.10.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.utils.data import IterableDataset, get_worker_info

from .reader import Reader, folder_opener, is_masked, parted

# The digests of the ledger, as `trainer.contract.ledger` defines them; a test holds them equal.
CHAIN_START = hashlib.sha256(b"bivouac ledger 1").hexdigest()
_SUM = 2**64


def sample_digest(position: int, tokens: bytes) -> int:
    digest = hashlib.blake2b(tokens, key=position.to_bytes(8, "little"), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def next_link(chain: str, step: int, position: int, count: int, digest: int) -> str:
    link = struct.pack("<32sQQQQ", bytes.fromhex(chain), step, position, count, digest % _SUM)
    return hashlib.sha256(link).hexdigest()


__all__ = ["Sequences"]

Part = dict[str, torch.Tensor]
_HALF, _FORMATS = 2**32, (2, 3)


class Sequences(IterableDataset[Part]):
    """Micro batches of this rank without end: a dictionary of `tokens` and of their `positions` in the whole order; of
    masked data also `counted`, true for each token that the loss counts as a target."""

    def __init__(
        self,
        folder: str | os.PathLike[str],
        context: int,
        global_batch: int,
        micro_batch: int = 1,
        seed: int = 1234,
        weights: Mapping[str, float] | None = None,
        shuffle_blocks: int = 16,
        rank: int | None = None,
        world_size: int | None = None,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        """`folder`: a prepared data set. `global_batch`: sequences of a step over all ranks. Rank and world size are
        the launcher's (`RANK`, `WORLD_SIZE`) unless given; over `group` ranks add up a step's digests. Raises
        `ValueError`. Of the shards' bytes only the sizes are compared with the manifest."""
        content = (Path(folder) / "manifest.json").read_bytes()
        self.folder = Path(folder)
        self.manifest = json.loads(content, object_hook=lambda fields: SimpleNamespace(**fields))
        if getattr(self.manifest, "format", None) not in _FORMATS:
            raise ValueError(f"{folder} is no prepared data set of format {' or '.join(map(str, _FORMATS))}")
        self.rank = int(os.environ.get("RANK", 0)) if rank is None else rank
        self.world_size = int(os.environ.get("WORLD_SIZE", 1)) if world_size is None else world_size
        self.global_batch, self.micro_batch = global_batch, micro_batch
        self.parts_per_step, remainder = divmod(global_batch, micro_batch * self.world_size)
        if remainder or not self.parts_per_step:
            raise ValueError(f"global_batch {global_batch} is no multiple of {micro_batch} x {self.world_size} ranks")
        self._order: dict[str, Any] = {
            "data_digest": hashlib.sha256(content).hexdigest(), "context": context, "seed": seed,
            "weights": dict(weights or {}), "shuffle_blocks": shuffle_blocks,
        }  # fmt: skip
        self._group, self._reader = group, self._open_reader()
        self._position, self._taken, self._workers = 0, 0, 1
        self._rows: list[dict[str, Any]] = []
        self._attempt: int | None = None
        """The last row is this process's to extend."""

    def __iter__(self) -> Iterator[Part]:
        loader = get_worker_info()
        worker, workers = (loader.id, loader.num_workers) if loader else (0, 1)
        if self._taken and workers != self._workers:
            raise ValueError(f"the state is of {self._workers} workers, this loader has {workers}")
        self._workers = workers
        while True:
            number = worker + self._taken * workers
            begin = self._position + (number * self.world_size + self.rank) * self.micro_batch
            positions = range(begin, begin + self.micro_batch)
            tokens, mask = parted(self._reader.stored(positions))
            self._taken += 1
            part = {"tokens": torch.from_numpy(tokens), "positions": torch.tensor(positions)}
            yield part | ({"counted": torch.from_numpy(mask)} if is_masked(self.manifest) else {})

    def done(self, step: int, fed: Sequence[Part]) -> None:
        """Note that a step has consumed these parts, on every rank: the state moves on, and the ledger by a link.
        Raises `ValueError` for other positions than the step's, which a loader that reorders would give."""
        expected = [
            self._position + (number * self.world_size + self.rank) * self.micro_batch + index
            for number in range(self.parts_per_step)
            for index in range(self.micro_batch)
        ]
        positions = [position for part in fed for position in part["positions"].tolist()]
        if positions != expected:
            raise ValueError(f"step {step} was fed positions {positions[:4]}..., wanted {expected[:4]}...")
        tokens = np.concatenate([_stored_tokens(part) for part in fed]).astype(self.manifest.dtype)
        digest = sum(sample_digest(position, row.tobytes()) for position, row in zip(positions, tokens, strict=True))
        self._link(step, self._sum_over_ranks(digest % _HALF**2))
        self._position += self.global_batch
        self._taken = max(0, self._taken - self.parts_per_step)

    def state_dict(self) -> dict[str, Any]:
        """Return where to go on, with the ledger's rows. In the process that trains, after the steps that are `done`:
        any number of ranks may go on from it. In a loader's worker, as torchdata's `StatefulDataLoader` asks for it,
        after what the worker has read: that one fits the same ranks and workers only."""
        position, parts = self._position, self._taken
        if self._workers == 1:
            position, parts = position + parts * self.world_size * self.micro_batch, 0
        shape = {"world_size": self.world_size, "micro_batch": self.micro_batch, "workers": self._workers}
        return {"position": position, "taken": parts, "shape": shape, "order": self._order, "rows": list(self._rows)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state. Raises `ValueError` for one of another order: other data, context, seed or weights."""
        differences = {name: value for name, value in self._order.items() if state["order"][name] != value}
        if differences:
            raise ValueError(f"the state is of another order: {state['order']}, now {differences}")
        shape = {"world_size": self.world_size, "micro_batch": self.micro_batch, "workers": state["shape"]["workers"]}
        if state["taken"] and state["shape"] != shape:
            raise ValueError(
                f"a worker's state, of {state['shape']}, fits no other ranks; take `state_dict` after `done`"
            )
        self._position, self._taken, self._workers = state["position"], state["taken"], state["shape"]["workers"]
        self._rows, self._attempt = [dict(row) for row in state["rows"]], None

    def __getstate__(self) -> dict[str, Any]:
        """Leave open files to the process that has opened them."""
        return {**self.__dict__, "_reader": None, "_group": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _reader=None)
        self._reader = self._open_reader()

    def _open_reader(self) -> Reader:
        order = self._order
        opener = folder_opener(self.folder)
        return Reader(self.manifest, opener, order["context"], order["seed"], order["weights"], order["shuffle_blocks"])

    def _sum_over_ranks(self, digest: int) -> int:
        if not (self.world_size > 1 and dist.is_available() and dist.is_initialized()):
            return digest
        device = "cuda" if dist.get_backend(self._group) == "nccl" else "cpu"
        halves = torch.tensor(divmod(digest, _HALF), dtype=torch.int64, device=device)
        dist.all_reduce(halves, group=self._group)
        high, low = halves.tolist()
        return int(high * _HALF + low) % _HALF**2

    def _link(self, step: int, digest: int) -> None:
        row, position = self._rows[-1] if self._rows else None, self._position
        chain = next_link(row["chain"] if row else CHAIN_START, step, position, self.global_batch, digest)
        if self._attempt is None or row is None:
            self._attempt = int(os.environ.get("BIVOUAC_ATTEMPT", 0))
            row = {
                "attempt": self._attempt, "world_size": self.world_size, "global_batch": self.global_batch,
                "seed": self._order["seed"], "data_digest": self._order["data_digest"],
                "first_step": step, "last_step": step, "first_position": position, "chain": chain,
            }  # fmt: skip
            self._rows.append(row)
        elif step != row["last_step"] + 1:
            raise ValueError(f"step {step} does not follow step {row['last_step']}")
        row.update(last_step=step, chain=chain)


def _stored_tokens(part: Part) -> np.ndarray:
    """Return the tokens as the shards have them."""
    tokens: np.ndarray = part["tokens"].cpu().numpy()
    return np.where(part["counted"].cpu().numpy(), tokens, ~tokens) if "counted" in part else tokens
