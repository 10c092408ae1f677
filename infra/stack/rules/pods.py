"""Rules for pods: what the cluster admits, and the confinement of the stack's own pods."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from infra.plan.checks.finding import Draft, error
from infra.spec.campaign import Spec
from infra.spec.names import LOCAL_CHECKPOINTS_HOST_PATH, NAMESPACE, NODE_TOLD_HOST_PATH, Names
from infra.stack.rules.graph import Graph, GraphResource

_ENFORCE = "pod-security.kubernetes.io/enforce"
_LEVELS = ("baseline", "restricted")
_PATHS = {LOCAL_CHECKPOINTS_HOST_PATH, NODE_TOLD_HOST_PATH}
_TEMPLATED = ("Deployment", "DaemonSet", "StatefulSet", "Job")


def pod_admission(graph: Graph, spec: Spec) -> Iterator[Draft]:
    """The campaign's namespace enforces Pod Security, or a policy of ours in its place where the job is in its nodes'
    network, and the admission policies exist before the rights of those that make pods there."""
    has_own_baseline = spec.runtime.host_network
    for space in (resource for resource in graph.of("Namespace") if _metadata_name(resource) == NAMESPACE):
        level = ((space.inputs.get("metadata") or {}).get("labels") or {}).get(_ENFORCE)
        if level not in _LEVELS and not (has_own_baseline and level == "privileged"):
            yield error(space, "takes privileged pods", seen=level or "no level", cure=f"label {_ENFORCE}: baseline")
    if not any(_metadata_name(resource) == NAMESPACE for resource in graph.of("Namespace")):
        return
    policies = {_metadata_name(resource): resource for resource in graph.of("ValidatingAdmissionPolicy")}
    bindings = graph.of("ValidatingAdmissionPolicyBinding")
    rights = [resource for resource in graph.of("RoleBinding") if resource.name in ("steward", "mpi-operator")]
    for suffix in ("pods", "steward", *(["baseline"] if has_own_baseline else [])):
        name = f"{Names(spec).prefix}-{suffix}"
        bound = [binding for binding in bindings if _denies(binding, name)]
        strict = name in policies and (policies[name].inputs.get("spec") or {}).get("failurePolicy") == "Fail"
        if not strict or not bound:
            cure = "the component's policies and bindings: failurePolicy Fail, Deny"
            yield error("stack", f"nothing refuses by the policy {name}", seen="absent or not denying", cure=cure)
        for right in rights:
            if bound and not graph.depends_on(right, bound[0]):
                cure = "let the binding depend on the policies"
                yield error(right, "may grant the right before its bounds exist", seen="no dependency", cure=cure)


def _denies(binding: GraphResource, policy: str) -> bool:
    spec = binding.inputs.get("spec") or {}
    return spec.get("policyName") == policy and "Deny" in (spec.get("validationActions") or ())


def known_host_paths(graph: Graph, spec: Spec) -> Iterator[Draft]:
    """Only volumes of the stack open folders of nodes, and only the two that our pods need."""
    for volume in graph.of("PersistentVolume"):
        path = ((volume.inputs.get("spec") or {}).get("hostPath") or {}).get("path")
        if path is not None and path not in _PATHS:
            yield error(volume, "opens a folder of the nodes", seen=path, cure=f"one of {', '.join(sorted(_PATHS))}")
    for workload in graph.of(*_TEMPLATED, "Pod"):
        for volume in _pod(workload).get("volumes") or ():
            if "hostPath" in volume:
                yield error(workload, "mounts a folder of the node", seen=volume["hostPath"], cure="a claim")


def confined_pods(graph: Graph, spec: Spec) -> Iterator[Draft]:
    """Every pod of the stack is not root, gains no rights, holds no capability and has a seccomp profile."""
    for workload in graph.of(*_TEMPLATED, "Pod"):
        pod = _pod(workload)
        pod_context = pod.get("securityContext") or {}
        for container in (*(pod.get("initContainers") or ()), *(pod.get("containers") or ())):
            container_context = container.get("securityContext") or {}
            context = {**pod_context, **container_context}
            demands = {
                "runAsNonRoot": context.get("runAsNonRoot") is True and context.get("runAsUser") != 0,
                "seccompProfile": (context.get("seccompProfile") or {}).get("type") == "RuntimeDefault",
                "allowPrivilegeEscalation": container_context.get("allowPrivilegeEscalation") is False,
                "capabilities": container_context.get("capabilities") == {"drop": ["ALL"]},
                "privileged": not container_context.get("privileged"),
            }
            if loose := [name for name, is_met in demands.items() if not is_met]:
                cure = "the settings of infra/cluster/confinement.py"
                yield error(workload, f"does not confine {container.get('name')}", seen=", ".join(loose), cure=cure)


def _pod(workload: GraphResource) -> Mapping[str, Any]:
    spec = workload.inputs.get("spec") or {}
    return spec if workload.kind == "Pod" else (spec.get("template") or {}).get("spec") or {}


def _metadata_name(resource: GraphResource) -> str:
    return str((resource.inputs.get("metadata") or {}).get("name"))
