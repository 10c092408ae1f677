"""Holds the raw answers of the emulated AWS against the models of botocore, whose own parser drops what it cannot read.

An answer passes when it has every member that the model requires, none that the model lacks, and values of the type
and of the choices that the model gives.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import datetime
from typing import Any
from xml.etree import ElementTree

import pytest
from botocore import endpoint
from botocore.model import ListShape, MapShape, OperationModel, Shape, StringShape, StructureShape

from infra.rehearsal.aws import gateway
from infra.rehearsal.aws.iam.arns import Need
from tests.service_authorization import actions, fits, forms

Findings = Iterator[str]
BEYOND = (
    "ec2.DescribeInternetGateways.InternetGateways[].Attachments[].State: 'available'",
    "NetworkInterfaces[].InterfaceType: 'nat_gateway'",
    "VpcEndpoint.State: 'available'",
    "VpcEndpoints[].State: 'available'",
    "VpcEndpoints[].State: 'deleting'",
    "s3.ListObjectVersions.Versions.StorageClass: ",
    "Instances[].Platform: 'windows'",
    "Images[].Platform: 'windows'",
)
"""What AWS itself answers outside of its model's choices."""
LARGE_BYTES = 1_000_000
"""Lists of public images: not looked at, for the time it takes."""
NUMBERS = {"integer": r"-?\d+", "long": r"-?\d+", "float": r"-?[\d.]+(e-?\d+)?", "double": r"-?[\d.]+(e-?\d+)?"}


def watch(patch: pytest.MonkeyPatch) -> list[str]:
    """Hold every answer that a client of this process gets against its model; returns the growing list of findings."""
    found: list[str] = []
    original = endpoint.convert_to_response_dict

    def checked(answer: Any, operation: OperationModel) -> Any:
        read = original(answer, operation)
        page = read["headers"].get("Content-Type") == "text/html"  # a proxy's: no answer of AWS
        whole = not operation.has_streaming_output and len(read["body"]) <= LARGE_BYTES
        if read["status_code"] < 300 and whole and not page:
            new = findings(operation, read["headers"], read["body"])
            found.extend(one for one in new if one not in found and not any(known in one for known in BEYOND))
        return read

    patch.setattr(endpoint, "convert_to_response_dict", checked)
    return found


def watch_questions(patch: pytest.MonkeyPatch, found: list[str]) -> None:
    """Hold every question to IAM against the service authorization reference."""
    original = gateway.needs

    def judged(*call: Any) -> Iterator[Need]:
        for need in original(*call):
            found.extend(question for question in odd_questions(need) if question not in found)
            yield need

    patch.setattr(gateway, "needs", judged)


def odd_questions(need: Need) -> Findings:
    if not actions(need.action):
        yield f"{need.action} is no action"
        return
    known = forms(need.action)
    for resource in need.resources or ():
        if not any(fits(resource, form) for form in known.values()):
            yield f"{need.action} is not asked about {resource}, but about {sorted(known.values())}"


def findings(operation: OperationModel, headers: Any, body: bytes) -> list[str]:
    """Every difference between an answer and its model, as `Service.Operation.Member: what`."""
    output, where = operation.output_shape, f"{operation.service_model.service_name}.{operation.name}"
    if output is None:
        return []
    if isinstance(output.members.get(output.serialization.get("payload")), StringShape):
        return []  # S3's bucket policy: the body is the value
    content, protocol = _payload(output), operation.service_model.resolved_protocol
    found = list(_headers(where, output, headers))
    if "json" in protocol:
        document = json.loads(body) if body else {}
        return found + list(_json(where, content, document))
    if not body:
        return found + [f"{where}.{name}: is required and absent" for name in content.required_members]
    root = ElementTree.fromstring(body)
    if wrapper := output.serialization.get("resultWrapper"):
        inner = root.find(f"{{*}}{wrapper}")
        root = inner if inner is not None else ElementTree.Element(wrapper)
    ignored = {"requestId", "ResponseMetadata"}
    return found + list(_structure(where, content, root, ignored))


def _payload(output: StructureShape) -> Any:
    """The shape of the body: the payload's, or the output less what goes into headers."""
    named = output.serialization.get("payload")
    return output.members[named] if named else output


def _in_body(shape: StructureShape) -> dict[str, Shape]:
    return {name: one for name, one in shape.members.items() if one.serialization.get("location") is None}


def _headers(where: str, output: StructureShape, headers: Any) -> Findings:
    for name, shape in output.members.items():
        if shape.serialization.get("location") != "header":
            continue
        value = headers.get(shape.serialization.get("name", name))
        if value is not None:
            yield from _scalar(f"{where}.{name}", shape, value)
        elif name in output.required_members:
            yield f"{where}.{name}: is required and absent"


def _json(where: str, shape: Any, value: Any) -> Findings:
    if value is None:
        return  # as good as absent for every SDK
    if isinstance(shape, StructureShape):
        if not isinstance(value, dict):
            yield f"{where}: {value!r} is no structure"
            return
        members = {one.serialization.get("name", name): (name, one) for name, one in _in_body(shape).items()}
        for key, inner in value.items():
            if key in members:
                yield from _json(f"{where}.{key}", members[key][1], inner)
            elif key != "__type":
                yield f"{where}.{key}: the model has no such member"
        present = {members[key][0] for key, inner in value.items() if key in members and inner is not None}
        yield from (f"{where}.{name}: is required and absent" for name in set(shape.required_members) - present)
    elif isinstance(shape, ListShape):
        if not isinstance(value, list):
            yield f"{where}: {value!r} is no list"
            return
        for inner in value:
            yield from _json(f"{where}[]", shape.member, inner)
    elif isinstance(shape, MapShape):
        for key, inner in value.items():
            yield from _scalar(f"{where}.key", shape.key, key)
            yield from _json(f"{where}{{}}", shape.value, inner)
    elif shape.type_name == "string":
        yield from _scalar(where, shape, value) if isinstance(value, str) else [f"{where}: {value!r} is no string"]
    elif shape.type_name == "boolean":
        yield from [] if isinstance(value, bool) else [f"{where}: {value!r} is no boolean"]
    elif shape.type_name == "timestamp" and shape.serialization.get("timestampFormat") is None:
        yield from [] if type(value) in (int, float) else [f"{where}: {value!r} is no time in seconds"]
    elif shape.type_name in NUMBERS:
        whole = shape.type_name in ("integer", "long")
        fits = type(value) is int or (type(value) is float and not whole)
        yield from [] if fits else [f"{where}: {value!r} is no {shape.type_name}"]
    else:
        yield from _scalar(where, shape, value)


def _structure(where: str, shape: Any, node: ElementTree.Element, ignored: set[str] = frozenset()) -> Findings:  # type: ignore[assignment]
    members: dict[str, tuple[str, Shape]] = {}
    for name, one in _in_body(shape).items():
        key = one.serialization.get("name", name)
        if isinstance(one, ListShape) and one.serialization.get("flattened"):
            key = one.member.serialization.get("name", key)
        members[key] = (name, one)
    present = {name for name, one in shape.members.items() if one.serialization.get("location") is not None}
    for child in node:
        tag = _tag(child)
        if tag in members:
            name, one = members[tag]
            present.add(name)
            flat = isinstance(one, ListShape) and one.serialization.get("flattened")
            yield from _xml(f"{where}.{name}", one.member if flat else one, child)
        elif tag not in ignored:
            yield f"{where}.{tag}: the model has no such member"
    for key, (name, one) in members.items():
        if one.serialization.get("xmlAttribute"):
            present.add(name)
            prefix = key.partition(":")[2]
            if not any(attribute.endswith(prefix) for attribute in node.attrib):
                yield f"{where}.{name}: is an attribute and absent"
    yield from (f"{where}.{name}: is required and absent" for name in set(shape.required_members) - present)


def _xml(where: str, shape: Any, node: ElementTree.Element) -> Findings:
    if isinstance(shape, StructureShape):
        yield from _structure(where, shape, node)
    elif isinstance(shape, ListShape):
        wanted = shape.member.serialization.get("name", "member")
        for child in node:
            if _tag(child) != wanted:
                yield f"{where}.{_tag(child)}: items of this list are named {wanted}"
            yield from _xml(f"{where}[]", shape.member, child)
    elif isinstance(shape, MapShape):
        return
    else:
        yield from _scalar(where, shape, node.text or "")


def _tag(node: ElementTree.Element) -> str:
    return node.tag.rpartition("}")[2]


def _scalar(where: str, shape: Shape, text: str) -> Findings:
    """A value as text, as XML and headers have it."""
    kind = shape.type_name
    if kind == "boolean" and text not in ("true", "false"):
        yield f"{where}: {text!r} is no boolean"
    elif kind in NUMBERS and not re.fullmatch(NUMBERS[kind], text, re.IGNORECASE):
        yield f"{where}: {text!r} is no {kind}"
    elif kind == "timestamp" and not _is_time(text):
        yield f"{where}: {text!r} is no time"
    elif kind == "string":
        choices = getattr(shape, "enum", None)
        if choices and text not in choices:
            yield f"{where}: {text!r} is none of {', '.join(choices[:8])}"


def _is_time(text: str) -> bool:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return bool(re.fullmatch(r"\w{3}, \d\d \w{3} \d{4} \d\d:\d\d:\d\d GMT", text))
    return "T" in text
