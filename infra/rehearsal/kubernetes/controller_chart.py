"""What charts of controllers have in common: a module's CRDs, role and webhooks, its controller as a process."""

from __future__ import annotations

import json
import shlex
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import yaml

from infra.errors import PermanentError
from infra.folders import share_dir
from infra.rehearsal.kubernetes import kubectl
from infra.rehearsal.kubernetes.component import Component, await_ready
from infra.rehearsal.kubernetes.config import ControlPlaneConfig
from infra.rehearsal.kubernetes.identities import write_kubeconfig
from infra.rehearsal.kubernetes.pki import Authority
from infra.rehearsal.kubernetes.releases import HelmRelease
from infra.tables import parse


class ControllerChart:
    """Installed in the order that works: CRDs, role, controller, then the webhooks once it answers them."""

    name: ClassVar[str]
    """Of the module; role, process and files are named after it."""
    tool: ClassVar[str]
    """The controller's program in the toolchain."""
    webhook_port: ClassVar[int]
    health_port: ClassVar[int]

    def __init__(self, config: ControlPlaneConfig, authority: Authority) -> None:
        self._config, self._authority = config, authority
        self._manifests = share_dir(self.name, config.tools)
        self._component: Component | None = None

    @property
    def version(self) -> str:
        return self.read("VERSION").strip()

    def install(self, release: HelmRelease, stopping: threading.Event) -> None:
        definitions = list(self.definitions())
        # One at a time: a single one may have 700 KB.
        for definition in definitions:
            kubectl.apply(self._config, [definition])
        for definition in definitions:
            kubectl.wait(self._config, "established", f"crd/{definition['metadata']['name']}")
        kubectl.apply(self._config, self._roles(release.namespace))
        self.kill()
        self._component = self._controller(release)
        self._component.start()
        await_ready(self._component, f"{self._config.loopback}:{self.health_port}", stopping)
        kubectl.apply(self._config, list(self.webhooks()))

    def alive(self) -> bool:
        return self._component is not None and self._component.alive()

    def restart(self) -> None:
        if self._component:
            self._component.start()

    def remove(self) -> None:
        """Remove it as `helm uninstall` would: the CRDs and their objects stay, without a controller."""
        kubectl.delete(self._config, [*self.webhooks(), *self._roles("kube-system")])
        self.kill()

    def kill(self) -> None:
        if self._component:
            self._component.kill()

    # What a module has of its own.

    def definitions(self) -> Iterable[dict[str, Any]]:
        """Return the CRDs."""
        raise NotImplementedError

    def webhooks(self) -> Iterable[dict[str, Any]]:
        """Return the configurations, at the controller's own address."""
        raise NotImplementedError

    def settings(self, release: HelmRelease) -> dict[str, Any]:
        """Return what differs from `own_settings`."""
        raise NotImplementedError

    def command(self, program: list[str]) -> list[str]:
        """Return the command line that runs the controller's."""
        return program

    # What all have.

    @property
    def certificates(self) -> Path:
        """Folder of the webhooks' certificate and key."""
        return self._config.work / f"{self.name}-webhook"

    def client_config(self, path: str) -> dict[str, str]:
        """Return where the API server asks a webhook: the controller's own address instead of a Service's."""
        url = f"https://{self._config.loopback}:{self.webhook_port}{path}"
        return {"url": url, "caBundle": self._authority.bundle}

    def read(self, relative: str) -> str:
        path: Path = self._manifests / relative
        if not path.is_file():
            cure = f"python -m infra.toolchain ensure {self.tool}"
            raise PermanentError(f"the manifests of {self.name} are missing", seen=path, cure=cure)
        return path.read_text()

    def _own_settings(self) -> dict[str, Any]:
        return {
            "leaderElection": {"leaderElect": False},
            "internalCertManagement": {"enable": False},
            "webhook": {"host": self._config.loopback, "port": self.webhook_port, "certDir": str(self.certificates)},
            "metrics": {"bindAddress": "0"},
            "health": {"healthProbeBindAddress": f"{self._config.loopback}:{self.health_port}"},
        }

    def _controller(self, release: HelmRelease) -> Component:
        config, process = self._config, f"{self.name}-controller"
        groups = ["system:serviceaccounts", f"system:serviceaccounts:{release.namespace}", "system:authenticated"]
        login = self._authority.client(process, self._user(release.namespace), groups)
        kubeconfig = write_kubeconfig(config, self._authority, process, login)
        self.certificates.mkdir(exist_ok=True, mode=0o700)
        pair = self._authority.server(self.certificates.name, [config.loopback])
        (self.certificates / "tls.crt").write_bytes(pair.certificate.read_bytes())
        (self.certificates / "tls.key").write_bytes(pair.key.read_bytes())
        settings = config.work / f"{self.name}.json"
        settings.write_text(json.dumps({**self.settings(release), **self._own_settings()}))
        program = [str(config.tools / self.tool), f"--kubeconfig={kubeconfig}", f"--config={settings}"]
        return Component(process, self.command([*program, "--zap-log-level=info"]), config.logs / f"{process}.log")

    def _user(self, namespace: str) -> str:
        return f"system:serviceaccount:{namespace}:{self.name}-controller-manager"

    def _roles(self, namespace: str) -> list[dict[str, Any]]:
        role: dict[str, Any] = yaml.safe_load(self.read("rbac/role.yaml"))
        role["metadata"]["name"] = name = f"{self.name}-manager-role"
        group = "rbac.authorization.k8s.io"
        binding = {
            "apiVersion": f"{group}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": f"{name}binding"},
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": name},
            "subjects": [{"apiGroup": group, "kind": "User", "name": self._user(namespace)}],
        }
        return [role, binding]


class JobSetChart(ControllerChart):
    name, tool = "jobset", "jobset-controller"
    webhook_port, health_port = 9443, 8081

    def definitions(self) -> list[dict[str, Any]]:
        return [parse(self.read("crd/bases/jobset.x-k8s.io_jobsets.yaml"))]

    def webhooks(self) -> Iterator[dict[str, Any]]:
        """Yield the module's configurations with its own patches."""
        for configuration in yaml.safe_load_all(self.read("webhook/manifests.yaml")):
            kind = "mutating" if configuration["kind"].startswith("Mutating") else "validating"
            _patch(configuration, yaml.safe_load(self.read(f"webhook/patches/{kind}-patch.yaml")))
            configuration["metadata"]["name"] = f"jobset-{configuration['metadata']['name']}"
            for webhook in configuration["webhooks"]:
                webhook["clientConfig"] = self.client_config(webhook["clientConfig"]["service"]["path"])
            yield configuration

    def settings(self, release: HelmRelease) -> dict[str, Any]:
        return {"apiVersion": "config.jobset.x-k8s.io/v1alpha1", "kind": "Configuration"}


def _patch(configuration: dict[str, Any], operations: list[dict[str, Any]]) -> None:
    """Apply Kustomize's JSON patches as far as the module uses them: `replace /webhooks/<index>`."""
    for operation in operations:
        _, field, index = operation["path"].split("/")
        if (operation["op"], field) != ("replace", "webhooks"):
            raise PermanentError("a webhook patch of the JobSet module is not understood", seen=operation["path"])
        configuration["webhooks"][int(index)] = operation["value"]


FRAMEWORKS = ("jobset.x-k8s.io/jobset",)
"""Kinds of jobs that are queued here: those whose controller a rehearsal has."""
_METRICS_CERTIFICATES = "/etc/kueue/metrics/certs"
"""Its one folder for certificates that no setting moves."""


class KueueChart(ControllerChart):
    name = tool = "kueue"
    webhook_port, health_port = 9444, 8082

    def definitions(self) -> Iterator[dict[str, Any]]:
        """Yield the CRDs, converted by the controller where the module's Kustomize patches say so."""
        converted_plurals = {"localqueues", "clusterqueues", "cohorts", "workloads", "multikueueclusters"}
        for file in sorted((self._manifests / "crd/bases").glob("*.yaml")):
            definition = parse(file.read_text())
            if definition["spec"]["names"]["plural"] in converted_plurals:
                hook = {"clientConfig": self.client_config("/convert"), "conversionReviewVersions": ["v1"]}
                definition["spec"]["conversion"] = {"strategy": "Webhook", "webhook": hook}
            yield definition

    def webhooks(self) -> Iterator[dict[str, Any]]:
        """Yield the configurations, of its own objects and of `FRAMEWORKS`: the controller answers no other."""
        groups = {"kueue.x-k8s.io", *(framework.partition("/")[0] for framework in FRAMEWORKS)}
        for configuration in yaml.safe_load_all(self.read("webhook/manifests.yaml")):
            configuration["metadata"]["name"] = f"kueue-{configuration['metadata']['name']}"
            hooks = [
                hook
                for hook in configuration["webhooks"]
                if {group for rule in hook["rules"] for group in rule["apiGroups"]} <= groups
            ]
            for hook in hooks:
                hook["clientConfig"] = self.client_config(hook["clientConfig"]["service"]["path"])
            configuration["webhooks"] = hooks
            yield configuration

    def settings(self, release: HelmRelease) -> dict[str, Any]:
        """Return the module's own, with the release's `managerConfig` over it, as its Helm chart does."""
        words = (release.values.get("managerConfig") or {}).get("controllerManagerConfigYaml", "{}")
        return {
            **yaml.safe_load(self.read("manager/controller_manager_config.yaml")),
            **yaml.safe_load(words),
            "integrations": {"frameworks": list(FRAMEWORKS)},
            "namespace": release.namespace,
            # A second API server, which aggregation would have to reach by a Service; logins to other clusters.
            "featureGates": {"VisibilityOnDemand": False, "MultiKueue": False},
        }

    def command(self, program: list[str]) -> list[str]:
        """Return it in a mount namespace: the folder of the metrics' certificates exists for this process only."""
        script = (
            f"mount -t tmpfs tmpfs /etc && mkdir -p {_METRICS_CERTIFICATES} && "
            f'cp {shlex.quote(str(self.certificates))}/* {_METRICS_CERTIFICATES}/ && exec "$@"'
        )
        return ["unshare", "--mount", "--", "sh", "-c", script, "sh", *program]
