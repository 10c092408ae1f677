"""Rules for pods: what the cluster admits, and the confinement of the stack's own pods."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from infra.plan.checks.finding import Draft, error
from infra.spec.campaign import Spec
from infra.spec.names import LOCAL_CHECKPOINTS_HOST_PATH, NAMESPACE, NODE_TOLD_HOST_PATH, Names
from infra.spec.workload.workload import in_host_network
from infra.stack.rules.graph import Graph, Resource

_ENFORCE = "pod-security.kubernetes.io/enforce"
_LEVELS = ("baseline", "restricted")
_PATHS = {LOCAL_CHECKPOINTS_HOST_PATH, NODE_TOLD_HOST_PATH}
_TEMPLATED = ("Deployment", "DaemonSet", "StatefulSet", "Job")


def pod_admission(graph: Graph, spec: Spec) -> Iterator[Draft]:
    """The campaign's namespace enforces Pod Security, or a policy of ours in its place where the job is in its nodes'
    network, and the admission policies exist before the rights of those that make pods there."""
    own = in_host_network(spec.workload)
    for space in (one for one in graph.of("Namespace") if _named(one) == NAMESPACE):
        level = ((space.inputs.get("metadata") or {}).get("labels") or {}).get(_ENFORCE)
        if level not in _LEVELS and not (own and level == "privileged"):
            yield error(space, "takes privileged pods", seen=level or "no level", cure=f"label {_ENFORCE}: baseline")
    if not any(_named(one) == NAMESPACE for one in graph.of("Namespace")):
        return
    policies = {_named(one): one for one in graph.of("ValidatingAdmissionPolicy")}
    bindings = graph.of("ValidatingAdmissionPolicyBinding")
    rights = [one for one in graph.of("RoleBinding") if one.name in ("steward", "mpi-operator")]
    for name in (f"{Names(spec).prefix}-{one}" for one in ("pods", "steward", *(["baseline"] if own else []))):
        bound = [one for one in bindings if (one.inputs.get("spec") or {}).get("policyName") == name and _denies(one)]
        strict = name in policies and (policies[name].inputs.get("spec") or {}).get("failurePolicy") == "Fail"
        if not strict or not bound:
            cure = "the component's policies and bindings: failurePolicy Fail, Deny"
            yield error("stack", f"nothing refuses by the policy {name}", seen="absent or not denying", cure=cure)
        for right in rights:
            if bound and not graph.after(right, bound[0]):
                cure = "let the binding depend on the policies"
                yield error(right, "may grant the right before its bounds exist", seen="no dependency", cure=cure)


def _denies(binding: Resource) -> bool:
    spec = binding.inputs.get("spec") or {}
    return "Deny" in (spec.get("validationActions") or ())


def known_host_paths(graph: Graph, spec: Spec) -> Iterator[Draft]:
    """Only volumes of the stack open folders of nodes, and only the two that our pods need."""
    for volume in graph.of("PersistentVolume"):
        path = ((volume.inputs.get("spec") or {}).get("hostPath") or {}).get("path")
        if path is not None and path not in _PATHS:
            yield error(volume, "opens a folder of the nodes", seen=path, cure=f"one of {', '.join(sorted(_PATHS))}")
    for one in graph.of(*_TEMPLATED, "Pod"):
        for volume in _pod(one).get("volumes") or ():
            if "hostPath" in volume:
                yield error(one, "mounts a folder of the node", seen=volume["hostPath"], cure="a claim")


def confined_pods(graph: Graph, spec: Spec) -> Iterator[Draft]:
    """Every pod of the stack is not root, gains no rights, holds no capability and has a seccomp profile."""
    for one in graph.of(*_TEMPLATED, "Pod"):
        pod = _pod(one)
        whole = pod.get("securityContext") or {}
        for container in (*(pod.get("initContainers") or ()), *(pod.get("containers") or ())):
            own = container.get("securityContext") or {}
            context = {**whole, **own}
            wanted = {
                "runAsNonRoot": context.get("runAsNonRoot") is True and context.get("runAsUser") != 0,
                "seccompProfile": (context.get("seccompProfile") or {}).get("type") == "RuntimeDefault",
                "allowPrivilegeEscalation": own.get("allowPrivilegeEscalation") is False,
                "capabilities": own.get("capabilities") == {"drop": ["ALL"]},
                "privileged": not own.get("privileged"),
            }
            if loose := [name for name, held in wanted.items() if not held]:
                cure = "the settings of infra/cluster/confinement.py"
                yield error(one, f"does not confine {container.get('name')}", seen=", ".join(loose), cure=cure)


def _pod(one: Resource) -> Mapping[str, Any]:
    spec = one.inputs.get("spec") or {}
    return spec if one.kind == "Pod" else (spec.get("template") or {}).get("spec") or {}


def _named(one: Resource) -> str:
    return str((one.inputs.get("metadata") or {}).get("name"))
