"""Machines that join a real control plane, and what befalls them."""

from __future__ import annotations

import socket
import subprocess
import time
from pathlib import Path

import pytest

from infra.rehearsal.nodelet.machine import Machine
from tests.worlds.nodelet_site import INSIDE, NodeletSite, pod

pytestmark = INSIDE


def reachable(address: str) -> bool:
    """A refused connection is an answer too."""
    try:
        socket.create_connection((address, 9), 0.3).close()
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return True


def ticking(site: NodeletSite, image: str, name: str, node: str) -> Path:
    """Start a pod on a node that never ends; return its log, which grows."""
    ticks = f"node = '{node}'; import time\nfor n in range(10**6): print(n, flush=True); time.sleep(0.05)"
    site.apply(pod(name, image, ticks, nodeSelector={"kubernetes.io/hostname": node}))
    site.until(lambda: site.pod(name)["status"].get("phase") == "Running")
    return next((site.work / "machines").glob(f"*/logs/pods/default_{name}_*/main/0.log"))


def test_nodes_join_with_labels_taints_a_lease_and_a_provider_id(site: NodeletSite) -> None:
    for node in site.see("nodes")["items"]:
        name, labels = node["metadata"]["name"], node["metadata"]["labels"]
        assert labels["bivouac.dev/pool"] == "gpu" and labels["eks.amazonaws.com/nodegroup"] == "gpu"
        assert labels["node.kubernetes.io/instance-type"] == "g5.12xlarge"
        assert labels["topology.kubernetes.io/zone"] == "us-east-1a"
        assert node["spec"]["providerID"].startswith("aws:///us-east-1a/i-")
        assert {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"} in node["spec"]["taints"]
        assert site.see("lease", name, "-n", "kube-node-lease")["spec"]["holderIdentity"] == name


def test_a_gpu_is_offered_once_its_device_plugin_is_installed(site: NodeletSite) -> None:
    site.until(lambda: all(n["status"]["allocatable"].get("nvidia.com/gpu") == "4" for n in site.see("nodes")["items"]))
    assert all("vpc.amazonaws.com/efa" not in n["status"]["allocatable"] for n in site.see("nodes")["items"])


def test_a_script_in_a_machine_has_root_its_role_and_a_disk_that_keeps(site: NodeletSite) -> None:
    machine = next(iter(site.world.machines.values()))
    first = machine.run("mkdir -p /opt/baked && echo 1 > /opt/baked/it && id -u && hostname", 20)
    assert first.returncode == 0 and first.stdout.split()[0] == "0", first
    script = (
        "cat /opt/baked/it; python -c \"import boto3; print(boto3.client('sts').get_caller_identity()['Arn'])\"; exit 3"
    )
    second = machine.run(script, 30, {"EXTRA": "1"})
    assert second.returncode == 3, second
    assert second.stdout.split()[0] == "1" and "assumed-role/nodes/i-" in second.stdout
    with pytest.raises(subprocess.TimeoutExpired):
        machine.run("sleep 60", 0.5)


def test_a_machine_with_a_broken_node_config_does_not_join_and_says_why(site: NodeletSite) -> None:
    good = site.config_for().user_data
    broken = Machine.start(site.config_for(user_data=good.replace("certificateAuthority", "authority")))
    console = site.work / "machines" / "i-0broken" / "logs" / "console.log"
    try:
        site.until(lambda: "does not join" in console.read_text())
        assert "certificateAuthority" in console.read_text()
        assert broken.alive() and "ip-10-42-0-200.ec2.internal" not in site.ready_nodes()
    finally:
        broken.kill()


def test_a_builder_needs_no_cluster(site: NodeletSite) -> None:
    work = str(site.work / "machines" / "i-0builder")
    config = site.config_for(kind="builder", instance_id="i-0builder", user_data="", work=work, address="10.42.0.201")
    builder = Machine.start(config)
    try:
        ask = "import boto3; print(boto3.client('sts').get_caller_identity()['Arn'])"
        done = builder.run(f'python -c "{ask}" && ls / && ! ls {site.work}', 30)
        assert done.returncode == 0 and done.stdout.split()[0].endswith("assumed-role/nodes/i-0builder"), done
    finally:
        builder.kill()
    assert not builder.alive()


def test_a_cut_cable_heals_and_a_frozen_machine_goes_on(site: NodeletSite, image: str) -> None:
    name = site.ready_nodes()[0]
    machine = site.machine_of(name)
    log = ticking(site, image, "ticking", name)
    address = site.pod("ticking")["status"]["podIP"]
    machine.freeze()
    before = log.read_text()
    time.sleep(0.3)
    assert log.read_text() == before
    machine.thaw()
    site.until(lambda: log.read_text() != before)
    machine.link(False)
    assert not reachable(address)
    machine.link(True)
    site.until(lambda: reachable(address))
    site.until(lambda: site.kubectl("logs", "ticking", "--tail=1").strip().isdigit())


def test_of_a_machines_processes_the_one_that_works_most_dies_as_a_rank(site: NodeletSite, image: str) -> None:
    name = site.ready_nodes()[0]
    machine, child = site.machine_of(name), "[sys.executable, '-c', 'while True: pass']"
    waits = f"import subprocess, sys, time\nprint(subprocess.call({child}), flush=True)\ntime.sleep(600)"
    site.apply(pod("working", image, waits, nodeSelector={"kubernetes.io/hostname": name}))
    site.until(lambda: site.pod("working")["status"].get("phase") == "Running")
    time.sleep(1)
    machine.kill_rank()
    site.until(lambda: site.kubectl("logs", "working").strip() == "-9")
    assert machine.alive() and site.pod("working")["status"]["phase"] == "Running", "its parent lives on"
    site.kubectl("delete", "pod", "working", "--now")
