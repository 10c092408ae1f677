"""The `kueue` chart of a rehearsal."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any

import yaml

from infra.rehearsal.kubernetes.controller_chart import ControllerChart
from infra.rehearsal.kubernetes.releases import HelmRelease

FRAMEWORKS = ("jobset.x-k8s.io/jobset",)
"""Kinds of jobs that are queued here: those whose controller a rehearsal has."""
_METRICS_CERTIFICATES = "/etc/kueue/metrics/certs"
"""Its one folder for certificates that no setting moves."""


class KueueChart(ControllerChart):
    name = tool = "kueue"
    webhook_port, health_port = 9444, 8082

    def definitions(self) -> Iterator[dict[str, Any]]:
        """Yield the CRDs, converted by the controller where the module's Kustomize patches say so."""
        converted = {"localqueues", "clusterqueues", "cohorts", "workloads", "multikueueclusters"}
        for file in sorted((self._manifests / "crd/bases").glob("*.yaml")):
            definition = yaml.safe_load(file.read_text())
            if definition["spec"]["names"]["plural"] in converted:
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
