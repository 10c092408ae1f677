"""A learning rate with a slip of the key: training turns infinite, the warm cluster is held, a mended spec goes on.

While it is held, an MPIJob of the team's own runs on its nodes.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import yaml

from infra.cluster.gang import CAMPAIGN_LABEL
from tests.campaign.rehearsal import Rehearsal, quick, until
from tests.waiting import HUNG_S

pytestmark = pytest.mark.nightly

SLIPPED = quick(
    40,
    campaign="held",
    training={"optimizer": {"learning_rate": 3.0e8, "minimum_learning_rate": 1.0e8, "warmup_steps": 20}},
    addons={"mpi_operator": True},
    on_stop="hold",
    hold_for="20m",
)

LAUNCHER = """
import socket, time
names = [line.split()[0] for line in open("/etc/mpi/hostfile")]
key = open("/root/.ssh/id_rsa").read()
answers = []
for name in names:
    for _ in range(300):
        try:
            answers.append(socket.create_connection((name, 7777), 5).recv(99).decode())
            break
        except OSError:
            time.sleep(0.1)
print("PRIVATE" in key, names, answers)
"""
WORKER = """
import socket
server = socket.create_server(("", 7777))
while True:
    taken = server.accept()[0]
    taken.sendall(socket.gethostname().encode())
    taken.close()
"""


def mpi_job(image: str) -> dict[str, Any]:
    """Two workers, a GPU each. `mpirun` and `sshd` are the image's affair: here the launcher calls the workers itself,
    by the names that the operator wrote for `mpirun`."""

    def replicas(count: int, code: str, **more: Any) -> dict[str, Any]:
        container = {"name": "it", "image": image, "command": ["python", "-uc", code], **more.pop("container", {})}
        return {"replicas": count, "template": {"spec": {"containers": [container], **more}}}

    on_gpus = {
        "nodeSelector": {"bivouac.dev/pool": "gpu"},
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
        "container": {"resources": {"limits": {"nvidia.com/gpu": "1"}}},
    }
    return {
        "apiVersion": "kubeflow.org/v2beta1",
        "kind": "MPIJob",
        "metadata": {"name": "fabric", "namespace": "campaign"},
        "spec": {
            "runPolicy": {"cleanPodPolicy": "None"},  # the workers stay, and hold their GPUs
            "mpiReplicaSpecs": {
                "Launcher": replicas(1, LAUNCHER, nodeSelector={"bivouac.dev/pool": "system"}),
                "Worker": replicas(2, WORKER, **on_gpus),
            },
        },
    }


@dataclass
class Seen:
    rehearsal: Rehearsal
    status: dict[str, Any]
    while_driven: Any
    foreign: Any
    relaunched: Any
    mpi: dict[str, Any]
    mpi_log: str
    mpi_workers: list[str]
    """Phases of its workers, when the campaign is about to go on."""


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seen]:
    rehearsal = Rehearsal(tmp_path_factory.mktemp("held"), SLIPPED)
    mended = rehearsal.folder / "mended.yaml"
    optimizer = {"learning_rate": 3.0e-3, "minimum_learning_rate": 3.0e-4, "warmup_steps": 20}
    spec = rehearsal.spec | {"training": rehearsal.spec["training"] | {"optimizer": optimizer}}
    mended.write_text(yaml.safe_dump(spec))
    other = rehearsal.folder / "other.yaml"
    other.write_text(yaml.safe_dump(spec | {"owner": "somebody else"}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BIVOUAC_CACHE", str(rehearsal.cache))
        try:
            driver = rehearsal.start()
            until(lambda: driver.poll() is not None or rehearsal.status().get("hold"), "the cluster is held")
            assert driver.poll() is None, rehearsal.log()
            status = rehearsal.status()
            while_driven = rehearsal.run("relaunch", rehearsal.name, "--spec", str(mended))
            mpi = run_mpi_job(rehearsal)
            driver.send_signal(signal.SIGINT)
            driver.wait(timeout=HUNG_S)
            foreign = rehearsal.run("relaunch", rehearsal.name, "--spec", str(other))
            relaunched = rehearsal.run("relaunch", rehearsal.name, "--spec", str(mended))
            yield Seen(rehearsal, status, while_driven, foreign, relaunched, *mpi)
        finally:
            rehearsal.strike()


def run_mpi_job(rehearsal: Rehearsal) -> tuple[dict[str, Any], str, list[str]]:
    """(the job when it has succeeded, what its launcher printed, phases of its workers)."""

    def kubectl(*arguments: str) -> str:
        done = rehearsal.run("shell", rehearsal.name, "--", "kubectl", "--namespace=campaign", *arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def succeeded() -> dict[str, Any] | None:
        job = dict(json.loads(kubectl("get", "mpijob", "fabric", "--output=json")))
        conditions = {one["type"]: one["status"] for one in job.get("status", {}).get("conditions", ())}
        return job if conditions.get("Succeeded") == "True" else None

    steward = "jsonpath={.items[0].spec.template.spec.containers[0].image}"
    manifest = rehearsal.folder / "fabric.json"
    image = kubectl("get", "deployments", f"--selector={CAMPAIGN_LABEL}={rehearsal.name}", f"--output={steward}")
    manifest.write_text(json.dumps(mpi_job(image)))
    kubectl("apply", f"--filename={manifest}")
    job = until(succeeded, "the MPIJob has succeeded")
    role = "--selector=training.kubeflow.org/job-role"
    phases = kubectl("get", "pods", f"{role}=worker", "--output=jsonpath={.items[*].status.phase}")
    return job, kubectl("logs", f"{role}=launcher"), phases.split()


def test_a_held_cluster_bills_and_says_so_with_its_cause_and_end(seen: Seen) -> None:
    hold = seen.status["hold"]
    assert "numeric" in hold["cause"] and hold["until"] > seen.status["live"]["at"]
    assert seen.status["bills_usd_per_hour"] == pytest.approx(hold["usd_per_hour"])
    assert any("NumericError" in line or "not finite" in line for line in hold["log"])
    assert "bivouac relaunch held" in seen.rehearsal.log()


def test_a_living_driver_and_a_change_of_what_is_built_refuse_a_relaunch(seen: Seen) -> None:
    assert seen.while_driven.returncode == 75 and "already has a driver" in seen.while_driven.stderr
    assert seen.foreign.returncode == 64 and "owner" in seen.foreign.stderr


def test_the_mended_campaign_trains_on_the_same_nodes_to_its_end(seen: Seen) -> None:
    assert seen.relaunched.returncode == 0, seen.relaunched.stdout + seen.relaunched.stderr
    events = seen.rehearsal.events()
    kinds = [event["kind"] for event in events]
    assert kinds.index("held") < kinds.index("relaunched") < kinds.index("archive.verified")
    relaunched = next(event["data"] for event in events if event["kind"] == "relaunched")
    fields = {one["field"] for one in relaunched["diff"]}
    assert fields == {"training.optimizer.learning_rate", "training.optimizer.minimum_learning_rate"}
    ran = [event["data"]["nodes"] for event in events if event["kind"] == "attempt.running"]
    preflight = {event["data"]["node"] for event in events if event["kind"] == "node.verdict"}
    assert set(ran[-1]) == preflight, "no new node was paid for"
    finished = next(event["data"] for event in events if event["kind"] == "training.finished")
    assert (finished["outcome"], finished["committed_step"]) == ("done", 40)
    assert [event["data"]["clean"] for event in events if event["kind"] == "certified"] == [True]


def test_an_mpi_job_of_ones_own_runs_on_the_held_nodes_and_makes_way_for_the_gang(seen: Seen) -> None:
    assert seen.mpi["spec"]["slotsPerWorker"] == 1, "a default of the schema"
    assert seen.mpi["status"]["replicaStatuses"]["Launcher"]["succeeded"] == 1
    names = [f"fabric-worker-{number}.fabric.campaign.svc" for number in range(2)]
    assert seen.mpi_log.strip() == f"True {names} {['fabric-worker-0', 'fabric-worker-1']}"
    assert seen.mpi_workers == ["Running"] * 2 and seen.relaunched.returncode == 0, "they held every GPU"
