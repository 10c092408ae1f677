"""An existing cluster with a campaign's objects and a stranger's, whose controllers and kubelets act at once."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import httpx2
from lightkube import Client, KubeConfig
from lightkube.config.models import Cluster, User

from infra.record.store import CampaignStore
from infra.spec.campaign import Spec
from infra.standing.belongings import Tenant
from tests.rehearsal.fake_kubernetes import PATH, FakeKubernetes
from tests.worlds.s3 import Time

SPACE, CAMPAIGN = "team-a", "on-racks"
LABEL = "bivouac.dev/campaign"
BUCKET = "training"
Object = dict[str, Any]


def rack(name: str, ready: str = "True", labels: dict[str, str] | None = None, since: str = "", **spec: Any) -> Object:
    """A node with the spec's label. `since`: when it became so."""
    condition = {"type": "Ready", "status": ready, "reason": "KubeletReady" if ready == "True" else "NodeStatusUnknown"}
    if since:
        condition["lastTransitionTime"] = since
    return {
        "metadata": {"name": name, "uid": name, "labels": {"gpu": "h100"} if labels is None else labels},
        "spec": spec,
        "status": {"conditions": [condition]},
    }


def own(name: str, campaign: str = CAMPAIGN, **more: Any) -> Object:
    """An object with a campaign's label. `more`: its other parts."""
    labels = {LABEL: campaign, **more.pop("labels", {})}
    return {"metadata": {"name": name, "namespace": SPACE, "labels": labels, "uid": f"uid-{name}"}, **more}


class TenantApi(FakeKubernetes):
    """The fake API server, with the garbage collector, the Job controller and the kubelets of nodes that live."""

    def __init__(self, *nodes: Object) -> None:
        self.racks = {node["metadata"]["name"]: node for node in nodes}
        super().__init__(lambda: [copy.deepcopy(node) for node in self.racks.values()])
        self.denied: set[tuple[str, str]] = set()
        """(verb, plural) that the login has no right to."""
        self.calls: list[tuple[str, str, str]] = []
        """(verb, plural, name) of each change, in order."""
        self.before: Callable[[str, str, str], None] = lambda verb, plural, name: None
        """Called before each change; an error ends the caller's connection."""
        self.emptied: list[tuple[str, tuple[str, ...], str]] = []
        """(claim and folder, removed paths, node) of each Job that ran to its end."""
        self.failing: dict[str, str] = {}
        """Node -> last word of the Job's pod that fails there."""
        self.pending: set[str] = set()
        """Nodes on which no pod starts."""
        self.created = self._created

    def add(self, api: str, plural: str, *documents: Object) -> None:
        for document in documents:
            self.objects[api, plural, SPACE, document["metadata"]["name"]] = document

    def handle(self, verb: str, url: str, body: Object) -> tuple[int, Object]:
        at = PATH.match(urlsplit(url).path)
        if at is None:
            return super().handle(verb, url, body)
        key = at["api"], at["plural"], at["space"] or "", at["name"] or ""
        verb_of = {"DELETE": "delete", "POST": "create", "GET": "get" if key[3] else "list"}.get(verb, "patch")
        if (verb_of, key[1]) in self.denied:
            return 403, {"message": f"{key[1]} is forbidden", "reason": "Forbidden", "code": 403}
        if key[1] == "nodes" and key[3] and verb == "GET":
            node = self.racks.get(key[3])
            return (200, node) if node else (404, {"message": f'nodes "{key[3]}" not found', "code": 404})
        if verb_of in ("delete", "create"):
            name = key[3] or body["metadata"]["name"]
            self.before(verb_of, key[1], name)
            self.calls.append((verb_of, key[1], name))
        if verb == "DELETE" and key in self.objects:
            self._delete(key)
            return 200, {}
        return super().handle(verb, url, body)

    def _delete(self, key: tuple[str, str, str, str]) -> None:
        document = self.objects[key]
        node = document.get("spec", {}).get("nodeName")
        if node and node in self.racks and self.racks[node]["status"]["conditions"][0]["status"] != "True":
            document["metadata"]["deletionTimestamp"] = "2026-11-27T00:00:00Z"  # its kubelet does not answer
            return
        del self.objects[key]
        uid = document["metadata"].get("uid")
        for child, other in list(self.objects.items()):
            owners = other["metadata"].get("ownerReferences") or ()
            if child in self.objects and any(owner["uid"] == uid for owner in owners):
                self._delete(child)

    def _created(self, document: Object) -> None:
        """Run a Job that empties folders, at once."""
        if document.get("kind") != "Job":
            return
        document["metadata"]["uid"] = f"uid-{document['metadata']['name']}"
        pod = document["spec"]["template"]["spec"]
        (container,), (volume,) = pod["containers"], pod["volumes"]
        affinity = pod.get("affinity", {}).get("nodeAffinity", {})
        terms = affinity.get("requiredDuringSchedulingIgnoredDuringExecution", {}).get("nodeSelectorTerms", [])
        (node,) = terms[0]["matchFields"][0]["values"] if terms else [""]
        if node in self.pending:
            return
        if node in self.failing:
            document["status"] = {"failed": 3, "conditions": [{"type": "Failed", "status": "True"}]}
            self._failed_pod(document, node)
            return
        document["status"] = {"succeeded": 1}
        place = f"{volume['persistentVolumeClaim']['claimName']}:{container['volumeMounts'][0]['subPath']}"
        self.emptied.append((place, tuple(container["command"][3:]), node))

    def _failed_pod(self, job: Object, node: str) -> None:
        ended = {"exitCode": 1, "message": self.failing[node]}
        state = {"name": "folders", "image": "", "imageID": "", "ready": False, "restartCount": 0,
                 "state": {"terminated": ended}}  # fmt: skip
        name = f"{job['metadata']['name']}-0"
        owner = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "name": job["metadata"]["name"],
            "uid": job["metadata"]["uid"],
        }
        labels = {**job["metadata"]["labels"], "job-name": job["metadata"]["name"]}
        metadata = {"name": name, "namespace": SPACE, "labels": labels, "ownerReferences": [owner]}
        self.objects["v1", "pods", SPACE, name] = {
            "metadata": metadata,
            "spec": {"nodeName": node, "containers": []},
            "status": {"phase": "Failed", "containerStatuses": [state]},
        }

    def client(self) -> Client:
        config = KubeConfig.from_one(
            cluster=Cluster(server=self.endpoint, insecure=True), user=User(), context_name="racks"
        )
        transport = httpx2.MockTransport(self._answer)
        return Client(config=config, namespace=SPACE, field_manager="test", trust_env=False, transport=transport)

    def _answer(self, request: httpx2.Request) -> httpx2.Response:
        """Answer without a socket: a test may ask a thousand times."""
        url = request.url.raw_path.decode()
        status, document = self.handle(request.method, url, json.loads(request.content or b"{}"))
        return httpx2.Response(status, json=document, request=request)


def tenant(api: TenantApi, s3: Any, spec: Spec, time: Time, **more: Any) -> Tenant:
    """The campaign of `spec`, whose driver lets ten seconds go by between two looks."""
    store = CampaignStore(s3, BUCKET, spec.campaign, "driver", f"bivouac/campaigns/{spec.campaign}")
    hands: Object = {"pause": lambda: time.go(10), "now": time} | more
    return Tenant(client=api.client(), store=store, spec=spec, **hands)
