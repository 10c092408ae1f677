"""A campaign's namespace whose job may be in its nodes' network, and what pods of others ask for there. Run by
inside_control_plane.py; the judge of our rules is Pod Security's `baseline`, as the API server applies it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from infra.cluster.admission import binding, pod_security, policies
from tests.rehearsal.rehearsal.admission import Asking, Object, as_pod, changed, first

SPACE = "hosted"
THEIRS = {"name": "theirs", "image": "docker.io/library/python:3.12"}


def of_the_team(**container: Any) -> Object:
    """A pod with none of our accounts."""
    return as_pod({"kind": "Pod", "spec": {"containers": [{**THEIRS, **container}]}})


def there(document: Object) -> Object:
    """The same in the namespace of these cases."""
    other = copy.deepcopy(document)
    other["metadata"]["namespace"] = SPACE
    return other


def make(one: Asking, repository: str) -> None:
    place = {"namespace": SPACE}
    bounds = policies("bivouac-hosted", repository, host_network=True)
    bindings = [binding(policy) for policy in bounds.values()]
    for each in bindings:
        each["spec"]["matchResources"]["namespaceSelector"]["matchLabels"] = {"kubernetes.io/metadata.name": SPACE}
    accounts = ("archive", "steward", "trainer")
    one.make(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SPACE, "labels": pod_security(True)}},
        *({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {**place, "name": name}} for name in accounts),
        *bounds.values(),
        *bindings,
    )


def _secured(**context: Any) -> Callable[[Object], Any]:
    return lambda pod: first(pod).update(securityContext=context)


def _pod(**context: Any) -> Callable[[Object], Any]:
    return lambda pod: pod.update(securityContext=context)


def test_only_the_job_is_in_its_nodes_network(one: Asking, ours: dict[str, Object], gang: Object) -> None:
    """`ours`: pods with accounts of ours; `gang`: the job's, in its node's network."""
    assert one.refusal(there(as_pod(gang))) == ""
    assert "host namespace" in one.refusal(as_pod(gang)), "where the spec has not asked for it"
    for name, manifest in ours.items():
        assert one.refusal(there(as_pod(manifest))) == "", name
        asked = there(as_pod(changed(manifest, ASKED["the node's network"])))
        assert "the node's network for the job" in one.refusal(asked) or name == "gang", name
    for name in ("the node's processes", "the node's memory"):
        assert "host namespace" in one.refusal(there(as_pod(changed(gang, ASKED[name])))), name


def test_others_may_there_what_pod_security_allows_and_no_more(one: Asking) -> None:
    for name, change in ASKED.items():
        asked = changed(of_the_team(), change)
        allowed = "violates PodSecurity" not in (judged := one.refusal(asked))
        assert allowed == (judged == ""), judged
        said = one.refusal(there(asked))
        assert (said == "") is allowed and ("bivouac-hosted-baseline" in said) is not allowed, (name, said)


def test_who_looks_into_a_pod_there_is_bounded_too(one: Asking) -> None:
    one.make(there(of_the_team()))
    looking = {"name": "look", "image": "docker.io/library/busybox:1"}
    assert one.look("one", SPACE, looking) == ""
    assert "no privileged container" in one.look("one", SPACE, {**looking, "securityContext": {"privileged": True}})


ASKED: dict[str, Callable[[Object], Any]] = {
    "nothing": lambda pod: None,
    "a capability of the usual ones": _secured(capabilities={"add": ["CHOWN", "NET_BIND_SERVICE"]}),
    "a capability": _secured(capabilities={"add": ["NET_ADMIN"]}),
    "all capabilities": _secured(capabilities={"add": ["ALL"]}),
    "privileged": _secured(privileged=True),
    "privileged before": lambda pod: pod.update(
        initContainers=[{**THEIRS, "name": "before", "securityContext": {"privileged": True}}]
    ),
    "root": _secured(runAsUser=0),
    "a folder of the node": lambda pod: pod.update(volumes=[{"name": "root", "hostPath": {"path": "/"}}]),
    "an empty folder": lambda pod: pod.update(volumes=[{"name": "empty", "emptyDir": {}}]),
    "the node's network": lambda pod: pod.update(hostNetwork=True),
    "the node's processes": lambda pod: pod.update(hostPID=True),
    "the node's memory": lambda pod: pod.update(hostIPC=True),
    "a port": lambda pod: first(pod).update(ports=[{"containerPort": 8080}]),
    "a port of the node": lambda pod: first(pod).update(ports=[{"containerPort": 8080, "hostPort": 8080}]),
    "no seccomp": _secured(seccompProfile={"type": "Unconfined"}),
    "no seccomp for the pod": _pod(seccompProfile={"type": "Unconfined"}),
    "no AppArmor": _secured(appArmorProfile={"type": "Unconfined"}),
    "no AppArmor for the pod": _pod(appArmorProfile={"type": "Unconfined"}),
    "a type of SELinux": _pod(seLinuxOptions={"type": "spc_t"}),
    "a container's type of SELinux": _secured(seLinuxOptions={"type": "container_t"}),
    "a user of SELinux": _secured(seLinuxOptions={"user": "system_u"}),
    "a role of SELinux": _pod(seLinuxOptions={"role": "system_r"}),
    "a setting of the kernel": _pod(sysctls=[{"name": "kernel.msgmax", "value": "65536"}]),
    "a safe setting of the kernel": _pod(sysctls=[{"name": "net.ipv4.tcp_syncookies", "value": "1"}]),
}
"""What a pod of the team's own asks for."""
