"""The operations of the AWS package, common to all resource types by the table."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from infra.rehearsal.plugins.aws import config, functions, mapping, notes
from infra.rehearsal.plugins.aws.call import PROPAGATION, Call, NotReady, error_code
from infra.rehearsal.plugins.aws.catalogue import RESOURCES
from infra.rehearsal.plugins.aws.client import Clients
from infra.rehearsal.plugins.aws.resource import Resource
from infra.rehearsal.plugins.aws.table import Naming
from infra.rehearsal.plugins.package import Change, InitFailed, OperationFailed, PropertyFailure, Request, ResourceGone
from infra.rehearsal.plugins.wire import UNKNOWN, Props

PATIENCE = "BIVOUAC_REHEARSAL_PATIENCE"
"""Factor on all time limits of the plugin: with 0.01 the 20 minutes of a deletion are 12 seconds."""


class AwsPackage:
    version = "7.51.1"

    def __init__(self) -> None:
        self._clients = Clients({})
        self._default_tags: dict[str, str] = {}
        self._cancelled = threading.Event()

    def schema(self) -> dict[str, Any]:
        return {"name": "aws", "version": self.version, "resources": {token: {} for token in RESOURCES}}

    def check_config(self, inputs: Props) -> Sequence[PropertyFailure]:
        return config.failures(inputs)

    def diff_config(self, old: Props, new: Props) -> Sequence[Change]:
        return config.changes(old, new)

    def configure(self, inputs: Props) -> None:
        settings = config.parsed(inputs)
        self._clients = Clients(settings)
        self._default_tags = dict((settings.get("defaultTags") or {}).get("tags") or {})

    def check(self, request: Request) -> tuple[Props, Sequence[PropertyFailure]]:
        resource = _entry(request.type)
        table = resource.row.table
        given: Props = notes.bare(request.inputs)
        if resource.row.regional and given.get("region") is None:
            given["region"] = self._clients.region
        if resource.row.tagged and self._default_tags and given.get("tags") != UNKNOWN:
            given["tags"] = self._default_tags | (given.get("tags") or {})
        inputs = mapping.normalised(table, given)
        if resource.row.naming and inputs.get(resource.row.naming.property) is None:
            inputs[resource.row.naming.property] = _made_name(resource.row.naming, request, inputs)
        return notes.of_check(given, inputs), list(mapping.failures(table, inputs, request.type))

    def diff(self, request: Request) -> tuple[Sequence[Change], bool]:
        resource, made_up = _entry(request.type), notes.defaulted(request.inputs)
        request = notes.without(request)
        old = request.old_inputs or request.state
        found = list(mapping.changes(resource.row.table, old, request.inputs))
        updatable = resource.row.update is not None
        found = [c if updatable or _is_tag(c.path) else Change(c.path, c.kind, True) for c in found]
        changed = {change.path for change in found}
        clash = bool(resource.row.identity) and not changed & set(resource.row.identity)
        return found, clash and not set(resource.row.identity) & made_up

    def create(self, request: Request) -> tuple[str, Props]:
        resource, noted = _entry(request.type), request.inputs
        request = notes.without(request)
        if request.preview:
            unknown = dict.fromkeys(resource.row.computed, UNKNOWN)
            known = {"tagsAll": request.inputs.get("tags") or {}} if resource.row.tagged else {}
            return "", unknown | known | request.inputs
        call = self._call(resource, request)
        with _named(call, "creating"):
            try:
                call.id = resource.create(call)
                # As the real plugin, wait until AWS shows the resource, or its outputs would be missing.
                shown = "AWS to show the new resource"
                call.wait(lambda: self._observe(resource, call) is not None, shown, PROPAGATION)
            except NotReady as error:
                if not call.id:
                    raise OperationFailed(str(error)) from error
                raise InitFailed(
                    call.id, self._state(resource, call), noted, f"creating {_title(call)}: {error}"
                ) from error
            return call.id, self._state(resource, call)

    def read(self, request: Request) -> tuple[str, Props, Props]:
        resource, noted = _entry(request.type), request.inputs
        request = notes.without(request)
        call = self._call(resource, request)
        with _named(call, "reading"):
            observed = self._observe(resource, call)
        if observed is None:
            raise ResourceGone(request.urn)
        table = resource.row.table
        if request.inputs:
            inputs = {
                name: mapping.overlay(table[name], value, observed.get(name)) if name in table else value
                for name, value in request.inputs.items()
            }
            if resource.row.tagged and "tags" not in inputs and observed.get("tags"):
                inputs["tags"] = observed["tags"]
        else:
            inputs = mapping.normalised(table, {name: observed.get(name) for name in table})
        state = {**request.state, **inputs, **observed, **_agreed(table, inputs, observed)}
        return call.id, notes.as_before(noted, inputs), state

    def update(self, request: Request) -> Props:
        resource, noted = _entry(request.type), request.inputs
        request = notes.without(request)
        if request.preview:
            planned = _over(request.state, request.inputs, request.old_inputs)
            return {**planned, **dict.fromkeys(resource.row.volatile, UNKNOWN)}
        call = self._call(resource, request)
        call.old = request.old_inputs or request.state
        with _named(call, "updating"):
            try:
                self._retag(resource, call)
                # Tags have their own calls: if only they differ, nothing else is sent.
                marks = ("tags", "tagsAll") if resource.row.tagged else ()
                if resource.row.update is not None and call.changed(
                    *(name for name in {**call.old, **call.new} if name not in marks)
                ):
                    resource.update(call)
            except NotReady as error:
                state = {**request.state, **request.inputs}
                raise InitFailed(call.id, state, noted, f"updating {_title(call)}: {error}") from error
            return self._state(resource, call)

    def delete(self, request: Request) -> None:
        resource = _entry(request.type)
        call = self._call(resource, notes.without(request))
        with _named(call, "deleting"):
            try:
                resource.delete(call)
            except NotReady as error:
                raise OperationFailed(f"deleting {_title(call)}: {error}") from error

    def invoke(self, token: str, arguments: Props) -> Props:
        try:
            return functions.invoke(self._clients, token, arguments)
        except (ClientError, BotoCoreError) as error:
            raise OperationFailed(f"invoking {token}: {error}") from error

    def cancel(self) -> None:
        self._cancelled.set()

    def _call(self, resource: Resource, request: Request) -> Call:
        patience = (request.timeout_s or resource.row.patience.total_seconds()) * float(os.environ.get(PATIENCE, "1"))
        return Call(
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

    def _observe(self, resource: Resource, call: Call) -> Props | None:
        observed = call.or_none(lambda: resource.read(call))
        if observed is not None and resource.row.regional:
            observed = {**observed, "region": call.region}
        if observed is not None and resource.row.tagged:
            # AWS's own tags cannot be set, so they are no drift.
            own = {key: value for key, value in (observed.get("tags") or {}).items() if not key.startswith("aws:")}
            observed = {**observed, "tags": own, "tagsAll": own}
        return observed

    def _state(self, resource: Resource, call: Call) -> Props:
        observed = self._observe(resource, call) or {}
        if call.tags and not observed.get("tags"):
            # Tags are set at the creation but shown later.
            observed = {name: value for name, value in observed.items() if name not in ("tags", "tagsAll")}
            observed |= {"tagsAll": call.tags}
        table = resource.row.table
        return {**call.new, **observed, **_agreed(table, call.new, observed)}

    def _retag(self, resource: Resource, call: Call) -> None:
        old, new = call.old.get("tags") or {}, call.tags
        if resource.row.tagged and old != new:
            fresh = {key: value for key, value in new.items() if old.get(key) != value}
            resource.retag(call, fresh, sorted(set(old) - set(new)))


def _agreed(table: dict[str, Any], wanted: Props, observed: Props) -> Props:
    """Keep the program's own spelling of values that equal AWS's."""
    return {
        name: value
        for name, value in wanted.items()
        if name in table and name in observed and mapping.equal(table[name], value, observed[name])
    }


def _entry(token: str) -> Resource:
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


def _title(call: Call) -> str:
    return f"{call.row.token.split(':')[-1]} {call.name}" + (f" ({call.id})" if call.id else "")


@contextmanager
def _named(call: Call, doing: str) -> Iterator[None]:
    try:
        yield
    except ClientError as error:
        text = error.response.get("Error", {}).get("Message", "")
        raise OperationFailed(f"{doing} {_title(call)}: {error.operation_name}: {error_code(error)}: {text}") from error
    except BotoCoreError as error:
        raise OperationFailed(f"{doing} {_title(call)}: {error}") from error


def _over(state: Props, inputs: Props, old_inputs: Props) -> Props:
    """Return the state after an update: new inputs, and AWS's own values beside the old ones, at every depth."""
    kept = {key: value for key, value in state.items() if key in inputs or key not in old_inputs}
    for key, value in inputs.items():
        was, old = state.get(key), old_inputs.get(key)
        if isinstance(value, dict) and isinstance(was, dict):
            kept[key] = _over(was, value, old if isinstance(old, dict) else {})
        else:
            kept[key] = value
    return kept
