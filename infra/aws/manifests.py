"""Image manifests as registries hold them: OCI's and Docker's, alone or behind an index. Pure.

`docker push` stores Docker's schema 2, buildx with provenance stores an index: a base may be any of them.
"""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass
from typing import Any

from infra.errors import UserError

PLATFORM = ("linux", "amd64")
"""Of every node and builder: the catalogue has no other."""


@dataclass(frozen=True)
class Family:
    """Media types that belong into one manifest."""

    manifest: str
    config: str
    layer: str
    packed: bool
    """Docker's has no layer that is not compressed."""

    def pack(self, layer: bytes) -> bytes:
        """A tar as this family carries it; the same bytes for the same tar."""
        return gzip.compress(layer, mtime=0) if self.packed else layer


OCI = Family(
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.oci.image.config.v1+json",
    "application/vnd.oci.image.layer.v1.tar",
    packed=False,
)
DOCKER = Family(
    "application/vnd.docker.distribution.manifest.v2+json",
    "application/vnd.docker.container.image.v1+json",
    "application/vnd.docker.image.rootfs.diff.tar.gzip",
    packed=True,
)
FAMILIES = {family.manifest: family for family in (OCI, DOCKER)}
INDEXES = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
ACCEPTED = [*FAMILIES, *INDEXES]
"""For BatchGetImage, as AWS's own amazon-ecr-containerd-resolver asks; it answers what is not accepted with a miss."""


@dataclass(frozen=True)
class RegistryImage:
    """One platform's image in a repository."""

    repository: str
    digest: str
    media_type: str
    manifest: dict[str, Any]

    @property
    def family(self) -> Family:
        return FAMILIES[self.media_type]

    @property
    def config(self) -> str:
        """Digest of the configuration."""
        return str(self.manifest["config"]["digest"])

    @property
    def reference(self) -> str:
        return f"{self.repository}@{self.digest}"


def digest_of(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def chosen(index: dict[str, Any], reference: str) -> str:
    """Digest of an index's image for our nodes. Raises `UserError` where it has none, naming what it has."""
    rows = index.get("manifests", [])
    of = {row["digest"]: tuple(row.get("platform", {}).get(part, "unknown") for part in ("os", "architecture"))
          for row in rows if row.get("mediaType") in FAMILIES}  # fmt: skip
    for digest, platform in of.items():
        if platform == PLATFORM:
            return str(digest)
    there = sorted({"/".join(platform) for platform in of.values()})
    raise UserError(
        f"the image has no build for {'/'.join(PLATFORM)}",
        seen=f"{reference}: {', '.join(there) or 'an index of nothing'}",
        cure=f"build it with --platform {'/'.join(PLATFORM)}",
    )


def with_layer(base: dict[str, Any], layer: str, environment: dict[str, str]) -> dict[str, Any]:
    """A base's configuration with one layer more (digest of its plain tar) and other variables."""
    inner = dict(base.get("config") or {})
    kept = [item for item in inner.get("Env") or [] if item.partition("=")[0] not in environment]
    inner["Env"] = [*kept, *(f"{name}={value}" for name, value in sorted(environment.items()))]
    rootfs = base.get("rootfs", {"type": "layers", "diff_ids": []})
    made = {**base, "config": inner, "rootfs": {**rootfs, "diff_ids": [*rootfs["diff_ids"], layer]}}
    if "history" in base:  # one entry for each layer, or some readers refuse the image
        made["history"] = [*base["history"], {"created_by": "bivouac bake"}]
    return made
