"""A campaign's namespace whose job may be in its nodes' network, and what pods of others ask for there.

The judge of our rules is Pod Security's `baseline`, as the API server applies it."""

from __future__ import annotations

import copy as copies
from collections.abc import Callable
from typing import Any

import pytest

from infra.campaign.launch import steward_pod
from infra.cluster.admission import binding, pod_security, policies
from tests.pods import IMAGE, archive, copy, gang
from tests.rehearsal.rehearsal.kubernetes.admission import ROGUE, Asking, Object, as_pod, changed, first
from tests.waiting import until as eventually

pytestmark = [pytest.mark.nightly, pytest.mark.inside("net", "pid", shared=True)]
SPACE = "hosted"
THEIRS = {"name": "theirs", "image": "docker.io/library/python:3.12"}


def of_the_team(**container: Any) -> Object:
    """A pod with none of our accounts."""
    return as_pod({"kind": "Pod", "spec": {"containers": [{**THEIRS, **container}]}})


def there(document: Object) -> Object:
    """The same in the namespace of these cases."""
    other = copies.deepcopy(document)
    other["metadata"]["namespace"] = SPACE
    return other


@pytest.fixture(scope="module")
def hosted(asking: Asking) -> Asking:
    """The same API server with a second namespace."""
    place = {"namespace": SPACE}
    bounds = policies("bivouac-hosted", IMAGE.partition("@")[0], host_network=True)
    bindings = [binding(policy) for policy in bounds.values()]
    for each in bindings:
        each["spec"]["matchResources"]["namespaceSelector"]["matchLabels"] = {"kubernetes.io/metadata.name": SPACE}
    accounts = ("archive", "steward", "trainer")
    asking.make(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SPACE, "labels": pod_security(True)}},
        *({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {**place, "name": name}} for name in accounts),
        *bounds.values(),
        *bindings,
    )
    # The API server takes a policy up some time after it was made.
    eventually(lambda: "image" in asking.refusal(there(as_pod(ROGUE))))
    eventually(lambda: asking.refusal(there(changed(of_the_team(), ASKED["privileged"]))))
    return asking


def _secured(**context: Any) -> Callable[[Object], Any]:
    return lambda pod: first(pod).update(securityContext=context)


def _pod(**context: Any) -> Callable[[Object], Any]:
    return lambda pod: pod.update(securityContext=context)


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


def test_only_the_job_is_in_its_nodes_network(hosted: Asking) -> None:
    steward = {"kind": "Pod", "spec": steward_pod(IMAGE, 0, 2)}
    ours = {"gang": gang(), "archive": archive(), "copy": copy(), "steward": steward}
    in_network = gang(host_network=True)
    assert hosted.refusal(there(as_pod(in_network))) == ""
    assert "host namespace" in hosted.refusal(as_pod(in_network)), "where the spec has not asked for it"
    for name, manifest in ours.items():
        assert hosted.refusal(there(as_pod(manifest))) == "", name
        asked = there(as_pod(changed(manifest, ASKED["the node's network"])))
        assert "the node's network for the job" in hosted.refusal(asked) or name == "gang", name
    for name in ("the node's processes", "the node's memory"):
        assert "host namespace" in hosted.refusal(there(as_pod(changed(in_network, ASKED[name])))), name


def test_others_may_there_what_pod_security_allows_and_no_more(hosted: Asking) -> None:
    for name, change in ASKED.items():
        asked = changed(of_the_team(), change)
        allowed = "violates PodSecurity" not in (judged := hosted.refusal(asked))
        assert allowed == (judged == ""), judged
        said = hosted.refusal(there(asked))
        assert (said == "") is allowed and ("bivouac-hosted-baseline" in said) is not allowed, (name, said)


def test_who_looks_into_a_pod_there_is_bounded_too(hosted: Asking) -> None:
    hosted.make(there(of_the_team()))
    looking = {"name": "look", "image": "docker.io/library/busybox:1"}
    assert hosted.look("one", SPACE, looking) == ""
    assert "no privileged container" in hosted.look("one", SPACE, {**looking, "securityContext": {"privileged": True}})
