"""Systems Manager's Run Command, which runs shell scripts in the site's machines."""

from __future__ import annotations

import functools
import secrets
import shlex
import subprocess
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from moto.iam.models import InstanceProfile
from moto.ssm.responses import SimpleSystemManagerResponse

from infra.rehearsal.aws import ssm_parameters
from infra.rehearsal.aws.iam import access, policies
from infra.rehearsal.aws.operations import AwsError, Parameters, add_backend
from infra.rehearsal.aws.world import World

DOCUMENT = "AWS-RunShellScript"
PLUGIN = "aws:runShellScript"
PLUGIN_STEP = "awsrunShellScript"
MAX_STDOUT_CHARS = 24_000
MAX_STDERR_CHARS = 8_000
TRUNCATED = "\n---Output truncated---"
EVENTUAL_S = 0.1
"""GetCommandInvocation does not know younger commands, as on AWS. A bake sends about 20, one after the other."""
ENDED = ("Success", "Failed", "TimedOut", "Cancelled")
AGENT_ACTION = "ssm:UpdateInstanceInformation"
"""An agent needs it to register; AmazonSSMManagedInstanceCore grants it."""
AGENT_SERVICES = ("ssm", "ssmmessages")
"""What an agent calls; from 3.3.40 it needs no `ec2messages`.
https://docs.aws.amazon.com/systems-manager/latest/userguide/setup-create-vpc.html"""


ANYWHERE = "0.0.0.0/0"


def reaches(world: World, instance: Any, services: tuple[str, ...]) -> bool:
    """Return whether an instance has a way from its subnet to all of these services: out, or by their endpoints."""
    ec2, subnet_id = world.backend("ec2"), instance.subnet_id
    if str(ec2.get_subnet(subnet_id).default_for_az).lower() == "true":
        return bool(instance.public_ip)  # AWS's default VPC has an internet gateway; moto leaves it out
    route = next((entry for entry in _table(ec2, subnet_id).routes if entry.destination_cidr_block == ANYWHERE), None)
    return _leads_out(route, instance) or all(_endpoint(ec2, world.region, subnet_id, entry) for entry in services)


def _table(ec2: Any, subnet_id: str) -> Any:
    """Return the subnet's route table: its own, else the VPC's main one."""
    vpc_id = ec2.get_subnet(subnet_id).vpc_id
    tables = [table for table in ec2.route_tables.values() if table.vpc_id == vpc_id]
    own_tables = [table for table in tables if any(link.get("SubnetId") == subnet_id for link in table.associations)]
    return (own_tables or [table for table in tables if table.main_association_id is not None])[0]


def _leads_out(route: Any, instance: Any) -> bool:
    """An internet gateway passes on only what has a public address; a peered VPC passes on nothing."""
    if route is None or route.vpc_pcx is not None:
        return False
    if str(getattr(route.gateway, "id", "")).startswith("igw-"):
        return bool(instance.public_ip)
    return True


def _endpoint(ec2: Any, region: str, subnet_id: str, service: str) -> bool:
    vpc_id = ec2.get_subnet(subnet_id).vpc_id
    return any(
        endpoint.vpc_id == vpc_id
        and endpoint.service_name == f"com.amazonaws.{region}.{service}"
        and endpoint.state == "available"
        and endpoint.vpc_endpoint_type == "Interface"
        and str(endpoint.private_dns_enabled).lower() == "true"
        for endpoint in ec2.vpc_end_points.values()
    )


@dataclass
class Invocation:
    command_id: str
    instance_id: str
    status: str = "Pending"
    details: str = "Pending"
    code: int = -1
    out: str = ""
    err: str = ""
    started: datetime | None = None
    ended: datetime | None = None

    def end(self, status: str, code: int, details: str | None = None, output: str = "", err: str = "") -> None:
        if self.status in ENDED:
            return
        self.status, self.details, self.code, self.out, self.err = status, details or status, code, output, err
        self.ended = datetime.now(UTC)


@dataclass
class Command:
    command_id: str
    parameters: dict[str, list[str]]
    comment: str
    timeout_s: int
    bucket: str
    key_prefix: str
    invocations: dict[str, Invocation]
    requested: datetime = field(default_factory=lambda: datetime.now(UTC))
    since: float = field(default_factory=time.monotonic)

    def status(self) -> str:
        states = [invocation.status for invocation in self.invocations.values()]
        for state in ("Pending", "InProgress"):
            if state in states:
                return state
        return next((state for state in ("Failed", "TimedOut", "Cancelled") if state in states), "Success")

    def describe(self) -> dict[str, Any]:
        states = [invocation.status for invocation in self.invocations.values()]
        return {
            "CommandId": self.command_id,
            "DocumentName": DOCUMENT,
            "Comment": self.comment,
            "Parameters": self.parameters,
            "InstanceIds": list(self.invocations),
            "RequestedDateTime": self.requested,
            "Status": self.status(),
            "StatusDetails": self.status(),
            "OutputS3BucketName": self.bucket,
            "OutputS3KeyPrefix": self.key_prefix,
            "TimeoutSeconds": self.timeout_s,
            "TargetCount": len(states),
            "CompletedCount": sum(state in ENDED for state in states),
            "ErrorCount": sum(state in ("Failed", "TimedOut") for state in states),
        }


class Commands:
    def __init__(self, world: World) -> None:
        self.world = world
        self.commands: dict[str, Command] = {}

    def agents(self) -> dict[str, Any]:
        """Return the instances by ID whose machine is alive, whose role lets an agent register, and which reach SSM."""
        agents_by_id = {}
        for instance_id, machine in dict(self.world.machines).items():
            instance = self.world.backend("ec2").get_instance_by_id(instance_id)
            is_alive = instance is not None and machine.alive()
            if is_alive and self._may_register(instance) and reaches(self.world, instance, AGENT_SERVICES):
                agents_by_id[instance_id] = instance
        return agents_by_id

    def _may_register(self, instance: Any) -> bool:
        profile = _profile(self.world, instance)
        question = policies.Question(AGENT_ACTION, None)
        for role in profile.roles if profile else []:
            documents = [policies.parse(access.unquote_once(text)) for text in role.policies.values()]
            documents += [access.managed_document(policy) for policy in role.managed_policies.values()]
            if policies.allowed(documents, question):
                return True
        return False

    def send_command(self, params: Parameters) -> dict[str, Any]:
        if params.get("DocumentName") != DOCUMENT:
            raise AwsError("InvalidDocument", f"only {DOCUMENT} is part of the rehearsal, not {params['DocumentName']}")
        agents = self.agents()
        targets = list(params.get("InstanceIds") or self._targets(params.get("Targets") or [], agents))
        foreign = [instance_id for instance_id in targets if instance_id not in agents]
        if foreign:
            raise AwsError("InvalidInstanceId", f"Instances {foreign} not in a valid state for account")
        parameters = params.get("Parameters") or {}
        if not parameters.get("commands"):
            raise AwsError("InvalidParameters", f"{DOCUMENT} needs the parameter 'commands'")
        command_id = _uuid()
        command = Command(
            command_id=command_id,
            parameters=parameters,
            comment=params.get("Comment") or "",
            timeout_s=params.get("TimeoutSeconds") or 3600,
            bucket=params.get("OutputS3BucketName") or "",
            key_prefix=params.get("OutputS3KeyPrefix") or "",
            invocations={instance_id: Invocation(command_id, instance_id) for instance_id in targets},
        )
        self.commands[command_id] = command
        for invocation in command.invocations.values():
            self.world.spawn(functools.partial(self._run, command, invocation))
        return {"Command": command.describe()}

    @staticmethod
    def _targets(targets: list[dict[str, Any]], agents: dict[str, Any]) -> list[str]:
        agent_ids = set(agents)
        for target in targets:
            key, values = target["Key"], target["Values"]
            if key.lower() == "instanceids":
                agent_ids &= set(values)
                continue
            agent_ids = {
                agent_id for agent_id in agent_ids if _tags(agents[agent_id]).get(key.removeprefix("tag:")) in values
            }
        return sorted(agent_ids)

    def _run(self, command: Command, invocation: Invocation) -> None:
        machine = self.world.machines.get(invocation.instance_id)
        if machine is None or not machine.alive():
            return invocation.end("TimedOut", -1, "Undeliverable")
        with self.world.lock:
            if invocation.status != "Pending":
                return None
            invocation.status = invocation.details = "InProgress"
            invocation.started = datetime.now(UTC)
        limit_s = float((command.parameters.get("executionTimeout") or ["3600"])[0])
        try:
            process = machine.run(_script(command.parameters), limit_s)
        except (subprocess.TimeoutExpired, TimeoutError):
            return invocation.end("TimedOut", 137, "Execution Timed Out")
        except Exception as error:
            return invocation.end("Failed", -1, err=f"the agent could not run it: {error}")
        if not machine.alive():
            return invocation.end("TimedOut", -1, "Undeliverable")
        output, err = _text(process.stdout), _text(process.stderr)
        self._keep_output(command, invocation, output, err)
        invocation.end("Failed" if process.returncode else "Success", process.returncode, None, output, err)
        return None

    def _keep_output(self, command: Command, invocation: Invocation, output: str, err: str) -> None:
        if not command.bucket:
            return
        folder = f"{command.key_prefix}/{command.command_id}/{invocation.instance_id}/{PLUGIN_STEP}/0.{PLUGIN_STEP}"
        for name, text in (("stdout", output), ("stderr", err)):
            if text:
                self.world.backend("s3").put_object(command.bucket, f"{folder}/{name}".lstrip("/"), text.encode())

    def get_command_invocation(self, params: Parameters) -> dict[str, Any]:
        command = self.commands.get(params["CommandId"])
        invocation = command.invocations.get(params["InstanceId"]) if command else None
        if command is None or invocation is None or time.monotonic() - command.since < EVENTUAL_S:
            raise AwsError("InvocationDoesNotExist", f"no invocation of {params['CommandId']} yet")
        stamps = {"ExecutionStartDateTime": invocation.started, "ExecutionEndDateTime": invocation.ended}
        return {
            "CommandId": command.command_id,
            "InstanceId": invocation.instance_id,
            "Comment": command.comment,
            "DocumentName": DOCUMENT,
            "PluginName": PLUGIN,
            "ResponseCode": invocation.code,
            **{name: stamp.isoformat() if stamp else "" for name, stamp in stamps.items()},
            "Status": invocation.status,
            "StatusDetails": invocation.details,
            "StandardOutputContent": _cut(invocation.out, MAX_STDOUT_CHARS),
            "StandardErrorContent": _cut(invocation.err, MAX_STDERR_CHARS),
        }

    def describe_instance_information(self, params: Parameters) -> dict[str, Any]:
        filters = {item["Key"]: item["Values"] for item in params.get("Filters") or []}
        filters |= {item["key"]: item["valueSet"] for item in params.get("InstanceInformationFilterList") or []}
        documents = []
        for instance_id, instance in self.agents().items():
            facts = {"InstanceIds": instance_id, "PingStatus": "Online", "PlatformTypes": "Linux"}
            facts |= {f"tag:{key}": value for key, value in _tags(instance).items()}
            if all(facts.get(key) in values for key, values in filters.items()):
                documents.append(_information(instance))
        return {"InstanceInformationList": documents}


def _information(instance: Any) -> dict[str, Any]:
    return {
        "InstanceId": instance.id,
        "PingStatus": "Online",
        "LastPingDateTime": datetime.now(UTC),
        "AgentVersion": "3.3.2299.0",
        "PlatformType": "Linux",
        "PlatformName": "Amazon Linux",
        "PlatformVersion": "2023",
        "ResourceType": "EC2Instance",
        "IPAddress": instance.private_ip,
        "ComputerName": instance.private_dns_name,
    }


def _profile(world: World, instance: Any) -> InstanceProfile | None:
    """Return the instance's profile, from its launch or from an association."""
    association = world.backend("ec2").iam_instance_profile_associations.get(instance.id)
    if association is not None:
        return association.iam_instance_profile
    attachment = instance.iam_instance_profile
    profile_name = (attachment.get("Arn") or attachment.get("Name")) if isinstance(attachment, dict) else attachment
    profiles = world.backend("iam").instance_profiles.values()
    return next((profile for profile in profiles if profile_name and profile_name in (profile.arn, profile.name)), None)


def _tags(instance: Any) -> dict[str, str]:
    return {tag["key"]: tag["value"] for tag in instance.get_tags()}


def _script(parameters: dict[str, list[str]]) -> str:
    folder = (parameters.get("workingDirectory") or [""])[0]
    return "\n".join([*([f"cd {shlex.quote(folder)} || exit 1"] if folder else []), *parameters["commands"], ""])


def _text(output: bytes | str | None) -> str:
    return output.decode(errors="replace") if isinstance(output, bytes) else output or ""


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - len(TRUNCATED)] + TRUNCATED


def _uuid() -> str:
    digits = secrets.token_hex(16)
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def install(world: World) -> None:
    """Add Run Command's operations, and publish the parameters of EKS's AMIs."""
    commands = Commands(world)
    add_backend(world, SimpleSystemManagerResponse, commands)
    ssm_parameters.publish(world)
