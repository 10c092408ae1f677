"""The folders that a job reads at `/mounts/<name>`: S3 prefixes that are read in one way or another."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from infra.spec.section import Section
from infra.spec.workload.links import BUCKET_AND_PREFIX, refuse_misnamed, refuse_unlinkable


class Mount(Section):
    """One folder of `/mounts`, where an S3 prefix alone does not say all."""

    s3: str = Field(pattern=BUCKET_AND_PREFIX.pattern, description="a bucket and a prefix")
    """An S3 prefix, `s3://bucket/prefix`."""
    by: Literal["link", "mountpoint"] = "link"
    """How nodes read the prefix. `link`: through the shared file system, which keeps what has been read. `mountpoint`:
    from S3 itself, by Mountpoint's CSI driver, which keeps nothing and needs no room; each byte comes from S3 again.
    The bucket's owner opts in with the tag `bivouac:text`, as for `data.prepare`."""
    stage: Literal["none", "nvme"] = "none"
    """`nvme`: each node copies the files to its own disk before the ranks start, once, and again after it is replaced.
    """
    size_gib: float | None = Field(default=None, gt=0)
    """Size of all files, with `stage`: plan and check hold it against the disks and `recovery.startup_timeout`."""

    @model_validator(mode="after")
    def _is_one_thing(self) -> Self:
        if (self.stage == "nvme") != (self.size_gib is not None):
            raise ValueError("stage: nvme and size_gib belong together")
        return self

    @property
    def is_link(self) -> bool:
        """The campaign's own file system shows it."""
        return self.by == "link"

    def __str__(self) -> str:
        return f"{self.s3} by {self.by}"


def _mount_of(value: Any) -> Any:
    """Return a prefix's text or the section. Raises `ValueError` for anything else."""
    if isinstance(value, dict):
        return Mount.model_validate(value)
    if not isinstance(value, str | Mount):
        raise ValueError("is no mount; write s3://bucket/prefix, or a section with `s3`")
    return value


MountSource = Annotated[str | Mount, BeforeValidator(_mount_of, json_schema_input_type=str | Mount)]


def sound_mounts(mounts: dict[str, str | Mount]) -> dict[str, str | Mount]:
    """Return the mounts. Raises `ValueError` for a name or a prefix that cannot be one, and for too many links."""
    refuse_misnamed(mounts)
    refuse_unlinkable(linked_prefixes(mounts))
    return mounts


def linked_prefixes(mounts: dict[str, str | Mount]) -> dict[str, str]:
    """Return name -> S3 prefix of the mounts that the campaign's own file system shows."""
    prefixes = {
        name: mount if isinstance(mount, str) else mount.s3 if mount.is_link else "" for name, mount in mounts.items()
    }
    return {name: prefix for name, prefix in prefixes.items() if prefix}
