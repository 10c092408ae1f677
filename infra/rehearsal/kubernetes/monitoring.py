"""The chart `kube-prometheus-stack` of a rehearsal: the real Prometheus and Alertmanager, as the release's own values
configure them, which on EKS the chart's operator does."""

from __future__ import annotations

import json
import shlex
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from infra.errors import PermanentError
from infra.folders import share_dir
from infra.rehearsal.kubernetes import kubectl
from infra.rehearsal.kubernetes.component import Component
from infra.rehearsal.kubernetes.config import ControlPlaneConfig
from infra.rehearsal.kubernetes.identities import write_kubeconfig
from infra.rehearsal.kubernetes.pki import Authority
from infra.rehearsal.kubernetes.releases import Release

_USER = "kube-prometheus-stack-prometheus"
PROMETHEUS_PORT, ALERTMANAGER_PORT = 9090, 9093
_DEBIAN_TEMPLATES = "/usr/share/prometheus/alertmanager"
"""Where Debian's Alertmanager looks for its templates; the official one has them inside."""


class MonitoringChart:
    """Prometheus finds its targets by the API server, with the rights of the chart's service account."""

    def __init__(self, config: ControlPlaneConfig, authority: Authority) -> None:
        self._config, self._authority = config, authority
        self._folder = config.work / "monitoring"
        self._components: tuple[Component, ...] = ()

    @property
    def version(self) -> str:
        return "Prometheus and Alertmanager, without their operator,"

    def install(self, release: Release, stopping: threading.Event) -> None:
        self.kill()
        self._folder.mkdir(exist_ok=True)
        kubectl.apply(self._config, [*self._roles(release), *self._services(release)])
        self._components = (self._alertmanager(release.values), self._prometheus(release))
        self.restart()

    def alive(self) -> bool:
        return all(component.alive() for component in self._components)

    def restart(self) -> None:
        for component in self._components:
            if not component.alive():
                component.start()

    def remove(self) -> None:
        self.kill()

    def kill(self) -> None:
        for component in self._components:
            component.kill()

    def _prometheus(self, release: Release) -> Component:
        config, spec = self._config, release.values["prometheus"]["prometheusSpec"]
        kubeconfig = write_kubeconfig(config, self._authority, _USER, self._authority.client(_USER, _USER))
        rules = self._write("rules.json", _rules(release.values))
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
            "scrape_configs": [_with_access(job, kubeconfig) for job in spec["additionalScrapeConfigs"]],
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
        template = share_dir("alertmanager", self._config.tools) / "default.tmpl"
        if not template.exists() or Path(_DEBIAN_TEMPLATES).exists():
            return argv
        script = (
            "mount -t tmpfs tmpfs /usr/share && "
            f'mkdir -p {_DEBIAN_TEMPLATES} && cp {shlex.quote(str(template))} {_DEBIAN_TEMPLATES}/ && exec "$@"'
        )
        return ["unshare", "--mount", "--", "sh", "-c", script, "sh", *argv]

    def _roles(self, release: Release) -> list[dict[str, Any]]:
        group, name = "rbac.authorization.k8s.io", f"{release.name}-prometheus"
        rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}]
        return [
            {"apiVersion": f"{group}/v1", "kind": "ClusterRole", "metadata": {"name": name}, "rules": rules},
            {
                "apiVersion": f"{group}/v1",
                "kind": "ClusterRoleBinding",
                "metadata": {"name": name},
                "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": name},
                "subjects": [{"apiGroup": group, "kind": "User", "name": _USER}],
            },
        ]

    def _services(self, release: Release) -> list[dict[str, Any]]:
        """Return the chart's services, with the address at which the site runs what is behind them."""
        objects = list[dict[str, Any]]()
        for part, port in (("prometheus", PROMETHEUS_PORT), ("alertmanager", ALERTMANAGER_PORT)):
            name = f"{release.name}-{part}"
            metadata = {"name": name, "namespace": release.namespace}
            ports = [{"name": "http-web", "port": port, "protocol": "TCP"}]
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
            ]
        return objects

    def _write(self, name: str, document: Mapping[str, Any]) -> Path:
        path = self._folder / name
        path.write_text(json.dumps(document, indent=1))  # JSON is YAML
        return path


def _rules(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the rule groups of all of the release's rule files."""
    files = values.get("additionalPrometheusRulesMap") or {}
    return {"groups": [group for content in files.values() for group in content["groups"]]}


def _with_access(job: Mapping[str, Any], kubeconfig: Path) -> dict[str, Any]:
    """Return a scrape job that asks the API server by a file: outside of a pod there is no account's token."""
    discoveries = job.get("kubernetes_sd_configs")
    if not discoveries:
        raise PermanentError("a scrape job of the chart is not understood", seen=sorted(job))
    return {**job, "kubernetes_sd_configs": [{**source, "kubeconfig_file": str(kubeconfig)} for source in discoveries]}
