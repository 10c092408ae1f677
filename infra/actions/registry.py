"""An OCI image in ECR: one layer of ours on a base that the nodes already hold. No container daemon is needed.

Run on the builder instance, with its role: `python -m infra.actions.registry push ...`.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import sys
import tarfile
from pathlib import Path
from typing import Any

from infra.account import Account
from infra.errors import PermanentError
from infra.names import REPOSITORY

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar"
_PART = 10 * 1024 * 1024
"""ECR wants parts of 5 to 10 MiB, the last one excepted."""


def digest_of(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def layer_of(root: Path) -> bytes:
    """A tar of a folder whose bytes depend on names and contents only: no times, no owners, sorted."""
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
    """Pull manifests, push blobs and images, by digest."""

    def __init__(self, account: Account) -> None:
        self.ecr = account.client("ecr")

    def manifest(self, repository: str, reference: str) -> tuple[dict[str, Any], str]:
        """(manifest, digest) of `tag` or `sha256:...`. Raises `PermanentError` when there is no such image."""
        key = "imageDigest" if reference.startswith("sha256:") else "imageTag"
        answer = self.ecr.batch_get_image(
            repositoryName=repository, imageIds=[{key: reference}], acceptedMediaTypes=[MANIFEST]
        )
        if not answer["images"]:
            raise PermanentError(
                "the registry has no such image", seen=f"{repository}:{reference}", cure="push it, or mend `image.base`"
            )
        image = answer["images"][0]
        return json.loads(image["imageManifest"]), image["imageId"]["imageDigest"]

    def blob(self, repository: str, digest: str) -> bytes:
        import urllib.request

        url = self.ecr.get_download_url_for_layer(repositoryName=repository, layerDigest=digest)["downloadUrl"]
        with urllib.request.urlopen(url, timeout=60) as answer:
            content: bytes = answer.read()
        if digest_of(content) != digest:
            raise PermanentError(
                "a blob does not have its digest", seen=digest_of(content), cure=f"push {digest} again"
            )
        return content

    def push_blob(self, repository: str, content: bytes) -> str:
        digest = digest_of(content)
        known = self.ecr.batch_check_layer_availability(repositoryName=repository, layerDigests=[digest])
        if any(layer.get("layerAvailability") == "AVAILABLE" for layer in known["layers"]):
            return digest
        upload = self.ecr.initiate_layer_upload(repositoryName=repository)["uploadId"]
        for first in range(0, len(content), _PART):
            part = content[first : first + _PART]
            self.ecr.upload_layer_part(
                repositoryName=repository,
                uploadId=upload,
                partFirstByte=first,
                partLastByte=first + len(part) - 1,
                layerPartBlob=part,
            )
        self.ecr.complete_layer_upload(repositoryName=repository, uploadId=upload, layerDigests=[digest])
        return digest

    def images(self, repository: str) -> list[dict[str, Any]]:
        """All of a repository, as ECR describes them; none where there is no such repository."""
        pages = self.ecr.get_paginator("describe_images").paginate(repositoryName=repository)
        try:
            return [image for page in pages for image in page["imageDetails"]]
        except self.ecr.exceptions.RepositoryNotFoundException:
            return []

    def delete_image(self, repository: str, digest: str) -> None:
        """With all of its tags, and layers that no other image has. Raises `PermanentError` when ECR will not."""
        answer = self.ecr.batch_delete_image(repositoryName=repository, imageIds=[{"imageDigest": digest}])
        if refused := [one for one in answer.get("failures", ()) if one.get("failureCode") != "ImageNotFound"]:
            raise PermanentError(
                "the registry did not delete an image",
                seen=f"{digest}: {refused[0].get('failureCode')}: {refused[0].get('failureReason')}",
                cure="an index that holds it must go first: see the repository in ECR's console",
            )

    def push_image(
        self, base: tuple[str, str], layer: bytes, environment: dict[str, str], tag: str
    ) -> tuple[str, bool]:
        """One layer on top of `base` (repository, reference); returns the image's digest, and whether it is new.

        The tag is immutable in the registry, so pushing the same inputs twice is done once.
        """
        base_manifest, _ = self.manifest(*base)
        base_config = json.loads(self.blob(base[0], base_manifest["config"]["digest"]))
        for descriptor in base_manifest["layers"]:
            if base[0] != REPOSITORY:
                self.push_blob(REPOSITORY, self.blob(base[0], descriptor["digest"]))
        layer_digest = self.push_blob(REPOSITORY, layer)
        config = _with_layer(base_config, layer_digest, environment)
        body = json.dumps(config, sort_keys=True).encode()
        top = {"mediaType": LAYER, "digest": layer_digest, "size": len(layer)}
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": {"mediaType": CONFIG, "digest": self.push_blob(REPOSITORY, body), "size": len(body)},
            "layers": [*base_manifest["layers"], top],
        }
        text = json.dumps(manifest, sort_keys=True)
        try:
            self.ecr.put_image(
                repositoryName=REPOSITORY, imageManifest=text, imageManifestMediaType=MANIFEST, imageTag=tag
            )
        except (self.ecr.exceptions.ImageAlreadyExistsException, self.ecr.exceptions.ImageTagAlreadyExistsException):
            return self.manifest(REPOSITORY, tag)[1], False
        return digest_of(text.encode()), True


def _with_layer(base: dict[str, Any], layer: str, environment: dict[str, str]) -> dict[str, Any]:
    inner = dict(base.get("config", {}))
    kept = [item for item in inner.get("Env", []) if item.partition("=")[0] not in environment]
    inner["Env"] = [*kept, *(f"{name}={value}" for name, value in sorted(environment.items()))]
    rootfs = base.get("rootfs", {"type": "layers", "diff_ids": []})
    return {**base, "config": inner, "rootfs": {**rootfs, "diff_ids": [*rootfs["diff_ids"], layer]}}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="push one layer on a base image")
    parser.add_argument("verb", choices=["push"])
    parser.add_argument("--region", required=True)
    parser.add_argument("--base", required=True, help="repository:tag or repository@sha256:... in this registry")
    parser.add_argument("--root", required=True, type=Path, help="folder that becomes the layer")
    parser.add_argument("--tag", required=True)
    parser.add_argument("--env", action="append", default=[], help="NAME=VALUE of the image")
    options = parser.parse_args(arguments)
    environment = dict(item.split("=", 1) for item in options.env)
    image, pushed = Registry(Account(options.region)).push_image(
        split_reference(options.base), layer_of(options.root), environment, options.tag
    )
    print(json.dumps({"digest": image, "pushed": pushed}))
    return 0


def split_reference(reference: str) -> tuple[str, str]:
    """(repository, tag or digest) of a reference within this registry."""
    if "@" in reference:
        repository, _, digest = reference.partition("@")
        return repository, digest
    repository, _, tag = reference.rpartition(":")
    return repository, tag


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
