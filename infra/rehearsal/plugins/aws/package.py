"""The operations of the AWS package, common to all resource types by the table."""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from infra.rehearsal.plugins.aws import mapping, notes
from infra.rehearsal.plugins.aws.call import PROPAGATION, NotReady, ResourceCall, error_code
from infra.rehearsal.plugins.aws.catalogue import RESOURCES
from infra.rehearsal.plugins.aws.client import Clients
from infra.rehearsal.plugins.aws.resource import ResourceType
from infra.rehearsal.plugins.aws.table import Naming
from infra.rehearsal.plugins.package import (
    InitFailed,
    OperationFailed,
    PropertyChange,
    PropertyFailure,
    Request,
    ResourceGone,
    unknown_properties,
)
from infra.rehearsal.plugins.wire import UNKNOWN, Props

_JSON = {"defaultTags", "endpoints", "maxRetries", "s3UsePathStyle", "allowedAccountIds"}
"""Properties of the provider that the SDK sends as JSON text: all but strings."""
_KNOWN = _JSON | {
    "accessKey", "secretKey", "token", "profile", "region", "retryMode", "stsRegion", "version", "pluginDownloadURL",
    "skipCredentialsValidation", "skipMetadataApiCheck", "skipRegionValidation", "skipRequestingAccountId",
}  # fmt: skip
PATIENCE = "BIVOUAC_REHEARSAL_PATIENCE"
"""Factor on all time limits of the plugin: with 0.01 the 20 minutes of a deletion are 12 seconds."""


def invoke(clients: Clients, token: str, arguments: Props) -> Props:
    if token not in FUNCTIONS:
        raise OperationFailed(f"unknown function {token}; the rehearsal knows: {', '.join(sorted(FUNCTIONS))}")
    return FUNCTIONS[token](clients, arguments)


def _caller_identity(clients: Clients, arguments: Props) -> Props:
    answer = clients.get("sts").get_caller_identity()
    account = answer["Account"]
    return {"accountId": account, "arn": answer["Arn"], "userId": answer["UserId"], "id": account}


def _parameter(clients: Clients, arguments: Props) -> Props:
    decrypt = arguments.get("withDecryption", True)
    ssm = clients.get("ssm", arguments.get("region"))
    parameter = ssm.get_parameter(Name=arguments["name"], WithDecryption=decrypt)["Parameter"]
    return {
        "arn": parameter["ARN"],
        "id": parameter["Name"],
        "name": parameter["Name"],
        "type": parameter["Type"],
        "value": parameter["Value"],
        "insecureValue": None if parameter["Type"] == "SecureString" else parameter["Value"],
        "version": parameter["Version"],
        "withDecryption": decrypt,
        "region": arguments.get("region") or clients.region,
    }


FUNCTIONS: dict[str, Callable[[Clients, dict[str, Any]], Props]] = {
    "aws:index/getCallerIdentity:getCallerIdentity": _caller_identity,
    "aws:ssm/getParameter:getParameter": _parameter,
}


class AwsPackage:
    version = "7.51.1"

    def __init__(self) -> None:
        self._clients = Clients({})
        self._default_tags: dict[str, str] = {}
        self._cancelled = threading.Event()

    def schema(self) -> dict[str, Any]:
        return {"name": "aws", "version": self.version, "resources": {token: {} for token in RESOURCES}}

    def check_config(self, inputs: Props) -> Sequence[PropertyFailure]:
        return unknown_properties(inputs, _KNOWN, "the aws provider: known are")

    def diff_config(self, old: Props, new: Props) -> Sequence[PropertyChange]:
        names = sorted(name for name in set(old) | set(new) if old.get(name) != new.get(name) and name != "version")
        return [PropertyChange(name, "update", replaces=name == "region") for name in names]

    def configure(self, inputs: Props) -> None:
        settings = {
            name: json.loads(value) if name in _JSON and value and isinstance(value, str) else value
            for name, value in inputs.items()
            if value != UNKNOWN
        }
        self._clients = Clients(settings)
        self._default_tags = dict((settings.get("defaultTags") or {}).get("tags") or {})

    def check(self, request: Request) -> tuple[Props, Sequence[PropertyFailure]]:
        resource = _entry(request.type)
        table = resource.row.table
        program: Props = notes.bare(request.inputs)
        if resource.row.has_region and program.get("region") is None:
            program["region"] = self._clients.region
        if resource.row.has_tags and self._default_tags and program.get("tags") != UNKNOWN:
            program["tags"] = self._default_tags | (program.get("tags") or {})
        inputs = mapping.normalise(table, program)
        if resource.row.naming and inputs.get(resource.row.naming.property) is None:
            inputs[resource.row.naming.property] = _made_name(resource.row.naming, request, inputs)
        return notes.of_check(program, inputs), list(mapping.failures(table, inputs, request.type))

    def diff(self, request: Request) -> tuple[Sequence[PropertyChange], bool]:
        resource, made_up = _entry(request.type), notes.filled_names(request.inputs)
        request = notes.strip(request)
        old = request.old_inputs or request.state
        differences = list(mapping.changes(resource.row.table, old, request.inputs))
        updatable = resource.row.update is not None
        differences = [c if updatable or _is_tag(c.path) else PropertyChange(c.path, c.kind, True) for c in differences]
        paths = {change.path for change in differences}
        clash = bool(resource.row.identity) and not paths & set(resource.row.identity)
        return differences, clash and not set(resource.row.identity) & made_up

    def create(self, request: Request) -> tuple[str, Props]:
        resource, former = _entry(request.type), request.inputs
        request = notes.strip(request)
        if request.preview:
            unknown = dict.fromkeys(resource.row.computed_outputs, UNKNOWN)
            tags = {"tagsAll": request.inputs.get("tags") or {}} if resource.row.has_tags else {}
            return "", unknown | tags | request.inputs
        call = self._call(resource, request)
        with _name_errors(call, "creating"):
            try:
                call.id = resource.create(call)
                # As the real plugin, wait until AWS shows the resource, or its outputs would be missing.
                title = "AWS to show the new resource"
                call.wait(lambda: self._observe(resource, call) is not None, title, PROPAGATION)
            except NotReady as error:
                if not call.id:
                    raise OperationFailed(str(error)) from error
                raise InitFailed(
                    call.id, self._state(resource, call), former, f"creating {_title(call)}: {error}"
                ) from error
            return call.id, self._state(resource, call)

    def read(self, request: Request) -> tuple[str, Props, Props]:
        resource, former = _entry(request.type), request.inputs
        request = notes.strip(request)
        call = self._call(resource, request)
        with _name_errors(call, "reading"):
            present = self._observe(resource, call)
        if present is None:
            raise ResourceGone(request.urn)
        table = resource.row.table
        if request.inputs:
            inputs = {
                name: mapping.overlay(table[name], value, present.get(name)) if name in table else value
                for name, value in request.inputs.items()
            }
            if resource.row.has_tags and "tags" not in inputs and present.get("tags"):
                inputs["tags"] = present["tags"]
        else:
            inputs = mapping.normalise(table, {name: present.get(name) for name in table})
        state = {**request.state, **inputs, **present, **_agreed_values(table, inputs, present)}
        return call.id, notes.as_before(former, inputs), state

    def update(self, request: Request) -> Props:
        resource, former = _entry(request.type), request.inputs
        request = notes.strip(request)
        if request.preview:
            plan = _merge_state(request.state, request.inputs, request.old_inputs)
            return {**plan, **dict.fromkeys(resource.row.volatile, UNKNOWN)}
        call = self._call(resource, request)
        call.old = request.old_inputs or request.state
        with _name_errors(call, "updating"):
            try:
                self._retag(resource, call)
                # Tags have their own calls: if only they differ, nothing else is sent.
                marks = ("tags", "tagsAll") if resource.row.has_tags else ()
                if resource.row.update is not None and call.differs(
                    *(name for name in {**call.old, **call.new} if name not in marks)
                ):
                    resource.update(call)
            except NotReady as error:
                state = {**request.state, **request.inputs}
                raise InitFailed(call.id, state, former, f"updating {_title(call)}: {error}") from error
            return self._state(resource, call)

    def delete(self, request: Request) -> None:
        resource = _entry(request.type)
        call = self._call(resource, notes.strip(request))
        with _name_errors(call, "deleting"):
            try:
                resource.delete(call)
            except NotReady as error:
                raise OperationFailed(f"deleting {_title(call)}: {error}") from error

    def invoke(self, token: str, arguments: Props) -> Props:
        try:
            return invoke(self._clients, token, arguments)
        except (ClientError, BotoCoreError) as error:
            raise OperationFailed(f"invoking {token}: {error}") from error

    def cancel(self) -> None:
        self._cancelled.set()

    def _call(self, resource: ResourceType, request: Request) -> ResourceCall:
        patience = (request.timeout_s or resource.row.patience.total_seconds()) * float(os.environ.get(PATIENCE, "1"))
        return ResourceCall(
            row=resource.row,
            clients=self._clients,
            name=request.name,
            deadline=time.monotonic() + patience,
            cancelled=self._cancelled,
            id=request.id,
            new=request.inputs or request.state,
            old=request.old_inputs,
            state=request.state,
        )

    def _observe(self, resource: ResourceType, call: ResourceCall) -> Props | None:
        present = call.or_none(lambda: resource.read(call))
        if present is not None and resource.row.has_region:
            present = {**present, "region": call.region}
        if present is not None and resource.row.has_tags:
            # AWS's own tags cannot be set, so they are no drift.
            program_tags = {
                key: value for key, value in (present.get("tags") or {}).items() if not key.startswith("aws:")
            }
            present = {**present, "tags": program_tags, "tagsAll": program_tags}
        return present

    def _state(self, resource: ResourceType, call: ResourceCall) -> Props:
        present = self._observe(resource, call) or {}
        if call.tags and not present.get("tags"):
            # Tags are set at the creation but shown later.
            present = {name: value for name, value in present.items() if name not in ("tags", "tagsAll")}
            present |= {"tagsAll": call.tags}
        table = resource.row.table
        return {**call.new, **present, **_agreed_values(table, call.new, present)}

    def _retag(self, resource: ResourceType, call: ResourceCall) -> None:
        old, new = call.old.get("tags") or {}, call.tags
        if resource.row.has_tags and old != new:
            fresh = {key: value for key, value in new.items() if old.get(key) != value}
            resource.retag(call, fresh, sorted(set(old) - set(new)))


def _agreed_values(table: dict[str, Any], wish: Props, present: Props) -> Props:
    """Keep the program's own spelling of values that equal AWS's."""
    return {
        name: value
        for name, value in wish.items()
        if name in table and name in present and mapping.equal(table[name], value, present[name])
    }


def _entry(token: str) -> ResourceType:
    if token not in RESOURCES:
        raise OperationFailed(
            f"unknown resource type {token}; the rehearsal's table knows: {', '.join(sorted(RESOURCES))}; "
            "cure: add an entry in infra/rehearsal/plugins/aws"
        )
    return RESOURCES[token]


def _made_name(naming: Naming, request: Request, inputs: Props) -> str:
    prefix = inputs.get(naming.prefix_property) if naming.prefix_property else None
    if not prefix and request.old_inputs.get(naming.property):
        return str(request.old_inputs[naming.property])
    if not prefix and request.proposed_name:
        return request.proposed_name
    suffix = hashlib.sha256(request.random_seed or str(time.time_ns()).encode()).hexdigest()[:7]
    stem = str(prefix) if prefix else request.name + naming.separator
    return stem[: naming.longest - len(suffix)] + suffix


def _is_tag(path: str) -> bool:
    return path.split(".")[0] == "tags"


def _title(call: ResourceCall) -> str:
    return f"{call.row.token.split(':')[-1]} {call.name}" + (f" ({call.id})" if call.id else "")


@contextmanager
def _name_errors(call: ResourceCall, doing: str) -> Iterator[None]:
    try:
        yield
    except ClientError as error:
        text = error.response.get("Error", {}).get("Message", "")
        raise OperationFailed(f"{doing} {_title(call)}: {error.operation_name}: {error_code(error)}: {text}") from error
    except BotoCoreError as error:
        raise OperationFailed(f"{doing} {_title(call)}: {error}") from error


def _merge_state(state: Props, inputs: Props, old_inputs: Props) -> Props:
    """Return the state after an update: new inputs, and AWS's own values beside the old ones, at every depth."""
    merged_state = {key: value for key, value in state.items() if key in inputs or key not in old_inputs}
    for key, value in inputs.items():
        recorded_value, old = state.get(key), old_inputs.get(key)
        if isinstance(value, dict) and isinstance(recorded_value, dict):
            merged_state[key] = _merge_state(recorded_value, value, old if isinstance(old, dict) else {})
        else:
            merged_state[key] = value
    return merged_state
