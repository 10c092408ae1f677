"""The `kueue` chart of a rehearsal: the module's CRDs, role and webhooks, and its controller as a process."""

from __future__ import annotations

import json
import shlex
import threading
from collections.abc import Iterator
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

WEBHOOK_PORT, HEALTH_PORT = 9444, 8082  # JobSet's are one below
ROLE = "kueue-manager-role"
FRAMEWORKS = ("jobset.x-k8s.io/jobset",)
"""Kinds of jobs that are queued here: those whose controller a rehearsal has."""
_METRICS_CERTIFICATES = "/etc/kueue/metrics/certs"
"""Its one folder for certificates that no setting moves."""


class KueueChart:
    """Installed in the order that works: CRDs, role, controller, then the webhooks once it answers them."""

    def __init__(self, config: ControlPlaneConfig, authority: Authority) -> None:
        self._config, self._authority = config, authority
        self._manifests = share_dir("kueue", config.tools)
        self._component: Component | None = None

    @property
    def version(self) -> str:
        return self._read("VERSION").strip()

    def install(self, release: Release, stopping: threading.Event) -> None:
        """Install it. The release's `managerConfig` is laid over the module's own, as its Helm chart does."""
        definitions = list(self._definitions())
        # One at a time: that of workloads alone has 700 KB.
        for definition in definitions:
            kubectl.apply(self._config, [definition])
        for definition in definitions:
            kubectl.wait(self._config, "established", f"crd/{definition['metadata']['name']}")
        kubectl.apply(self._config, self._roles(release.namespace))
        self.kill()
        self._component = self._controller(release)
        self._component.start()
        await_ready(self._component, f"{self._config.loopback}:{HEALTH_PORT}", stopping)
        kubectl.apply(self._config, list(self._webhooks()))

    def alive(self) -> bool:
        return self._component is not None and self._component.alive()

    def restart(self) -> None:
        if self._component:
            self._component.start()

    def remove(self) -> None:
        """Remove it as `helm uninstall` would: the CRDs and what is queued stay, without a controller."""
        kubectl.delete(self._config, [*self._webhooks(), *self._roles("kube-system")])
        self.kill()

    def kill(self) -> None:
        if self._component:
            self._component.kill()

    def _controller(self, release: Release) -> Component:
        config, user = self._config, _service_account(release.namespace)
        groups = ["system:serviceaccounts", f"system:serviceaccounts:{release.namespace}", "system:authenticated"]
        pair = self._authority.client("kueue-controller", user, groups)
        kubeconfig = write_kubeconfig(config, self._authority, "kueue-controller", pair)
        certificates = self._certificates()
        settings = config.work / "kueue.json"
        settings.write_text(json.dumps(self._settings(release, certificates)))
        # The folder of the metrics' certificates exists for this process only.
        script = (
            f"mount -t tmpfs tmpfs /etc && mkdir -p {_METRICS_CERTIFICATES} && "
            f'cp {shlex.quote(str(certificates))}/* {_METRICS_CERTIFICATES}/ && exec "$@"'
        )
        argv = [
            "unshare", "--mount", "--", "sh", "-c", script, "sh", str(config.tools / "kueue"),
            f"--kubeconfig={kubeconfig}", f"--config={settings}", "--zap-log-level=info",
        ]  # fmt: skip
        return Component("kueue-controller", argv, config.logs / "kueue-controller.log")

    def _certificates(self) -> Path:
        folder = self._config.work / "kueue-webhook"
        folder.mkdir(exist_ok=True, mode=0o700)
        pair = self._authority.server("kueue-webhook", [self._config.loopback])
        (folder / "tls.crt").write_bytes(pair.certificate.read_bytes())
        (folder / "tls.key").write_bytes(pair.key.read_bytes())
        return folder

    def _settings(self, release: Release, certificates: Path) -> dict[str, Any]:
        words = (release.values.get("managerConfig") or {}).get("controllerManagerConfigYaml", "{}")
        settings: dict[str, Any] = yaml.safe_load(self._read("manager/controller_manager_config.yaml"))
        own = {
            "leaderElection": {"leaderElect": False},
            "internalCertManagement": {"enable": False},
            "webhook": {"host": self._config.loopback, "port": WEBHOOK_PORT, "certDir": str(certificates)},
            "metrics": {"bindAddress": "0"},
            "health": {"healthProbeBindAddress": f"{self._config.loopback}:{HEALTH_PORT}"},
            "integrations": {"frameworks": list(FRAMEWORKS)},
            "namespace": release.namespace,
            # A second API server, which aggregation would have to reach by a Service; logins to other clusters.
            "featureGates": {"VisibilityOnDemand": False, "MultiKueue": False},
        }
        return {**settings, **yaml.safe_load(words), **own}

    def _definitions(self) -> Iterator[dict[str, Any]]:
        """Yield the CRDs, converted by the controller where the module's Kustomize patches say so."""
        converted = {"localqueues", "clusterqueues", "cohorts", "workloads", "multikueueclusters"}
        files = sorted((self._manifests / "crd/bases").glob("*.yaml"))
        for file in files:
            definition = yaml.safe_load(file.read_text())
            if definition["spec"]["names"]["plural"] in converted:
                hook = {"clientConfig": self._client_config("/convert"), "conversionReviewVersions": ["v1"]}
                definition["spec"]["conversion"] = {"strategy": "Webhook", "webhook": hook}
            yield definition

    def _roles(self, namespace: str) -> list[dict[str, Any]]:
        role = yaml.safe_load(self._read("rbac/role.yaml"))
        role["metadata"]["name"] = ROLE
        group = "rbac.authorization.k8s.io"
        binding = {
            "apiVersion": f"{group}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": "kueue-manager-rolebinding"},
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": ROLE},
            "subjects": [{"apiGroup": group, "kind": "User", "name": _service_account(namespace)}],
        }
        return [role, binding]

    def _webhooks(self) -> Iterator[dict[str, Any]]:
        """Yield the configurations, of its own objects and of `FRAMEWORKS`: the controller answers no other."""
        groups = {"kueue.x-k8s.io", *(framework.partition("/")[0] for framework in FRAMEWORKS)}
        for configuration in yaml.safe_load_all(self._read("webhook/manifests.yaml")):
            configuration["metadata"]["name"] = f"kueue-{configuration['metadata']['name']}"
            hooks = [
                hook
                for hook in configuration["webhooks"]
                if {group for rule in hook["rules"] for group in rule["apiGroups"]} <= groups
            ]
            for hook in hooks:
                hook["clientConfig"] = self._client_config(hook["clientConfig"]["service"]["path"])
            configuration["webhooks"] = hooks
            yield configuration

    def _client_config(self, path: str) -> dict[str, str]:
        """Return the controller's own address instead of a Service's."""
        url = f"https://{self._config.loopback}:{WEBHOOK_PORT}{path}"
        return {"url": url, "caBundle": self._authority.bundle}

    def _read(self, relative: str) -> str:
        path: Path = self._manifests / relative
        if not path.is_file():
            cure = "python -m infra.toolchain ensure kueue"
            raise PermanentError("the manifests of Kueue are missing", seen=path, cure=cure)
        return path.read_text()


def _service_account(namespace: str) -> str:
    return f"system:serviceaccount:{namespace}:kueue-controller-manager"
