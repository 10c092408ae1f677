"""The chart `kube-prometheus-stack` of a rehearsal: the real Prometheus and Alertmanager, as the release's own values
configure them, which on EKS the chart's operator does.

Debian's Prometheus cannot ask an API server for its targets. So the site writes them to a file as Prometheus' own
discovery names them, and the release's relabelling chooses among them.
https://prometheus.io/docs/prometheus/latest/configuration/configuration/#kubernetes_sd_config
"""

from __future__ import annotations

import json
import re
import shlex
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx2
from lightkube import ApiError, Client
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Pod

from infra.errors import PermanentError, TemporaryError
from infra.folders import share_dir
from infra.rehearsal.kubernetes import kubectl
from infra.rehearsal.kubernetes.component import Component
from infra.rehearsal.kubernetes.config import ControlPlaneConfig
from infra.rehearsal.kubernetes.exporters import Exporters, node_exporter_job
from infra.rehearsal.kubernetes.releases import HelmRelease

PROMETHEUS_PORT, ALERTMANAGER_PORT = 9090, 9093
_START_S, _DISCOVER_EVERY_S = 60.0, 1.0
_DEBIAN_TEMPLATES = "/usr/share/prometheus/alertmanager"
"""Where Debian's Alertmanager looks for its templates; the official one has them inside."""


class MonitoringChart:
    def __init__(self, config: ControlPlaneConfig, client: Callable[[], Client]) -> None:
        self._config, self._client = config, client
        self._folder = config.work / "monitoring"
        self.components: tuple[Component, ...] = ()
        self.exporters = Exporters(config.address)
        self._over = threading.Event()

    @property
    def version(self) -> str:
        return "Prometheus and Alertmanager, without their operator,"

    def install(self, release: HelmRelease, stopping: threading.Event) -> None:
        self.kill()
        self._folder.mkdir(exist_ok=True)
        kubectl.apply(self._config, self._services(release))
        place = {"status": {"podIP": self._config.address, "podIPs": [{"ip": self._config.address}]}}
        for part in ("prometheus", "alertmanager"):
            self._client().patch(Pod.Status, f"{release.name}-{part}", place, namespace=release.namespace)
        self.components = (self._alertmanager(release.values), self._prometheus(release))
        self.restart()
        for component, port in zip(self.components, (ALERTMANAGER_PORT, PROMETHEUS_PORT), strict=True):
            self._await_ready(component, port, stopping)
        self._over = threading.Event()
        threading.Thread(target=self._discover, args=(self._over,), name="discovery", daemon=True).start()

    def _await_ready(self, component: Component, port: int, stopping: threading.Event) -> None:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        deadline = time.monotonic() + _START_S
        while time.monotonic() < deadline and component.alive() and not stopping.is_set():
            try:
                opener.open(f"http://{self._config.address}:{port}/-/ready", timeout=2).close()
                return
            except OSError:
                stopping.wait(0.1)
        problem = component.last_words()
        raise TemporaryError(f"{component.name} did not become ready", seen=problem, delay=timedelta(seconds=5))

    def _discover(self, end: threading.Event) -> None:
        """Write the pods' ports again and again, whenever they change."""
        client, previous_text = self._client(), ""
        while not end.wait(_DISCOVER_EVERY_S):
            try:
                targets = [target for pod in client.list(Pod, namespace="*") for target in targets_of(pod)]
                targets += self.exporters.targets()
                text = json.dumps(targets, indent=1)
                if text != previous_text:
                    fresh = self._write("targets.new", targets)
                    fresh.replace(self._folder / "targets.json")
                    previous_text = text
            except (ApiError, OSError, httpx2.HTTPError):
                continue  # the API server is down, or the disk is full: those that were known stay

    def alive(self) -> bool:
        return all(component.alive() for component in self.components)

    def restart(self) -> None:
        for component in self.components:
            if not component.alive():
                component.start()

    def remove(self) -> None:
        self.kill()

    def kill(self) -> None:
        self._over.set()
        self.exporters.stop()
        for component in self.components:
            component.kill()

    def _prometheus(self, release: HelmRelease) -> Component:
        config, spec = self._config, release.values["prometheus"]["prometheusSpec"]
        rules = self._write("rules.json", _rules(release.values))
        node_exporter = release.values["prometheus-node-exporter"]["prometheus"]["monitor"]["metricRelabelings"]
        jobs = [*spec["additionalScrapeConfigs"], node_exporter_job(node_exporter)]
        document = {
            "global": {
                "scrape_interval": spec["scrapeInterval"],
                "scrape_timeout": spec["scrapeTimeout"],
                "evaluation_interval": spec["evaluationInterval"],
            },
            "rule_files": [str(rules)],
            "alerting": {
                "alertmanagers": [{"static_configs": [{"targets": [f"{config.address}:{ALERTMANAGER_PORT}"]}]}]
            },
            "scrape_configs": [self._by_file(job) for job in jobs],
        }
        argv = [
            str(config.tools / "prometheus"), f"--config.file={self._write('prometheus.json', document)}",
            f"--storage.tsdb.path={self._folder / 'series'}", f"--storage.tsdb.retention.time={spec['retention']}",
            f"--web.listen-address={config.address}:{PROMETHEUS_PORT}", "--log.level=warn",
        ]  # fmt: skip
        return Component("prometheus", argv, config.logs / "prometheus.log")

    def _alertmanager(self, values: Mapping[str, Any]) -> Component:
        config = self._config
        settings = self._write("alertmanager.json", values["alertmanager"]["config"])
        argv = [
            str(config.tools / "alertmanager"), f"--config.file={settings}",
            f"--storage.path={self._folder / 'alertmanager'}", "--cluster.listen-address=",
            f"--web.listen-address={config.address}:{ALERTMANAGER_PORT}", "--log.level=warn",
        ]  # fmt: skip
        return Component("alertmanager", self._with_templates(argv), config.logs / "alertmanager.log")

    def _with_templates(self, argv: list[str]) -> list[str]:
        """Put Debian's templates where its Alertmanager looks for them, in a mount namespace of its own."""
        templates = share_dir("alertmanager", self._config.tools)
        if not (templates / "default.tmpl").exists() or Path(_DEBIAN_TEMPLATES).exists():
            return argv
        script = (
            "mount -t tmpfs tmpfs /usr/share && "
            f'mkdir -p {_DEBIAN_TEMPLATES} && cp {shlex.quote(str(templates))}/*.tmpl {_DEBIAN_TEMPLATES}/ && exec "$@"'
        )
        return ["unshare", "--mount", "--", "sh", "-c", script, "sh", *argv]

    def _by_file(self, job: Mapping[str, Any]) -> dict[str, Any]:
        """Return a scrape job whose targets come from the file, in the namespaces in which it looks for pods."""
        discovery, *other_discoveries = job.get("kubernetes_sd_configs") or [{}]
        if other_discoveries or discovery.get("role") != "pod":
            raise PermanentError("a scrape job of the chart is not understood", seen=sorted(job))
        fields = {name: value for name, value in job.items() if name != "kubernetes_sd_configs"}
        names = (discovery.get("namespaces") or {}).get("names")
        keep = {"source_labels": ["__meta_kubernetes_namespace"], "regex": "|".join(names or [".*"]), "action": "keep"}
        files = [{"files": [str(self._folder / "targets.json")], "refresh_interval": "5s"}]
        return {**fields, "file_sd_configs": files, "relabel_configs": [keep, *job.get("relabel_configs", [])]}

    def _services(self, release: HelmRelease) -> list[dict[str, Any]]:
        """Return the chart's services, with the address at which the site runs what is behind them."""
        objects = list[dict[str, Any]]()
        for part, port in (("prometheus", PROMETHEUS_PORT), ("alertmanager", ALERTMANAGER_PORT)):
            name = f"{release.name}-{part}"
            metadata = {"name": name, "namespace": release.namespace}
            ports = [{"name": "http-web", "port": port, "protocol": "TCP"}]
            unmirrored_metadata = {**metadata, "labels": {"endpointslice.kubernetes.io/skip-mirror": "true"}}
            address = {"ip": self._config.address, "targetRef": {"kind": "Pod", **metadata}}
            subsets = [{"addresses": [address], "ports": ports}]
            # It runs here, on no node.
            spec = {"schedulerName": "site", "containers": [{"name": part, "image": part}]}
            objects += [
                {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": {"ports": ports}},
                {
                    "apiVersion": "discovery.k8s.io/v1",
                    "kind": "EndpointSlice",
                    "metadata": {**metadata, "labels": {"kubernetes.io/service-name": name}},
                    "addressType": "IPv4",
                    "endpoints": [{"addresses": [self._config.address]}],
                    "ports": ports,
                },
                # The API server's own way to a service reads these, and goes only to the address of a pod.
                {"apiVersion": "v1", "kind": "Endpoints", "metadata": unmirrored_metadata, "subsets": subsets},
                {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec},
            ]
        return objects

    def _write(self, name: str, document: Any) -> Path:
        path = self._folder / name
        path.write_text(json.dumps(document, indent=1))  # JSON is YAML
        return path


def _rules(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the rule groups of all of the release's rule files."""
    files = values.get("additionalPrometheusRulesMap") or {}
    return {"groups": [group for content in files.values() for group in content["groups"]]}


def targets_of(pod: Pod) -> Iterator[dict[str, Any]]:
    """Yield a pod's targets, one for each port of its containers, with the labels of Prometheus' own discovery."""
    metadata, spec, status = pod.metadata or ObjectMeta(), pod.spec, pod.status
    if spec is None or status is None or not status.podIP or status.phase in ("Succeeded", "Failed"):
        return
    labels = {
        "__meta_kubernetes_namespace": metadata.namespace or "",
        "__meta_kubernetes_pod_name": metadata.name or "",
        "__meta_kubernetes_pod_node_name": spec.nodeName or "",
        **{
            f"__meta_kubernetes_pod_label_{re.sub('[^a-zA-Z0-9_]', '_', name)}": value
            for name, value in (metadata.labels or {}).items()
        },
    }
    for container in spec.containers:
        for port in container.ports or ():
            meta_labels = {
                "__meta_kubernetes_pod_container_name": container.name,
                "__meta_kubernetes_pod_container_port_name": port.name or "",
            }
            yield {"targets": [f"{status.podIP}:{port.containerPort}"], "labels": labels | meta_labels}
