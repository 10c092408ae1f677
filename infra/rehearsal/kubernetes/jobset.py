"""The `jobset` chart of a rehearsal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import yaml

from infra.errors import PermanentError
from infra.rehearsal.kubernetes.controller_chart import ControllerChart
from infra.rehearsal.kubernetes.releases import HelmRelease


class JobSetChart(ControllerChart):
    name, tool = "jobset", "jobset-controller"
    webhook_port, health_port = 9443, 8081

    def definitions(self) -> list[dict[str, Any]]:
        return [yaml.safe_load(self.read("crd/bases/jobset.x-k8s.io_jobsets.yaml"))]

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
