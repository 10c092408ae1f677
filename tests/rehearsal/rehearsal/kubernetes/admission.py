"""What the API server must refuse in a campaign's namespace, and how it is asked; no rule of ours stands here."""

from __future__ import annotations

import copy
import json
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2

from tests.pods import gang

Object = dict[str, Any]
OTHER_DIGEST = "@sha256:" + "f" * 64
STEWARD = "system:serviceaccount:campaign:steward"


def pod_in(document: Object) -> Object:
    """The spec of the only pod in a manifest."""
    if document["kind"] == "Pod":
        spec: Object = document["spec"]
        return spec
    spec = document["spec"]
    if document["kind"] == "JobSet":
        spec = spec["replicatedJobs"][0]["template"]["spec"]
    if document["kind"] == "MPIJob":
        spec = spec["mpiReplicaSpecs"]["Worker"]
    pod: Object = spec["template"]["spec"]
    return pod


def changed(document: Object, change: Callable[[Object], Any]) -> Object:
    other = copy.deepcopy(document)
    change(pod_in(other))
    return other


def as_pod(document: Object) -> Object:
    """The pod that a controller would make of it."""
    pod = copy.deepcopy(pod_in(document))
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "one", "namespace": "campaign"}, "spec": pod}


def first(pod: Object) -> Object:
    container: Object = pod["containers"][0]
    return container


HOST_FOLDER = {"name": "etc", "hostPath": {"path": "/"}}
SECRET = {"name": "key", "secret": {"secretName": "someones"}}
STRANGE_CLAIM = {"name": "theirs", "persistentVolumeClaim": {"claimName": "theirs"}}
FORBIDDEN: dict[str, tuple[Callable[[Object], Any], str]] = {
    "another registry": (lambda pod: first(pod).update(image="docker.io/library/python" + OTHER_DIGEST), "image"),
    "another repository": (
        lambda pod: first(pod).update(image=first(pod)["image"].replace("/trainer@", "/trainer-2@")),
        "image",
    ),
    "a tag": (lambda pod: first(pod).update(image=first(pod)["image"].partition("@")[0] + ":latest"), "image"),
    "another name of the registry": (
        lambda pod: first(pod).update(image=first(pod)["image"].replace("dkr.ecr.", "dkr-ecr-")),
        "image",
    ),
    "a strange first step": (
        lambda pod: pod.update(initContainers=[{**first(pod), "name": "before", "image": "busybox"}]),
        "image",
    ),
    "a folder of the node": (lambda pod: pod["volumes"].append(HOST_FOLDER), "hostPath|volumes"),
    "a secret": (lambda pod: pod["volumes"].append(SECRET), "volumes"),
    "a secret in its environment": (
        lambda pod: first(pod).update(envFrom=[{"secretRef": {"name": "someones"}}]),
        "secret",
    ),
    "a claim of others": (lambda pod: pod["volumes"].append(STRANGE_CLAIM), "volumes"),
    "privileged": (lambda pod: first(pod)["securityContext"].update(privileged=True, allowPrivilegeEscalation=True),
                   "privileged"),
    "privilege escalation": (lambda pod: first(pod)["securityContext"].update(allowPrivilegeEscalation=True), "rights"),
    "a container with no context": (lambda pod: first(pod).pop("securityContext"), "rights"),
    "a capability": (lambda pod: first(pod)["securityContext"]["capabilities"].update(add=["NET_BIND_SERVICE"]),
                     "capabilities"),
    "the archive's capability": (lambda pod: first(pod)["securityContext"]["capabilities"].update(add=["DAC_OVERRIDE"]),
                                 "capabilities"),
    "capabilities that are kept": (lambda pod: first(pod)["securityContext"].pop("capabilities"), "capabilities"),
    "no seccomp profile": (lambda pod: pod["securityContext"].pop("seccompProfile"), "seccomp"),
    "a container without seccomp": (
        lambda pod: first(pod)["securityContext"].update(seccompProfile={"type": "Unconfined"}),
        "seccomp",
    ),
    "the node's network": (lambda pod: pod.update(hostNetwork=True), "host|node's"),
    "the node's processes": (lambda pod: pod.update(hostPID=True), "host|node's"),
    "the node's memory": (lambda pod: pod.update(hostIPC=True), "host|node's"),
}  # fmt: skip
"""What no pod with an account of ours may have -> how it is given, and a word of the refusal."""
FORBIDDEN_TO_THE_STEWARD: dict[str, tuple[Callable[[Object], Any], str]] = {
    "its own account": (lambda pod: pod.update(serviceAccountName="steward"), "service account"),
    "the MPI operator's account": (lambda pod: pod.update(serviceAccountName="mpi-operator"), "service account"),
    "no account": (lambda pod: pod.pop("serviceAccountName"), "service account"),
    "the archive's account for another program": (
        lambda pod: pod.update(serviceAccountName="archive"),
        "infra.archive.archive",
    ),
}
FORBIDDEN_TO_THE_ARCHIVE: dict[str, tuple[Callable[[Object], Any], str]] = {
    "another program": (lambda pod: first(pod).update(command=["python", "-c", "print()"]), "infra.archive.archive"),
    "arguments": (lambda pod: first(pod).update(args=["x"]), "infra.archive.archive"),
    "root": (lambda pod: pod["securityContext"].update(runAsUser=0, runAsNonRoot=False), "65532"),
    "an environment": (
        lambda pod: first(pod)["env"].append({"name": "PYTHONPATH", "value": "/shared-checkpoints"}),
        "environment",
    ),
    "another first step": (lambda pod: pod["initContainers"][0].update(command=["sh"]), "other init container"),
}


class Asking:
    """Asks one API server what it would say, as somebody; nothing is made unless said so."""

    def __init__(self, endpoint: str, trusted: str, pair: tuple[Path, Path]) -> None:
        """`pair`: certificate and key of an administrator."""
        context = ssl.create_default_context(cadata=trusted)
        context.load_cert_chain(*pair)
        self._http = httpx2.Client(base_url=endpoint, verify=context, trust_env=False, timeout=30)

    def make(self, *documents: Object) -> None:
        for document in documents:
            answer = self._http.post(where(document), json=document)
            assert answer.is_success, answer.text

    def refusal(self, document: Object, user: str | None = None) -> str:
        """Empty where it is taken."""
        headers = {"Impersonate-User": user} if user else {}
        answer = self._http.post(where(document), params={"dryRun": "All"}, json=document, headers=headers)
        return "" if answer.is_success else str(answer.json()["message"])

    def look(self, pod: str, space: str, container: Object) -> str:
        """What is said to a container that somebody adds to a running pod; empty where it is taken."""
        path = f"/api/v1/namespaces/{space}/pods/{pod}/ephemeralcontainers"
        headers = {"Content-Type": "application/strategic-merge-patch+json"}
        change = json.dumps({"spec": {"ephemeralContainers": [container]}})
        answer = self._http.patch(path, params={"dryRun": "All"}, content=change, headers=headers)
        return "" if answer.is_success else str(answer.json()["message"])


def where(document: Object) -> str:
    version, kind = document["apiVersion"], document["kind"]
    plural = kind.lower()[:-1] + "ies" if kind.endswith("Policy") else kind.lower() + "s"
    plural = "priorityclasses" if kind == "PriorityClass" else plural
    space = document["metadata"].get("namespace")
    below = f"/namespaces/{space}" if space else ""
    return f"/{'apis' if '/' in version else 'api'}/{version}{below}/{plural}"


THEIRS = f"nvcr.io/nvidia/pytorch{OTHER_DIGEST}"
ROGUE = changed(gang(), lambda pod: pod["containers"][0].update(image="docker.io/library/busybox"))
