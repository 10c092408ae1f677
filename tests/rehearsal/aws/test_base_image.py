"""A base image in the emulated registry, of every kind that docker pushes, and the bake's layer on top of it."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from types import SimpleNamespace
from typing import Any

import pytest

from infra.aws.account import Account
from infra.aws.asked import ask_aws
from infra.aws.base_image import find_base, find_steward_base
from infra.aws.manifests import DOCKER, INDEXES, OCI, Family
from infra.aws.registry import Registry, layer_of
from infra.bake import bake
from infra.errors import TemporaryError, UserError
from infra.plan.survey import survey
from infra.spec.names import REPOSITORY
from tests.example import example_spec

MIB = 1024 * 1024
REPO = "bivouac/base-of-docker"
PATH = "/opt/bivouac/venv/bin:/usr/bin"


@pytest.fixture(scope="module")
def registry(here: Account) -> Registry:
    made = Registry(here)
    for name in (REPOSITORY, REPO):
        made.ecr.create_repository(repositoryName=name)
    return made


def tar_of(content: bytes) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        entry = tarfile.TarInfo("base/file")
        entry.size = len(content)
        tar.addfile(entry, io.BytesIO(content))
    return out.getvalue()


def put(registry: Registry, media_type: str, document: dict[str, Any], tag: str | None = None) -> str:
    text = json.dumps({"schemaVersion": 2, "mediaType": media_type, **document})
    given = {"imageTag": tag} if tag else {}
    answer = registry.ecr.put_image(repositoryName=REPO, imageManifest=text, imageManifestMediaType=media_type, **given)
    return str(answer["image"]["imageId"]["imageDigest"])


def pushed(
    registry: Registry,
    family: Family,
    tag: str | None,
    architecture: str = "amd64",
    content: bytes = b"base",
    python: str = "3.12.3",
) -> str:
    """As docker pushes one platform: a packed layer, a configuration with its history, the manifest."""
    plain = tar_of(content)
    packed = gzip.compress(plain, compresslevel=0, mtime=0)
    config = {
        "architecture": architecture,
        "os": "linux",
        "config": {"Env": [f"PATH={PATH}", *([f"PYTHON_VERSION={python}"] if python else [])]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(plain).hexdigest()}"]},
        "history": [{"created_by": "RUN"}],
    }
    body = json.dumps(config).encode()
    packed_type = "application/vnd.oci.image.layer.v1.tar+gzip" if family is OCI else DOCKER.layer
    document = {
        "config": {"mediaType": family.config, "digest": registry.push_blob(REPO, body), "size": len(body)},
        "layers": [{"mediaType": packed_type, "digest": registry.push_blob(REPO, packed), "size": len(packed)}],
    }
    return put(registry, family.manifest, document, tag)


def indexed(registry: Registry, family: Family, index: str, tag: str, platforms: tuple[str, ...]) -> dict[str, str]:
    """As buildx pushes several platforms, with an attestation beside them."""
    digests = {
        platform: pushed(registry, family, None, platform, f"{tag} {platform}".encode()) for platform in platforms
    }
    attestation = pushed(registry, family, None, "unknown", tag.encode())
    rows = [
        {"mediaType": family.manifest, "digest": digest, "size": 1, "platform": {"os": "linux", "architecture": one}}
        for one, digest in digests.items()
    ]
    rows.insert(0, {"mediaType": family.manifest, "digest": attestation, "size": 1,
                    "platform": {"os": "unknown", "architecture": "unknown"}})  # fmt: skip
    put(registry, index, {"manifests": rows}, tag)
    return digests


@pytest.fixture(scope="module")
def layer(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    root = tmp_path_factory.mktemp("layer")
    (root / "opt").mkdir()
    (root / "opt/code.py").write_text("print('code')\n")
    return layer_of(root)


def baked(here: Account, registry: Registry, tag: str, layer: bytes) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """(media type, manifest, configuration) of the image that the bake makes of the base with this tag."""
    base = find_base(here, example_spec(image={"base": f"{REPO}:{tag}"}))
    assert base.python == "3.12"
    given = {"PYTHONPATH": "/opt/bivouac/lib"}
    image, new = registry.push_image((REPO, base.digest), layer, given, f"made-{tag}", REPOSITORY)
    assert new
    digest = image.digest
    answer = registry.ecr.batch_get_image(repositoryName=REPOSITORY, imageIds=[{"imageDigest": digest}])["images"][0]
    manifest = json.loads(answer["imageManifest"])
    return (
        answer["imageManifestMediaType"],
        manifest,
        json.loads(registry.blob(REPOSITORY, manifest["config"]["digest"])),
    )


@pytest.mark.parametrize(
    ("family", "index"),
    [(OCI, None), (DOCKER, None), (OCI, INDEXES[0]), (DOCKER, INDEXES[1])],
    ids=["oci", "docker", "oci-index", "docker-list"],
)
def test_a_layer_goes_onto_a_base_of_each_kind_in_the_base_s_own_media_types(
    here: Account, registry: Registry, layer: bytes, family: Family, index: str | None
) -> None:
    tag = f"{'of' if index else 'alone'}-{'oci' if family is OCI else 'docker'}"
    if index is None:
        under = pushed(registry, family, tag)
    else:
        under = indexed(registry, family, index, tag, ("arm64", "amd64"))["amd64"]
    media_type, manifest, config = baked(here, registry, tag, layer)

    assert (media_type, manifest["mediaType"]) == (family.manifest, family.manifest)
    assert manifest["config"]["mediaType"] == family.config
    ours = manifest["layers"][-1]
    assert ours["mediaType"] == family.layer
    base = registry.image(REPO, under)
    assert manifest["layers"][:-1] == base.manifest["layers"], "the base's layers stay as they are"

    stored = registry.blob(REPOSITORY, ours["digest"])
    plain = gzip.decompress(stored) if family is DOCKER else stored
    assert plain == layer and ours["size"] == len(stored)
    assert config["rootfs"]["diff_ids"][-1] == f"sha256:{hashlib.sha256(layer).hexdigest()}", "of the plain tar"
    assert len(config["rootfs"]["diff_ids"]) == len(config["history"]) == 2
    assert config["config"]["Env"] == [
        f"PATH={PATH}", "PYTHON_VERSION=3.12.3", "PYTHONPATH=/opt/bivouac/lib"
    ]  # fmt: skip
    for descriptor in manifest["layers"]:
        assert registry.blob(REPOSITORY, descriptor["digest"]), "the trainer's repository holds every layer"


def test_a_base_for_other_machines_is_refused_whether_it_comes_alone_or_in_an_index(
    here: Account, registry: Registry
) -> None:
    pushed(registry, DOCKER, "arm", "arm64", b"arm")
    indexed(registry, OCI, INDEXES[0], "arms", ("arm64",))
    for tag, told in (("arm", "linux/arm64"), ("arms", "linux/arm64")):
        with pytest.raises(UserError, match=told) as refused:
            find_base(here, example_spec(image={"base": f"{REPO}:{tag}"}))
        assert "--platform linux/amd64" in str(refused.value.cure)


@pytest.mark.parametrize(
    ("base", "what", "first"),
    [
        ("bivouac/nowhere:cuda", "repository is missing", "aws ecr create-repository --region us-east-1"),
        (f"{REPO}:cuda", "lacks the base image", "aws ecr get-login-password"),
        (f"{REPO}@sha256:{'0' * 64}", "lacks the base image", "aws ecr get-login-password"),
    ],
)
def test_a_base_that_nobody_pushed_is_refused_with_the_commands_that_make_it(
    here: Account, registry: Registry, base: str, what: str, first: str
) -> None:
    with pytest.raises(UserError, match=what) as refused:
        find_base(here, example_spec(image={"base": base}))
    cure = str(refused.value.cure).splitlines()
    assert refused.value.seen == base and cure[1].strip().startswith(first)
    assert any("docker build -f images/trainer.Dockerfile --target base" in line for line in cure)
    assert any("docker push 123456789012.dkr.ecr.us-east-1.amazonaws.com/bivouac/" in line for line in cure)


def test_a_bake_without_its_base_ends_before_anything_of_it_begins(here: Account, registry: Registry) -> None:
    # No engine, no store, no lease: whatever a bake makes, it would need one of them first.
    context: Any = SimpleNamespace(account=here, spec=example_spec(image={"base": "bivouac/nowhere:cuda"}))
    with pytest.raises(UserError, match="repository is missing"):
        bake.images(context)


def test_a_layer_store_that_cannot_be_reached_is_no_traceback_and_no_verdict(
    here: Account, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    pushed(registry, OCI, "far", content=b"far")
    lost = {"downloadUrl": "http://127.0.0.1:9/layer"}
    monkeypatch.setattr(here.client("ecr"), "get_download_url_for_layer", lambda **_: lost)
    spec, said = example_spec(image={"base": f"{REPO}:far"}), list[str]()
    with pytest.raises(TemporaryError, match="cannot be fetched"):
        find_base(here, spec)
    assert ask_aws(here, spec, survey(spec), said.append).base is None
    assert any("cannot be fetched" in line for line in said)


def test_a_reference_into_another_registry_is_refused_and_the_own_registry_may_be_named(
    here: Account,
    registry: Registry,
) -> None:
    pushed(registry, OCI, "named")
    own = f"123456789012.dkr.ecr.us-east-1.amazonaws.com/{REPO}:named"
    assert find_base(here, example_spec(image={"base": own})).repository == REPO
    for foreign in ("docker.io/library/ubuntu:24.04", own.replace("123456789012", "210987654321"), REPO):
        with pytest.raises(UserError, match="own registry"):
            find_base(here, example_spec(image={"base": foreign}))


def test_a_base_that_does_not_tell_its_python_is_refused(here: Account, registry: Registry) -> None:
    for tag, python in (("mute", ""), ("odd", "three")):
        pushed(registry, OCI, tag, content=tag.encode(), python=python)
        with pytest.raises(UserError, match=r"does not tell its Python; seen: \S+: PYTHON_VERSION"):
            find_base(here, example_spec(image={"base": f"{REPO}:{tag}"}))
    pushed(registry, OCI, "old", content=b"old", python="3.10.12")
    with pytest.raises(UserError, match=r"older than 3\.11; seen: \S+old: 3\.10\.12"):
        find_base(here, example_spec(image={"base": f"{REPO}:old"}))


def test_a_stewards_base_is_as_small_as_it_must_be_and_one_byte_more_is_refused(
    here: Account, registry: Registry
) -> None:
    """A manifest says its layers' sizes: ECR believes it, and so does who pulls."""

    def told(size: int, tag: str) -> Any:
        digest = pushed(registry, OCI, None, content=tag.encode())
        manifest = registry.image(REPO, digest).manifest
        rest = manifest["config"]["size"]
        grown = [manifest["layers"][0] | {"size": size - rest}]
        put(registry, OCI.manifest, {"config": manifest["config"], "layers": grown}, tag)
        return example_spec(image={"base": f"{REPO}:{tag}", "steward_base": f"{REPO}:{tag}"})

    assert find_steward_base(here, told(400_000_000, "small")).python == "3.12"
    large = told(400_000_001, "large-steward")
    assert find_base(here, large), "the trainer's may be of any size"
    with pytest.raises(UserError, match=r"too large; seen: .*large-steward: 400 MB packed, at most 400"):
        find_steward_base(here, large)
    facts = ask_aws(here, large, survey(large), lambda _: None)
    assert facts.base is None and facts.steward_base is not None and "too large" in facts.steward_base.what


def test_a_stewards_base_that_nobody_pushed_is_refused_with_its_own_target(here: Account, registry: Registry) -> None:
    with pytest.raises(UserError, match="lacks the base image") as refused:
        find_steward_base(here, example_spec(image={"base": f"{REPO}:x", "steward_base": f"{REPO}:nowhere"}))
    assert "--target slim" in str(refused.value.cure) and "build_args.py --target slim" in str(refused.value.cure)


@pytest.mark.nightly
def test_layers_are_moved_part_by_part_and_not_a_second_time(
    here: Account, registry: Registry, layer: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = 24 * MIB
    pushed(registry, OCI, "large", content=bytes(size))
    uploads: list[int] = []
    whole = registry.ecr.upload_layer_part
    monkeypatch.setattr(registry.ecr, "upload_layer_part", lambda **given: (
        uploads.append(len(given["layerPartBlob"])), whole(**given))[1])  # fmt: skip
    registry.push_image((REPO, "large"), layer, {}, "large-1", REPOSITORY)
    assert sum(uploads) > size and max(uploads) <= 10 * MIB
    uploads.clear()
    registry.push_image((REPO, "large"), layer, {"OTHER": "yes"}, "large-2", REPOSITORY)
    assert sum(uploads) < MIB, "the base's layers and ours lie there already: only a configuration is new"
