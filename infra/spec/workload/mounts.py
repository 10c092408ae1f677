"""The folders that a job reads at `/mounts/<name>`: S3 prefixes and existing file systems."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from infra.spec.section import Section
from infra.spec.workload.links import refuse_misnamed, refuse_no_prefix, refuse_unlinkable, refuse_wide


class Mount(Section):
    """One folder of `/mounts`, where an S3 prefix alone does not say all."""

    s3: Annotated[str | None, AfterValidator(refuse_no_prefix)] = None
    """An S3 prefix, `s3://bucket/prefix`."""
    by: Literal["link", "mountpoint"] = "link"
    """How nodes read the prefix. `link`: through the shared file system, which keeps what has been read. `mountpoint`:
    from S3 itself, by Mountpoint's CSI driver, which keeps nothing and needs no room; each byte comes from S3 again.
    The bucket's owner opts in with the tag `bivouac:mounts`, and ABAC on."""
    fsx: str | None = Field(default=None, pattern=r"^fs-[0-9a-f]{8,40}$")
    """The id of an existing FSx for Lustre file system in `network.vpc_id`. It is neither made nor deleted, and its
    security group must admit the nodes' subnet."""
    path: str = Field(default="", pattern=r"^[^\s]*$")
    """Folder of the file system, which must be there; empty: all of it."""
    writable: bool = False
    """The job may write to the existing file system. All else at `/mounts` is read-only."""
    stage: Literal["none", "nvme"] = "none"
    """`nvme`: each node copies the files to its own disk before the ranks start, once, and again after it is replaced.
    """
    size_gib: float | None = Field(default=None, gt=0)
    """Size of all files, with `stage`: plan and check hold it against the disks and `recovery.startup_timeout`."""

    @model_validator(mode="after")
    def _is_one_thing(self) -> Self:
        if (self.s3 is None) == (self.fsx is None):
            raise ValueError("give either `s3` or `fsx`")
        if self.fsx is not None and self.by != "link":
            raise ValueError("by: belongs to `s3`")
        if self.s3 is not None and self.path.strip("/"):
            raise ValueError("path: belongs to `fsx`; write the folder into the prefix")
        if self.by == "mountpoint":
            refuse_wide(str(self.s3))
        if {".", ".."} & set(self.path.split("/")):
            raise ValueError("path: names a folder from the file system's root, without `..`")
        if (self.stage == "nvme") != (self.size_gib is not None):
            raise ValueError("stage: nvme and size_gib belong together")
        if self.writable and (self.fsx is None or self.stage != "none"):
            raise ValueError("writable: only an existing file system that is not staged can be written to")
        return self

    @property
    def is_link(self) -> bool:
        """The campaign's own file system shows it."""
        return self.s3 is not None and self.by == "link"

    def __str__(self) -> str:
        return f"{self.s3} by {self.by}" if self.s3 is not None else f"{self.fsx}:/{self.path.strip('/')}"


def _mount_of(value: Any) -> Any:
    """Return a prefix's text or the section. Raises `ValueError` for anything else."""
    if isinstance(value, dict):
        return Mount.model_validate(value)
    if not isinstance(value, str | Mount):
        raise ValueError("is no mount; write s3://bucket/prefix, or a section with `s3` or `fsx`")
    return value


MountSource = Annotated[str | Mount, BeforeValidator(_mount_of, json_schema_input_type=str | Mount)]


def sound_mounts(mounts: dict[str, str | Mount]) -> dict[str, str | Mount]:
    """Return the mounts. Raises `ValueError` for a name or a prefix that cannot be one, and for too many links."""
    refuse_misnamed(mounts)
    refuse_unlinkable(linked_prefixes(mounts))
    return mounts


def linked_prefixes(mounts: dict[str, str | Mount]) -> dict[str, str]:
    """Return name -> S3 prefix of the mounts that the campaign's own file system shows."""
    prefixes = dict[str, str]()
    for name, mount in mounts.items():
        if isinstance(mount, str):
            prefixes[name] = mount
        elif mount.is_link and mount.s3 is not None:
            prefixes[name] = mount.s3
    return prefixes


def mount_folder(name: str) -> str:
    """Return the folder of the shared file system that is linked to a workload's S3 prefix."""
    return f"mounts/{name}"


def mount_claim(name: str) -> str:
    """Return the claim on a mount with a volume of its own."""
    return f"mount-{name}"
