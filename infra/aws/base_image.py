"""The bases of our images: a person builds and pushes them once, before any bake."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

from infra.aws.account import Account
from infra.aws.manifests import PLATFORM, RegistryImage, packed_bytes
from infra.aws.registry import NoSuchImage, Registry
from infra.errors import UserError
from infra.spec.campaign import Spec
from infra.spec.image_reference import in_registry, registry_host

STEWARD_MOST_BYTES = 400 * 10**6
"""Limit of the steward's image as the registry holds it, which is what a node pulls."""
PYTHON_VARIABLE = "PYTHON_VERSION"
"""Environment of an image that tells its Python, as in Docker's official images and in ours."""
OLDEST_PYTHON = (3, 11)
"""As `requires-python` of pyproject.toml."""
_VERSION = re.compile(r"(\d+\.\d+)(\.\d+\S*)?")


def find_base(account: Account, spec: Spec) -> RegistryImage:
    """Return the trainer image's base as the registry has it now; read-only.

    Raises `UserError`, with the commands that build it, if it is missing, for another platform, or without a word on
    its Python.
    """
    return _find(account, spec, spec.image.base, "base")


def find_steward_base(account: Account, spec: Spec) -> RegistryImage:
    """The same for the steward image's base. Raises `UserError` also if it is too large."""
    base = _find(account, spec, spec.image.steward_base, "slim")
    refuse_large(spec.image.steward_base, packed_bytes(base.manifest))
    return base


def refuse_large(image: str, size: int) -> None:
    """Raise `UserError` for a steward image beyond the limit: the system node would pull it for minutes."""
    if size > STEWARD_MOST_BYTES:
        raise UserError(
            "the steward's image is too large",
            seen=f"{image}: {size / 10**6:.0f} MB packed, at most {STEWARD_MOST_BYTES / 10**6:.0f}",
            cure="build it as target `slim` of images/trainer.Dockerfile; what only training needs belongs into "
            "`image.base`",
        )


def _find(account: Account, spec: Spec, image_name: str, target: str) -> RegistryImage:
    registry = Registry(account)
    try:
        repository, reference = in_registry(image_name, spec.account, spec.region)
        image = registry.image(repository, reference)
    except ValueError as error:
        host = registry_host(spec.account, spec.region)
        raise UserError(
            "the base image must be in the account's own registry",
            seen=image_name,
            cure=f"write repository:tag or repository@sha256:..., without a registry or with {host}/",
        ) from error
    except NoSuchImage as error:
        message = "the registry lacks the base image" if error.repository else "the base image's repository is missing"
        cure = _commands(spec, target, repository, reference, error.repository)
        raise UserError(message, seen=error.seen, cure=cure) from error
    config = json.loads(registry.blob(repository, image.config))
    platform = str(config.get("os")), str(config.get("architecture"))
    if platform != PLATFORM:
        cure = f"build it with --platform {'/'.join(PLATFORM)}"
        raise UserError("the base image is for another platform", seen="/".join(platform), cure=cure)
    return replace(image, python=_python(image_name, config))


def _python(reference: str, config: dict[str, Any]) -> str:
    """Return the image's Python as `3.12`: packages are chosen for it, since the builder has another one."""
    entries = (config.get("config") or {}).get("Env") or []
    version = dict(str(entry).partition("=")[::2] for entry in entries).get(PYTHON_VARIABLE, "")
    match = _VERSION.fullmatch(version)
    if match is None:
        raise UserError(
            "the base image does not tell its Python",
            seen=f"{reference}: {PYTHON_VARIABLE}={version or ' is not set'}".replace("= ", " "),
            cure="build it again by images/trainer.Dockerfile, which sets it",
        )
    if tuple(map(int, match[1].split("."))) < OLDEST_PYTHON:
        oldest = ".".join(map(str, OLDEST_PYTHON))
        cure = "build it again on a newer system: see images/trainer.Dockerfile"
        raise UserError(f"the base image's Python is older than {oldest}", seen=f"{reference}: {version}", cure=cure)
    return match[1]


def _commands(spec: Spec, target: str, repository: str, reference: str, repository_is_there: bool) -> str:
    host, by_digest = registry_host(spec.account, spec.region), reference.startswith("sha256:")
    field = "image.steward_base" if target == "slim" else "image.base"
    name = f"{host}/{repository}:{('slim' if target == 'slim' else 'cuda') if by_digest else reference}"
    lines = [
        f"aws ecr get-login-password --region {spec.region} | docker login --username AWS --password-stdin {host}",
        f"docker build -f images/trainer.Dockerfile --target {target} --platform {'/'.join(PLATFORM)} -t {name} "
        f"$(python images/build_args.py --target {target} --base-digest sha256:...) .",
        f"docker push {name}",
    ]
    if not repository_is_there:
        lines.insert(0, f"aws ecr create-repository --region {spec.region} --repository-name {repository}")
    last_step = f"write the digest that push prints into {field}" if by_digest else "run the same command again"
    hint = f"python images/build_args.py --target {target} tells how to get the digest"
    return "build and push it once, from a clone:\n  " + "\n  ".join(lines) + f"\n({hint}); then {last_step}"
