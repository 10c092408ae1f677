"""Kubernetes objects in the state of a stack whose cluster is gone or silent: they are gone with it.

`deleted_with` covers a cluster destroyed in the same operation, and `delete_unreachable` plain objects; but once the
cluster has left the state, a Helm release can be neither read nor deleted.
"""

from __future__ import annotations

import http.client
import ssl
from collections.abc import Mapping
from typing import Any, Literal
from urllib.parse import urlsplit

from infra.session.context import Context
from infra.spec import waits

PATIENCE_S = waits.SILENCE.seconds
_ANSWER_S = 5.0
KUBERNETES = "kubernetes:"


def forget_kubernetes(context: Context, deployment: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the deployment without its Kubernetes objects, pending ones too, if no API server can delete them. Returns
    None if there are none or they can be deleted."""
    there = [*deployment.get("resources", ()), *(o["resource"] for o in deployment.get("pending_operations") or ())]
    orphans = {one["urn"] for one in there if one["type"].startswith(KUBERNETES)}
    if not orphans or (seen := _cluster(context) if context.enters_cluster else "closed") == "answers":
        return None
    silent = "is not entered by the closer" if seen == "closed" else f"has not answered for {PATIENCE_S:.0f} s"
    what = "is gone" if seen == "gone" else silent
    context.progress.note(
        f"the cluster {what}: {len(orphans)} Kubernetes objects are gone with it and removed from the state"
    )
    return without(deployment, orphans)


def without(deployment: Mapping[str, Any], urns: set[str]) -> dict[str, Any]:
    """Return a deployment without these resources and references to them."""
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
    """Ask EKS, then the API server with a bounded wait."""
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
        context.progress.step(f"the API server of {name} does not answer; waiting up to {PATIENCE_S:.0f} s")
    return "silent"


def _answers(endpoint: str) -> bool:
    """Return whether anything speaks HTTP there; a refusal counts. Nothing secret is sent, so TLS is not verified."""
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
