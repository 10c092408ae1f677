"""nodeadm's handling of user data: find the NodeConfig, and refuse one that would not join.

https://awslabs.github.io/amazon-eks-ami/nodeadm/doc/api/
"""

from __future__ import annotations

import base64
import binascii
import ipaddress
import re
import ssl
from dataclasses import dataclass, field
from email.message import Message
from email.parser import Parser
from typing import Any
from urllib.parse import urlsplit

import yaml

from infra.errors import PermanentError

MEDIA_TYPE = "application/node.eks.aws"
SCRIPT_TYPE = "text/x-shellscript"
API_GROUP = "node.eks.aws/"
INSTALLS_LUSTRE = re.compile(r"\bdnf install .*\blustre-client\b")
"""Searched for in scripts, which no machine here runs: it has no dnf and no kernel of its own."""
EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
CURE = "correct the NodeConfig in the launch template's user data"


class NotJoining(PermanentError):
    """The user data do not define a node."""


@dataclass(frozen=True)
class Taint:
    key: str
    value: str
    effect: str

    def document(self) -> dict[str, str]:
        return {"key": self.key, "effect": self.effect} | ({"value": self.value} if self.value else {})


@dataclass(frozen=True)
class NodeConfig:
    cluster: str
    endpoint: str
    authority_pem: str
    cidr: str
    labels: dict[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    max_pods: int | None = None
    local_disk: bool = False
    """True if the instance's NVMe disks are set up at /mnt/k8s-disks."""
    lustre_client: bool = False
    """True if a script of the user data installs it: EKS's own images lack it."""


def read_node_config(user_data: str) -> NodeConfig:
    """Parse and check the NodeConfig. Raises NotJoining with every finding at once."""
    spec = _merge(_documents(user_data))
    findings: list[str] = []
    cluster = spec.get("cluster") or {}
    pem = _authority(cluster.get("certificateAuthority"), findings)
    if not cluster.get("name"):
        findings.append("spec.cluster.name is missing")
    endpoint = str(cluster.get("apiServerEndpoint") or "")
    if urlsplit(endpoint).scheme != "https" or not urlsplit(endpoint).hostname:
        findings.append(f"spec.cluster.apiServerEndpoint is no https URL: {endpoint!r}")
    try:
        ipaddress.ip_network(str(cluster.get("cidr")))
    except ValueError:
        findings.append(f"spec.cluster.cidr is no network: {cluster.get('cidr')!r}")
    kubelet = spec.get("kubelet") or {}
    labels, taints = _flags(kubelet.get("flags") or [], findings)
    if findings:
        raise NotJoining("nodeadm refuses the NodeConfig", seen="; ".join(findings), cure=CURE)
    storage = ((spec.get("instance") or {}).get("localStorage") or {}).get("strategy")
    max_pods = (kubelet.get("config") or {}).get("maxPods")
    return NodeConfig(
        str(cluster["name"]),
        endpoint,
        pem,
        str(cluster["cidr"]),
        labels,
        taints,
        max_pods,
        storage is not None,
        any(INSTALLS_LUSTRE.search(text) for text in _parts(Parser().parsestr(user_data), SCRIPT_TYPE)),
    )


def _documents(user_data: str) -> list[dict[str, Any]]:
    """Return every NodeConfig of the user data: parts of a MIME message, or the whole."""
    message = Parser().parsestr(user_data)
    plain = [user_data] if API_GROUP in user_data else []
    texts = _parts(message, MEDIA_TYPE) if message.is_multipart() else plain
    try:
        documents = [document for text in texts for document in yaml.safe_load_all(text)]
    except yaml.YAMLError as error:
        raise NotJoining("the NodeConfig is not YAML", seen=" ".join(str(error).split()), cure=CURE) from error
    documents = [entry for entry in documents if isinstance(entry, dict) and entry.get("kind") == "NodeConfig"]
    if not documents:
        excerpt = f"{len(user_data)} characters of user data, starting {user_data[:60]!r}"
        raise NotJoining("no NodeConfig in the user data", seen=excerpt, cure=f"add a part of type {MEDIA_TYPE}")
    return documents


def _parts(message: Message, kind: str) -> list[str]:
    parts = [part for part in message.walk() if part.get_content_type() == kind]
    return [part.get_payload(decode=True).decode(errors="replace") for part in parts]  # type: ignore[union-attr]


def _merge(documents: list[dict[str, Any]]) -> dict[str, Any]:
    """Merge in order, as nodeadm does: maps by key, kubelet flags concatenated, anything else replaced."""

    def merge(base: Any, change: Any, path: tuple[str, ...] = ()) -> Any:
        if isinstance(base, dict) and isinstance(change, dict):
            keys = [*base, *(key for key in change if key not in base)]
            return {
                key: merge(base.get(key), change[key], (*path, key)) if key in change else base[key] for key in keys
            }
        return [*base, *change] if path == ("kubelet", "flags") and base and change else change

    spec: dict[str, Any] = {}
    for document in documents:
        spec = merge(spec, document.get("spec") or {})
    return spec


def _authority(base64_text: Any, findings: list[str]) -> str:
    try:
        pem = base64.b64decode(str(base64_text or ""), validate=True).decode()
        ssl.create_default_context().load_verify_locations(cadata=pem)
        return pem
    except (binascii.Error, UnicodeDecodeError, ssl.SSLError, ValueError):
        findings.append(f"spec.cluster.certificateAuthority is no certificate in base64: {str(base64_text)[:30]!r}")
        return ""


def _flags(flags: list[str], findings: list[str]) -> tuple[dict[str, str], tuple[Taint, ...]]:
    labels: dict[str, str] = {}
    taints: list[Taint] = []
    for flag in flags:
        name, _, value = str(flag).partition("=")
        items = [item for item in value.split(",") if item]
        if name == "--node-labels":
            for item in items:
                key, equals, text = item.partition("=")
                labels[key] = text
                if not equals:
                    findings.append(f"--node-labels: {item!r} is not key=value")
        elif name == "--register-with-taints":
            for item in items:
                pair, _, effect = item.rpartition(":")
                key, _, text = pair.partition("=")
                taints.append(Taint(key, text, effect))
                if effect not in EFFECTS or not key:
                    findings.append(f"--register-with-taints: {item!r} is not key=value:effect ({', '.join(EFFECTS)})")
        elif not name.startswith("--"):
            findings.append(f"spec.kubelet.flags: {flag!r} is no flag")
    return labels, tuple(taints)
