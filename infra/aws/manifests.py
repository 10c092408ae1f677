"""Image manifests in registries: OCI's and Docker's, single or behind an index. Pure.

`docker push` stores Docker's schema 2, buildx with provenance an index: a base image may be either.
"""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass
from typing import Any

from infra.errors import UserError

PLATFORM = ("linux", "amd64")
"""Platform of every node and builder: the catalogue has no other."""


@dataclass(frozen=True)
class Family:
    """Media types that a manifest uses together."""

    manifest: str
    config: str
    layer: str
    packed: bool
    """True if layers must be compressed, as Docker's are."""

    def pack(self, layer: bytes) -> bytes:
        """Return a tar in this family's form; equal tars give equal bytes."""
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
INDEXES = ("application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json")
ACCEPTED = [*FAMILIES, *INDEXES]
"""Accepted types for BatchGetImage, as in AWS's amazon-ecr-containerd-resolver; other types count as missing."""


@dataclass(frozen=True)
class RegistryImage:
    """One platform's image in a repository."""

    repository: str
    digest: str
    media_type: str
    manifest: dict[str, Any]
    python: str = ""
    """Its Python as `3.12`; empty where nobody asked."""

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


def packed_bytes(manifest: dict[str, Any]) -> int:
    """Return the size of an image as a registry holds it and a node pulls it."""
    return sum(int(blob["size"]) for blob in (manifest["config"], *manifest["layers"]))


def choose_manifest(index: dict[str, Any], reference: str) -> str:
    """Return the digest of an index's image for our nodes; raise `UserError` with its platforms if it has none."""
    rows = index.get("manifests", [])
    platforms = {row["digest"]: tuple(row.get("platform", {}).get(part, "unknown") for part in ("os", "architecture"))
          for row in rows if row.get("mediaType") in FAMILIES}  # fmt: skip
    for digest, platform in platforms.items():
        if platform == PLATFORM:
            return str(digest)
    platform_names = sorted({"/".join(platform) for platform in platforms.values()})
    raise UserError(
        f"the image has no build for {'/'.join(PLATFORM)}",
        seen=f"{reference}: {', '.join(platform_names) or 'an empty index'}",
        cure=f"build it with --platform {'/'.join(PLATFORM)}",
    )


def with_layer(base: dict[str, Any], layer: str, environment: dict[str, str]) -> dict[str, Any]:
    """Return a base's configuration with one more layer (digest of its plain tar) and other variables."""
    inner = dict(base.get("config") or {})
    variables = [item for item in inner.get("Env") or [] if item.partition("=")[0] not in environment]
    inner["Env"] = [*variables, *(f"{name}={value}" for name, value in sorted(environment.items()))]
    rootfs = base.get("rootfs", {"type": "layers", "diff_ids": []})
    content = {**base, "config": inner, "rootfs": {**rootfs, "diff_ids": [*rootfs["diff_ids"], layer]}}
    if "history" in base:  # some readers refuse an image without one entry per layer
        content["history"] = [*base["history"], {"created_by": "bivouac bake"}]
    return content
