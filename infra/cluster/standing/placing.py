"""Pods of a campaign as they are placed in an existing cluster. Pure, on manifests that EKS gets too."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from infra.aws.account import S3_STYLE
from infra.cluster.confinement import leaving_a_dead_node
from infra.cluster.gang import ATTEMPT_LABEL, CAMPAIGN_LABEL, GangJob, jobset
from infra.cluster.standing.fabric_claims import claim_adapters, may_pin_memory
from infra.cluster.standing.queueing import PREFERRED_TOPOLOGY, PRIORITY_LABEL, QUEUE_LABEL, REQUIRED_TOPOLOGY
from infra.spec.names import GPU_TAINT_KEY, LOCAL_CLAIM, PROJECT, SHARED_CLAIM
from infra.spec.standing import StandingCluster, StandingTopology

Object = dict[str, Any]
CA_CONFIG, CA_FILE = "s3-ca", "ca.pem"
"""Config map with the certificates of S3's own CA, and its key."""
_CA_MOUNT = "/s3-ca"
NETWORKS = "k8s.v1.cni.cncf.io/networks"
"""Annotation by which Multus gives a pod further networks (Network Plumbing Working Group's specification)."""
_OF_EKS = ("vpc.amazonaws.com/efa", "hugepages-2Mi")
"""Resources that a node has only where its image was made for EFA."""
_LEAVES_A_DEAD_NODE_S = 60
"""Kubernetes' own default is 300 s: an archive would wait as long, with its GPUs."""


def placed(document: Object, cluster: StandingCluster | None, left_out: Sequence[str] = ()) -> Object:
    """Return a Deployment, Job, JobSet or MPIJob of the campaign as it is sent.

    Without `cluster` it is unchanged: the campaign's own cluster is made for it. Else it is a copy in the cluster's
    namespace, whose pods have its nodes, devices, claim and logins. `left_out`: nodes that no pod but the steward's
    must get.
    """
    if cluster is None:
        return document
    document = copy.deepcopy(document)
    document["metadata"]["namespace"] = cluster.namespace
    for template in _templates(document):
        labels, pod = template["metadata"]["labels"], template["spec"]
        if document["kind"] == "Deployment":
            template["spec"] = steward_pod(pod, cluster, labels[CAMPAIGN_LABEL])
        elif document["kind"] == "Job":
            template["spec"] = _off(job_pod(pod, cluster, labels[CAMPAIGN_LABEL]), left_out)
        else:
            template["spec"] = _off(gang_pod(pod, cluster, labels), left_out)
            if cluster.nodes.networks:
                annotations = template["metadata"].get("annotations", {})
                template["metadata"]["annotations"] = {**annotations, NETWORKS: ",".join(cluster.nodes.networks)}
    if document["kind"] == "JobSet" and cluster.queue is not None:
        _queue(document, cluster, cluster.queue)
    return document


def _templates(document: Object) -> list[Object]:
    """Return the templates of an object's pods, each once."""
    spec = document["spec"]
    if document["kind"] == "JobSet":
        return [job["template"]["spec"]["template"] for job in spec["replicatedJobs"]]
    if document["kind"] == "MPIJob":
        templates = [replica["template"] for replica in spec["mpiReplicaSpecs"].values()]
        return list({id(template): template for template in templates}.values())
    return [spec["template"]]


def _off(pod: Object, left_out: Sequence[str]) -> Object:
    """Return the pod with an affinity that keeps it off these nodes. Kubernetes takes one name per requirement."""
    if left_out:
        fields = [{"key": "metadata.name", "operator": "NotIn", "values": [name]} for name in left_out]
        pod.setdefault("affinity", {})["nodeAffinity"] = _affinity(fields)
    return pod


def _affinity(fields: list[Object]) -> Object:
    """Return the affinity to the nodes whose own fields are these."""
    return {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchFields": fields}]}}


def gang(job: GangJob, cluster: StandingCluster) -> Object:
    """Return the gang's JobSet in the cluster's namespace, one pod on each of its nodes."""
    return placed(jobset(job), cluster)


def job_pod(pod: Object, cluster: StandingCluster, campaign: str) -> Object:
    """Return the pod of a Job beside the gang: on the spec's nodes, with the way to S3, and with their devices only if
    it asks for GPUs."""
    pod = _reaching_s3(plain_pod(pod, cluster, campaign), cluster)
    for container in pod["containers"]:
        resources = container.get("resources", {})
        if GPU_TAINT_KEY in resources.get("limits", {}):
            container["resources"] = _resources({"requests": {}, **resources}, cluster)
    return pod


def plain_pod(pod: Object, cluster: StandingCluster, campaign: str, node: str = "") -> Object:
    """Return a pod on the spec's nodes, without devices or login. `node`: on this one alone, whatever its labels.

    On a dead node Kubernetes gives it up, so that its Job makes another elsewhere: nobody else watches over it.
    """
    pod = _in_cluster(pod, cluster, campaign)
    _on_nodes(pod, cluster, leaves_after_s=_LEAVES_A_DEAD_NODE_S)
    if node:
        pod.pop("nodeSelector")
        pod["affinity"] = {"nodeAffinity": _affinity([{"key": "metadata.name", "operator": "In", "values": [node]}])}
    return pod


def _queue(document: Object, cluster: StandingCluster, queue: str) -> None:
    """Put the gang into its queue. It is made suspended, so that it waits even where Kueue's webhook is away."""
    priority = {} if cluster.priority is None else {PRIORITY_LABEL: cluster.priority}
    document["metadata"]["labels"] = {**document["metadata"]["labels"], QUEUE_LABEL: queue, **priority}
    document["spec"]["suspend"] = True
    if cluster.topology is not None:
        annotation = REQUIRED_TOPOLOGY if cluster.topology.required else PREFERRED_TOPOLOGY
        template = document["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
        annotations = template["metadata"].get("annotations", {})
        template["metadata"]["annotations"] = {**annotations, annotation: cluster.topology.label}


def gang_pod(pod: Object, cluster: StandingCluster, labels: dict[str, str]) -> Object:
    """Return a pod of the gang with `labels`: on the spec's nodes, with their devices."""
    pod = _in_cluster(pod, cluster, labels[CAMPAIGN_LABEL])
    _on_nodes(pod, cluster)
    # A node with more devices than the gang's pod takes must not get two of its pods.
    peers = {"matchLabels": {name: labels[name] for name in (CAMPAIGN_LABEL, ATTEMPT_LABEL)}}
    apart = {"labelSelector": peers, "topologyKey": "kubernetes.io/hostname"}
    pod["affinity"] = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}}
    if cluster.topology is not None and cluster.queue is None:
        pod["affinity"]["podAffinity"] = _peer_affinity(cluster.topology, peers)
    pod.pop("resourceClaims", None)
    for container in pod["containers"]:
        container["resources"] = _resources(container["resources"], cluster)
    claim_adapters(pod, cluster.fabric)
    may_pin_memory(pod, cluster.fabric)
    return pod


def _on_nodes(pod: Object, cluster: StandingCluster, leaves_after_s: int | None = None) -> None:
    """Put the pod on the spec's GPU nodes. `leaves_after_s`: see `leaving_a_dead_node`."""
    nodes = cluster.nodes
    pod["nodeSelector"] = dict(nodes.labels)
    own_tolerations = [toleration.model_dump(exclude_none=True) for toleration in nodes.tolerations]
    # The steward alone ends a gang, as on EKS.
    pod["tolerations"] = [*own_tolerations, *leaving_a_dead_node(leaves_after_s)]
    if nodes.runtime_class is not None:
        pod["runtimeClassName"] = nodes.runtime_class
    if cluster.priority_class is not None:
        pod["priorityClassName"] = cluster.priority_class


def _peer_affinity(topology: StandingTopology, peers: Object) -> Object:
    """Return the affinity to the gang's other pods. The scheduler places them one by one: the first chooses the part,
    whether or not the rest finds room there."""
    term = {"labelSelector": peers, "topologyKey": topology.label}
    if topology.required:
        return {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
    return {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "podAffinityTerm": term}]}


def steward_pod(pod: Object, cluster: StandingCluster, campaign: str) -> Object:
    """Return the steward's pod: on the nodes for it, with the way to S3."""
    pod = _in_cluster(pod, cluster, campaign)
    pod.pop("nodeSelector", None)
    if cluster.system_labels:
        pod["nodeSelector"] = dict(cluster.system_labels)
    return _reaching_s3(pod, cluster)


def _reaching_s3(pod: Object, cluster: StandingCluster) -> Object:
    """Return the pod, changed: its containers have S3's endpoint and login, and trust its CA."""
    place = cluster.s3
    endpoint = {} if place.endpoint is None else {"AWS_ENDPOINT_URL_S3": place.endpoint}
    style = {} if place.path_style else {S3_STYLE: "virtual"}
    authority = {} if place.ca is None else {"AWS_CA_BUNDLE": f"{_CA_MOUNT}/{CA_FILE}"}
    if place.ca is not None:
        pod["volumes"] = [*pod["volumes"], {"name": CA_CONFIG, "configMap": {"name": CA_CONFIG}}]
    for container in pod["containers"]:
        settings = {"AWS_REGION": place.region, **endpoint, **authority, **style}
        container["env"] += [{"name": name, "value": value} for name, value in settings.items()]
        container["envFrom"] = [{"secretRef": {"name": place.secret}}]
        if place.ca is not None:
            mount = {"name": CA_CONFIG, "mountPath": _CA_MOUNT, "readOnly": True}
            container["volumeMounts"] = [*container["volumeMounts"], mount]
    return pod


def _in_cluster(pod: Object, cluster: StandingCluster, campaign: str) -> Object:
    """Return a copy that names the cluster's own claim and secrets, and no priority that EKS has."""
    pod = copy.deepcopy(pod)
    pod.pop("priorityClassName", None)
    logins = [{"name": name} for name in cluster.pull_secrets]
    if logins:
        pod["imagePullSecrets"] = [*pod.get("imagePullSecrets", ()), *logins]
    for volume in pod["volumes"]:
        if volume["name"] == SHARED_CLAIM:
            volume["persistentVolumeClaim"] = {"claimName": shared_claim(cluster, campaign)}
    for container in [*pod["containers"], *pod.get("initContainers", ())]:
        for mount in container.get("volumeMounts", ()):
            if mount["name"] == SHARED_CLAIM:
                mount["subPath"] = f"{shared_folder(cluster, campaign)}/{mount['subPath']}"
            elif mount["name"] == LOCAL_CLAIM:
                # Two namespaces may have campaigns of one name, and the folder of a node is the same for both.
                mount["subPath"] = cluster.namespace
    return pod


def shared_claim(cluster: StandingCluster, campaign: str) -> str:
    """Return the name of the shared tier's claim: the spec's, or that which the campaign makes."""
    return cluster.shared.claim or f"{PROJECT}-{campaign}"


def shared_folder(cluster: StandingCluster, campaign: str) -> str:
    """Return the campaign's folder on the shared claim, which may be other people's too: the volume behind it may serve
    other namespaces, with campaigns of the same name."""
    return f"{PROJECT}/{cluster.namespace}/{campaign}"


def _resources(resources: Object, cluster: StandingCluster) -> Object:
    """Return the resources with the cluster's devices in the place of EKS's."""
    devices = {name: str(count) for name, count in cluster.nodes.devices.items()}
    eks_devices = {GPU_TAINT_KEY, *_OF_EKS}
    other_requests = {name: value for name, value in resources["requests"].items() if name not in eks_devices}
    return {"limits": devices, "requests": {**devices, **other_requests}}
