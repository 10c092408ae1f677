"""The surroundings of one pod's containers: network, names, volumes, and each container's root."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path

from botocore.exceptions import BotoCoreError, ClientError
from pyroute2.netlink.exceptions import NetlinkError

from infra.errors import TemporaryError
from infra.rehearsal.nodelet.client import NOT_FOUND, ApiRefused, Object, namespaced_path
from infra.rehearsal.nodelet.metadata import POD_IDENTITY_ADDRESS
from infra.rehearsal.nodelet.pods.confinement import confinement
from infra.rehearsal.nodelet.pods.containers import Folders, PodContainer, Policy, command_line
from infra.rehearsal.nodelet.pods.environment import environment, expand
from infra.rehearsal.nodelet.pods.hosts import PodHosts, host_name, own_lines
from infra.rehearsal.nodelet.pods.images import ContainerImage
from infra.rehearsal.nodelet.pods.mountpoint import Mountpoint
from infra.rehearsal.nodelet.pods.sandbox import Bind, Network, RootSpec, python_path, remove_tree
from infra.rehearsal.nodelet.pods.volumes import IDENTITY_FOLDER, IDENTITY_VOLUME, Volumes, object_data
from infra.rehearsal.nodelet.surroundings import RETRY, Surroundings
from infra.rehearsal.site import network

BAKED = "root/etc/bivouac/image.json"
"""File in a machine's folder if its image is one of ours, which contain a Lustre client."""
BRIDGE = "br0"
LINK = "eth0"
OWN = "/run/pod"
_plugging = threading.Lock()


class PodBox:
    def __init__(self, surroundings: Surroundings, pod: Object) -> None:
        metadata = pod["metadata"]
        self._around, self._uid, self._namespace = surroundings, metadata["uid"], metadata["namespace"]
        self._account = pod["spec"].get("serviceAccountName") or "default"
        self._folder = surroundings.work / "pods" / self._uid
        logs = surroundings.work / "logs" / "pods" / f"{self._namespace}_{metadata['name']}_{self._uid}"
        self.folders = Folders(self._folder / "run", logs)
        self.address = ""
        self.network: Network | None = None
        """None for a pod in the machine's own network."""
        self._identity: bool | None = None
        self._volumes = Volumes(
            surroundings.api,
            pod,
            self._folder / "volumes",
            surroundings.work,
            Path(surroundings.config.fsx_root),
            surroundings.node.local_disk,
            lambda: surroundings.node.lustre_client or (surroundings.work / BAKED).is_file(),
            Mountpoint(surroundings.credentials, surroundings.node.cluster),
        )

    def plug_in(self, pod: Object) -> None:
        """Set up an address, a network namespace and a hosts file. Raises TemporaryError."""
        for folder in ("run", "volumes", "own"):
            (self._folder / folder).mkdir(parents=True, exist_ok=True)
        if pod["spec"].get("hostNetwork"):
            self.address = self._around.config.address
        elif not self.address:
            address = self._around.addresses.take()
            try:
                self.network = Network()
                with _plugging:
                    network.join(
                        self.network.pid,
                        BRIDGE,
                        LINK,
                        address,
                        via={f"{POD_IDENTITY_ADDRESS}/32": self._around.config.address},
                    )
            except (NetlinkError, OSError) as error:
                self._unplug(address)
                raise TemporaryError("the pod's network cannot be made", seen=error, delay=RETRY) from error
            except TemporaryError:
                self._unplug(address)
                raise
            self.address = address
        lines = own_lines(pod, self.address)
        self._around.hosts.add(self._uid, PodHosts(self._namespace, lines, self._folder / "own" / "hosts"))

    def _unplug(self, address: str) -> None:
        if self.network is not None:
            self.network.close()
            self.network = None
        self._around.addresses.give_back(address)

    def mount(self, pod: Object) -> None:
        """Prepare the volumes. Raises TemporaryError."""
        if self._identity is None:
            self._identity = self._has_identity()
        self._volumes.prepare({**pod, "status": self._visible_status(pod)}, self._identity)

    def refresh(self) -> None:
        self._volumes.refresh()

    def root(self, pod: Object, container: PodContainer, image: ContainerImage) -> RootSpec:
        """Return the root of a container. Raises PullError, TemporaryError."""
        pod = {**pod, "status": self._visible_status(pod)}
        env = environment(pod, container.spec, self._base_environment(image), self._lookup)
        message = Bind(container.message_file(container.starts), container.message_path, read_only=False)

        def expanded(text: str) -> str:
            return expand(text, env)

        mounts = self._volumes.binds(container.spec, bool(self._identity), expanded)
        return RootSpec(
            root=container.root_folder(container.starts),
            hostname=self._around.config.hostname if self.network is None else host_name(pod),
            argv=command_line(container.spec, image, expanded),
            env=env,
            cwd=container.spec.get("workingDir") or image.cwd,
            binds=[*image.binds(), Bind(self._folder / "own", OWN), *mounts, message],
            links={"/etc/hosts": f"..{OWN}/hosts"},
            confined=confinement(pod["spec"], container.spec),
        )

    def remove(self) -> None:
        """Remove network, names and volumes after the containers have ended."""
        self._around.hosts.remove(self._uid)
        if self.network is not None:
            self._unplug(self.address)
        self._volumes.remove()
        remove_tree(self._folder)

    def _visible_status(self, pod: Object) -> Object:
        return {**(pod.get("status") or {}), "podIP": self.address, "hostIP": self._around.config.address}

    def _base_environment(self, image: ContainerImage) -> dict[str, str]:
        config, api = self._around.config, self._around.api
        base = {
            "PATH": python_path(),
            "HOME": "/root",
            **image.env,
            "KUBERNETES_SERVICE_HOST": api.host,
            "KUBERNETES_SERVICE_PORT": str(api.port),
            "KUBERNETES_SERVICE_PORT_HTTPS": str(api.port),
            "AWS_ENDPOINT_URL": config.endpoint_url,
            "AWS_REGION": config.region,
            "AWS_DEFAULT_REGION": config.region,
        }
        if self._identity:
            base["AWS_STS_REGIONAL_ENDPOINTS"] = "regional"
            base["AWS_CONTAINER_CREDENTIALS_FULL_URI"] = f"http://{POD_IDENTITY_ADDRESS}/v1/credentials"
            base["AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"] = f"{IDENTITY_FOLDER}/{IDENTITY_VOLUME}"
        return base

    def _has_identity(self) -> bool:
        """Return True if the service account has an association. On EKS a webhook asks this, not the node's role."""
        try:
            pages = self._around.credentials.agent_client("eks").get_paginator("list_pod_identity_associations")
            key = {"clusterName": self._around.node.cluster, "namespace": self._namespace}
            associations = [
                association
                for page in pages.paginate(**key, serviceAccount=self._account)
                for association in page["associations"]
            ]
        except (ClientError, BotoCoreError) as error:
            raise TemporaryError("the pod identity associations cannot be read", seen=error, delay=RETRY) from error
        return bool(associations)

    def _lookup(self, plural: str, name: str) -> Mapping[str, str] | None:
        try:
            item = self._around.api.get(namespaced_path(plural, self._namespace, name))
        except ApiRefused as error:
            if error.status == NOT_FOUND:
                return None
            raise TemporaryError(f"{plural} cannot be read", seen=error, delay=RETRY) from error
        return {key: text.decode(errors="replace") for key, text in object_data(item, plural).items()}


def make_containers(pod: Object, folders: Folders) -> tuple[list[PodContainer], list[PodContainer]]:
    """Return the init containers and sidecars in order, and the app containers."""
    uid: str = pod["metadata"]["uid"]
    policy: Policy = pod["spec"].get("restartPolicy") or "Always"
    init_policy: Policy = "Never" if policy == "Never" else "OnFailure"
    init = [
        PodContainer(spec, "sidecar", "Always", uid, folders)
        if spec.get("restartPolicy") == "Always"
        else PodContainer(spec, "init", init_policy, uid, folders)
        for spec in pod["spec"].get("initContainers") or []
    ]
    return init, [PodContainer(spec, "app", policy, uid, folders) for spec in pod["spec"]["containers"]]
