"""Kubernetes objects in the state of a stack whose cluster is gone or does not answer: they die with it.

`deleted_with` spares them while the cluster is destroyed in the same operation, and `delete_unreachable` spares plain
objects; but a Helm release can be neither read nor deleted without its API server, once the cluster has left the state.
"""

from __future__ import annotations

import http.client
import ssl
from collections.abc import Mapping
from typing import Any, Literal
from urllib.parse import urlsplit

from infra.session.context import Context

PATIENCE_S = 60.0
_ANSWER_S = 5.0
KUBERNETES = "kubernetes:"


def forget_kubernetes(context: Context, deployment: Mapping[str, Any]) -> dict[str, Any] | None:
    """The deployment less its Kubernetes objects, half-made ones too, where no API server can delete them; says so.

    None where there are none, or where they can be deleted.
    """
    there = [*deployment.get("resources", ()), *(o["resource"] for o in deployment.get("pending_operations") or ())]
    orphans = {one["urn"] for one in there if one["type"].startswith(KUBERNETES)}
    if not orphans or (seen := _cluster(context)) == "answers":
        return None
    what = "is gone" if seen == "gone" else f"has not answered for {PATIENCE_S:.0f} s"
    context.progress.note(
        f"the cluster {what}: {len(orphans)} Kubernetes objects leave the state without being deleted, they die with it"
    )
    return without(deployment, orphans)


def without(deployment: Mapping[str, Any], urns: set[str]) -> dict[str, Any]:
    """A deployment less these resources, and less every mention of them."""
    kept = []
    for resource in deployment.get("resources", ()):
        if resource["urn"] in urns:
            continue
        changed = dict(resource)
        if "dependencies" in changed:
            changed["dependencies"] = [urn for urn in changed["dependencies"] if urn not in urns]
        if "propertyDependencies" in changed:
            changed["propertyDependencies"] = {
                name: [urn for urn in several or () if urn not in urns]
                for name, several in changed["propertyDependencies"].items()
            }
        kept.append(changed)
    pending = [
        one for one in deployment.get("pending_operations") or () if one.get("resource", {}).get("urn") not in urns
    ]
    return {**deployment, "resources": kept, "pending_operations": pending}


def _cluster(context: Context) -> Literal["answers", "gone", "silent"]:
    """EKS's word, then a bounded wait for the API server's."""
    eks, name = context.account.client("eks"), context.names.cluster
    try:
        cluster = eks.describe_cluster(name=name)["cluster"]
    except eks.exceptions.ResourceNotFoundException:
        return "gone"
    if cluster["status"] in ("DELETING", "FAILED") or not cluster.get("endpoint"):
        return "gone"
    for _ in context.turns(PATIENCE_S):
        if _answers(str(cluster["endpoint"])):
            return "answers"
        context.progress.step(f"the API server of {name} does not answer; it is given {PATIENCE_S:.0f} s")
    return "silent"


def _answers(endpoint: str) -> bool:
    """Whether anything speaks HTTP there; a refusal is an answer. Nothing secret is sent, so nothing is verified."""
    where = urlsplit(endpoint)
    host, port = where.hostname or "", where.port
    if where.scheme == "http":
        connection = http.client.HTTPConnection(host, port, timeout=_ANSWER_S)
    else:
        unverified = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        unverified.check_hostname, unverified.verify_mode = False, ssl.CERT_NONE
        connection = http.client.HTTPSConnection(host, port, timeout=_ANSWER_S, context=unverified)
    try:
        connection.request("GET", "/readyz")
        connection.getresponse().read()
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
    return True
