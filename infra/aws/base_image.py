"""The base of trainer images: a person builds and pushes it once, before any bake."""

from __future__ import annotations

import json

from infra.aws.account import Account
from infra.aws.manifests import PLATFORM, RegistryImage
from infra.aws.registry import NoSuchImage, Registry
from infra.errors import UserError
from infra.spec.campaign import Spec
from infra.spec.names import in_registry, registry_host


def find_base(account: Account, spec: Spec) -> RegistryImage:
    """Return the spec's base as the registry has it now; read-only.

    Raises `UserError`, with the commands that build it, if it is missing or for another platform.
    """
    registry = Registry(account)
    try:
        repository, reference = in_registry(spec.image.base, spec.account, spec.region)
        image = registry.image(repository, reference)
    except ValueError as error:
        host = registry_host(spec.account, spec.region)
        raise UserError(
            "the base image must be in the account's own registry",
            seen=spec.image.base,
            cure=f"write repository:tag or repository@sha256:..., without a registry or with {host}/",
        ) from error
    except NoSuchImage as error:
        what = "the registry lacks the base image" if error.repository else "the base image's repository is missing"
        raise UserError(what, seen=error.seen, cure=_commands(spec, repository, reference, error.repository)) from error
    config = json.loads(registry.blob(repository, image.config))
    platform = str(config.get("os")), str(config.get("architecture"))
    if platform != PLATFORM:
        cure = f"build it with --platform {'/'.join(PLATFORM)}"
        raise UserError("the base image is for another platform", seen="/".join(platform), cure=cure)
    return image


def _commands(spec: Spec, repository: str, reference: str, repository_is_there: bool) -> str:
    host, by_digest = registry_host(spec.account, spec.region), reference.startswith("sha256:")
    name = f"{host}/{repository}:{'cuda' if by_digest else reference}"
    lines = [
        f"aws ecr get-login-password --region {spec.region} | docker login --username AWS --password-stdin {host}",
        f"docker build -f images/trainer.Dockerfile --target base --platform {'/'.join(PLATFORM)} -t {name} "
        "$(python images/build_args.py --base-digest sha256:...) .",
        f"docker push {name}",
    ]
    if not repository_is_there:
        lines.insert(0, f"aws ecr create-repository --region {spec.region} --repository-name {repository}")
    last = "write the digest that push prints into image.base" if by_digest else "run the same command again"
    told = "python images/build_args.py without arguments tells how to get the digest"
    return "build and push it once, from a clone:\n  " + "\n  ".join(lines) + f"\n({told}); then {last}"
