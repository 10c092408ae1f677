"""What an admin applies once so that a namespace can hold campaigns. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import yaml

from infra.cluster import admission
from infra.cluster.admission import pod_security
from infra.cluster.standing.fabric_claims import claim_template
from infra.spec.campaign import Spec
from infra.spec.names import ARCHIVE_ACCOUNT, LOCAL_CLAIM, PROJECT, STEWARD_ACCOUNT, TRAINER_ACCOUNT
from infra.spec.standing import StandingCluster
from infra.standing.rights import DRIVER_ACCOUNT, Right, rights

Object = dict[str, Any]
QUOTA = PROJECT
GUARD_LABEL = "bivouac.dev/guard"
"""Label of what must stand before the namespace is opened: `kubectl apply -l` takes it alone."""
_RBAC = "rbac.authorization.k8s.io"
_PODS_BESIDE = 10
"""Pods beside two gangs, of which one is ending: steward, archive, copies, the proof of a node."""


@dataclass(frozen=True)
class Subject:
    """Who runs `bivouac`: by default the account that the grant makes."""

    kind: Literal["ServiceAccount", "User", "Group"] = "ServiceAccount"
    name: str = DRIVER_ACCOUNT


@dataclass(frozen=True)
class Part:
    """An object, and why it is needed."""

    reason: str
    document: Object


def grant_text(spec: Spec, cluster: StandingCluster, driver: Subject) -> str:
    """Return the YAML, each object with its reason."""
    head = (
        f"# What campaigns in namespace {cluster.namespace} need of an admin, once: bivouac grant SPEC | kubectl apply "
        "-f -\n"
        "# Beside it the cluster has JobSet (jobset.x-k8s.io/v1alpha2)"
        f"{' and the MPI operator' if any(row.group == 'kubeflow.org' for row in rights(spec, cluster)) else ''}, and "
        f"the namespace a Secret {cluster.s3.secret} with\n"
        "# AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY of the bucket. No right changes a node or another namespace.\n"
    )
    if _opened_words(spec.runtime.host_network, cluster.fabric.ipc_lock):
        head += (
            "# Policy and binding come first. Where they cannot be applied, do not apply the rest, which opens the "
            "namespace.\n# kubectl goes on after a failure, so in two steps: bivouac grant SPEC > grant.yaml\n"
            f"#   kubectl apply -f grant.yaml -l {GUARD_LABEL} && kubectl apply -f grant.yaml\n"
        )
    parts = grant(spec, cluster, driver)
    return head + "".join(f"---\n# {part.reason}\n{yaml.safe_dump(part.document, sort_keys=False)}" for part in parts)


def grant(spec: Spec, cluster: StandingCluster, driver: Subject) -> tuple[Part, ...]:
    """Return every object in the order in which it can be applied."""
    return tuple(_parts(spec, cluster, driver))


def _parts(spec: Spec, cluster: StandingCluster, driver: Subject) -> Iterator[Part]:
    space = cluster.namespace
    host_network, pins_memory = spec.runtime.host_network, cluster.fabric.ipc_lock
    price = _opened_words(host_network, pins_memory)
    space_words = (
        "The namespace of the campaigns. Best one of its own: who makes pods in a namespace can use its Secrets."
    )
    if price:
        policy = admission.own_baseline(f"{PROJECT}-{space}", host_network, pins_memory)
        policy_words = "The rules of `baseline`, but that the pods of the trainer have what the spec wants."
        yield Part(policy_words, _guard(policy))
        yield Part(f"They hold in namespace {space}.", _guard(admission.binding(policy, space)))
    yield Part(
        f"{space_words}{price}",
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": space, "labels": pod_security(bool(price))}},
    )
    if (template := claim_template(cluster)) is not None:
        yield Part(f"What each pod of the gang claims of DeviceClass {cluster.fabric.device_class}.", template)
    yield Part("The most that campaigns here take at one time.", _quota(spec, cluster))
    for account, has_token in _accounts(driver):
        yield Part(
            f"The pods of the {account}."
            if account != DRIVER_ACCOUNT
            else f"Who runs bivouac: kubectl -n {space} create token {DRIVER_ACCOUNT} --duration 24h",
            {
                "apiVersion": "v1",
                "kind": "ServiceAccount",
                "metadata": {"name": account, "namespace": space},
                "automountServiceAccountToken": has_token,
            },
        )
    table = rights(spec, cluster)
    for account, subject in ((DRIVER_ACCOUNT, driver), (STEWARD_ACCOUNT, Subject(name=STEWARD_ACCOUNT))):
        for everywhere in (False, True):
            own_rights = [right for right in table if (right.account, right.everywhere) == (account, everywhere)]
            yield from _role(account, subject, own_rights, cluster, everywhere=everywhere)
    yield from _local_volume(cluster)


def _guard(document: Object) -> Object:
    return document | {"metadata": document["metadata"] | {"labels": {GUARD_LABEL: "baseline"}}}


def _opened_words(host_network: bool, pins_memory: bool) -> str:
    """Return what the namespace allows beyond Pod Security's `baseline`, and its price; empty if nothing."""
    prices = {
        "workload.host_network: they reach each service on a node's own addresses, and see its traffic": host_network,
        "cluster.fabric.ipc_lock: they may pin all of a node's memory (IPC_LOCK)": pins_memory,
    }
    text = "".join(f"\n#   {words}" for words, is_wanted in prices.items() if is_wanted)
    if not text:
        return ""
    return (
        "\n# Its level is `privileged`: `baseline` does not let the job's pods have what the spec wants. The price:"
        f"{text}\n# The policy above holds all else of `baseline`, for every pod: without it a pod here could be all "
        "that it likes.\n# An exemption of the namespace in the API server's own configuration needs the policy too."
    )


def _accounts(driver: Subject) -> tuple[tuple[str, bool], ...]:
    driver_account = ((DRIVER_ACCOUNT, False),) if driver.kind == "ServiceAccount" else ()
    return (*driver_account, (STEWARD_ACCOUNT, True), (TRAINER_ACCOUNT, False), (ARCHIVE_ACCOUNT, False))


def _quota(spec: Spec, cluster: StandingCluster) -> Object:
    count = spec.nodes.count
    devices = {f"requests.{name}": str(count * per_pod) for name, per_pod in cluster.nodes.devices.items()}
    hard = {**devices, "pods": str(2 * count + _PODS_BESIDE)}
    return {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": QUOTA, "namespace": cluster.namespace},
        "spec": {"hard": hard},
    }


def _role(
    account: str, subject: Subject, table: Sequence[Right], cluster: StandingCluster, *, everywhere: bool
) -> Iterator[Part]:
    """Yield a role and its binding, for the whole cluster or the namespace."""
    kind = "ClusterRole" if everywhere else "Role"
    name = f"{PROJECT}-{cluster.namespace}-{account}" if everywhere else account
    metadata = {"name": name} if everywhere else {"name": name, "namespace": cluster.namespace}
    reasons = "".join(f"\n#   {', '.join(right.verbs)} {right.kinds}: {right.reason}" for right in table)
    yield Part(
        f"Rights of the {account}{', which no namespace has' if everywhere else ''}:{reasons}",
        {
            "apiVersion": f"{_RBAC}/v1",
            "kind": kind,
            "metadata": metadata,
            "rules": [_rule(right) for right in table],
        },
    )
    yield Part(
        f"They are {'those of the ' if subject.kind == 'ServiceAccount' else ''}{subject.kind} {subject.name}.",
        {
            "apiVersion": f"{_RBAC}/v1",
            "kind": f"{kind}Binding",
            "metadata": metadata,
            "roleRef": {"apiGroup": _RBAC, "kind": kind, "name": name},
            "subjects": [
                {"kind": subject.kind, "name": subject.name, "namespace": cluster.namespace}
                if subject.kind == "ServiceAccount"
                else {"kind": subject.kind, "name": subject.name, "apiGroup": _RBAC}
            ],
        },
    )


def _rule(right: Right) -> Object:
    names = {"resourceNames": list(right.names)} if right.names else {}
    return {"apiGroups": [right.group], "resources": list(right.resources), **names, "verbs": sorted(right.verbs)}


def _local_volume(cluster: StandingCluster) -> Iterator[Part]:
    """Yield a volume that is the same folder of each node, and its claim: pods name no path of a node."""
    volume = f"{PROJECT}-{cluster.namespace}-{LOCAL_CLAIM}"
    size = {"storage": "1Gi"}  # required, but nothing limits a folder
    place = {"name": LOCAL_CLAIM, "namespace": cluster.namespace}
    yield Part(
        f"The folder {cluster.local} of each node, for the local tier. Pods name its claim: the namespace's Pod "
        "Security lets none name a path.",
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": volume},
            "spec": {
                "capacity": size,
                "accessModes": ["ReadWriteMany"],
                "persistentVolumeReclaimPolicy": "Retain",
                "storageClassName": "",
                "claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", **place},
                "hostPath": {"path": cluster.local, "type": "DirectoryOrCreate"},
            },
        },
    )
    yield Part(
        "The claim on it.",
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": place,
            "spec": {
                "accessModes": ["ReadWriteMany"],
                "storageClassName": "",
                "volumeName": volume,
                "resources": {"requests": size},
            },
        },
    )
