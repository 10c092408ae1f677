"""The gang of a job that `mpirun` starts, as an MPIJob of the MPI operator. Pure functions.

The operator writes the hosts, makes a key for each attempt, and mounts both; the supervisors do the rest. Its launcher
is node 0 of the gang and a worker like the others (`runLauncherAsWorker`), so no pod waits beside the nodes.
"""

from __future__ import annotations

import re
from typing import Any

from infra.cluster.gang import ATTEMPT_LABEL, CAMPAIGN_LABEL, GangJob, labels_of, pod_spec
from infra.spec.names import NAMESPACE
from trainer.contract.workload import MPI_KEYS

GROUP, VERSION = "kubeflow.org", "v2beta1"


def key_secrets(campaign: str) -> str:
    """Return the pattern of the names of the operator's secrets for this campaign's attempts."""
    return f"^{re.escape(campaign)}-a[0-9]+-ssh$"


def mpijob(gang: GangJob) -> dict[str, Any]:
    """Return the MPIJob. It restarts neither itself nor a pod: only the steward retries."""
    labels = labels_of(gang)
    replicas = {"Launcher": 1, "Worker": gang.nodes - 1}
    template = {"metadata": {"labels": labels}, "spec": {**pod_spec(gang), "affinity": _one_a_node(labels)}}
    del template["spec"]["restartPolicy"]  # type: ignore[attr-defined]  # the operator takes it from the replicas
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": "MPIJob",
        "metadata": {"name": gang.name, "namespace": NAMESPACE, "labels": labels},
        "spec": {
            "slotsPerWorker": gang.ranks_per_node,
            "runLauncherAsWorker": True,
            "sshAuthMountPath": MPI_KEYS,
            "runPolicy": {"cleanPodPolicy": "None", "backoffLimit": 0},
            "mpiReplicaSpecs": {
                kind: {"replicas": count, "restartPolicy": "Never", "template": template}
                for kind, count in replicas.items()
                if count
            },
        },
    }


def _one_a_node(labels: dict[str, str]) -> dict[str, Any]:
    """Return the affinity: one pod of the attempt on a node, and all of them in one zone."""
    peers = {"labelSelector": {"matchLabels": {name: labels[name] for name in (CAMPAIGN_LABEL, ATTEMPT_LABEL)}}}
    return {
        "podAntiAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [{**peers, "topologyKey": "kubernetes.io/hostname"}]
        },
        "podAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [{**peers, "topologyKey": "topology.kubernetes.io/zone"}]
        },
    }
