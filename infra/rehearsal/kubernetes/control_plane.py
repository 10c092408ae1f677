"""The control plane of one emulated EKS cluster."""

from __future__ import annotations

import http.client
import json
import logging
import shutil
import signal
import socket
import ssl
import time
from datetime import timedelta
from pathlib import Path

from lightkube import Client, KubeConfig
from lightkube.resources.core_v1 import Node

from infra.errors import PermanentError, TemporaryError
from infra.rehearsal.kubernetes import commands, kubectl
from infra.rehearsal.kubernetes.component import Component
from infra.rehearsal.kubernetes.config import API_PORT, ControlPlaneConfig
from infra.rehearsal.kubernetes.identities import bootstrap_roles, write_identities
from infra.rehearsal.kubernetes.jobset import JobSetChart
from infra.rehearsal.kubernetes.monitoring import MonitoringChart
from infra.rehearsal.kubernetes.releases import Chart, ReleaseController

__all__ = ["ControlPlane", "ControlPlaneConfig"]

START_DEADLINE = timedelta(seconds=60)


class ControlPlane:
    """etcd, API server, scheduler, controller manager, and the controllers of Helm releases.

    The kernel kills every process when the caller's process or the site's PID namespace ends.
    """

    def __init__(self, config: ControlPlaneConfig) -> None:
        self._config = config
        _clear(config)
        self._authority = write_identities(config)
        self.ca_pem = self._authority.pem
        self.endpoint = config.endpoint
        self.admin_kubeconfig = config.kubeconfig("admin")
        self._etcd, self._apiserver, self._scheduler, self._controller_manager = (
            Component(name, argv, config.logs / f"{name}.log")
            for name, argv in (
                ("etcd", commands.etcd(config)),
                ("kube-apiserver", commands.apiserver(config)),
                ("kube-scheduler", commands.scheduler(config)),
                ("kube-controller-manager", commands.controller_manager(config)),
            )
        )
        self._log = _logger(config)
        self._jobset = JobSetChart(config, self._authority)
        self._monitoring = MonitoringChart(config, self._authority)
        charts: dict[str, Chart] = {"jobset": self._jobset, "kube-prometheus-stack": self._monitoring}
        self._releases = ReleaseController(self.client, charts, self._log)

    @classmethod
    def start(cls, config: ControlPlaneConfig) -> ControlPlane:
        """Start a new, empty cluster, whatever an older one left in `config.work`; return when /readyz answers.

        Raises TemporaryError if it does not within a minute, PermanentError if it never can.
        """
        _refuse_a_taken_port(config)
        plane = cls(config)
        try:
            plane._bring_up()
        except BaseException:
            plane.stop()
            raise
        return plane

    def _bring_up(self) -> None:
        self._etcd.start()
        self._apiserver.start()
        self._await_ready()
        self._scheduler.start()
        self._controller_manager.start()
        kubectl.apply(self._config, bootstrap_roles())
        self._releases.start()

    def client(self) -> Client:
        """Return a client for the site's own controllers (system:masters)."""
        return Client(config=KubeConfig.from_file(self.admin_kubeconfig), trust_env=False)

    def alive(self) -> bool:
        """Return True while Kubernetes' own processes run; the release controller watches those of Helm releases."""
        return all(component.alive() for component in self._components())

    def delete_node(self, provider_id: str) -> None:
        """Delete a terminated instance's Node, as the cloud controller does. An unknown instance is no error."""
        client = self.client()
        for node in client.list(Node):
            if node.spec and node.spec.providerID == provider_id and node.metadata and node.metadata.name:
                client.delete(Node, node.metadata.name)

    def freeze(self) -> None:
        """Halt the processes: connections stay open and nothing answers."""
        for component in self._components():
            component.signal(signal.SIGSTOP)

    def thaw(self) -> None:
        for component in self._components():
            component.signal(signal.SIGCONT)

    def stop(self) -> None:
        """Kill everything. May be called twice. The folder stays for its logs."""
        self._releases.ask_to_stop()
        for component in reversed(self._components()):
            component.kill()
        self._releases.join()
        self._jobset.kill()
        self._monitoring.kill()
        for handler in list(self._log.handlers):
            self._log.removeHandler(handler)
            handler.close()

    def _components(self) -> tuple[Component, ...]:
        return (self._etcd, self._apiserver, self._scheduler, self._controller_manager)

    def _await_ready(self) -> None:
        deadline = time.monotonic() + START_DEADLINE.total_seconds()
        while time.monotonic() < deadline:
            for component in (self._etcd, self._apiserver):
                if not component.alive():
                    raise PermanentError(f"{component.name} ended while starting", seen=component.last_words())
            if self._get("/readyz") is not None:
                return self._refuse_another_version()
            time.sleep(0.05)
        problem = self._apiserver.last_words()
        raise TemporaryError("the API server did not become ready", seen=problem, delay=timedelta(seconds=5))

    def _refuse_another_version(self) -> None:
        running = json.loads(self._get("/version") or "{}").get("gitVersion", "")
        if not running.startswith(f"v{self._config.version}."):
            cure = (
                f"ask for {running.removeprefix('v').rpartition('.')[0]}, or put the binaries of that version on PATH"
            )
            raise PermanentError(f"this rehearsal has no Kubernetes {self._config.version}", seen=running, cure=cure)

    def _get(self, path: str) -> bytes | None:
        """Return the body of a 200 answer, else None."""
        context = ssl.create_default_context(cadata=self.ca_pem)
        connection = http.client.HTTPSConnection(self._config.address, API_PORT, timeout=5, context=context)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.read() if answer.status == http.client.OK else None
        except OSError:
            return None
        finally:
            connection.close()


def _clear(config: ControlPlaneConfig) -> None:
    config.logs.mkdir(parents=True, exist_ok=True)
    for leftover in (config.work / "etcd", config.pki):
        shutil.rmtree(leftover, ignore_errors=True)


def _refuse_a_taken_port(config: ControlPlaneConfig) -> None:
    """Refuse a taken port: a second API server would share it silently or fail late."""
    try:
        with socket.create_server((config.address, API_PORT)):
            return
    except OSError as error:
        cure = "start the control plane in the site's network namespace, after its address is on the bridge"
        problem = f"{config.address}:{API_PORT}: {error.strerror}"
        raise PermanentError("the address of the API server cannot be used", seen=problem, cure=cure) from error


def _logger(config: ControlPlaneConfig) -> logging.Logger:
    logger = logging.getLogger(f"bivouac.control-plane.{config.name}")
    handler = logging.FileHandler(Path(config.logs) / "releases.log")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    return logger
