"""Bake at an existing cluster: nothing is made. The spec names the images by digest, and the record says so."""

from __future__ import annotations

from infra.bake.bake import ImageManifest, StewardImage, manifest_key
from infra.record.payloads.outputs import BakeOutput
from infra.session.context import Context


def run(context: Context) -> BakeOutput:
    """Return the spec's images, and keep their manifest, without which nothing is launched. Idempotent."""
    image = context.spec.image
    code = digest_of(image.base)
    steward = StewardImage(
        image=image.steward_base, base=image.steward_base, base_digest=digest_of(image.steward_base), bytes=0
    )
    manifest = ImageManifest(
        image=image.base,
        inputs_digest=code,
        base=image.base,
        base_digest=code,
        base_packages={},
        layer_packages={},
        steward=steward,
    )
    key = f"{context.spec.bucket_root}{manifest_key(code)}"
    context.guard()
    context.store.put(key, manifest.model_dump_json(indent=1).encode())
    context.progress.note(f"images by digest, nothing baked: {image.base}")
    return BakeOutput(
        manifest=key,
        image=image.base,
        steward_image=image.steward_base,
        job_image=context.spec.runtime.image,
        code=code,
        baked=False,
    )


def digest_of(image: str) -> str:
    """Return the SHA-256 of an image by digest, in hex."""
    return image.rpartition("@sha256:")[2]
