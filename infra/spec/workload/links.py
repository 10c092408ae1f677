"""Rules for S3 prefixes that the shared file system shows a job: its mounts, and the weights to start from."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping

_BUCKET_AND_PREFIX = re.compile(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[^/]+)*/?")
_MOUNT = re.compile(r"[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?")
MOUNTS = "/mounts"
"""Folder of a job's container with its mounts."""
LINKS = 8
"""Links of a file system to S3 at most, ours for the code among them (FSx for Lustre, quotas)."""
INIT = "init-from"
"""Name of the mount, or the folder beside the code, with the weights to start from."""


def refuse_misnamed(mounts: Mapping[str, object]) -> None:
    """Raise `ValueError` for a name that no mount may have, and for a text that is no prefix."""
    for name, prefix in mounts.items():
        if not _MOUNT.fullmatch(name):
            raise ValueError(f"{name}: a name has lower-case letters, digits and hyphens, 32 at most")
        if name == INIT:
            raise ValueError(f"{name}: the weights of `init_from` have this name")
        if isinstance(prefix, str) and not _BUCKET_AND_PREFIX.fullmatch(prefix):
            raise ValueError(f"{name}: {prefix} is no s3://bucket/prefix")


def refuse_no_prefix(prefix: str | None) -> str | None:
    """Return an S3 prefix, or None. Raises `ValueError` for anything else."""
    if prefix is not None and not _BUCKET_AND_PREFIX.fullmatch(prefix):
        raise ValueError(f"{prefix} is no s3://bucket/prefix")
    return prefix


def refuse_wide(prefix: str) -> None:
    """Raise `ValueError` for a prefix that a policy cannot name alone: IAM reads a wildcard or a variable in it."""
    if signs := sorted(set("*?$") & set(prefix)):
        raise ValueError(f"{prefix}: to IAM {' '.join(signs)} means more, and what lies beside it could be read")


def refuse_no_place(place: str | None) -> str | None:
    """Return the place of weights. Raises `ValueError` if it is neither an S3 prefix nor a folder."""
    if place is not None and "://" in place and not _BUCKET_AND_PREFIX.fullmatch(place):
        raise ValueError("is neither s3://bucket/prefix nor a folder of this machine; download it to one of them")
    return place


def refuse_unlinkable(prefixes: dict[str, str]) -> None:
    """Raise `ValueError` for more prefixes than a file system has links, and for one within another."""
    if len(prefixes) >= LINKS:
        raise ValueError(f"{len(prefixes)} are too many: a file system has {LINKS} links, one of them for the code")
    ends = sorted(prefix.rstrip("/") + "/" for prefix in prefixes.values())
    for end, next_one in itertools.pairwise(ends):
        if next_one.startswith(end):
            raise ValueError(f"{end} holds {next_one}: FSx links no prefix twice")
