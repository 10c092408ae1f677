"""The node's agent: registers the node, then runs the pods bound to it."""

from __future__ import annotations

import base64
import threading
import time
from pathlib import Path

from botocore.auth import SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials as SigningKey

from infra.rehearsal.nodelet.boot import NodeConfig
from infra.rehearsal.nodelet.client import Api, Object, Watch
from infra.rehearsal.nodelet.credentials import RoleCredentials
from infra.rehearsal.nodelet.machine import MachineConfig
from infra.rehearsal.nodelet.node import Node
from infra.rehearsal.nodelet.pods.hosts import Hosts
from infra.rehearsal.nodelet.pods.images import ImageStore
from infra.rehearsal.nodelet.pods.logs import serve_kubelet
from infra.rehearsal.nodelet.pods.pod import OVER, PodWorker
from infra.rehearsal.nodelet.pods.sandbox import Container, remove_tree
from infra.rehearsal.nodelet.surroundings import Addresses, Events, Surroundings


class Kubelet:
    def __init__(self, config: MachineConfig, node: NodeConfig, credentials: RoleCredentials) -> None:
        tokens = EksTokens(node.cluster, credentials, config.endpoint_url, config.region)
        api = Api(node.endpoint, node.authority_pem, tokens)
        work = Path(config.work)
        self._around = Surroundings(
            config,
            node,
            api,
            credentials,
            ImageStore(work / "images", config.region, credentials, Path(config.tools)),
            Hosts(api),
            Addresses(config.pod_addresses),
            Events(api, config.hostname),
        )
        self._node = Node(api, config, node)
        self._workers: dict[str, PodWorker] = {}
        self._finished: dict[str, PodWorker] = {}
        """Pods that are over but still in the cluster: their logs stay readable."""
        self._lock = threading.Lock()
        self._watch = Watch(
            api, "/api/v1/pods", self._on_list, self._on_event, fieldSelector=f"spec.nodeName={config.hostname}"
        )

    def start(self) -> None:
        """Start the agent; return once the cluster has accepted the node."""
        config, node = self._around.config, self._around.node
        # After a boot from an old disk, nothing owns the folders of its former pods.
        remove_tree(self._around.work / "pods")
        server_settings = (config.address, config.hostname, self._around.work, node.authority_pem)
        serve_kubelet(*server_settings, self._log_path, self._is_running, self._program)
        self._node.register()
        self._node.start()
        self._around.events.start()
        self._around.hosts.start()
        self._watch.start()

    def _on_list(self, pods: list[Object]) -> None:
        with self._lock:
            present = {pod["metadata"]["uid"] for pod in pods}
            for uid, worker in list(self._workers.items()):
                if uid not in present:
                    worker.vanish()
            self._finished = {uid: finished_worker for uid, finished_worker in self._finished.items() if uid in present}
        for pod in pods:
            self._on_event("MODIFIED", pod)

    def _on_event(self, kind: str, pod: Object) -> None:
        uid = pod["metadata"]["uid"]
        with self._lock:
            worker = self._workers.get(uid)
            if kind == "DELETED":
                self._finished.pop(uid, None)
                if worker is not None:
                    worker.vanish()
            elif worker is not None:
                worker.update(pod)
            elif "deletionTimestamp" in pod["metadata"] or self._is_new(pod):
                self._workers[uid] = PodWorker(self._around, pod, self._end_worker)
                self._workers[uid].start()

    def _is_new(self, pod: Object) -> bool:
        return pod["metadata"]["uid"] not in self._finished and (pod.get("status") or {}).get("phase") not in OVER

    def _end_worker(self, uid: str) -> None:
        with self._lock:
            worker = self._workers.pop(uid)
            self._finished[uid] = worker
            pod = worker.unheard()
            if pod is not None and "deletionTimestamp" in pod["metadata"]:
                self._workers[uid] = PodWorker(self._around, pod, self._end_worker)
                self._workers[uid].start()

    def _worker(self, namespace: str, name: str) -> PodWorker | None:
        with self._lock:
            workers = [*self._workers.values(), *self._finished.values()]
        return next((candidate for candidate in workers if candidate.has_name(namespace, name)), None)

    def _log_path(self, namespace: str, pod: str, container: str, previous: bool) -> Path | None:
        worker = self._worker(namespace, pod)
        container_state = worker.container(container) if worker is not None else None
        if container_state is None or container_state.starts < (2 if previous else 1):
            return None
        return container_state.log_path(container_state.starts - 2 if previous else None)

    def _program(self, namespace: str, pod: str, container: str) -> Container | None:
        worker = self._worker(namespace, pod)
        container_state = worker.container(container) if worker is not None else None
        return None if container_state is None else container_state.process

    def _is_running(self, namespace: str, pod: str, container: str) -> bool:
        return self._program(namespace, pod, container) is not None


PREFIX = "k8s-aws-v1."
RENEW_AFTER_S = 600.0
"""The authenticator accepts a token for 15 minutes after its date, whatever its URL says."""
EXPIRES_S = 60


class EksTokens:
    """EKS's bearer tokens of one machine for one cluster, renewed well before they expire: a presigned
    sts:GetCallerIdentity that names the cluster.
    https://github.com/kubernetes-sigs/aws-iam-authenticator#api-authorization-from-outside-a-cluster"""

    def __init__(self, cluster: str, credentials: RoleCredentials, endpoint_url: str, region: str) -> None:
        self._cluster, self._credentials = cluster, credentials
        self._endpoint_url, self._region = endpoint_url.rstrip("/"), region
        self._lock = threading.Lock()
        self._token, self._made = "", 0.0

    def token(self) -> str:
        with self._lock:
            if not self._token or time.monotonic() - self._made > RENEW_AFTER_S:
                self._token, self._made = self._sign(), time.monotonic()
            return self._token

    def forget(self) -> None:
        """Discard the token after a 401, so that the next one is signed afresh."""
        with self._lock:
            self._token = ""

    def _sign(self) -> str:
        session = self._credentials.current()
        query = {"Action": "GetCallerIdentity", "Version": "2011-06-15"}
        request = AWSRequest("GET", f"{self._endpoint_url}/", {"x-k8s-aws-id": self._cluster}, params=query)
        key = SigningKey(session.access_key, session.secret_key, session.token)
        SigV4QueryAuth(key, "sts", self._region, expires=EXPIRES_S).add_auth(request)
        url = request.prepare().url
        return PREFIX + base64.urlsafe_b64encode(url.encode()).decode().rstrip("=")
