"""Bake: node image, trainer image and steward image by Ansible on builder instances, unless the same inputs were baked
before. It precedes the campaign's stack: no control plane or file system bills meanwhile."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib.metadata import Distribution, distribution
from pathlib import Path
from typing import Any, NamedTuple

from infra.aws.base_image import find_base, find_steward_base, refuse_large
from infra.aws.job_image import find_job_image
from infra.aws.manifests import RegistryImage
from infra.aws.registry import NoSuchImage, Registry
from infra.bake import node_image
from infra.bake.builder import builder, clear_leftovers
from infra.bake.foundation import foundation
from infra.bake.playbook import play
from infra.bake.sources import NO_CODE, digest_of, sources
from infra.cluster import pull_secret
from infra.errors import PermanentError, UserError
from infra.folders import CODE, asset
from infra.inventory import certify
from infra.record.payloads.outputs import BakedNodes, BakeOutput
from infra.session.context import Context, run_both
from infra.spec.image_reference import repository_url
from infra.spec.names import REPOSITORY, STEWARD_REPOSITORY
from infra.stack.outputs import FoundationOutputs
from trainer.contract.frozen import Frozen

_TOP = "boto3"
_NAME = re.compile(r"[A-Za-z0-9._-]+")


def pack_tools(work: Path) -> Path:
    """Pack boto3 and what it depends on into one zip file below `work`, uncompressed: the data in it is already.

    A builder pushes images with it. Its system has another boto3, or none, and a private subnet may have no way to a
    package index. All of it is Python, so it runs on any machine.
    """
    path = work / "tools.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for package in requirements_of(_TOP):
            for file in package.files or ():
                # Descriptions of AWS's services are nine tenths of boto3; a builder calls the registry only.
                of_service = file.parts[:2] in (("botocore", "data"), ("boto3", "data")) and len(file.parts) > 3
                if file.suffix == ".pyc" or ".." in file.parts or (of_service and file.parts[2] != "ecr"):
                    continue
                if file.suffix == ".so":
                    raise UserError(
                        "a tool of the builder is not plain Python",
                        seen=f"{package.name} {package.version}: {file}",
                        cure="install the versions of requirements/all.txt",
                    )
                archive.write(str(file.locate()), file.as_posix())
    return path


def requirements_of(name: str) -> list[Distribution]:
    """Return a package and all that it requires, without its extras."""
    packages, names = dict[str, Distribution](), [name]
    while names:
        package = distribution(names.pop())
        if package.name in packages:
            continue
        packages[package.name] = package
        for line in package.requires or ():
            match = _NAME.match(line)
            if match is not None and "extra ==" not in line:
                names.append(match[0])
    return list(packages.values())


BUILDER_IMAGE = "/aws/service/ami-amazon-linux-latest/al2023-ami-kernel-default-x86_64"
WHEEL = ("infra", "trainer", "pyproject.toml")
PLAYED = (
    "images/versions.yaml",
    "playbooks/bake.yml",
    "playbooks/library/machine.py",
    "playbooks/plugins",
    "playbooks/roles/trainer_image",
)


class Bases(NamedTuple):
    """What our two container images stand on."""

    trainer: RegistryImage
    steward: RegistryImage


class Packed(NamedTuple):
    """What a builder gets for both images."""

    work: Path
    """Folder that holds it, and takes the play's files."""
    wheel: Path
    tools: Path


Package = Callable[[], Packed]


class StewardImage(Frozen):
    """What the system node runs: the same layer on a base without torch and CUDA."""

    image: str
    """Reference by digest."""
    base: str
    base_digest: str
    bytes: int
    """Size in the registry, which a node pulls."""


class ImageManifest(Frozen):
    """Content and inputs of a trainer image; launch refuses an image without this manifest."""

    image: str
    """Reference by digest."""
    inputs_digest: str
    base: str
    base_digest: str
    base_packages: dict[str, str]
    """Empty if the builder is another system than the base: then the base's digest stands for its content, and the
    health check for what is loaded."""
    layer_packages: dict[str, str]
    steward: StewardImage | None = None
    """None: baked before there was one; the steward ran in the trainer image."""


def run(context: Context) -> BakeOutput:
    """Run the bake stage; the campaign keeps the node image that it began with. Idempotent."""
    context.progress.step("recording the account's resources before anything is made")
    certify.note_baseline(context)
    outputs = images(context, own_image=node_image.campaign_image(context.store))
    context.guard()
    assert outputs.node_image is not None, "a bake has one"
    context.store.put_json(node_image.RECORD, outputs.node_image.data())
    return outputs


def images(context: Context, own_image: node_image.NodeImage | None = None, force: bool = False) -> BakeOutput:
    """Make the foundation and all images, beside each other, and find a workload's own; `own_image` is used as long as
    it exists. Raises `UserError` before anything is made if a registry lacks a base or the workload's image."""
    bases = Bases(find_base(context.account, context.spec), find_steward_base(context.account, context.spec))
    job = _job_image(context)
    with packing(context, bases, force) as package:
        place = foundation(context)
        clear_leftovers(context)
        (nodes, nodes_s), trainer = run_both(
            context,
            lambda work: node_image.ensure(work, place, own_image, force),
            lambda work: our_images(work, place, bases, package, force),
        )
    fresh = nodes_s is not None
    return trainer.model_copy(
        update={
            "baked": trainer.baked or fresh,
            "builder_s": round((trainer.builder_s or 0.0) + (nodes_s or 0.0), 3),
            "job_image": job,
            "node_image": BakedNodes(ami=nodes.ami, manifest=nodes.key, baked=fresh, ours=bool(nodes.inputs_digest)),
            "foundation": place.model_dump(),
        }
    )


def _job_image(context: Context) -> str | None:
    """Return the workload's own image by digest, None if the trainer image is the job's."""
    if context.spec.runtime.image is None:
        return None
    login = pull_secret.login(context.account, context.spec)
    image = find_job_image(context.account, context.spec.runtime.image, login)
    context.progress.note(f"the job's image: {image}")
    return image


@contextmanager
def packing(context: Context, bases: Bases, force: bool = False) -> Iterator[Package]:
    """Yield what packs wheel and tools, each once. For images that were never baked it begins at once, beside AWS's
    works on the foundation."""
    inputs = _inputs(bases)
    is_new = force or context.store.get(manifest_key(inputs)) is None
    with tempfile.TemporaryDirectory() as work, ThreadPoolExecutor(1) as pool:
        ahead = pool.submit(_pack, Path(work)) if is_new else None

        def package() -> Packed:
            if ahead is not None and _inputs(bases) == inputs:
                return ahead.result()
            return _pack(Path(tempfile.mkdtemp(dir=work)))  # the sources have changed meanwhile, and name the images

        yield package


def _pack(work: Path) -> Packed:
    return Packed(work, build_wheel(CODE, work), pack_tools(work))


def our_images(
    context: Context, place: FoundationOutputs, bases: Bases, package: Package, force: bool = False
) -> BakeOutput:
    """Bake a layer with the project on both bases, and push both images to the registry."""
    registry = Registry(context.account)
    inputs = _inputs(bases)
    key = manifest_key(inputs)
    body = context.store.get(key)
    manifest_known = None if body is None else ImageManifest.model_validate_json(body)
    if manifest_known is not None and not force and _still_there(registry, manifest_known):
        context.progress.note(f"trainer image of the same inputs exists, {inputs[:12]}: nothing to bake")
        return _outputs_of(key, manifest_known, is_baked=False)
    context.progress.step("wheel")
    package_files = package()
    variables = {
        "trainer_image_wheel": str(package_files.wheel),
        "trainer_image_tools": str(package_files.tools),
        "trainer_image_layers": layers(bases),
        "trainer_image_tag": inputs,
        "trainer_image_region": context.spec.region,
    }
    machine = context.account.client("ssm").get_parameter(Name=BUILDER_IMAGE)["Parameter"]["Value"]
    _, schedule = context.names.builder_schedules
    with builder(context, place, machine, schedule) as machine_builder:
        facts = play(context, machine_builder, "trainer_image", variables, package_files.work)
    digests = facts["pushed"]
    manifest = ImageManifest(
        image=_reference(context, REPOSITORY, digests),
        inputs_digest=inputs,
        base=context.spec.image.base,
        base_digest=bases.trainer.digest,
        base_packages={item["name"]: item["version"] for item in facts["base_packages"]},
        layer_packages={item["name"]: item["version"] for item in facts["layer_packages"]},
        steward=StewardImage(
            image=_reference(context, STEWARD_REPOSITORY, digests),
            base=context.spec.image.steward_base,
            base_digest=bases.steward.digest,
            bytes=digests[STEWARD_REPOSITORY]["bytes"],
        ),
    )
    refuse_large(_of_steward(manifest), digests[STEWARD_REPOSITORY]["bytes"])
    context.guard()
    context.store.put(key, manifest.model_dump_json(indent=1).encode())
    context.progress.note(f"trainer image {manifest.image}")
    size = digests[STEWARD_REPOSITORY]["bytes"] / 10**6
    context.progress.note(f"steward image {_of_steward(manifest)}, {size:.0f} MB packed")
    return _outputs_of(key, manifest, is_baked=True).model_copy(update={"builder_s": machine_builder.stood_s})


def layers(bases: Bases) -> list[dict[str, Any]]:
    """Return what the play makes: per image its repository, its base by digest (a tag may move meanwhile), the base's
    Python, and the packages beyond the base."""
    extra = node_image.versions(CODE)["trainer_image"]["packages"]
    return [
        {"repository": repository, "base": base.reference, "python": base.python, "packages": packages}
        for repository, base, packages in ((REPOSITORY, bases.trainer, extra), (STEWARD_REPOSITORY, bases.steward, []))
    ]


def _reference(context: Context, repository: str, digests: dict[str, Any]) -> str:
    url = repository_url(context.spec.account, context.spec.region, repository)
    return f"{url}@{digests[repository]['digest']}"


def _outputs_of(key: str, manifest: ImageManifest, *, is_baked: bool) -> BakeOutput:
    """Return the part of the bake's outputs about these images."""
    steward, code = _of_steward(manifest), manifest.inputs_digest
    return BakeOutput(manifest=key, image=manifest.image, steward_image=steward, code=code, baked=is_baked)


def _of_steward(manifest: ImageManifest) -> str:
    return manifest.image if manifest.steward is None else manifest.steward.image


def manifest_key(inputs: str) -> str:
    return f"images/{inputs}.json"


def _inputs(bases: Bases) -> str:
    return inputs_digest(CODE, bases.trainer.digest, bases.steward.digest)


def inputs_digest(root: Path, *base_digests: str) -> str:
    """Return the digest of the inputs of trainer image and steward image: the wheel's sources, versions, playbook,
    bases. Raises `UserError` where neither a clone nor a wheel is."""
    if not asset("pyproject.toml", root).exists():
        raise UserError(
            "the bake needs the project's sources",
            seen=root,
            cure="run bivouac from a clone, installed with `pip install -e .`, or from its wheel",
        )
    return digest_of(sources(root, (*WHEEL, *PLAYED), NO_CODE), *base_digests)


def build_wheel(root: Path, work: Path) -> Path:
    """Build the wheel of the images from a copy of what the digest covers, so that nothing else gets in."""
    source, folder = work / "source", work / "wheel"
    for name, path in sources(root, WHEEL, NO_CODE).items():
        copy = source / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy)
    options = ["--quiet", "--no-deps", "--no-build-isolation", f"--wheel-dir={folder}"]
    command = [sys.executable, "-P", "-m", "pip", "wheel", *options, str(source)]
    process = subprocess.run(command, capture_output=True, text=True)
    if process.returncode != 0:
        raise PermanentError("the wheel could not be built", seen=process.stderr[-500:], cure="mend pyproject.toml")
    return next(folder.glob("*.whl"))


def _still_there(registry: Registry, manifest: ImageManifest) -> bool:
    images = {REPOSITORY: manifest.image, STEWARD_REPOSITORY: _of_steward(manifest)}
    try:
        for repository, image in images.items():
            registry.image(repository, image.rpartition("@")[2])
    except NoSuchImage:
        return False
    return True
