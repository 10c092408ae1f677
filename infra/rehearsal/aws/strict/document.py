"""The lists in a service's answer, in any protocol, and the paging members of a request."""

from __future__ import annotations

import json
import re
from typing import Any, Protocol
from urllib.parse import parse_qsl, urlencode
from xml.etree import ElementTree

from moto.core.model import OperationModel

from infra.rehearsal.aws.answers import Environ

Item = Any


class AnswerDocument(Protocol):
    """An answer, with member names of the AWS model."""

    def items(self, member: str) -> list[Item]: ...
    def fill(self, member: str, items: list[Item]) -> None: ...
    def value(self, member: str) -> str: ...
    def put(self, member: str, value: str | bool) -> None: ...
    def write(self) -> bytes: ...


class JsonDocument:
    def __init__(self, body: bytes, operation: OperationModel) -> None:
        self.content = json.loads(body or b"{}")
        self._names = _names(operation)

    def _name(self, member: str) -> str:
        return self._names.get(member, member)

    def items(self, member: str) -> list[Item]:
        return list(self.content.get(self._name(member)) or ())

    def fill(self, member: str, items: list[Item]) -> None:
        self.content[self._name(member)] = items

    def value(self, member: str) -> str:
        return str(self.content.get(self._name(member)) or "")

    def put(self, member: str, value: str | bool) -> None:
        if value == "":
            self.content.pop(self._name(member), None)
        else:
            self.content[self._name(member)] = value

    def write(self) -> bytes:
        return json.dumps(self.content).encode()


class XmlDocument:
    def __init__(self, body: bytes, operation: OperationModel) -> None:
        self.root = ElementTree.fromstring(body)
        self._names = _names(operation)
        space = re.match(r"\{.*\}", self.root.tag)
        self.space = space[0] if space else ""
        wrapper = (operation.output_shape.serialization if operation.output_shape else {}).get("resultWrapper")
        wrapper_element = self.root.find(self.space + wrapper) if wrapper else self.root
        self.whole = self.root if wrapper_element is None else wrapper_element

    def child(self, member: str) -> ElementTree.Element | None:
        return self.whole.find(self.space + self._names.get(member, member))

    def items(self, member: str) -> list[Item]:
        node = self.child(member)
        return [] if node is None else list(node)

    def fill(self, member: str, items: list[Item]) -> None:
        node = self.child(member)
        if node is None:
            node = ElementTree.SubElement(self.whole, self.space + self._names.get(member, member))
        node[:] = items

    def value(self, member: str) -> str:
        node = self.child(member)
        return (node.text or "").strip() if node is not None else ""

    def put(self, member: str, value: str | bool) -> None:
        node = self.child(member)
        if value == "":
            if node is not None:
                self.whole.remove(node)
            return
        if node is None:
            node = ElementTree.SubElement(self.whole, self.space + self._names.get(member, member))
        node.text = str(value).lower() if isinstance(value, bool) else value

    def write(self) -> bytes:
        # Not `register_namespace`: it changes a table of the whole process, and two answers at a time break it.
        space = self.space.strip("{}") or None
        text: bytes = ElementTree.tostring(self.root, encoding="utf-8", xml_declaration=True, default_namespace=space)
        return text


def read(body: bytes, operation: OperationModel) -> AnswerDocument:
    return XmlDocument(body, operation) if body.lstrip()[:1] == b"<" else JsonDocument(body, operation)


def _names(operation: OperationModel) -> dict[str, str]:
    members = operation.output_shape.members if operation.output_shape else {}
    return {name: shape.serialization.get("name", name) for name, shape in members.items()}


def restate(environ: Environ, operation: OperationModel, changes: dict[str, str | int | None]) -> None:
    """Set members of a request; None removes one."""
    members = operation.input_shape.members if operation.input_shape else {}
    in_query, in_body = dict[str, Any](), dict[str, Any]()
    for name, value in changes.items():
        wire = members[name].serialization
        if wire.get("location") == "querystring":
            in_query[wire.get("name", name)] = value
        elif operation.service_model.protocol == "ec2":
            in_body[wire.get("queryName") or _capital(wire.get("name", name))] = value
        else:
            in_body[wire.get("name", name)] = value
    if in_query:
        environ["QUERY_STRING"] = urlencode(_override(environ.get("QUERY_STRING", ""), in_query))
        for key in ("RAW_URI", "REQUEST_URI"):
            if key in environ:
                environ[key] = f"{environ[key].partition('?')[0]}?{environ['QUERY_STRING']}"
    if in_body:
        body = environ.get("bivouac.body") or b""
        if "json" in environ.get("CONTENT_TYPE", ""):
            content = json.loads(body or b"{}") | in_body
            fresh = json.dumps({key: value for key, value in content.items() if value is not None})
        else:
            fresh = urlencode(_override(body.decode(), in_body))
        environ["bivouac.body"] = fresh.encode()


def _override(query: str, changes: dict[str, Any]) -> list[tuple[str, str]]:
    pairs = [(key, value) for key, value in parse_qsl(query, keep_blank_values=True) if key not in changes]
    return pairs + [(key, str(value)) for key, value in changes.items() if value is not None]


def _capital(name: str) -> str:
    return name[:1].upper() + name[1:]
