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
from trainer.contract.exits import limit_of

PATIENCE_S = waits.SILENCE.seconds
_ANSWER_S = 5.0
KUBERNETES = "kubernetes:"


def forget_kubernetes(context: Context, deployment: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the deployment without its Kubernetes objects, pending ones too, if no API server can delete them. Returns
    None if there are none or they can be deleted."""
    resources = [*deployment.get("resources", ()), *(o["resource"] for o in deployment.get("pending_operations") or ())]
    orphans = {resource["urn"] for resource in resources if resource["type"].startswith(KUBERNETES)}
    if not orphans or (cluster := _cluster(context) if context.enters_cluster else "closed") == "answers":
        return None
    silent = "is not entered by the closer" if cluster == "closed" else f"has not answered for {PATIENCE_S:.0f} s"
    state = "is gone" if cluster == "gone" else silent
    context.progress.note(
        f"the cluster {state}: {len(orphans)} Kubernetes objects are gone with it and removed from the state"
    )
    return without_resources(deployment, orphans)


def deleted_with_others(deployment: Mapping[str, Any]) -> set[str]:
    """Return what goes with another resource of the deployment (`deleted_with`), and providers that nothing else needs.

    A whole deletion deletes none of it. The engine would store the state twice for each: four requests to S3 a time.
    """
    resources = deployment.get("resources", ())
    urns = {resource["urn"] for resource in resources if resource.get("deletedWith")}
    needed = {resource.get("provider", "").rpartition("::")[0] for resource in resources if resource["urn"] not in urns}
    providers = {resource["urn"] for resource in resources if resource["type"] == f"pulumi:providers:{KUBERNETES[:-1]}"}
    return urns | (providers - needed)


def without_resources(deployment: Mapping[str, Any], urns: set[str]) -> dict[str, Any]:
    """Return a deployment without these resources and references to them."""
    resources = []
    for resource in deployment.get("resources", ()):
        if resource["urn"] in urns:
            continue
        copy = dict(resource)
        if "dependencies" in copy:
            copy["dependencies"] = [urn for urn in copy["dependencies"] if urn not in urns]
        if "propertyDependencies" in copy:
            copy["propertyDependencies"] = {
                name: [urn for urn in references or () if urn not in urns]
                for name, references in copy["propertyDependencies"].items()
            }
        resources.append(copy)
    pending = [
        operation
        for operation in deployment.get("pending_operations") or ()
        if operation.get("resource", {}).get("urn") not in urns
    ]
    return {**deployment, "resources": resources, "pending_operations": pending}


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
    address = urlsplit(endpoint)
    host, port = address.hostname or "", address.port
    if address.scheme == "http":
        connection = http.client.HTTPConnection(host, port, timeout=_ANSWER_S)
    else:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
        connection = http.client.HTTPSConnection(host, port, timeout=_ANSWER_S, context=tls)
    try:
        connection.request("GET", "/readyz")
        connection.getresponse().read()
    except (OSError, http.client.HTTPException) as error:
        if limit_of(error):
            raise  # this machine could not ask
        return False
    finally:
        connection.close()
    return True
