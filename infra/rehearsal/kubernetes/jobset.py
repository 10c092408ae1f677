"""The `jobset` chart of a rehearsal: the module's CRD, role and webhooks, and its controller as a process."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import yaml

from infra.errors import PermanentError
from infra.folders import share_dir
from infra.rehearsal.kubernetes import kubectl
from infra.rehearsal.kubernetes.component import Component, await_ready
from infra.rehearsal.kubernetes.config import ControlPlaneConfig
from infra.rehearsal.kubernetes.identities import write_kubeconfig
from infra.rehearsal.kubernetes.pki import Authority
from infra.rehearsal.kubernetes.releases import Release

WEBHOOK_PORT, HEALTH_PORT = 9443, 8081
ROLE = "jobset-manager-role"


class JobSetChart:
    """Installed in the order that works: CRD, role, controller, then the webhooks once it answers them."""

    def __init__(self, config: ControlPlaneConfig, authority: Authority) -> None:
        self._config, self._authority = config, authority
        self._manifests = share_dir("jobset", config.tools)
        self._component: Component | None = None

    @property
    def version(self) -> str:
        return self._read("VERSION").strip()

    def install(self, release: Release, stopping: threading.Event) -> None:
        kubectl.apply(self._config, [_load(self._read("crd/bases/jobset.x-k8s.io_jobsets.yaml"))])
        kubectl.wait(self._config, "established", "crd/jobsets.jobset.x-k8s.io")
        kubectl.apply(self._config, self._roles(release.namespace))
        if self._component:
            self._component.kill()
        self._component = self._controller(release.namespace)
        self._component.start()
        await_ready(self._component, f"{self._config.loopback}:{HEALTH_PORT}", stopping)
        kubectl.apply(self._config, self._webhooks())

    def alive(self) -> bool:
        return self._component is not None and self._component.alive()

    def restart(self) -> None:
        if self._component:
            self._component.start()

    def remove(self) -> None:
        """Remove it as `helm uninstall` would: the CRD and the JobSets stay, without a controller."""
        kubectl.delete(self._config, [*self._webhooks(), *self._roles("kube-system")])
        self.kill()

    def kill(self) -> None:
        if self._component:
            self._component.kill()

    def _controller(self, namespace: str) -> Component:
        config, user = self._config, _service_account(namespace)
        groups = ["system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated"]
        kubeconfig = write_kubeconfig(
            config, self._authority, "jobset-controller", self._authority.client("jobset-controller", user, groups)
        )
        settings = config.work / "jobset.json"
        settings.write_text(json.dumps(self._settings()))
        argv = [str(config.tools / "jobset-controller"), f"--kubeconfig={kubeconfig}", f"--config={settings}"]
        argv += ["--zap-log-level=info"]
        return Component("jobset-controller", argv, config.logs / "jobset-controller.log")

    def _settings(self) -> dict[str, Any]:
        certificates = self._config.work / "jobset-webhook"
        certificates.mkdir(exist_ok=True, mode=0o700)
        pair = self._authority.server("jobset-webhook", [self._config.loopback])
        (certificates / "tls.crt").write_bytes(pair.certificate.read_bytes())
        (certificates / "tls.key").write_bytes(pair.key.read_bytes())
        return {
            "apiVersion": "config.jobset.x-k8s.io/v1alpha1",
            "kind": "Configuration",
            "leaderElection": {"leaderElect": False},
            "internalCertManagement": {"enable": False},
            "webhook": {"host": self._config.loopback, "port": WEBHOOK_PORT, "certDir": str(certificates)},
            "metrics": {"bindAddress": "0"},
            "health": {"healthProbeBindAddress": f"{self._config.loopback}:{HEALTH_PORT}"},
        }

    def _roles(self, namespace: str) -> list[dict[str, Any]]:
        role = _load(self._read("rbac/role.yaml"))
        role["metadata"]["name"] = ROLE
        group = "rbac.authorization.k8s.io"
        binding = {
            "apiVersion": f"{group}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": "jobset-manager-rolebinding"},
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": ROLE},
            "subjects": [{"apiGroup": group, "kind": "User", "name": _service_account(namespace)}],
        }
        return [role, binding]

    def _webhooks(self) -> list[dict[str, Any]]:
        """Return the module's configurations with its own patches, at the controller's address instead of a Service."""
        configurations = list(yaml.safe_load_all(self._read("webhook/manifests.yaml")))
        url = f"https://{self._config.loopback}:{WEBHOOK_PORT}"
        for configuration in configurations:
            kind = "mutating" if configuration["kind"].startswith("Mutating") else "validating"
            _patch(configuration, yaml.safe_load(self._read(f"webhook/patches/{kind}-patch.yaml")))
            configuration["metadata"]["name"] = f"jobset-{configuration['metadata']['name']}"
            for webhook in configuration["webhooks"]:
                path = webhook["clientConfig"]["service"]["path"]
                webhook["clientConfig"] = {"url": url + path, "caBundle": self._authority.bundle}
        return configurations

    def _read(self, relative: str) -> str:
        path: Path = self._manifests / relative
        if not path.is_file():
            cure = "python -m infra.toolchain ensure jobset-controller"
            raise PermanentError("the manifests of the JobSet controller are missing", seen=path, cure=cure)
        return path.read_text()


def _service_account(namespace: str) -> str:
    return f"system:serviceaccount:{namespace}:jobset-controller-manager"


def _load(text: str) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load(text)
    return document


def _patch(configuration: dict[str, Any], operations: list[dict[str, Any]]) -> None:
    """Apply Kustomize's JSON patches as far as the module uses them: `replace /webhooks/<index>`."""
    for operation in operations:
        _, field, index = operation["path"].split("/")
        if (operation["op"], field) != ("replace", "webhooks"):
            raise PermanentError("a webhook patch of the JobSet module is not understood", seen=operation["path"])
        configuration["webhooks"][int(index)] = operation["value"]
