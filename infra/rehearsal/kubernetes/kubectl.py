"""Apply and delete objects with the cluster's own kubectl, so that foreign manifests need no parsing."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from infra.errors import TemporaryError
from infra.rehearsal.kubernetes.component import GARBAGE
from infra.rehearsal.kubernetes.config import ControlPlaneConfig

PATIENCE = timedelta(seconds=30)


def apply(config: ControlPlaneConfig, objects: Sequence[dict[str, Any]]) -> None:
    """Apply server-side and force conflicts. Raises TemporaryError with kubectl's message.

    Without a validation, for which kubectl fetches the schema of all kinds, and the API server computes it: 0.9 s of a
    core for the objects of a new cluster, which are its own and JobSet's.
    """
    _kubectl(config, ["apply", "--server-side", "--force-conflicts", "--validate=false", "-f", "-"], objects)


def delete(config: ControlPlaneConfig, objects: Sequence[dict[str, Any]]) -> None:
    """Delete objects; absent ones are no error. Raises TemporaryError with kubectl's message."""
    _kubectl(config, ["delete", "--ignore-not-found", "-f", "-"], objects)


def wait(config: ControlPlaneConfig, condition: str, target: str) -> None:
    """Wait, for instance `wait(config, "established", "crd/jobsets.jobset.x-k8s.io")`. Raises TemporaryError."""
    deadline = time.monotonic() + PATIENCE.total_seconds()
    while True:
        try:
            return _kubectl(config, ["wait", f"--for=condition={condition}", target, "--timeout=20s"], [])
        except TemporaryError:  # kubectl gives up at once on an object that has no conditions yet
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def _kubectl(config: ControlPlaneConfig, arguments: Sequence[str], objects: Sequence[dict[str, Any]]) -> None:
    argv = [
        str(config.tools / "kubectl"), f"--kubeconfig={config.kubeconfig('admin')}",
        f"--cache-dir={config.work / 'kubectl-cache'}", *arguments,
    ]  # fmt: skip
    document = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(config.work), **GARBAGE}
    try:
        answer = subprocess.run(
            argv, input=document, env=environment, capture_output=True, text=True, timeout=PATIENCE.total_seconds()
        )
    except subprocess.TimeoutExpired as expired:
        raise TemporaryError("kubectl gave no answer", seen=arguments[0], delay=timedelta(seconds=1)) from expired
    if answer.returncode:
        raise TemporaryError(f"kubectl {arguments[0]} failed", seen=answer.stderr.strip(), delay=timedelta(seconds=1))
