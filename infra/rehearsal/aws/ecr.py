"""ECR with contents: layers by digest, and manifests that must name stored layers.

As on AWS, a layer is downloaded by a presigned URL of a bucket in the service's own account.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import platform
import re
import sys
import tarfile
from collections import defaultdict
from collections.abc import Iterator
from datetime import timedelta
from functools import cache, cached_property
from importlib.metadata import distribution
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import boto3
from botocore.config import Config
from moto.ecr.models import ECRBackend, Image, Repository
from moto.ecr.responses import ECRResponse
from packaging.markers import Marker

from infra.folders import asset
from infra.rehearsal.aws.operations import AwsError, Parameters, add_backend
from infra.rehearsal.aws.world import World
from infra.spec.sections import SLIM_BASE

HOST_LAYER = "application/vnd.bivouac.host.layer.v1"
"""A layer that every node image already contains, so it is never downloaded."""
HOST_LAYER_CONTENT = b"bivouac: the interpreter and libraries of the host\n"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEXES = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar"
ECR_ACCOUNT = "602401143452"
PART_BYTES = 10 * 1024 * 1024
URL_LIFE = timedelta(hours=1)


REPOSITORY, HOST_TAG = "bivouac/base", "host"
SLIM_TAG = SLIM_BASE.rpartition(":")[2]
LOCK = asset("requirements/steward.txt")
"""Packages of the steward's base."""
PLACE = PurePosixPath("opt/bivouac/venv")
_PIN = re.compile(r"^([\w.-]+)==\S+(?: ; ([^\\]+))?", re.MULTILINE)


def variables(folder: str) -> list[str]:
    """Return the environment of an image whose Python is in `folder`."""
    return [f"PATH={folder}:/usr/local/bin:/usr/bin:/bin", f"PYTHON_VERSION={platform.python_version()}"]


@cache
def slim_layer() -> bytes:
    """Return a tar with a virtual environment of the steward's packages only, as links to this machine's own: a steward
    which imports more fails here as it would on AWS. The trainer's base has all of its packages."""
    interpreter = os.path.realpath(sys.executable)
    archive, packages = io.BytesIO(), PLACE / f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
    with tarfile.open(fileobj=archive, mode="w") as tar:
        settings = f"home = {os.path.dirname(interpreter)}\ninclude-system-site-packages = false\n".encode()
        file = tarfile.TarInfo(str(PLACE / "pyvenv.cfg"))
        file.size = len(settings)
        tar.addfile(file, io.BytesIO(settings))
        for name in ("python", "python3"):
            _link(tar, PLACE / "bin" / name, interpreter)
        for path, target in _links(_files(), 1):
            _link(tar, packages.joinpath(*path), target)
    return archive.getvalue()


def locked_packages() -> list[str]:
    """Return the locked packages that belong on this machine."""
    pins = _PIN.findall(LOCK.read_text())
    return [name for name, marker in pins if not marker or Marker(marker.strip()).evaluate()]


class _File(NamedTuple):
    package: str
    parts: tuple[str, ...]
    """Path below the packages' folder."""
    place: Path


def _files() -> list[_File]:
    return [
        _File(name, file.parts, Path(os.path.abspath(str(file.locate()))))
        for name in locked_packages()
        for file in distribution(name).files or ()
        if file.parts[0] != ".." and "__pycache__" not in file.parts
    ]


def _links(files: list[_File], depth: int) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield (path, target): a link for each topmost folder or file of one package only; two may share a folder."""
    by_path = defaultdict[tuple[str, ...], list[_File]](list)
    for file in files:
        by_path[file.parts[:depth]].append(file)
    for path, paths in sorted(by_path.items()):
        target = paths[0]
        if len(target.parts) == depth:
            yield path, str(target.place)
        elif len({file.package for file in paths}) == 1:
            yield path, str(target.place.parents[len(target.parts) - depth - 1])
        else:
            yield from _links(paths, depth + 1)


def _link(tar: tarfile.TarFile, path: PurePosixPath, target: str) -> None:
    member = tarfile.TarInfo(str(path))
    member.type, member.linkname = tarfile.SYMTYPE, target
    tar.addfile(member)


def digest_of(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


class StoredImage(Image):
    """moto's image with a size that includes the layers."""

    def get_image_size_in_bytes(self) -> int:
        manifest = json.loads(self.image_manifest)
        return sum(blob.get("size", 0) for blob in blobs_of(manifest))


def blobs_of(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    return [*([manifest["config"]] if "config" in manifest else []), *manifest.get("layers", [])]


class EcrRegistry:
    def __init__(self, world: World) -> None:
        from moto.s3.models import s3_backends

        self.world = world
        self.bucket = f"prod-{world.region}-starport-layer-bucket"
        self.storage = s3_backends[ECR_ACCOUNT]["aws"]
        if self.bucket not in s3_backends.bucket_accounts:
            self.storage.create_bucket(self.bucket, world.region)

    @property
    def backend(self) -> ECRBackend:
        return self.world.backend("ecr")

    def repository(self, params: Parameters) -> Repository:
        return self.backend._get_repository(params["repositoryName"], params.get("registryId"))

    def store(self, repository: Repository, content: bytes) -> str:
        digest = digest_of(content)
        self.storage.put_object(self.bucket, digest, content)
        repository.layers[digest] = len(content)
        return digest

    def initiate_layer_upload(self, params: Parameters) -> dict[str, Any]:
        upload_id = self.backend.initiate_layer_upload(params["repositoryName"], params.get("registryId"))
        return upload_id | {"partSize": PART_BYTES}

    def complete_layer_upload(self, params: Parameters) -> dict[str, Any]:
        repository = self.repository(params)
        upload = repository.uploads.get(params["uploadId"])
        if upload is None:
            raise AwsError("UploadNotFoundException", f"no upload {params['uploadId']} in {repository.name}")
        content = bytes(upload.layer_parts)
        digest = digest_of(content)
        if not content:
            raise AwsError("EmptyUploadException", "The specified layer upload does not contain any layer parts")
        if digest not in params["layerDigests"]:
            raise AwsError(
                "InvalidLayerException",
                f"The layer digest {digest} calculated from the upload is none of {params['layerDigests']}",
            )
        if digest in repository.layers:
            raise AwsError("LayerAlreadyExistsException", f"The layer with digest {digest} already exists")
        self.store(repository, content)
        del repository.uploads[params["uploadId"]]
        return {
            "registryId": repository.registry_id,
            "repositoryName": repository.name,
            "uploadId": params["uploadId"],
            "layerDigest": digest,
        }

    def get_download_url_for_layer(self, params: Parameters) -> dict[str, Any]:
        repository, digest = self.repository(params), params["layerDigest"]
        if digest not in repository.layers:
            raise AwsError("LayersNotFoundException", f"The layer {digest} is not in repository {repository.name}")
        location = {"Bucket": self.bucket, "Key": digest}
        url = self._s3.generate_presigned_url("get_object", Params=location, ExpiresIn=int(URL_LIFE.total_seconds()))
        return {"downloadUrl": url, "layerDigest": digest}

    @cached_property
    def _s3(self) -> Any:
        """The emulator's own client, made once: making it takes longer than all requests of a pull."""
        key, secret = self.world.agent_key
        session = boto3.Session(key, secret, region_name=self.world.region)
        config = Config(signature_version="s3v4", s3={"addressing_style": "path"})
        return session.client("s3", endpoint_url=self.world.endpoint_url, config=config)

    def put_image(self, params: Parameters) -> dict[str, Any]:
        repository, text, tag = self.repository(params), params["imageManifest"], params.get("imageTag")
        try:
            manifest = json.loads(text)
        except ValueError:
            raise AwsError("InvalidParameterException", "imageManifest is not JSON") from None
        media_type = params.get("imageManifestMediaType") or manifest.get("mediaType")
        digest = digest_of(text.encode())
        if not media_type:
            raise AwsError("InvalidParameterException", "the manifest has no mediaType and the call gives none")
        if params.get("imageDigest") not in (None, digest):
            raise AwsError("ImageDigestDoesNotMatchException", f"{params['imageDigest']} is not the digest {digest}")
        self._refuse_dangling(repository, media_type, manifest)
        blobs = [blob["digest"] for blob in blobs_of(manifest) if blob.get("mediaType") != HOST_LAYER]
        missing = sorted(set(blobs) - set(repository.layers))
        if missing:
            raise AwsError("LayersNotFoundException", f"Layers not found in repository {repository.name}: {missing}")
        previous = next((image for image in repository.images if image.get_image_digest() == digest), None)
        if previous and (tag is None or tag in previous.image_tags):
            raise AwsError("ImageAlreadyExistsException", f"Image with digest '{digest}' and tag '{tag}' exists")
        self._move_tag(repository, tag)
        if previous is None:
            previous = StoredImage(self.world.account, None, text, repository.name, media_type, digest)  # type: ignore[arg-type]
            repository.images.append(previous)
        if tag:
            previous.update_tag(tag)
        return {"image": self._describe(repository, previous, tag)}

    @staticmethod
    def _refuse_dangling(repository: Repository, media_type: str, manifest: dict[str, Any]) -> None:
        """Refuse an index of images that are not in the repository."""
        if media_type not in INDEXES:
            return
        present = {image.get_image_digest() for image in repository.images}
        if missing := sorted({row["digest"] for row in manifest["manifests"]} - present):
            raise AwsError("ReferencedImagesNotFoundException", f"Images not found in {repository.name}: {missing}")

    def _move_tag(self, repository: Repository, tag: str | None) -> None:
        """Take the tag from its former image, which stays reachable by its digest, as on AWS."""
        for image in repository.images:
            if tag in image.image_tags:
                if repository.is_tag_immutable():
                    raise AwsError("ImageTagAlreadyExistsException", f"the tag '{tag}' is immutable and in use")
                image.remove_tag(tag)  # type: ignore[arg-type]

    def batch_get_image(self, params: Parameters) -> dict[str, Any]:
        repository, media_types = self.repository(params), params.get("acceptedMediaTypes")
        images, failures = [], []
        for key in params["imageIds"]:
            digest, tag = key.get("imageDigest"), key.get("imageTag")
            matches = [
                image
                for image in repository.images
                if digest in (None, image.get_image_digest())
                and (tag is None or tag in image.image_tags)
                # An unaccepted media type is a miss; ECR's own failure code for it is not known.
                and (not media_types or image.image_manifest_media_type in media_types)
            ]
            images += [self._describe(repository, image, tag) for image in matches]
            if not matches:
                reason = "Requested image not found"
                failures.append({"imageId": key, "failureCode": "ImageNotFound", "failureReason": reason})
        return {"images": images, "failures": failures}

    @staticmethod
    def _describe(repository: Repository, image: Image, tag: str | None) -> dict[str, Any]:
        tag = tag or (image.image_tags[-1] if image.image_tags else None)
        return {
            "registryId": repository.registry_id,
            "repositoryName": repository.name,
            "imageId": {"imageDigest": image.get_image_digest()} | ({"imageTag": tag} if tag else {}),
            "imageManifest": image.image_manifest,
            "imageManifestMediaType": image.image_manifest_media_type,
        }

    def push_bases(self) -> None:
        """Push the bases of trainer image and steward image."""
        tags = [{"Key": "bivouac:foundation", "Value": "true"}]
        repository = self.backend.create_repository(REPOSITORY, None, {}, None, "MUTABLE", tags)
        interpreter_folder = str(Path(sys.prefix) / "bin")
        host = {"mediaType": HOST_LAYER, "digest": self.store(repository, HOST_LAYER_CONTENT)}
        self._push_base(repository, HOST_TAG, interpreter_folder, [host | {"size": len(HOST_LAYER_CONTENT)}])
        slim = slim_layer()
        packages = {"mediaType": LAYER, "digest": self.store(repository, slim), "size": len(slim)}
        self._push_base(repository, SLIM_TAG, f"/{PLACE}/bin", [packages])

    def _push_base(self, repository: Repository, tag: str, folder: str, layers: list[dict[str, Any]]) -> None:
        config = {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Env": variables(folder), "Entrypoint": []},
            "rootfs": {"type": "layers", "diff_ids": [layer["digest"] for layer in layers]},
        }
        content = json.dumps(config).encode()
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": {"mediaType": CONFIG, "digest": self.store(repository, content), "size": len(content)},
            "layers": layers,
        }
        self.put_image({"repositoryName": repository.name, "imageManifest": json.dumps(manifest), "imageTag": tag})


def install(world: World) -> None:
    """Give moto's ECR contents, and push the base images."""
    registry = EcrRegistry(world)
    add_backend(world, ECRResponse, registry)
    registry.push_bases()
