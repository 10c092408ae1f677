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
from functools import cached_property
from pathlib import Path

from lightkube import Client, KubeConfig
from lightkube.resources.core_v1 import Node

from infra.errors import PermanentError, TemporaryError
from infra.rehearsal.kubernetes import kubectl
from infra.rehearsal.kubernetes.component import Component
from infra.rehearsal.kubernetes.config import API_PORT, ControlPlaneConfig
from infra.rehearsal.kubernetes.controller_chart import JobSetChart, KueueChart
from infra.rehearsal.kubernetes.exporters import Words
from infra.rehearsal.kubernetes.identities import bootstrap_roles, write_identities
from infra.rehearsal.kubernetes.monitoring import MonitoringChart
from infra.rehearsal.kubernetes.releases import ChartInstaller, ReleaseController
from infra.rehearsal.site import network
from trainer.contract import AGENT_PORT

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
                ("etcd", etcd(config)),
                ("kube-apiserver", apiserver(config)),
                ("kube-scheduler", scheduler(config)),
                ("kube-controller-manager", controller_manager(config)),
            )
        )
        self._log = _logger(config)
        self._jobset = JobSetChart(config, self._authority)
        self._monitoring = MonitoringChart(config, self.client)
        self._kueue = KueueChart(config, self._authority)
        charts: dict[str, ChartInstaller] = {
            "jobset": self._jobset,
            "kube-prometheus-stack": self._monitoring,
            "kueue": self._kueue,
        }
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
        """Return the client of the site's own controllers (system:masters): a new one costs 24 ms and a handshake."""
        return self._client

    @cached_property
    def _client(self) -> Client:
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

    def restart_etcd(self) -> None:
        """Kill etcd and start it again with its data, as its supervisor does at AWS; the others stay."""
        self._etcd.kill()
        self._etcd.start()

    def signal(self, component: str, number: signal.Signals) -> None:
        """Signal one program of the monitoring. Raises `LookupError` if it does not run."""
        programs = {program.name: program for program in self._monitoring.components if program.alive()}
        if component not in programs:
            raise LookupError(f"{component} does not run, only {', '.join(programs) or 'nothing of the monitoring'}")
        programs[component].signal(number)

    def tell(self, node: str, words: bytes) -> None:
        """Let an exporter tell of a node what `words` (JSON of `exporters.Words`) say."""
        self._monitoring.exporters.tell(node, Words.model_validate_json(words))

    def refuse_scrapes(self, is_refused: bool) -> None:
        """Keep Prometheus from the port at which supervisors answer, as a wrong policy of the network does; or no
        longer. Raises `OSError` where the kernel has no such rules."""
        network.refuse_port(AGENT_PORT, is_refused)

    def stop(self) -> None:
        """Kill everything. May be called twice. The folder stays for its logs."""
        self._releases.ask_to_stop()
        for component in reversed(self._components()):
            component.kill()
        self._releases.join()
        self._jobset.kill()
        self._kueue.kill()
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


# Controllers with no work here: no cloud provider, no pod CIDRs, and the nodelet mounts volumes without attaching.
IDLE_CONTROLLERS = (
    "node-ipam-controller",
    "service-lb-controller",
    "node-route-controller",
    "cloud-node-lifecycle-controller",
    "persistentvolume-attach-detach-controller",
    "persistentvolume-expander-controller",
)
TOKEN_CACHE_TTL = "5s"  # EKS caches for longer; a rehearsal changes access entries and reads them back at once


def etcd(config: ControlPlaneConfig) -> list[str]:
    peer = f"http://{config.loopback}:2380"
    return [
        str(config.tools / "etcd"), "--name=etcd", f"--data-dir={config.work / 'etcd'}",
        f"--listen-client-urls={config.etcd_url}", f"--advertise-client-urls={config.etcd_url}",
        f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}", f"--initial-cluster=etcd={peer}",
        # The data die with the cluster: durability would only cost disk time that training needs.
        "--unsafe-no-fsync", "--log-level=warn",
    ]  # fmt: skip


def apiserver(config: ControlPlaneConfig) -> list[str]:
    pki = config.pki
    return [
        str(config.tools / "kube-apiserver"),
        f"--etcd-servers={config.etcd_url}", f"--service-cluster-ip-range={config.service_cidr}",
        f"--bind-address={config.address}", f"--advertise-address={config.address}", f"--secure-port={API_PORT}",
        # The reconciler would write the kubernetes service in a lease loop that delays the stop by minutes.
        "--endpoint-reconciler-type=none",
        f"--tls-cert-file={pki / 'apiserver.crt'}", f"--tls-private-key-file={pki / 'apiserver.key'}",
        f"--client-ca-file={pki / 'ca.crt'}", "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction", "--allow-privileged=true", "--profiling=false",
        f"--service-account-issuer={config.endpoint}",
        f"--service-account-signing-key-file={pki / 'service-account.key'}",
        f"--service-account-key-file={pki / 'service-account.key'}",
        f"--requestheader-client-ca-file={pki / 'ca.crt'}", "--requestheader-allowed-names=front-proxy-client",
        "--requestheader-username-headers=X-Remote-User", "--requestheader-group-headers=X-Remote-Group",
        f"--kubelet-client-certificate={pki / 'kubelet-client.crt'}",
        f"--kubelet-client-key={pki / 'kubelet-client.key'}", "--kubelet-preferred-address-types=InternalIP,Hostname",
        f"--authentication-token-webhook-config-file={config.kubeconfig('token-webhook')}",
        "--authentication-token-webhook-version=v1", f"--authentication-token-webhook-cache-ttl={TOKEN_CACHE_TTL}",
        *_gates(config), *(["--runtime-config=api/alpha=true"] if config.feature_gates else []),
    ]  # fmt: skip


def _gates(config: ControlPlaneConfig) -> list[str]:
    gates = ",".join(f"{name}=true" for name in config.feature_gates)
    return [f"--feature-gates={gates}"] if gates else []


def scheduler(config: ControlPlaneConfig) -> list[str]:
    return [str(config.tools / "kube-scheduler"), *_controller_flags(config, "kube-scheduler", 10259)]


def controller_manager(config: ControlPlaneConfig) -> list[str]:
    pki = config.pki
    return [
        str(config.tools / "kube-controller-manager"),
        *_controller_flags(config, "kube-controller-manager", 10257),
        f"--controllers=*,{','.join(f'-{name}' for name in IDLE_CONTROLLERS)}",
        "--use-service-account-credentials",
        f"--service-account-private-key-file={pki / 'service-account.key'}", f"--root-ca-file={pki / 'ca.crt'}",
        f"--cluster-signing-cert-file={pki / 'ca.crt'}", f"--cluster-signing-key-file={pki / 'ca.key'}",
    ]  # fmt: skip


def _controller_flags(config: ControlPlaneConfig, user: str, port: int) -> list[str]:
    kubeconfig = config.kubeconfig(user)
    return [
        f"--kubeconfig={kubeconfig}", f"--authentication-kubeconfig={kubeconfig}",
        f"--authorization-kubeconfig={kubeconfig}", f"--bind-address={config.loopback}", f"--secure-port={port}",
        # There is one of each: an election would only add load and one more failure.
        "--leader-elect=false", "--profiling=false", *_gates(config),
    ]  # fmt: skip
