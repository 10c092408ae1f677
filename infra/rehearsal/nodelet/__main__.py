"""`python -m infra.rehearsal.nodelet MACHINE.json`: the main process of a machine, from power-on to the end."""

from __future__ import annotations

import logging
import socket
import subprocess
import sys
import threading
from datetime import timedelta
from pathlib import Path

from infra.errors import BivouacError
from infra.folders import asset
from infra.rehearsal.nodelet.boot import NodeConfig, NotJoining, read_node_config
from infra.rehearsal.nodelet.credentials import RoleCredentials
from infra.rehearsal.nodelet.kubelet import Kubelet
from infra.rehearsal.nodelet.machine import BOOTED, UPLINK, MachineConfig
from infra.rehearsal.nodelet.metadata import (
    METADATA_ADDRESS,
    POD_IDENTITY_ADDRESS,
    Metadata,
    serve_metadata,
    serve_pod_identity,
)
from infra.rehearsal.site import network
from infra.spec.names import NODE_TOLD_HOST_PATH

log = logging.getLogger("nodelet")

BRIDGE = "br0"
CABLE_WITHIN = timedelta(seconds=10)


def main() -> None:
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    config = MachineConfig.load(Path(sys.argv[1]))
    plug_in(config)
    credentials = RoleCredentials(config)
    serve_metadata(Metadata(config, credentials))
    (Path(config.work) / BOOTED).touch()
    log.info("%s (%s, %s) is up at %s", config.instance_id, config.instance_type, config.kind, config.address)
    node = node_config(config)
    if node is not None:
        serve_pod_identity(credentials, node.cluster)
        if config.lifecycle == "spot":
            _start_spot_notices(Path(config.work) / f"host{NODE_TOLD_HOST_PATH}")
        Kubelet(config, node, credentials).start()
    threading.Event().wait()


def _start_spot_notices(folder: Path) -> None:
    """Start the node image's own program, as its service does."""
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.Popen(["bash", str(asset("playbooks/roles/health_checks/files/spot-notices")), str(folder)])


def plug_in(config: MachineConfig) -> None:
    """Put the machine's and its pods' links on one bridge; the cable to the site is one of its ports."""
    socket.sethostname(config.hostname)
    network.add_addresses("lo", [METADATA_ADDRESS, POD_IDENTITY_ADDRESS])
    network.wait_for_link(UPLINK, CABLE_WITHIN)
    network.make_bridge(BRIDGE, [config.address])
    network.enslave(UPLINK, BRIDGE)


def node_config(config: MachineConfig) -> NodeConfig | None:
    """Return None for a machine that does not join; the console says why."""
    if config.kind == "builder":
        return None
    try:
        return read_node_config(config.user_data)
    except NotJoining as error:
        log.error("this machine does not join: %s", error)
        return None


if __name__ == "__main__":
    try:
        main()
    except BivouacError as error:
        sys.exit(f"{error}")
