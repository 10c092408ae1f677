"""Command lines of the control plane. Timings are Kubernetes' defaults, which EKS keeps; each other value says why."""

from __future__ import annotations

from infra.rehearsal.kubernetes.config import API_PORT, ControlPlaneConfig

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
    ]  # fmt: skip


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
        "--leader-elect=false", "--profiling=false",
    ]  # fmt: skip
