"""Rules for buckets and cluster access."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from infra.plan.checks.finding import Draft, error
from infra.spec.campaign import Spec
from infra.stack.rules.graph import UNKNOWN, Graph

_CLOSED = ("blockPublicAcls", "blockPublicPolicy", "ignorePublicAcls", "restrictPublicBuckets")


def private_buckets(graph: Graph, spec: Spec) -> Iterator[Draft]:
    """Every managed bucket is private, encrypted, versioned and TLS only, and is not destroyed with its content."""
    settled = {
        one.inputs.get("bucket") for one in graph.of("BucketVersioning", "BucketPublicAccessBlock", "BucketPolicy")
    }
    for bucket in graph.of("Bucket"):
        settled.add(bucket.inputs.get("bucket"))
        if bucket.inputs.get("forceDestroy"):
            yield error(
                bucket, "would be destroyed with its content", seen="force_destroy", cure="force_destroy: False"
            )
    for name in sorted(map(str, settled - {None})):
        yield from _settings(graph, name)


def _settings(graph: Graph, name: str) -> Iterator[Draft]:
    def of(kind: str) -> dict[str, Any]:
        found = [one for one in graph.of(kind) if one.inputs.get("bucket") == name]
        return dict(found[0].inputs) if found else {}

    closed = of("BucketPublicAccessBlock")
    checks = {
        "can be opened to the world": (all(closed.get(key) for key in _CLOSED), "BucketPublicAccessBlock, all four"),
        "is not encrypted": (bool(of("BucketServerSideEncryptionConfiguration").get("rules")), "an encryption rule"),
        "keeps no versions": (
            (of("BucketVersioning").get("versioningConfiguration") or {}).get("status") == "Enabled",
            "BucketVersioning Enabled",
        ),
        "takes calls without TLS": (
            _tls_only(of("BucketPolicy").get("policy")),
            "a Deny where aws:SecureTransport is false",
        ),
        "keeps broken uploads for ever": (
            "abortIncompleteMultipartUpload" in str(of("BucketLifecycleConfiguration")),
            "a lifecycle rule that aborts them",
        ),
    }
    for message, (ok, cure) in checks.items():
        if not ok:
            yield error("stack", f"bucket {name} {message}", seen="no such setting", cure=cure)


def _tls_only(policy: Any) -> bool:
    if policy in (None, UNKNOWN):
        return policy == UNKNOWN
    statements = json.loads(policy)["Statement"] if isinstance(policy, str) else policy["Statement"]
    return any(
        one["Effect"] == "Deny" and (one.get("Condition") or {}).get("Bool", {}).get("aws:SecureTransport") == "false"
        for one in statements
    )


def cluster_access(graph: Graph, spec: Spec) -> Iterator[Draft]:
    """Rights in the cluster come from access entries alone, not from having made it."""
    for cluster in graph.of("Cluster"):
        access = cluster.inputs.get("accessConfig") or {}
        if (
            access.get("authenticationMode") != "API"
            or access.get("bootstrapClusterCreatorAdminPermissions") is not False
        ):
            yield error(
                cluster,
                "gives its creator access",
                seen=access or "the default",
                cure="authentication mode API, no rights for the creator",
            )
        if (cluster.inputs.get("upgradePolicy") or {}).get("supportType") != "STANDARD":
            yield error(
                cluster,
                "may slip into extended support, six times the price",
                seen="EXTENDED",
                cure="upgrade_policy.support_type: STANDARD",
            )
