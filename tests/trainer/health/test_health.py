"""A preflight pod tells a fit node from an unfit one, and names what is wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from infra.plan.catalogue import limits
from tests.addresses import own_network
from tests.root import ROOT
from tests.trainer.agents import PORT
from tests.trainer.warm import SETTINGS, Process, start_module, warm
from trainer.contract import Env, Expectation, HealthReport, Verdict
from trainer.contract.exits import TERMINATION_LOG_VARIABLE
from trainer.health.fabric import bus_bandwidth

PLAIN = Expectation(
    profile="cpu",
    cpus=1,
    memory_gib=1,
    accelerators=0,
    local_disk_gib=0.01,
    shared_disk_gib=0.01,
    mounts=("/local-checkpoints", "/shared-checkpoints"),
    clock_skew_s=5.0,
    all_reduce_mib=4,
    bus_bandwidth_gb_s=0.0001,
    limits=limits(),
)


CLOCK = "import time\n_right = time.time\ntime.time = lambda: _right() + {ahead_s}\n"
"""As `sitecustomize`: every process of the node that starts Python reads a clock that is so far ahead."""


def examine(
    tmp_path: Path, nodes: int, ahead_s: dict[int, float] | None = None, **changes: Any
) -> list[tuple[int, HealthReport]]:
    """A gang of real preflight pods, of which each has ended; `ahead_s`: node -> what its clock is ahead."""
    file = tmp_path / "expectation.json"
    file.write_text(PLAIN.model_copy(update=changes).model_dump_json())
    network = f"{own_network()}."
    pods = []
    for node in range(nodes):
        local, message = tmp_path / f"local-{node}", tmp_path / f"message-{node}"
        local.mkdir()
        environment = os.environ | {
            Env.CAMPAIGN: "tiny",
            Env.ATTEMPT: "1",
            Env.NODE_NAME: f"node-{node}",
            Env.POD_IP: f"{network}{node + 1}",
            Env.NODE_RANK: str(node),
            Env.NODE_COUNT: str(nodes),
            Env.RANKS_PER_NODE: "1",
            Env.RENDEZVOUS: f"{network}1:{PORT}",
            TERMINATION_LOG_VARIABLE: str(message),
        }
        arguments = ["--expectation", str(file)]
        arguments += ["--local", str(local), "--shared", str(tmp_path), "--join-timeout-s", "60"]
        if ahead_s and node in ahead_s:
            (local / "sitecustomize.py").write_text(CLOCK.format(ahead_s=ahead_s[node]))
            environment["PYTHONPATH"] = os.pathsep.join([str(local), *filter(None, [os.environ.get("PYTHONPATH")])])
            command = [sys.executable, "-m", "trainer.health", *arguments]
            pod: Any = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL)
        else:
            pod = start_module("trainer.health", arguments, environment, tmp_path / f"{node}.log")
        pods.append((pod, message))
    return [(pod.wait(), HealthReport.model_validate(json.loads(message.read_text()))) for pod, message in pods]


def test_two_sound_nodes_are_fit_and_agree_on_the_bandwidth(tmp_path: Path) -> None:
    answers = examine(tmp_path, 2)
    assert [(code, report.fit) for code, report in answers] == [(0, True), (0, True)]
    bandwidths = {report.bus_bandwidth_gb_s for _, report in answers}
    assert len(bandwidths) == 1 and (bandwidths.pop() or 0) > 0


def test_a_node_below_its_profile_is_unfit_and_says_in_what(tmp_path: Path) -> None:
    ((code, report),) = examine(tmp_path, 1, cpus=4096, mounts=("/nowhere",), imports=("json", "no_such_module"))
    assert code == 70 and not report.fit
    failed = {probe.name for probe in report.probes if probe.verdict is Verdict.FAIL}
    assert failed == {"cpus", "mount /nowhere", "import no_such_module"}
    probes = {probe.name: probe for probe in report.probes}
    assert probes["import json"].ok and "No module named" in probes["import no_such_module"].seen
    assert probes["all_reduce"].ok and (report.bus_bandwidth_gb_s or 0) > 0, "alone, two of its processes add up"


@pytest.mark.nightly
def test_the_node_whose_clock_is_off_is_the_one_that_is_blamed_also_when_it_is_the_first(tmp_path: Path) -> None:
    answers = examine(tmp_path, 3, ahead_s={0: 60.0})
    assert [(code, report.fit) for code, report in answers] == [(70, False), (0, True), (0, True)]
    (bad,) = [probe for probe in answers[0][1].probes if probe.verdict is Verdict.FAIL]
    assert bad.name == "clock_skew_s" and 55 < float(bad.seen) < 65, bad


def test_the_first_process_knows_every_nodes_host_on_the_fabric_before_the_gang_joins(tmp_path: Path) -> None:
    file, outs = tmp_path / "expectation.json", [tmp_path / f"out-{node}.json" for node in range(2)]
    processes = list[Process]()
    file.write_text(PLAIN.model_dump_json())
    network = f"{own_network()}."
    for node, out in enumerate(outs):
        environment = os.environ | {
            Env.CAMPAIGN: "tiny", Env.ATTEMPT: "1", Env.NODE_NAME: f"node-{node}",
            Env.POD_IP: f"{network}{node + 1}", Env.NODE_RANK: str(node), Env.NODE_COUNT: "2", Env.RANKS_PER_NODE: "1",
            Env.RENDEZVOUS: f"{network}1:{PORT}",
        }  # fmt: skip
        # They meet, and none can join the gang.
        code = "import trainer.health.fabric as f; f.Fabric.join = lambda self: open('/nowhere'); f.main()"
        words = ["--expectation", str(file), "--local-rank", "0", "--locals", "1", "--out", str(out)]
        words += ["--join-timeout-s", "300"]
        processes.append(warm().start(code, words, environment | SETTINGS, tmp_path / f"{node}.log"))
    assert [process.wait() for process in processes] == [0, 0], (tmp_path / "0.log").read_text()
    first, second = (json.loads(out.read_text()) for out in outs)
    assert first["hosts"] == {"node-0": "", "node-1": ""} and second["hosts"] == {}
    assert first["error"] and second["error"]


def test_bus_bandwidth_follows_the_ring_formula() -> None:
    assert bus_bandwidth(10**9, 1.0, 2) == 1.0
    assert bus_bandwidth(10**9, 1.0, 4) == 1.5
