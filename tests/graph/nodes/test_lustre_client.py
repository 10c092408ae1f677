"""Whoever mounts the shared file system lies on nodes that have a Lustre client: baked, or brought at boot."""

from __future__ import annotations

import base64
import email
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.archive import archive_job
from infra.campaign.launch import steward_pod
from infra.cluster.gang import GangJob, jobset
from infra.spec.names import GPU_POOL, POOL_LABEL, SHARED_CLAIM, SYSTEM_POOL
from infra.stack.lustre import CLIENT_PAUSE_S, CLIENT_TRIES, CLIENT_TRY_S, client_script
from tests.example import example_spec
from tests.graph.engine import Graph, campaign_graph
from tests.part import part
from tests.pods import copy, fetch
from tests.root import ROOT
from tests.waiting import HUNG_S

BAKED = "ami-baked"
GANG = GangJob(
    name="g", campaign="example", attempt=1, image="i", code_digest="c", nodes=2, ranks_per_node=8, accelerators=8,
    efa_interfaces=32, command=("true",), config_map="c", grace_seconds=1,
)  # fmt: skip
ARCHIVE = part(archive_job.ArchiveConfig, campaign="example")


def pods(document: Any) -> Iterator[dict[str, Any]]:
    """Every pod's spec in a manifest."""
    if isinstance(document, dict):
        if "containers" in document:
            yield document
        for value in document.values():
            yield from pods(value)
    elif isinstance(document, list):
        for value in document:
            yield from pods(value)


def mounts_shared(pod: dict[str, Any]) -> bool:
    return any(volume.get("persistentVolumeClaim", {}).get("claimName") == SHARED_CLAIM for volume in pod["volumes"])


def scripts(graph: Graph, pool: str) -> list[str]:
    text = base64.b64decode(graph.one("LaunchTemplate", f"{pool}-nodes").inputs["userData"]).decode()
    parts = email.message_from_string(text).walk()
    return [str(part.get_payload()) for part in parts if part.get_content_type() == "text/x-shellscript"]


def test_every_pool_whose_pods_mount_the_shared_file_system_has_a_client() -> None:
    manifests = [steward_pod("i", 0, 2), jobset(GANG), archive_job.manifest(ARCHIVE, "i", 8), copy(), fetch()]
    found = [pod for manifest in manifests for pod in pods(manifest)]
    pools = {pod["nodeSelector"][POOL_LABEL] for pod in found if mounts_shared(pod)}
    assert len(found) == len(manifests) and pools == {SYSTEM_POOL, GPU_POOL}
    graph = campaign_graph(example_spec(), node_image=BAKED)
    client = {
        pool
        for pool in pools
        if graph.one("LaunchTemplate", f"{pool}-nodes").inputs["imageId"] == BAKED
        or client_script() in scripts(graph, pool)
    }
    assert client == pools
    roles = yaml.safe_load((ROOT / "playbooks/vars/node_image.yml").read_text())["node_image_package_roles"]
    assert "lustre_client" in roles, "the baked image is taken at its word"


def test_nobody_else_mounts_the_shared_claim() -> None:
    """Or the test above has to know it. The last is for nodes of others, whose images are theirs."""
    using = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "infra").rglob("*.py")
        if '"claimName": SHARED_CLAIM' in (text := path.read_text()) or "= volumes(" in text
    }
    assert using == {
        "infra/campaign/launch.py",
        "infra/cluster/gang.py",
        "infra/archive/archive_job.py",
        "infra/checkpoints/copy_job.py",
        "infra/standing/data.py",
    }


@pytest.mark.parametrize("egress", ["nat", "endpoints"])
def test_amazon_linuxs_repository_is_reached_through_the_s3_gateway(egress: str) -> None:
    """It lies in buckets of AWS's: a policy that names only ours would shut it."""
    graph = campaign_graph(example_spec(network={"egress": egress}))
    gateway = graph.one("VpcEndpoint", "s3").inputs
    (private,) = gateway["routeTableIds"]
    system = next(one for one in graph.of("RouteTableAssociation") if one.name == "private-control-plane-a").inputs
    assert system["routeTableId"] == private and "policy" not in gateway
    assert graph.one("NodeGroup", "system-nodes").inputs["subnetIds"] == [system["subnetId"]]
    group = graph.one("NodeGroup", "system-nodes")
    assert graph.comes_after(group, graph.one("VpcEndpoint", "s3")), "it is asked as soon as a node boots"


class Machine:
    """What a boot meets: `dnf`, `rpm` and `modprobe` of a machine whose repository fails `failures` times."""

    def __init__(self, work: Path, failures: int, *, module: bool = True, there: bool = False) -> None:
        self.work, self.console = work, work / "console"
        state = {"left": failures, "module": int(module), "package": int(there), "loaded": 0}
        for name, value in state.items():
            (work / name).write_text(f"{value}\n")
        (work / "bin").mkdir()
        self.console.touch()
        self._tool("rpm", '[ "$(cat package)" = 1 ] && echo "$2-2.15.6-1.amzn2023"')
        self._tool("modprobe", '[ "$(cat package)$(cat module)" = 11 ] && echo 1 > loaded && exit 0\n'
                               'echo "modprobe: FATAL: Module $1 not found" >&2; exit 1')  # fmt: skip
        self._tool("dnf", 'echo "$*" >> asked; left=$(cat left)\n'
                          'if [ "$left" -gt 0 ]; then echo $((left - 1)) > left; echo "Error: Cannot download" >&2; '
                          "exit 1; fi\necho 1 > package; echo Complete!")  # fmt: skip
        self._tool("sleep", 'echo "$1" >> slept')

    def _tool(self, name: str, body: str) -> None:
        path = self.work / "bin" / name
        path.write_text(f'#!/bin/bash\ncd "{self.work}" || exit 9\n{body}\n')
        path.chmod(0o755)

    def boot(self) -> None:
        # A console takes line after line; a file would be emptied by each.
        script = client_script().replace("tee /dev/console", f"tee -a {self.console}")
        environment = {"PATH": f"{self.work / 'bin'}:{os.environ['PATH']}"}
        ran = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, timeout=HUNG_S)
        assert (ran.returncode, ran.stderr) == (0, ""), "kubelet starts, whatever became of it"

    def read(self, name: str) -> list[str]:
        path = self.work / name
        return path.read_text().splitlines() if path.exists() else []


def test_a_node_that_has_the_client_asks_no_repository(tmp_path: Path) -> None:
    machine = Machine(tmp_path, 0, there=True)
    machine.boot()
    assert machine.read("asked") == [] and machine.read("loaded") == ["1"]
    assert machine.read("console") == ["bivouac: Lustre client lustre-client-2.15.6-1.amzn2023 is there after 0 tries"]


def test_a_repository_that_fails_twice_is_asked_a_third_time(tmp_path: Path) -> None:
    machine = Machine(tmp_path, 2)
    machine.boot()
    package = yaml.safe_load((ROOT / "images/versions.yaml").read_text())["versions"]["lustre_client"]["package"]
    assert machine.read("asked") == [f"install -y --setopt=timeout=20 {package}"] * 3
    assert machine.read("loaded") == ["1"] and machine.read("slept") == [str(CLIENT_PAUSE_S)] * 2
    assert machine.read("console")[-1].endswith("-2.15.6-1.amzn2023 is there after 3 tries")


def test_a_node_without_a_repository_joins_and_says_why_it_mounts_nothing(tmp_path: Path) -> None:
    machine = Machine(tmp_path, 1000)
    machine.boot()
    assert len(machine.read("asked")) == CLIENT_TRIES
    said = machine.read("console")[-1]
    assert said.startswith("bivouac: no Lustre client") and said.endswith("after 4 tries: Error: Cannot download")
    assert CLIENT_TRIES * (CLIENT_TRY_S + CLIENT_PAUSE_S) < 600, "and long before the group's creation is given up"


def test_a_kernel_without_the_module_is_not_tried_again(tmp_path: Path) -> None:
    machine = Machine(tmp_path, 0, module=False)
    machine.boot()
    assert len(machine.read("asked")) == 1
    assert machine.read("console")[-1].endswith(
        f"kernel {os.uname().release}: modprobe: FATAL: Module lustre not found"
    )
