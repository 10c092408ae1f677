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
    names = {
        resource.inputs.get("bucket")
        for resource in graph.of("BucketVersioning", "BucketPublicAccessBlock", "BucketPolicy")
    }
    for bucket in graph.of("Bucket"):
        names.add(bucket.inputs.get("bucket"))
        if bucket.inputs.get("forceDestroy"):
            yield error(
                bucket, "would be destroyed with its content", seen="force_destroy", cure="force_destroy: False"
            )
    for name in sorted(map(str, names - {None})):
        yield from _settings(graph, name)


def _settings(graph: Graph, name: str) -> Iterator[Draft]:
    def inputs_of(kind: str) -> dict[str, Any]:
        resources = [resource for resource in graph.of(kind) if resource.inputs.get("bucket") == name]
        return dict(resources[0].inputs) if resources else {}

    access = inputs_of("BucketPublicAccessBlock")
    encryption = inputs_of("BucketServerSideEncryptionConfiguration")
    checks = {
        "can be opened to the world": (all(access.get(key) for key in _CLOSED), "BucketPublicAccessBlock, all four"),
        "is not encrypted": (bool(encryption.get("rules")), "an encryption rule"),
        "keeps no versions": (
            (inputs_of("BucketVersioning").get("versioningConfiguration") or {}).get("status") == "Enabled",
            "BucketVersioning Enabled",
        ),
        "takes calls without TLS": (
            _tls_only(inputs_of("BucketPolicy").get("policy")),
            "a Deny where aws:SecureTransport is false",
        ),
        "keeps broken uploads for ever": (
            "abortIncompleteMultipartUpload" in str(inputs_of("BucketLifecycleConfiguration")),
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
        statement["Effect"] == "Deny"
        and (statement.get("Condition") or {}).get("Bool", {}).get("aws:SecureTransport") == "false"
        for statement in statements
    )


def cluster_access(graph: Graph, spec: Spec) -> Iterator[Draft]:
    """Rights in the cluster come from access entries alone, not from having made it."""
    for cluster in graph.of("Cluster"):
        access = cluster.inputs.get("accessConfig") or {}
        if (
            access.get("authenticationMode") != "API"
            or access.get("bootstrapClusterCreatorAdminPermissions") is not False
        ):
            cure = "authentication mode API, no rights for the creator"
            yield error(cluster, "gives its creator access", seen=access or "the default", cure=cure)
        if (cluster.inputs.get("upgradePolicy") or {}).get("supportType") != "STANDARD":
            cure = "upgrade_policy.support_type: STANDARD"
            yield error(cluster, "may slip into extended support, six times the price", seen="EXTENDED", cure=cure)
