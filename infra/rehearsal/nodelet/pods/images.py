"""Images from the account's registry: pulled with the instance role, checked by digest, unpacked once."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import re
import shutil
import tarfile
import threading
import urllib.request
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from infra.errors import PermanentError, TemporaryError
from infra.rehearsal.nodelet.credentials import RoleCredentials
from infra.rehearsal.nodelet.pods.sandbox import Bind, host_parts, remove_tree
from infra.toolchain.table import MPI_OPERATOR

HOST_LAYER = "application/vnd.bivouac.host.layer.v1"
"""A layer that the node image already contains: the host's own programs and libraries."""
MANIFESTS = ["application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json"]
REFERENCE = re.compile(
    r"(?P<account>\d{12})\.dkr\.ecr\.(?P<region>[a-z0-9-]+)\.amazonaws\.com/(?P<repository>[^@:]+)"
    r"(?::(?P<tag>[\w.-]+))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?"
)
PUBLIC = {f"docker.io/mpioperator/mpi-operator:{MPI_OPERATOR}": ("mpi-operator", "/opt/mpi-operator")}
"""Image -> the tool that replaces it, and the path of the image's entry point."""
RETRY = timedelta(seconds=5)
FETCH_WITHIN_S = 60.0
MADE_BY_US = ("/dev", "/proc", "/sys", "/run", "/tmp", "/etc", "/var/run")
"""Folders that every root has: an image may add files below, but not replace them."""


class PullError(PermanentError):
    """The image cannot be pulled; as a kubelet, the nodelet shows ErrImagePull and retries later."""


@dataclass(frozen=True)
class ContainerImage:
    digest: str
    env: dict[str, str]
    entrypoint: list[str]
    command: list[str]
    cwd: str
    files: Path
    """The image's files, apart from the host's programs."""

    def binds(self) -> list[Bind]:
        """Return read-only mounts of the image's files at their paths. Raises PullError if a path is the host's."""
        _, host = host_parts()
        targets = {bind.target for bind in host}
        return _place(self.files, "", targets, {*targets, *MADE_BY_US})


class ImageStore:
    """The images of one machine, below `folder`; `tools` has the programs of public images."""

    def __init__(self, folder: Path, region: str, credentials: RoleCredentials, tools: Path) -> None:
        self._folder, self._region, self._credentials, self._tools = folder, region, credentials, tools
        self._locks: dict[str, threading.Lock] = defaultdict(threading.Lock)
        self._known: dict[str, ContainerImage] = {}

    def pull(self, reference: str) -> ContainerImage:
        """Return an image, pulled if necessary. Raises PullError, TemporaryError."""
        if reference in PUBLIC:
            return self._build(reference)
        match = REFERENCE.fullmatch(reference)
        if match is None or not (match["digest"] or match["tag"]):
            cure = f"name an image of the account's ECR, by digest, or one of {', '.join(PUBLIC)}"
            raise PullError("a rehearsal's node cannot pull from there", seen=reference, cure=cure)
        with self._locks[reference]:
            if match["digest"] and reference in self._known:
                return self._known[reference]
            try:
                self._known[reference] = self._fetch(reference, match)
            except ClientError as error:
                raise PullError("the registry refuses", seen=f"{reference}: {error}") from error
            except PermanentError as error:
                raise error if isinstance(error, PullError) else PullError("no right to pull", seen=error) from error
            except (BotoCoreError, OSError) as error:
                raise TemporaryError("the registry does not answer", seen=error, delay=RETRY) from error
            return self._known[reference]

    def _build(self, reference: str) -> ContainerImage:
        """Return a public image, made of the program that the toolchain built from the same version's source."""
        tool, path = PUBLIC[reference]
        program, files = self._tools / tool, self._folder / tool
        if not program.exists():
            cure = f"python -m infra.toolchain ensure {tool}"
            raise PullError("the program of a public image was not built", seen=program, cure=cure)
        with self._locks[reference]:
            target = files / path.lstrip("/")
            if not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(program, target)
        return ContainerImage(f"tool:{tool}", {}, [path], [], "/", files)

    def _fetch(self, reference: str, match: re.Match[str]) -> ContainerImage:
        if match["region"] != self._region:
            raise PullError("the image is in another region", seen=reference, cure=f"push it to {self._region}")
        image_key = {"imageDigest": match["digest"]} if match["digest"] else {"imageTag": match["tag"]}
        registry = {"registryId": match["account"], "repositoryName": match["repository"]}
        ecr = self._credentials.client("ecr")
        answer = ecr.batch_get_image(**registry, imageIds=[image_key], acceptedMediaTypes=MANIFESTS)
        if not answer["images"]:
            raise PullError("no such image", seen=f"{reference}: {answer['failures']}", cure="push it first")
        text = answer["images"][0]["imageManifest"].encode()
        digest = f"sha256:{hashlib.sha256(text).hexdigest()}"
        if match["digest"] not in (None, digest):
            raise PullError("the manifest is not the requested one", seen=f"{reference} has digest {digest}")
        manifest = json.loads(text)

        def blob(entry: dict[str, Any]) -> bytes:
            url = ecr.get_download_url_for_layer(**registry, layerDigest=entry["digest"])["downloadUrl"]
            return _download(url, entry["digest"])

        config = json.loads(blob(manifest["config"])).get("config") or {}
        files = self._folder / digest.replace(":", "-")
        if not files.is_dir():
            partial = files.with_suffix(".partial")
            remove_tree(partial)
            partial.mkdir(parents=True)
            for layer in manifest["layers"]:
                if layer["mediaType"] != HOST_LAYER:
                    unpack(blob(layer), partial)
            partial.rename(files)
        env = dict(entry.partition("=")[::2] for entry in config.get("Env") or [])
        return ContainerImage(
            digest, env, config.get("Entrypoint") or [], config.get("Cmd") or [], config.get("WorkingDir") or "/", files
        )


def _download(url: str, digest: str) -> bytes:
    with urllib.request.urlopen(url, timeout=FETCH_WITHIN_S) as answer:
        content: bytes = answer.read()
    actual = f"sha256:{hashlib.sha256(content).hexdigest()}"
    if actual != digest:
        raise PullError("a blob does not match the manifest", seen=f"{actual} instead of {digest}")
    return content


def unpack(layer: bytes, root: Path) -> None:
    """Extract one tar, plain or gzip, over `root`; `.wh.` entries remove files of lower layers."""
    if layer[:2] == b"\x1f\x8b":
        layer = gzip.decompress(layer)

    try:
        with tarfile.open(fileobj=io.BytesIO(layer)) as archive:
            # `_kept` has looked at each already. Python 3.14 would refuse absolute links, which layers have.
            archive.extraction_filter = lambda member, path: member
            archive.extractall(root, members=_kept(archive, root))
    except tarfile.TarError as error:
        raise PullError("a layer cannot be unpacked", seen=error) from error


def _kept(archive: tarfile.TarFile, root: Path) -> Iterator[tarfile.TarInfo]:
    """Yield what a layer adds to `root`, and remove what it takes away. Raises `PullError` for what leads out.

    Done here, because tarfile's own filters came with Python 3.11.4, and Debian 12 has 3.11.2.
    """
    top = os.path.realpath(root)
    for member in archive:
        member.name = member.name.lstrip("/")
        path = root / member.name
        takes_away, hidden = path.name.startswith(".wh."), path.name.removeprefix(".wh.")
        places = [path]
        if member.islnk():  # to a file of the image, by its name there
            member.linkname = member.linkname.lstrip("/")
            places.append(root / member.linkname)
        is_outside = any(os.path.commonpath([top, os.path.realpath(place)]) != top for place in places)
        if is_outside or (takes_away and hidden in ("", ".", "..")):
            raise PullError("a layer leads out of its image", seen=member.name)
        if takes_away:
            _remove(path.with_name(hidden), with_folder=path.name == ".wh..wh..opq")
            continue
        # A mapped root owns one user only, so the layer's owners cannot be kept.
        member.uid, member.gid, member.uname, member.gname = os.geteuid(), os.getegid(), "", ""
        member.mode &= 0o755  # no program of a layer runs as somebody else
        yield member


def _remove(path: Path, *, with_folder: bool) -> None:
    targets = list(path.parent.iterdir()) if with_folder and path.parent.is_dir() else [path]
    for target in targets:
        if target.is_dir() and not target.is_symlink():
            shutil.rmtree(target)
        else:
            target.unlink(missing_ok=True)


def _place(folder: Path, path: str, host: set[str], targets: set[str]) -> list[Bind]:
    """Return one mount per topmost folder that nothing else is mounted in, or links to."""
    binds: list[Bind] = []
    for entry in sorted(folder.iterdir()):
        target = f"{path}/{entry.name}"
        if target in host:
            raise PullError(
                "the image brings files where the host's own are mounted",
                seen=target,
                cure="install into /opt, as a top layer on the base image does",
            )
        is_covered = any(bound == target or bound.startswith(target + "/") for bound in targets)
        if is_covered and entry.is_dir():
            binds += _place(entry, target, host, targets)
        elif not (is_covered and entry.is_symlink()):
            binds.append(Bind(entry, target))
    return binds
