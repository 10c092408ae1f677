"""Probes of S3 where it stands in for a shared file system: the tier of checkpoints, and the data."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator

from trainer.buckets.prefix import Prefix
from trainer.buckets.sources import BucketSource
from trainer.contract import DATA_IN_S3, DATA_MANIFEST_NAME, SHARED_TIER_IN_S3, Expectation, Probe

_PATIENCE_S = 30.0
_CURE = "see the trainer's role and its pod identity, the bucket's policy and key, and the subnet's gateway endpoint"


def bucket_probes(expectation: Expectation) -> Iterator[Probe]:
    """Write, read back and remove a small object on the tier; read the data's manifest."""
    tier, data = expectation.shared_tier, expectation.data_source
    if tier:
        yield _probe(SHARED_TIER_IN_S3, tier, lambda: _written_and_read(Prefix(tier, patience_s=_PATIENCE_S)))
    if data:
        yield _probe(DATA_IN_S3, data, lambda: _manifest_read(BucketSource(data)))


def _written_and_read(prefix: Prefix) -> str:
    name, content = f"probe/{uuid.uuid4().hex}", uuid.uuid4().bytes
    try:
        prefix.put(name, content)
        there = prefix.get(name)
    finally:
        prefix.forget(name)
    if there is None or there[0] != content:
        raise OSError("reads back other bytes")
    return "written and read"


def _manifest_read(source: BucketSource) -> str:
    return f"{len(b''.join(source.read(DATA_MANIFEST_NAME)))} bytes of {DATA_MANIFEST_NAME}"


def _probe(name: str, where: str, look: Callable[[], str]) -> Probe:
    try:
        return Probe(name=name, ok=True, seen=f"{where}: {look()}", wanted="works")
    except OSError as error:
        return Probe(name=name, ok=False, seen=f"{where}: {error}"[:400], wanted="works", cure=_CURE)
