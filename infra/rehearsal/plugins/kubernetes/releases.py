"""Helm releases as Helm 3 records them, a secret per revision. The control plane runs their controllers."""

from __future__ import annotations

import base64
import gzip
import json
from datetime import UTC, datetime
from typing import Any

from infra.rehearsal.plugins.kubernetes.cluster import Address, ApiServer, Object
from infra.rehearsal.plugins.package import OperationFailed, PropertyChange, PropertyFailure, unknown_properties
from infra.rehearsal.plugins.wire import Props

STATE_ANNOTATION = "rehearsal.bivouac.dev/release"
"""Set on the release secret once it took effect: `running <version>`, or `recorded` if no controller runs."""

TOKEN = "kubernetes:helm.sh/v3:Release"
_RECORDED = {"chart", "name", "namespace", "version", "values", "description", "repositoryOpts"}
_OF_THE_INSTALLATION = {
    "allowNullValues", "atomic", "cleanupOnFail", "compat", "createNamespace", "dependencyUpdate",
    "disableOpenapiValidation", "disableWebhooks", "forceUpdate", "maxHistory", "skipAwait", "skipCrds",
    "timeout", "waitForJobs",
}  # fmt: skip
"""Options of Helm's procedure; only `skipAwait`, `timeout` and `createNamespace` have an effect."""
_KNOWN = _RECORDED | _OF_THE_INSTALLATION
_REPLACE = ("name", "namespace")
DEFAULT_TIMEOUT_S = 300


def failures(inputs: Props) -> list[PropertyFailure]:
    problems = unknown_properties(inputs, _KNOWN, f"{TOKEN}: the rehearsal knows")
    gaps = (name for name in ("chart", "name") if not inputs.get(name))
    return problems + [PropertyFailure(name, f"missing required property '{name}' of {TOKEN}") for name in gaps]


def changes(old: Props, new: Props) -> list[PropertyChange]:
    names = sorted(name for name in _KNOWN if old.get(name) != new.get(name))
    return [PropertyChange(name, "update", name in _REPLACE) for name in names]


def install(cluster: ApiServer, inputs: Props) -> None:
    """Write revision 1 of a new release."""
    if inputs.get("createNamespace"):
        space = Address("v1", "Namespace", "", inputs["namespace"])
        if cluster.get(space) is None:
            cluster.create(space, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": inputs["namespace"]}})
    if revisions(cluster, inputs["namespace"], inputs["name"]):
        raise OperationFailed(
            f"cannot re-use a name that is still in use: release {inputs['namespace']}/{inputs['name']}"
        )
    _write(cluster, inputs, 1)


def upgrade(cluster: ApiServer, inputs: Props) -> None:
    """Write a new revision and mark the former one superseded."""
    revisions_before = revisions(cluster, inputs["namespace"], inputs["name"])
    _write(cluster, inputs, _number(revisions_before[-1]) + 1 if revisions_before else 1)
    for secret in revisions_before:
        if secret["metadata"]["labels"].get("status") == "deployed":
            body = {"apiVersion": "v1", "kind": "Secret", "metadata": {"labels": {"status": "superseded"}}}
            cluster.apply(_address(inputs, _number(secret)), body, force=True)


def uninstall(cluster: ApiServer, namespace: str, name: str) -> None:
    for secret in revisions(cluster, namespace, name):
        cluster.delete(Address("v1", "Secret", namespace, secret["metadata"]["name"]))


def revisions(cluster: ApiServer, namespace: str, name: str) -> list[Object]:
    """Return a release's secrets, oldest first."""
    return sorted(cluster.list("v1", "Secret", namespace, {"owner": "helm", "name": name}), key=_number)


def is_up(secret: Object) -> bool:
    """Return True once the site runs the release's controller, or has recorded that it has none."""
    return STATE_ANNOTATION in (secret["metadata"].get("annotations") or {})


def state(inputs: Props, secret: Object) -> Props:
    release = decode(secret)
    chart = release["chart"]["metadata"]
    status = {
        "appVersion": chart.get("appVersion", ""),
        "chart": chart["name"],
        "name": release["name"],
        "namespace": release["namespace"],
        "revision": release["version"],
        "status": release["info"]["status"],
        "version": chart["version"],
    }
    return {**inputs, "status": status, "resourceNames": {}}


def observe_inputs(inputs: Props, secret: Object) -> Props:
    """Return the inputs as the newest revision records them."""
    release = decode(secret)
    properties: Props = {"name": release["name"], "namespace": release["namespace"]}
    if release["config"] != (inputs.get("values") or {}):
        properties["values"] = release["config"]
    chart = release["chart"]["metadata"]
    if chart["name"] != chart_name(inputs.get("chart", "")):
        properties["chart"] = chart["name"]
    if inputs.get("version") and chart["version"] != inputs["version"]:
        properties["version"] = chart["version"]
    return {**inputs, **properties}


def decode(secret: Object) -> dict[str, Any]:
    raw = base64.b64decode(base64.b64decode(secret["data"]["release"]))
    return dict(json.loads(gzip.decompress(raw)))


def chart_name(chart: str) -> str:
    """Return the last part of `oci://registry/charts/jobset`, `repo/jobset` or `jobset`."""
    return chart.rstrip("/").rpartition("/")[2]


def _write(cluster: ApiServer, inputs: Props, revision: int) -> None:
    now = datetime.now(UTC)
    address = _address(inputs, revision)
    labels = {"name": inputs["name"], "owner": "helm", "status": "deployed", "version": str(revision)}
    labels["modifiedAt"] = str(int(now.timestamp()))
    document = {
        "name": inputs["name"],
        "namespace": inputs["namespace"],
        "version": revision,
        "config": inputs.get("values") or {},
        "manifest": "",
        "info": {
            "first_deployed": now.isoformat(),
            "last_deployed": now.isoformat(),
            "deleted": "",
            "description": inputs.get("description") or "Install complete",
            "status": "deployed",
        },
        "chart": {
            "metadata": {
                "apiVersion": "v2",
                "name": chart_name(inputs["chart"]),
                "version": str(inputs.get("version") or ""),
            },
            "templates": [],
            "values": {},
        },
    }
    payload = base64.b64encode(gzip.compress(json.dumps(document).encode(), mtime=0))
    cluster.create(
        address,
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "type": "helm.sh/release.v1",
            "metadata": {"name": address.name, "namespace": address.namespace, "labels": labels},
            "data": {"release": base64.b64encode(payload).decode()},
        },
    )


def _address(inputs: Props, revision: int) -> Address:
    return Address("v1", "Secret", inputs["namespace"], f"sh.helm.release.v1.{inputs['name']}.v{revision}")


def _number(secret: Object) -> int:
    return int(secret["metadata"]["labels"]["version"])
