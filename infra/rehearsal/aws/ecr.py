"""ECR with contents: layers by digest, and manifests that must name stored layers.

As on AWS, a layer is downloaded by a presigned URL of a bucket in the service's own account.
"""

from __future__ import annotations

import hashlib
import json
import sys
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config
from moto.ecr.models import ECRBackend, Image, Repository
from moto.ecr.responses import ECRResponse

from infra.rehearsal.aws import base_images
from infra.rehearsal.aws.operations import AwsError, Parameters, add_backend
from infra.rehearsal.aws.world import World

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
        repository = self.backend.create_repository(base_images.REPOSITORY, None, {}, None, "MUTABLE", tags)
        interpreter_folder = str(Path(sys.prefix) / "bin")
        host = {"mediaType": HOST_LAYER, "digest": self.store(repository, HOST_LAYER_CONTENT)}
        self._push_base(
            repository, base_images.HOST_TAG, interpreter_folder, [host | {"size": len(HOST_LAYER_CONTENT)}]
        )
        slim = base_images.slim_layer()
        packages = {"mediaType": LAYER, "digest": self.store(repository, slim), "size": len(slim)}
        self._push_base(repository, base_images.SLIM_TAG, f"/{base_images.PLACE}/bin", [packages])

    def _push_base(self, repository: Repository, tag: str, folder: str, layers: list[dict[str, Any]]) -> None:
        config = {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Env": base_images.variables(folder), "Entrypoint": []},
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
