"""One rank of a gang whose other ranks speak when a test says so, and checkpoints on tiers as ranks have saved them."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from tests.drills.parts.storage_gang import TinyEngine
from tests.manifests import manifest_of, shard_at
from trainer.builtin.checkpoint.tiers import Tier
from trainer.builtin.gang import Gang
from trainer.contract import Manifest, Shard, parse_manifest

MODEL = "mp_rank_00_model_states.pt"


@dataclass(frozen=True)
class Told(Gang):
    """A gang whose other ranks say what the test lays into `others`: by default, what this one says."""

    others: dict[int, Any] = field(default_factory=dict)
    given: dict[int, bytes] = field(default_factory=dict)
    """What a rank gives to all."""

    @classmethod
    def of(cls, rank: int = 0, local_rank: int = 0, ranks: int = 1, **others: Any) -> Told:
        return cls(rank, local_rank, ranks, None, **others)  # type: ignore[arg-type]

    def gather(self, mine: Any) -> list[Any]:
        return [mine if rank == self.rank else self.others.get(rank, mine) for rank in range(self.world_size)]

    def gather_beside(self, mine: Any) -> list[Any]:
        return self.gather(mine)

    @contextmanager
    def patient(self) -> Iterator[None]:
        yield

    def of_holder(self, content: bytes | None, holder: int) -> bytes:
        assert (content is not None) == (holder == self.rank), "only the holder gives"
        return self.given[holder] if content is None else content

    def sums(self, values: list[float]) -> list[float]:
        return [value * self.world_size for value in values]


class Watched(Told):
    """Calls `after` when something that the ranks do together has ended here."""

    after: Callable[[str], None]

    def together(self, what: str, work: Callable[[], Any]) -> Any:
        value = work()
        self.after(what)
        return value

    def barrier(self) -> None:
        self.after("barrier")


def watched(after: Callable[[str], None], *place: int) -> Watched:
    gang = Watched.of(*place)
    object.__setattr__(gang, "after", after)
    return gang  # type: ignore[return-value]


def random_state(step: int, rank: int = 0) -> torch.Tensor:
    return torch.Generator().manual_seed(1000 * rank + step).get_state()


def saved(
    tiers: Iterable[Tier],
    step: int,
    ranks: int = 1,
    attempt: int = 1,
    publish: bool = True,
    watch: str = "",
    **told: Any,
) -> Manifest:
    """The same bytes on each tier: the model's states, and of each rank its optimizer's, its random state and beside it
    the watch's."""
    tiers, beside = tuple(tiers), {"watch": watch} if watch else {}
    states: dict[tuple[str, int], Any] = {}
    for rank in range(ranks):
        states |= {(name, rank): state for name, state in TinyEngine(Told.of(rank)).states(step).items()}
        states[f"rng_rank_{rank:05d}.pt", rank] = {"cpu": random_state(step, rank)} | beside
    shards: list[Shard] = []
    for (name, rank), state in states.items():
        if name == MODEL and rank:
            continue
        out = io.BytesIO()
        torch.save(state, out)
        for tier in tiers:
            path = tier.folder(step) / f"attempt-{attempt:04d}" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(out.getvalue())
        shards.append(shard_at(path, rank))
    manifest = manifest_of(step, tuple(shards), world_size=ranks, attempt=attempt, **told)
    for tier in tiers if publish else ():
        tier.publish(manifest, attempt)
    return parse_manifest(manifest.serialize())


def changed(manifest: Manifest) -> Manifest:
    """Return another manifest of the same step with the same shards."""
    return manifest.model_copy(update={"loss": 2.0})


def flip(path: Path) -> None:
    """Change a byte in the middle of a file's content."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.unlink()  # not through a hard link
    path.write_bytes(content)
