"""A builder: an instance without open ports that bakes an image and always ends.

Three things end it independently: the driver; a one-time schedule of EventBridge, which needs neither the driver nor a
booting machine; and the machine's own shutdown by its user data, which covers the gap between launch and schedule. The
campaign's next bake and its teardown end builders that a killed driver left. Node image and trainer image are baked
beside each other, each on its own builder.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from infra.aws.account import EXPIRED, Account, every
from infra.aws.asked import seen_builders
from infra.cluster.nodes import instances_with
from infra.engine.failures import cause_of, cure_for
from infra.errors import PermanentError, UserError
from infra.plan.checks.builders import drafts
from infra.plan.checks.finding import Level
from infra.session.context import Context
from infra.spec import waits
from infra.spec.campaign import Spec
from infra.spec.names import BUILDER, BUILDER_TYPE, ROLE_TAG, Names
from infra.stack.outputs import FoundationOutputs
from infra.stack.tags import tags

ROOT_GIB = 50
"""Root disk of a builder: EKS's image of 20 GiB and what a bake adds. No more than a node's own disk, since nodes start
from the image of this one. AWS bills a snapshot by the blocks that are written."""
LIFE = timedelta(minutes=120)
"""No bake takes this long: installation is bounded, imaging a disk takes minutes."""
TRANSFER = "bake/"
"""Folder of the campaign's record for files on the way to its builder."""
LIVING = ["pending", "running", "stopping", "stopped", "shutting-down"]
_ROOT = {"VolumeSize": ROOT_GIB, "VolumeType": "gp3", "DeleteOnTermination": True}
_TARGET = "arn:aws:scheduler:::aws-sdk:ec2:terminateInstances"
_ONLINE_S = waits.BUILDER_BOOT.seconds
_YOUNG = ("ValidationException", "InvalidParameterValue")
"""Errors of Scheduler and EC2 while a new role is not known to them."""
_GONE = ("InvalidInstanceID.NotFound", "ResourceNotFoundException")


@dataclass
class Builder:
    """A builder whose agent answers."""

    id: str
    ends_at: datetime
    """Time at which AWS ends it without the driver."""
    stood_s: float = 0.0
    """Time from its launch to its end; 0 before its end."""


@contextmanager
def builder(
    context: Context, place: FoundationOutputs, image: str, schedule: str, life: timedelta = LIFE
) -> Iterator[Builder]:
    """Run a builder from `image` for the block. `schedule`: name of the schedule that ends it, which no other builder
    has. Raises `PermanentError` when EC2 refuses it or its agent does not answer; it is ended then too."""
    refuse_place(context.account, context.spec)
    context.guard()
    launched_at = datetime.now(UTC)
    machine = Builder(_launch(context, place, image, launched_at + life), launched_at + life)
    try:
        _arm(context, place, machine.id, schedule, machine.ends_at)
        _await_agent(context, machine.id, image)
        yield machine
    finally:
        _end(context, machine.id, schedule, machine.ends_at)
        machine.stood_s = max(0.0, (datetime.now(UTC) - launched_at).total_seconds())


def living_builders(account: Account, names: Names) -> list[str]:
    instances = instances_with(account, *LIVING, **{"Name": names.builder, ROLE_TAG: BUILDER})
    return [str(instance["InstanceId"]) for instance in instances]


def end_builders(account: Account, names: Names) -> list[str]:
    """End builders of a killed driver, whose state is unknown, and their schedules; return their ids."""
    left = living_builders(account, names)
    if left:
        account.client("ec2").terminate_instances(InstanceIds=left)
    for schedule in names.builder_schedules:
        _disarm(account, schedule)
    return left


def clear_leftovers(context: Context) -> None:
    """End builders that a killed driver left, and remove the files on the way to them. Call it before the first
    builder."""
    end_builders(context.account, context.names)
    store = context.store
    for key in store.keys(TRANSFER):
        store.s3.delete_object(Bucket=store.bucket, Key=key)


def _launch(context: Context, place: FoundationOutputs, image: str, ends_at: datetime) -> str:
    own_tags = {ROLE_TAG: BUILDER, "Name": context.names.builder}
    tag_values = tags(context.spec, context.deadline, context.identity) | own_tags
    minutes = max(1, round((ends_at - datetime.now(UTC)).total_seconds() / 60))
    marks = [{"Key": key, "Value": value} for key, value in tag_values.items()]
    request: dict[str, Any] = dict(
        ImageId=image,
        InstanceType=BUILDER_TYPE,
        MinCount=1,
        MaxCount=1,
        **_place(context.spec, place),
        IamInstanceProfile={"Name": place.build_network_instance_profile},
        MetadataOptions={"HttpTokens": "required"},
        InstanceInitiatedShutdownBehavior="terminate",
        BlockDeviceMappings=[{"DeviceName": "/dev/xvda", "Ebs": _ROOT}],
        UserData=f"#!/bin/sh\nshutdown -h +{minutes}\n",
        TagSpecifications=[
            {"ResourceType": kind, "Tags": marks} for kind in ("instance", "volume", "network-interface")
        ],
    )
    try:
        answer = _once_known(context, lambda: context.account.client("ec2").run_instances(**request))
    except ClientError as error:
        refusal = error.response["Error"]
        if refusal["Code"] in EXPIRED:
            raise
        words = f"{refusal['Code']}: {refusal['Message']}"
        raise PermanentError(
            f"the builder ({BUILDER_TYPE} from {image}) could not be started",
            seen=words,
            cure=f"{cure_for(cause_of(words))}; the same command goes on",
        ) from error
    return str(answer["Instances"][0]["InstanceId"])


def refuse_place(account: Account, spec: Spec) -> None:
    """Raise `UserError` if the place that the spec names for builders lacks what one needs: else it would boot, bill,
    and never be heard of."""
    facts = seen_builders(account, spec)
    errors = [] if facts is None else [finding for finding in drafts(spec, facts) if finding.level is Level.ERROR]
    if errors:
        raise UserError(
            "no builder can work where the spec wants it",
            seen="; ".join(f"{finding.place}: {finding.message}: {finding.seen}" for finding in errors),
            cure="; ".join(dict.fromkeys(finding.cure for finding in errors)),
        )


def _place(spec: Spec, place: FoundationOutputs) -> dict[str, Any]:
    """Return the builder's network: the spec's, without a public address, else the foundation's build network."""
    network = spec.image.builders
    if network is None:
        return {
            "SubnetId": place.build_network_subnet_id,
            "SecurityGroupIds": [place.build_network_security_group_id],
        }
    interface = {
        "DeviceIndex": 0,
        "SubnetId": network.subnet_id,
        "Groups": [network.security_group_id],
        "AssociatePublicIpAddress": False,
        "DeleteOnTermination": True,
    }
    return {"NetworkInterfaces": [interface]}


def _arm(context: Context, place: FoundationOutputs, instance: str, schedule: str, ends_at: datetime) -> None:
    request: dict[str, Any] = dict(
        Name=schedule,
        Description=f"Ends the builder of campaign {context.spec.campaign} if nobody else does",
        ScheduleExpression=f"at({ends_at:%Y-%m-%dT%H:%M:%S})",
        ScheduleExpressionTimezone="UTC",
        FlexibleTimeWindow={"Mode": "OFF"},
        ActionAfterCompletion="DELETE",
        Target={
            "Arn": _TARGET,
            "RoleArn": place.build_network_guard_arn,
            "Input": json.dumps({"InstanceIds": [instance]}),
            "RetryPolicy": {"MaximumEventAgeInSeconds": 86_400, "MaximumRetryAttempts": 185},
        },
    )
    _once_known(context, lambda: context.account.client("scheduler").create_schedule(**request))


def _once_known(context: Context, call: Callable[[], Any]) -> Any:
    """Retry a call while a new role or profile of the foundation is not known everywhere."""
    refusal: ClientError | None = None
    for _ in context.turns(waits.ROLE_KNOWN.seconds):
        try:
            return call()
        except ClientError as error:
            refusal, code, words = error, error.response["Error"]["Code"], error.response["Error"]["Message"]
            if code not in _YOUNG or not ("role" in words or "Instance Profile" in words):
                raise
        context.progress.step("waiting until all of AWS knows the build network's roles")
    assert refusal is not None, "there is at least one turn"
    raise refusal


def _disarm(account: Account, schedule: str) -> None:
    try:
        account.client("scheduler").delete_schedule(Name=schedule)
    except ClientError as error:
        if error.response["Error"]["Code"] not in _GONE:
            raise


def _await_agent(context: Context, instance: str, image: str) -> None:
    ssm, ec2 = context.account.client("ssm"), context.account.client("ec2")
    for _ in context.turns(_ONLINE_S, 0.2):
        context.progress.step(f"builder {instance} is booting")
        filters = [{"Key": "InstanceIds", "Values": [instance]}]
        online = every(ssm, "describe_instance_information", "InstanceInformationList", Filters=filters)
        if any(item["PingStatus"] == "Online" for item in online):
            return
        # A filter instead of the id, which may not be known for a new instance yet.
        by_id = [{"Name": "instance-id", "Values": [instance]}]
        reservations = list(every(ec2, "describe_instances", "Reservations", Filters=by_id))
        if reservations and reservations[0]["Instances"][0]["State"]["Name"] in ("shutting-down", "terminated"):
            reason = reservations[0]["Instances"][0].get("StateReason", {}).get("Message", "no reason given")
            raise PermanentError(
                "the builder ended before it answered",
                seen=f"{instance} from {image}: {reason}",
                cure="see the reason; the same command tries again",
            )
    raise PermanentError(
        "the builder's SSM agent did not come up",
        seen=f"{instance} from {image} after {_ONLINE_S:.0f} s",
        cure="check that the image has an agent, and the way out of the builder's subnet",
    )


def _end(context: Context, instance: str, schedule: str, ends_at: datetime) -> None:
    """End the builder; if AWS takes no more calls, print that the schedule will."""
    try:
        context.account.client("ec2").terminate_instances(InstanceIds=[instance])
        _disarm(context.account, schedule)
    except (ClientError, BotoCoreError) as error:
        if isinstance(error, ClientError) and error.response["Error"]["Code"] in _GONE:
            return
        context.progress.note(f"builder {instance} could not be ended ({error}); AWS ends it at {ends_at:%H:%M} UTC")
