"""EventBridge Scheduler's universal targets: `arn:aws:scheduler:::aws-sdk:<service>:<apiAction>` and their input.

The input's members are in PascalCase, whatever the service's own spelling. For camelCase, AWS's CreateSchedule
reports that the required members are missing.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

import botocore.session
from botocore import xform_name
from botocore.model import ListShape, MapShape, OperationModel, Shape, StructureShape

from infra.rehearsal.aws.operations import AwsError

UNIVERSAL = re.compile(r"arn:aws:scheduler:::aws-sdk:(?P<service>[a-z0-9-]+):(?P<action>\w+)")
FORBIDDEN = ("get", "describe", "list", "poll", "receive", "search", "scan", "query", "select", "read", "batchGet")
"""AWS refuses actions that only read."""
_session = botocore.session.get_session()


@dataclass(frozen=True)
class Target:
    service: str
    operation: OperationModel
    arguments: dict[str, Any]

    @property
    def method(self) -> str:
        """Method name of the boto3 client."""
        return xform_name(self.operation.name)


def invalid(message: str) -> AwsError:
    return AwsError("ValidationException", message)


def parse(arn: str, text: str | None) -> Target:
    """Return the call that a schedule will make; raises ValidationException as CreateSchedule does."""
    match = UNIVERSAL.fullmatch(arn)
    if not match:
        raise invalid(f"Provided Arn is not in correct format, or not part of the rehearsal (only aws-sdk): {arn}")
    service, action = match["service"], match["action"]
    if action.startswith(FORBIDDEN):
        raise invalid(f"{action} only reads and cannot be a target")
    if service not in _session.get_available_services():
        raise invalid(f"{service} is not a service")
    model = _session.get_service_model(service)
    name = next((name for name in model.operation_names if name[0].lower() + name[1:] == action), None)
    if name is None:
        raise invalid(f"{service} has no action {action}")
    operation = model.operation_model(name)
    try:
        document = json.loads(text or "{}")
    except ValueError:
        raise invalid(f"Invalid Json: {text}") from None
    arguments = _convert(operation.input_shape, document, name) if operation.input_shape else {}
    return Target(service, operation, arguments)


def _convert(shape: Shape, value: Any, path: str) -> Any:
    if isinstance(shape, ListShape) and isinstance(value, list):
        return [_convert(shape.member, item, path) for item in value]
    if isinstance(shape, MapShape) and isinstance(value, dict):
        return {key: _convert(shape.value, item, path) for key, item in value.items()}
    if not isinstance(shape, StructureShape) or not isinstance(value, dict):
        return value
    names = {member[0].upper() + member[1:]: member for member in shape.members}
    missing = [name for name, member in names.items() if member in shape.required_members and name not in value]
    unknown = sorted(set(value) - set(names))
    if missing or unknown:
        raise invalid(f"Invalid RequestJson: {path}: missing {missing}, unknown {unknown}; members: {sorted(names)}")
    return {names[key]: _convert(shape.members[names[key]], item, f"{path}.{key}") for key, item in value.items()}
