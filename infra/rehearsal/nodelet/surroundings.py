"""Objects that all pods of one machine share."""

from __future__ import annotations

import logging
import queue
import threading
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from infra.errors import BivouacError, TemporaryError
from infra.rehearsal.nodelet.boot import NodeConfig
from infra.rehearsal.nodelet.client import Api, Object, namespaced_path, timestamp
from infra.rehearsal.nodelet.credentials import RoleCredentials
from infra.rehearsal.nodelet.machine import MachineConfig
from infra.rehearsal.nodelet.pods.hosts import Hosts
from infra.rehearsal.nodelet.pods.images import ImageStore

log = logging.getLogger(__name__)

RETRY = timedelta(seconds=3)


class Addresses:
    """The machine's pod addresses. `take` returns the one unused for longest, since others may still cache it."""

    def __init__(self, addresses: Iterable[str]) -> None:
        self._free = deque(addresses)
        self._lock = threading.Lock()

    def take(self) -> str:
        with self._lock:
            if not self._free:
                cure = "more secondary addresses on the instance, or fewer pods"
                raise TemporaryError("no pod address is free on this node", cure=cure, delay=RETRY)
            return self._free.popleft()

    def give_back(self, address: str) -> None:
        with self._lock:
            self._free.append(address)


class Events:
    """Kubernetes events about pods, written in the background; a failed write is dropped."""

    def __init__(self, api: Api, host: str) -> None:
        self._api, self._host = api, host
        self._waiting: queue.SimpleQueue[tuple[Object, str, str, str]] = queue.SimpleQueue()

    def start(self) -> None:
        threading.Thread(target=self._run, name="events", daemon=True).start()

    def tell(self, pod: Object, kind: str, reason: str, message: str) -> None:
        """Queue and log an event; `kind` is Normal or Warning."""
        log.info("%s/%s: %s: %s", pod["metadata"]["namespace"], pod["metadata"]["name"], reason, message)
        self._waiting.put((pod["metadata"], kind, reason, message))

    def _run(self) -> None:
        while True:
            metadata, kind, reason, message = self._waiting.get()
            namespace, now = metadata["namespace"], timestamp()
            reference = {"apiVersion": "v1", "kind": "Pod", "namespace": namespace}
            event = {
                "apiVersion": "v1",
                "kind": "Event",
                "metadata": {"generateName": f"{metadata['name']}.", "namespace": namespace},
                "involvedObject": {**reference, "name": metadata["name"], "uid": metadata["uid"]},
                "source": {"component": "kubelet", "host": self._host},
                "reportingComponent": "kubelet",
                "reportingInstance": self._host,
                "type": kind,
                "reason": reason,
                "message": message[:1000],
                "firstTimestamp": now,
                "lastTimestamp": now,
                "count": 1,
            }
            try:
                self._api.post(namespaced_path("events", namespace), event)
            except BivouacError as error:
                log.debug("event lost: %s", error)


@dataclass(frozen=True)
class Surroundings:
    config: MachineConfig
    node: NodeConfig
    api: Api
    credentials: RoleCredentials
    images: ImageStore
    hosts: Hosts
    addresses: Addresses
    events: Events

    @property
    def work(self) -> Path:
        return Path(self.config.work)
