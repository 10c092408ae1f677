"""Bake: the trainer's image, by Ansible on a builder instance; skipped when the same inputs were baked before."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml
from botocore.exceptions import ClientError
from pydantic import BaseModel, ConfigDict

from infra.account import EXPIRED
from infra.actions.registry import Registry, split_reference
from infra.components.outputs import CampaignOutputs
from infra.components.tags import tags
from infra.errors import PermanentError, UserError
from infra.events import Stage
from infra.lifecycle.context import Context
from infra.lifecycle.failures import cause_of, cure_for
from infra.names import REPOSITORY, repository_url

ROOT = Path(__file__).resolve().parents[2]
BUILDER_IMAGE = "/aws/service/ami-amazon-linux-latest/al2023-ami-kernel-default-x86_64"
BUILDER_TYPE = "m7i.large"
ROLE_TAG = "bivouac:role"
BUILDER_MINUTES = 60
"""A builder whose driver died ends itself."""
_ONLINE_S = 300.0


class ImageManifest(BaseModel):
    """What an image holds, and from what it was made; launch refuses an image without one."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    image: str
    """Reference by digest."""
    inputs_digest: str
    base: str
    base_digest: str
    base_packages: dict[str, str]
    layer_packages: dict[str, str]


def run(context: Context) -> dict[str, Any]:
    base_repository, base_tag = split_reference(context.spec.image.base)
    registry = Registry(context.account)
    _, base_digest = registry.manifest(base_repository, base_tag)
    inputs = inputs_digest(ROOT, base_digest)
    key = manifest_key(inputs)
    known = context.store.get(key)
    if known is not None and _still_there(registry, ImageManifest.model_validate_json(known)):
        context.progress.note(f"image known by the digest of its inputs, {inputs[:12]}: nothing to bake")
        return {
            "manifest": key,
            "image": ImageManifest.model_validate_json(known).image,
            "code": inputs,
            "baked": False,
        }
    with tempfile.TemporaryDirectory() as work:
        context.progress.step("wheel")
        wheel = build_wheel(ROOT, Path(work))
        outputs = CampaignOutputs.model_validate(context.outputs[Stage.PROVISION]["outputs"])
        builder = _start_builder(context, outputs)
        try:
            facts = _play(context, builder, wheel, inputs, Path(work))
        finally:
            context.account.client("ec2").terminate_instances(InstanceIds=[builder])
    image = f"{repository_url(context.spec.account, context.spec.region)}@{facts['digest']}"
    manifest = ImageManifest(
        image=image,
        inputs_digest=inputs,
        base=context.spec.image.base,
        base_digest=base_digest,
        base_packages={item["name"]: item["version"] for item in facts["base_packages"]},
        layer_packages={item["name"]: item["version"] for item in facts["layer_packages"]},
    )
    context.guard()
    context.store.put(key, manifest.model_dump_json(indent=1).encode())
    context.progress.note(f"image {image}")
    return {"manifest": key, "image": image, "code": inputs, "baked": True}


def manifest_key(inputs: str) -> str:
    return f"images/{inputs}.json"


def inputs_digest(root: Path, base_digest: str) -> str:
    """Of everything that goes into the image: sources, versions, playbook, base."""
    if not (root / "pyproject.toml").exists():
        raise UserError(
            "the bake needs the project's sources",
            seen=root,
            cure="run bivouac from a clone, installed with `pip install -e .`",
        )
    digest = hashlib.sha256(base_digest.encode())
    for part in ("infra", "trainer", "images", "playbooks", "pyproject.toml"):
        top = root / part
        for path in [top] if top.is_file() else sorted(top.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                digest.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes())
    return digest.hexdigest()


def build_wheel(root: Path, work: Path) -> Path:
    """The project's wheel, built from a copy, so that nothing stale in the clone gets in."""
    source, out = work / "source", work / "wheel"
    source.mkdir()
    for part in ("infra", "trainer"):
        shutil.copytree(root / part, source / part, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(root / "pyproject.toml", source)
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        str(out),
        str(source),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise PermanentError("the wheel could not be built", seen=done.stderr[-500:], cure="mend pyproject.toml")
    return next(out.glob("*.whl"))


def _still_there(registry: Registry, manifest: ImageManifest) -> bool:
    try:
        registry.manifest(REPOSITORY, manifest.image.rpartition("@")[2])
    except PermanentError:
        return False
    return True


def _start_builder(context: Context, outputs: CampaignOutputs) -> str:
    """A builder without an open port; one that a killed driver left is replaced, since its state is unknown."""
    ec2, ssm = context.account.client("ec2"), context.account.client("ssm")
    wanted = {**tags(context.spec, context.deadline), ROLE_TAG: "builder", "Name": f"{context.names.prefix}-builder"}
    left = [
        instance["InstanceId"]
        for page in ec2.get_paginator("describe_instances").paginate(
            Filters=[
                {"Name": f"tag:{ROLE_TAG}", "Values": ["builder"]},
                {"Name": "tag:Name", "Values": [wanted["Name"]]},
                {"Name": "instance-state-name", "Values": ["pending", "running"]},
            ]
        )
        for reservation in page["Reservations"]
        for instance in reservation["Instances"]
    ]
    context.guard()
    if left:
        ec2.terminate_instances(InstanceIds=left)
    specifications = [
        {"ResourceType": kind, "Tags": [{"Key": k, "Value": v} for k, v in wanted.items()]}
        for kind in ("instance", "volume")
    ]
    launched = _launch(
        context,
        ImageId=ssm.get_parameter(Name=BUILDER_IMAGE)["Parameter"]["Value"],
        InstanceType=BUILDER_TYPE,
        MinCount=1,
        MaxCount=1,
        SubnetId=outputs.system_subnet_id,
        SecurityGroupIds=[outputs.builder_security_group_id],
        IamInstanceProfile={"Name": outputs.builder_instance_profile},
        MetadataOptions={"HttpTokens": "required"},
        InstanceInitiatedShutdownBehavior="terminate",
        UserData=f"#!/bin/sh\nshutdown -h +{BUILDER_MINUTES}\n",
        TagSpecifications=specifications,
    )
    builder: str = launched["Instances"][0]["InstanceId"]
    for _ in context.turns(_ONLINE_S, 0.2):
        context.progress.step(f"builder {builder} is booting")
        online = ssm.describe_instance_information(Filters=[{"Key": "InstanceIds", "Values": [builder]}])
        if any(item["PingStatus"] == "Online" for item in online["InstanceInformationList"]):
            return builder
    ec2.terminate_instances(InstanceIds=[builder])
    raise PermanentError(
        "the builder's SSM agent did not come up",
        seen=f"{builder} after {_ONLINE_S:.0f} s",
        cure="check the builder's role and the subnet's way out",
    )


def _launch(context: Context, **request: Any) -> dict[str, Any]:
    """RunInstances; a refusal in AWS's own words with the cure of its cause."""
    try:
        return dict(context.account.client("ec2").run_instances(**request))
    except ClientError as error:
        said = error.response["Error"]
        if said["Code"] in EXPIRED:
            raise
        raise PermanentError(
            f"the builder ({request['InstanceType']}) could not be started",
            seen=f"{said['Code']}: {said['Message']}",
            cure=f"{cure_for(cause_of(said['Code']))}; then `bivouac run` continues",
        ) from error


def _play(context: Context, builder: str, wheel: Path, inputs: str, work: Path) -> dict[str, Any]:
    """Run playbooks/bake.yml against the builder; returns the facts that its last task sets."""
    import ansible_runner

    versions = yaml.safe_load((ROOT / "images/versions.yaml").read_text())["trainer_image"]
    found: dict[str, Any] = {}

    def heard(event: dict[str, Any]) -> bool:
        data = event.get("event_data", {})
        if event["event"] == "playbook_on_task_start":
            context.progress.step(f"builder: {data.get('task')}")
        if event["event"] == "runner_on_ok":
            found.update(data.get("res", {}).get("ansible_facts", {}).get("trainer_image_manifest", {}))
        if event["event"] == "runner_on_failed":
            result = data.get("res", {})
            found["failure"] = f"{data.get('task')}: {result.get('msg', '')} {result.get('stderr', '')}"[:800]
        return False

    host = {
        "ansible_connection": "ssm_command",
        "ansible_python_interpreter": "python3",
        "ansible_remote_tmp": "/var/tmp/ansible",
        "ssm_instance": builder,
        "ssm_region": context.spec.region,
        "ssm_bucket": context.buckets.state,
        "ssm_prefix": f"{context.store.prefix}/bake/",
    }
    given = {
        "trainer_image_wheel": str(wheel),
        "trainer_image_base": context.spec.image.base,
        "trainer_image_tag": inputs,
        "trainer_image_library": versions["library"],
        "trainer_image_packages": versions["packages"],
        "trainer_image_region": context.spec.region,
    }
    environment = {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "ANSIBLE_CONNECTION_PLUGINS": str(ROOT / "playbooks/plugins/connection"),
        "ANSIBLE_ROLES_PATH": str(ROOT / "playbooks/roles"),
        "ANSIBLE_HOME": str(work / "ansible"),
        "ANSIBLE_LOCAL_TEMP": str(work / "tmp"),
        "ANSIBLE_REMOTE_TEMP": "/var/tmp/ansible",
        "ANSIBLE_PIPELINING": "false",
    }
    (work / "runner").mkdir()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    result = ansible_runner.run(
        private_data_dir=str(work / "runner"),
        playbook=str(ROOT / "playbooks/bake.yml"),
        quiet=True,
        envvars=environment,
        inventory={"all": {"hosts": {"builder": host}}},
        extravars=given,
        event_handler=heard,
    )
    # The runner leaves its own handlers behind, which only take note of a signal.
    for number, handler in handlers.items():
        signal.signal(number, handler)
    if result.status == "canceled":
        raise KeyboardInterrupt
    if result.status != "successful" or "digest" not in found:
        said = found.get("failure") or f"ansible-playbook {result.status}: {result.stdout.read()[-600:]}"
        raise PermanentError("the bake failed", seen=said, cure="mend the role and run again")
    return found
