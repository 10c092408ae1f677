"""Names of container images, as Docker reads them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self

from infra.spec.names import REPOSITORY

_PART = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_NAME = re.compile(
    rf"(?:(?P<registry>(?:localhost|[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+)(?::\d+)?|[A-Za-z0-9-]+:\d+)/)?"
    rf"(?P<repository>{_PART}(?:/{_PART})*)"
    r"(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9._-]{0,127}))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?"
)
_ECR = re.compile(r"(?P<account>\d{12})\.dkr\.ecr\.(?P<region>[a-z0-9-]+)\.amazonaws\.com")
HUB, _HUB_ENDPOINT = "docker.io", "https://registry-1.docker.io"


@dataclass(frozen=True)
class ImageReference:
    registry: str
    repository: str
    which: str
    """A tag, or `sha256:...`."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the parts of `[registry/]repository:tag` or `...@sha256:...`. Raises ValueError.

        Without a registry it is Docker Hub's, whose own images are below `library/`.
        """
        match = _NAME.fullmatch(text)
        if match is None:
            raise ValueError(f"is no image reference: {text}")
        if not match["tag"] and not match["digest"]:
            raise ValueError(f"needs a tag or a digest: {text}")
        registry, repository = match["registry"] or HUB, match["repository"]
        if registry == HUB and "/" not in repository:
            repository = f"library/{repository}"
        return cls(registry, repository, match["digest"] or match["tag"])

    @property
    def name(self) -> str:
        """Return registry and repository."""
        return f"{self.registry}/{self.repository}"

    @property
    def ecr(self) -> tuple[str, str] | None:
        """Return account and region of a private ECR registry, None for another one."""
        match = _ECR.fullmatch(self.registry)
        return (match["account"], match["region"]) if match else None

    @property
    def endpoint(self) -> str:
        """Return the registry's URL. As Docker does, one of this machine may be without TLS."""
        if self.registry == HUB:
            return _HUB_ENDPOINT
        local = self.registry.partition(":")[0] in ("localhost", "127.0.0.1")
        return f"{'http' if local else 'https'}://{self.registry}"

    def __str__(self) -> str:
        return f"{self.name}{'@' if self.which.startswith('sha256:') else ':'}{self.which}"


def registry_host(account: str, region: str) -> str:
    return f"{account}.dkr.ecr.{region}.amazonaws.com"


def repository_url(account: str, region: str, repository: str = REPOSITORY) -> str:
    """Return the URL of a repository, without another name the trainer's, without tag or digest."""
    return f"{registry_host(account, region)}/{repository}"


_REFERENCE = re.compile(
    r"(?P<repository>[a-z0-9]+(?:[._/-][a-z0-9]+)*)"
    r"(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9._-]{0,127})|@(?P<digest>sha256:[0-9a-f]{64}))"
)


def split_reference(reference: str) -> tuple[str, str]:
    """Split `repository:tag` or `repository@sha256:...` into repository and tag or digest; else raise ValueError."""
    match = _REFERENCE.fullmatch(reference)
    host, slash, _ = reference.partition("/")
    if match is None or (slash and "." in host):  # docker reads a first part with a dot as a registry
        raise ValueError(f"no repository with tag or digest: {reference}")
    return match["repository"], match["tag"] or match["digest"]


def in_registry(reference: str, account: str, region: str) -> tuple[str, str]:
    """`split_reference` that also accepts the account's own registry; raise ValueError for another registry."""
    return split_reference(reference.removeprefix(f"{registry_host(account, region)}/"))
