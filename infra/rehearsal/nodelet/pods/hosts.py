"""Pod names without a DNS server: /etc/hosts follows the EndpointSlices of the cluster."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from infra.rehearsal.nodelet.client import Api, Object, Watch

SLICES = "/apis/discovery.k8s.io/v1/endpointslices"
SERVICE = "kubernetes.io/service-name"
DOMAIN = "cluster.local"


@dataclass(frozen=True)
class PodHosts:
    """One pod's hosts file; `own` lines come first."""

    namespace: str
    own: tuple[str, ...]
    path: Path


class Hosts:
    """The hosts files of this node's added pods, rewritten whenever they change."""

    def __init__(self, api: Api) -> None:
        self._lock = threading.Lock()
        self._slices: dict[str, Object] = {}
        self._pods: dict[str, PodHosts] = {}
        self._watch = Watch(api, SLICES, self._on_list, self._on_event)

    def start(self) -> None:
        self._watch.start()

    def add(self, uid: str, pod: PodHosts) -> None:
        with self._lock:
            self._pods[uid] = pod
            self._write([pod])

    def remove(self, uid: str) -> None:
        with self._lock:
            self._pods.pop(uid, None)

    def _on_list(self, items: list[Object]) -> None:
        with self._lock:
            self._slices = {item["metadata"]["uid"]: item for item in items}
            self._write(list(self._pods.values()))

    def _on_event(self, kind: str, item: Object) -> None:
        with self._lock:
            if kind == "DELETED":
                self._slices.pop(item["metadata"]["uid"], None)
            else:
                self._slices[item["metadata"]["uid"]] = item
            self._write(list(self._pods.values()))

    def _write(self, pods: list[PodHosts]) -> None:
        for pod in pods:
            lines = [line for item in self._slices.values() for line in hosts_lines(item, pod.namespace)]
            text = "\n".join((*pod.own, *sorted(set(lines)))) + "\n"
            if not pod.path.exists() or pod.path.read_text() != text:
                partial = pod.path.with_suffix(".partial")
                partial.write_text(text)
                partial.rename(pod.path)


def hosts_lines(item: Object, namespace: str) -> Iterator[str]:
    """Yield the names of one slice as resolved in `namespace`: its service, and each endpoint with a host name."""
    service = (item["metadata"].get("labels") or {}).get(SERVICE)
    if not service:
        return
    home = item["metadata"]["namespace"]
    suffixes = [f".{home}.svc.{DOMAIN}", f".{home}.svc", f".{home}"] + ([""] if home == namespace else [])
    for endpoint in item.get("endpoints") or []:
        if (endpoint.get("conditions") or {}).get("ready") is False:
            continue
        names = [service] + ([f"{endpoint['hostname']}.{service}"] if endpoint.get("hostname") else [])
        names.reverse()
        for address in endpoint.get("addresses") or []:
            yield f"{address} " + " ".join(name + suffix for name in names for suffix in suffixes)


def own_lines(pod: Object, address: str) -> tuple[str, ...]:
    """Return the lines that a kubelet writes, hostAliases included."""
    spec, namespace = pod["spec"], pod["metadata"]["namespace"]
    name = host_name(pod)
    full = f"{name}.{spec['subdomain']}.{namespace}.svc.{DOMAIN} " if spec.get("subdomain") else ""
    aliases = [f"{alias['ip']} {' '.join(alias.get('hostnames') or [])}" for alias in spec.get("hostAliases") or []]
    return ("127.0.0.1 localhost", "::1 localhost ip6-localhost", f"{address} {full}{name}", *aliases)


def host_name(pod: Object) -> str:
    return str(pod["spec"].get("hostname") or pod["metadata"]["name"])[:63].rstrip("-.")
