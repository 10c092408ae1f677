"""Access entries as documents: for a cluster's creator, a node role, and others."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from typing import Any

from infra.rehearsal.aws.world import World

CLUSTER_ADMIN_POLICY = "arn:aws:eks::aws:cluster-access-policy/AmazonEKSClusterAdminPolicy"


def eks_arn(world: World, kind: str, *parts: str) -> str:
    return f"arn:aws:eks:{world.region}:{world.account}:{kind}/{'/'.join(parts)}"


def admin_entry(world: World, cluster: str, principal: str) -> dict[str, Any]:
    """Make the access entry of a cluster's creator."""
    entry = access_entry(world, cluster, principal, "STANDARD")
    entry["policies"][CLUSTER_ADMIN_POLICY] = {
        "policyArn": CLUSTER_ADMIN_POLICY,
        "accessScope": {"type": "cluster", "namespaces": []},
        "associatedAt": datetime.now(UTC),
        "modifiedAt": datetime.now(UTC),
    }
    return entry


def access_entry(world: World, cluster: str, principal: str, kind: str) -> dict[str, Any]:
    """Make an access entry; `username` may contain {{SessionName}} or {{EC2PrivateDNSName}}."""
    shape, name = principal.split(":")[5].split("/")[0], principal.rpartition("/")[2]
    if kind == "EC2_LINUX":
        username = "system:node:{{EC2PrivateDNSName}}"
    elif shape == "role":
        username = f"arn:aws:sts::{world.account}:assumed-role/{name}/{{{{SessionName}}}}"
    else:
        username = principal
    return {
        "clusterName": cluster,
        "principalArn": principal,
        "accessEntryArn": eks_arn(world, "access-entry", cluster, shape, world.account, name, str(uuid.uuid4())),
        "kubernetesGroups": ["system:nodes"] if kind == "EC2_LINUX" else [],
        "username": username,
        "type": kind,
        "createdAt": datetime.now(UTC),
        "modifiedAt": datetime.now(UTC),
        "tags": {},
        "policies": {},
    }
