"""Images in ECR: one layer of ours on a base in the same registry, pushed without a container daemon.

It runs on the builder instance with its role: `python -m infra.aws.registry push ...`. The builder has boto3 and
nothing else, so neither this module nor what it imports may need more.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import re
import sys
import tarfile
import urllib.request
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from typing import Any

from infra.aws.account import RETRY_AFTER, Account
from infra.aws.manifests import (
    ACCEPTED,
    FAMILIES,
    INDEXES,
    RegistryImage,
    choose_manifest,
    digest_of,
    packed_bytes,
    with_layer,
)
from infra.errors import PermanentError, TemporaryError

_FETCH_S = 60.0
_PART = 10 * 1024 * 1024
"""ECR requires parts of 5 to 10 MiB, except for the last."""


class NoSuchImage(PermanentError):
    """The image is missing; `repository` is True if its repository exists."""

    def __init__(self, detail: str, repository: bool) -> None:
        self.repository = repository
        message = "the registry has no such image" if repository else "the registry has no such repository"
        super().__init__(message, seen=detail, cure="push it, or correct `image.base`")


def layer_of(root: Path) -> bytes:
    """Return a tar of a folder whose bytes depend only on names and contents: no times, no owners, sorted."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path in sorted(root.rglob("*")):
            if "__pycache__" in path.parts:
                continue
            member = tar.gettarinfo(str(path), arcname=str(path.relative_to(root)))
            member.mtime, member.uid, member.gid, member.uname, member.gname = 0, 0, 0, "", ""
            member.mode = 0o755 if path.is_dir() else 0o644
            if path.is_file():
                with path.open("rb") as content:
                    tar.addfile(member, content)
            else:
                tar.addfile(member)
    return buffer.getvalue()


class Registry:
    """Pulls manifests, and pushes blobs and images, by digest."""

    def __init__(self, account: Account, owner: str | None = None) -> None:
        """`owner`: the AWS account of the registry, if it is another one; only to read."""
        self.ecr = account.client("ecr")
        self._of: dict[str, Any] = {} if owner is None else {"registryId": owner}

    def image(self, repository: str, reference: str) -> RegistryImage:
        """Return the image of `tag` or `sha256:...`; from an index the one for our nodes.

        Raises `NoSuchImage`, or `UserError` if an index has none for our nodes.
        """
        media_type, digest, manifest = self._manifest(repository, reference)
        if media_type in INDEXES:
            media_type, digest, manifest = self._manifest(
                repository, choose_manifest(manifest, f"{repository}:{reference}")
            )
        if media_type not in FAMILIES:
            raise PermanentError(
                "the image's manifest has a media type that the bake does not support",
                seen=f"{repository}:{reference}: {media_type}",
                cure=f"push it again with a current docker or buildx: {', '.join(FAMILIES)}",
            )
        return RegistryImage(repository, digest, media_type, manifest)

    def _manifest(self, repository: str, reference: str) -> tuple[str, str, dict[str, Any]]:
        """Return (media type, digest, content) of the stored manifest or index."""
        key = "imageDigest" if reference.startswith("sha256:") else "imageTag"
        name = f"{repository}{'@' if key == 'imageDigest' else ':'}{reference}"
        try:
            answer = self.ecr.batch_get_image(
                repositoryName=repository, imageIds=[{key: reference}], acceptedMediaTypes=ACCEPTED, **self._of
            )
        except self.ecr.exceptions.RepositoryNotFoundException as error:
            raise NoSuchImage(name, repository=False) from error
        if not answer["images"]:
            raise NoSuchImage(name, repository=True)
        image = answer["images"][0]
        content = json.loads(image["imageManifest"])
        media_type = image.get("imageManifestMediaType") or content.get("mediaType") or ""
        return media_type, image["imageId"]["imageDigest"], content

    @contextmanager
    def _blob(self, repository: str, digest: str) -> Iterator[Any]:
        url = self.ecr.get_download_url_for_layer(repositoryName=repository, layerDigest=digest, **self._of)[
            "downloadUrl"
        ]
        try:
            with urllib.request.urlopen(url, timeout=_FETCH_S) as answer:
                yield answer
        except (OSError, HTTPException) as error:
            raise TemporaryError(
                "a blob of the registry cannot be fetched",
                seen=f"{repository}@{digest}: {error}",
                cure="make sure that the registry's layers, which are in S3, can be reached from here",
                delay=RETRY_AFTER,
            ) from error

    def blob(self, repository: str, digest: str) -> bytes:
        """Return a small blob, such as a configuration."""
        with self._blob(repository, digest) as answer:
            content: bytes = answer.read()
        _refuse_other(digest, digest_of(content))
        return content

    def _is_stored(self, repository: str, digest: str) -> bool:
        answer = self.ecr.batch_check_layer_availability(repositoryName=repository, layerDigests=[digest])
        return any(layer.get("layerAvailability") == "AVAILABLE" for layer in answer["layers"])

    def push_blob(self, repository: str, content: bytes) -> str:
        digest = digest_of(content)
        if not self._is_stored(repository, digest):
            parts = (content[offset : offset + _PART] for offset in range(0, len(content), _PART))
            self._upload(repository, digest, parts)
        return digest

    def copy_blob(self, source: str, target: str, digest: str) -> None:
        """Copy a blob in parts, since a CUDA layer exceeds the builder's memory; skip it if it is there already."""
        if source == target or self._is_stored(target, digest):
            return
        with self._blob(source, digest) as answer:
            self._upload(target, digest, iter(lambda: answer.read(_PART), b""))

    def _upload(self, repository: str, digest: str, parts: Iterable[bytes]) -> None:
        upload = self.ecr.initiate_layer_upload(repositoryName=repository)["uploadId"]
        offset, hasher = 0, hashlib.sha256()
        for part in parts:
            hasher.update(part)
            self.ecr.upload_layer_part(
                repositoryName=repository,
                uploadId=upload,
                partFirstByte=offset,
                partLastByte=offset + len(part) - 1,
                layerPartBlob=part,
            )
            offset += len(part)
        _refuse_other(digest, f"sha256:{hasher.hexdigest()}")
        try:
            self.ecr.complete_layer_upload(repositoryName=repository, uploadId=upload, layerDigests=[digest])
        except self.ecr.exceptions.LayerAlreadyExistsException:
            return  # another bake was quicker

    def images(self, repository: str) -> list[dict[str, Any]]:
        """Return ECR's descriptions of all images of a repository; empty if there is no such repository."""
        pages = self.ecr.get_paginator("describe_images").paginate(repositoryName=repository)
        try:
            return [image for page in pages for image in page["imageDetails"]]
        except self.ecr.exceptions.RepositoryNotFoundException:
            return []

    def delete_image(self, repository: str, digest: str) -> None:
        """Delete an image, its tags and the layers that only it has; raise `PermanentError` if ECR refuses."""
        answer = self.ecr.batch_delete_image(repositoryName=repository, imageIds=[{"imageDigest": digest}])
        if failures := [
            failure for failure in answer.get("failures", ()) if failure.get("failureCode") != "ImageNotFound"
        ]:
            raise PermanentError(
                "the registry did not delete an image",
                seen=f"{digest}: {failures[0].get('failureCode')}: {failures[0].get('failureReason')}",
                cure="an index that holds it must go first: see the repository in ECR's console",
            )

    def push_image(
        self, base: tuple[str, str], layer: bytes, environment: dict[str, str], tag: str, repository: str
    ) -> tuple[RegistryImage, bool]:
        """Push one layer (a tar) on top of `base` (repository, reference) into `repository`, in the base's media types.

        Return the image, and True if it is new: tags are immutable, so a second push of equal inputs changes nothing.
        """
        base_image = self.image(*base)
        family = base_image.family
        config = with_layer(
            json.loads(self.blob(base_image.repository, base_image.config)), digest_of(layer), environment
        )
        for descriptor in base_image.manifest["layers"]:
            self.copy_blob(base_image.repository, repository, descriptor["digest"])
        blob, body = family.pack(layer), json.dumps(config, sort_keys=True).encode()
        top = {"mediaType": family.layer, "digest": self.push_blob(repository, blob), "size": len(blob)}
        manifest = {
            "schemaVersion": 2,
            "mediaType": family.manifest,
            "config": {"mediaType": family.config, "digest": self.push_blob(repository, body), "size": len(body)},
            "layers": [*base_image.manifest["layers"], top],
        }
        text = json.dumps(manifest, sort_keys=True)
        try:
            self.ecr.put_image(
                repositoryName=repository, imageManifest=text, imageManifestMediaType=family.manifest, imageTag=tag
            )
        except (self.ecr.exceptions.ImageAlreadyExistsException, self.ecr.exceptions.ImageTagAlreadyExistsException):
            return self.image(repository, tag), False
        return RegistryImage(repository, digest_of(text.encode()), family.manifest, manifest), True


def _refuse_other(digest: str, detail: str) -> None:
    if detail != digest:
        raise PermanentError("a blob does not have its digest", seen=detail, cure=f"push {digest} again")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="push one layer on a base image")
    parser.add_argument("verb", choices=["push"])
    parser.add_argument("--region", required=True)
    parser.add_argument("--base", required=True, help="repository:tag or repository@sha256:... in this registry")
    parser.add_argument("--repository", required=True, help="the image's own, in this registry")
    parser.add_argument("--root", required=True, type=Path, help="folder that becomes the layer")
    parser.add_argument("--tag", required=True)
    parser.add_argument("--env", action="append", default=[], help="NAME=VALUE of the image")
    options = parser.parse_args(arguments)
    environment = dict(item.split("=", 1) for item in options.env)
    repository, reference = re.split("[:@]", options.base, maxsplit=1)
    image, digest = Registry(Account(options.region)).push_image(
        (repository, reference), layer_of(options.root), environment, options.tag, options.repository
    )
    print(json.dumps({"digest": image.digest, "bytes": packed_bytes(image.manifest), "pushed": digest}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
