"""A pod with `hostNetwork`, as a job with `host_network: true` has it: run by inside_nodelet.py."""

from __future__ import annotations

from typing import Any

from tests.rehearsal.rehearsal.nodelet_camp import Camp, eventually, machine_of, pod


def test_a_pod_in_its_nodes_network_has_the_nodes_address_and_name_and_others_find_it(camp: Camp, image: str) -> None:
    listen = """
import socket
there = socket.create_server(("", 29511))
print(socket.gethostname(), flush=True)
caller, _ = there.accept()
caller.sendall(b"hello")
"""
    call = """
import os, socket, time
while True:
    try:
        with socket.create_connection((os.environ["NODE"], 29511)) as there:
            print(there.recv(9).decode()); break
    except OSError:
        time.sleep(0.05)
"""
    nodes = camp.ready_nodes()
    hosted: dict[str, Any] = {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}
    camp.apply(pod("hosted", image, listen, nodeSelector={"kubernetes.io/hostname": nodes[0]}, **hosted))
    eventually(lambda: camp.pod("hosted")["status"].get("podIP"))
    address = camp.pod("hosted")["status"]["podIP"]
    assert address == camp.pod("hosted")["status"]["hostIP"] == machine_of(camp, nodes[0]).config.address
    env = {"env": [{"name": "NODE", "value": address}]}
    where: dict[str, Any] = {"nodeSelector": {"kubernetes.io/hostname": nodes[1]}}
    camp.apply(pod("caller", image, call, container=env, **where))
    assert camp.ended("caller")["exitCode"] == 0, camp.kubectl("logs", "caller")
    assert camp.kubectl("logs", "caller").split() == ["hello"] and camp.ended("hosted")["exitCode"] == 0
    assert camp.kubectl("logs", "hosted").split() == [nodes[0]], "its name is the node's"
