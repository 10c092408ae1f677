"""One campaign, carried through many faults: a node dies, the driver is killed, a second one tries, a volume is left.

The rehearsal runs once; each test looks at one thing that it must have shown.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from infra.data import dataset
from infra.folders import sites_dir
from infra.spec.campaign import Spec
from tests.campaign.rehearsal import Rehearsal, quick, until
from tests.trainer.agents import World, run
from tests.waiting import HUNG_S
from trainer.contract import TrainConfig

STEPS, EVERY, KILL_AFTER = 90, 10, 25
SHORT = quick(
    STEPS,
    campaign="faulty",
    training={"evaluate_every": 30, "step_seconds_estimate": 0.3, "first_step_timeout_s": 3600},
    checkpoint={"every_steps": EVERY},
    rehearsal={"faults": [{"kill_node": 1, "after_step": KILL_AFTER}]},
    # Ranks that a test has stopped are no hang.
    recovery={"hang_timeout": "2h", "startup_timeout": "3h"},
)


@dataclass
class ObservedCampaign:
    """What was seen while the campaign ran."""

    rehearsal: Rehearsal
    listens: set[str]
    second_driver: Any
    nodes: str
    logs: str
    stack: str
    denied: str
    certificate_with_leak: str
    strayed: str
    left: str
    last_run: Any
    page: Any
    events: list[dict[str, Any]]


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObservedCampaign]:
    rehearsal = Rehearsal(tmp_path_factory.mktemp("campaign"), SHORT)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BIVOUAC_CACHE", str(rehearsal.cache))
        try:
            yield _observed(rehearsal)
        finally:
            rehearsal.strike()


@contextmanager
def paused_ranks(rehearsal: Rehearsal) -> Iterator[set[int]]:
    """Stop every rank from its first moment on: training goes on when the block is left, however long its looks take.

    The block gets the stopped processes; more may come.
    """
    stopped, over = set[int](), threading.Event()

    def stop() -> None:
        while not over.wait(0.2):
            for rank in ranks(rehearsal) - stopped:
                os.kill(rank, signal.SIGSTOP)
                stopped.add(rank)

    thread = threading.Thread(target=stop)
    thread.start()
    try:
        yield stopped
    finally:
        over.set()
        thread.join()
        for rank in stopped:
            with suppress(ProcessLookupError):
                os.kill(rank, signal.SIGCONT)


def ranks(rehearsal: Rehearsal) -> set[int]:
    """Return the processes in the rehearsal's pods that an agent of the trainer has forked."""
    agents = dict[int, int]()
    for top in psutil.process_iter(["cmdline"]):
        words = top.info["cmdline"] or []
        if "infra.rehearsal.site.supervisor" in words and any(str(rehearsal.cache) in word for word in words):
            for process in top.children(recursive=True):
                with suppress(psutil.Error):
                    if process.cmdline()[1:3] == ["-m", "trainer.builtin.agent"]:
                        agents[process.pid] = process.ppid()
    return {process for process, parent in agents.items() if parent in agents}


def _observed(rehearsal: Rehearsal) -> ObservedCampaign:
    first = rehearsal.start()
    with paused_ranks(rehearsal) as stopped:
        until(lambda: first.poll() is not None or stopped, "training begins")
        assert first.poll() is None, rehearsal.log()
        # One shell for all three: each starts for as long as what is run in it takes.
        looks = rehearsal.run("shell", rehearsal.name, "--", "sh", "-c", LOOKS)
        assert looks.returncode == 0, _text(looks)
        nodes, logs, stack = looks.stdout.split(APART)
        strayed, left, denied = rehearsal.python(LEAVE_VOLUMES_AND_TRY.format(name=rehearsal.name)).split()
        listens = listening(rehearsal)
        second = rehearsal.run("run", str(rehearsal.path))
        rehearsal.kill(first)
    leaky = rehearsal.run("run", str(rehearsal.path), timeout=HUNG_S)
    rehearsal.python(f"import boto3; boto3.client('ec2').delete_volume(VolumeId='{left}')")
    last = rehearsal.run("run", str(rehearsal.path), "--json")
    page = rehearsal.run("report", rehearsal.name, "--json")
    return ObservedCampaign(
        rehearsal, listens, second, nodes, logs, stack, denied, _text(leaky), strayed, left, last, page,
        rehearsal.events(),
    )  # fmt: skip


APART = "=== apart ===\n"
LOOKS = f" && echo '{APART.strip()}' && ".join(
    ("kubectl get nodes,pods -o wide", "kubectl logs deployment/steward", "pulumi stack --show-urns")
)
LEAVE_VOLUMES_AND_TRY = """
import boto3
from botocore.exceptions import ClientError
from tests.campaign.role_credentials import of_role

def volume(key, value):
    tags = [dict(ResourceType="volume", Tags=[dict(Key=key, Value=value)])]
    return boto3.client("ec2").create_volume(AvailabilityZone="us-east-1a", Size=1, TagSpecifications=tags)["VolumeId"]

print(volume("bivouac:campaign", "{name}"), volume("Name", "bivouac-{name}-builder"))
try:
    of_role("bivouac-{name}-steward").client("ec2").run_instances(ImageId="ami-1", MinCount=1, MaxCount=1)
    print("allowed")
except ClientError as error:
    print(error.response["Error"]["Code"])
"""


def _text(done: Any) -> str:
    return f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"


def listening(rehearsal: Rehearsal) -> set[str]:
    """Addresses in the host's own network namespace on which any process of this rehearsal listens."""
    rows = [
        line.split()
        for table in ("/proc/net/tcp", "/proc/net/tcp6")
        for line in Path(table).read_text().splitlines()[1:]
    ]
    addresses = {f"socket:[{row[9]}]": row[1] for row in rows if row[3] == "0A"}
    mark, seen, found = str(rehearsal.cache).encode(), 0, set[str]()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if mark in (process / "environ").read_bytes() + (process / "cmdline").read_bytes():
                seen += 1
                found |= {addresses.get(os.readlink(fd), "") for fd in (process / "fd").iterdir()}
    assert seen > 5, "the rehearsal's processes name its cache folder"
    return found - {""}


def of_kind(story: ObservedCampaign, kind: str) -> list[dict[str, Any]]:
    return [event["data"] for event in story.events if event["kind"] == kind]


def steps_of(story: ObservedCampaign, attempt: int) -> dict[int, tuple[float, str]]:
    """Step -> (loss, node) of pod 0 in one attempt, from the shipped logs in the archive."""
    found: dict[int, tuple[float, str]] = {}
    for path in story.rehearsal.archived("record/logs").glob(f"*-a{attempt}-gang-0-0-*.log"):
        for line in path.read_text().splitlines():
            event = json.loads(line) if line.startswith('{"event": "step"') else None
            if event is not None:
                found[event["step"]] = (event["loss"], event["node"])
    return found


@pytest.fixture(scope="module")
def struck(story: ObservedCampaign) -> Any:
    """The site's end; the archive is exported by it."""
    return story.rehearsal.run("down", "--all", "--yes")


def test_the_campaign_ends_well_after_everything(story: ObservedCampaign) -> None:
    assert story.last_run.returncode == 0, _text(story.last_run)


def test_run_and_report_answer_machines_as_the_record_has_it(story: ObservedCampaign) -> None:
    answer, page = json.loads(story.last_run.stdout), json.loads(story.page.stdout)
    assert (answer["campaign"], answer["outcome"], answer["ended"]) == (story.rehearsal.name, "done", True)
    assert answer["certificate"]["clean"] is True and answer["archive"]["step"] == STEPS
    finished = {data["stage"]: data["seconds"] for data in of_kind(story, "stage.finished")}
    assert {row["stage"]: row["seconds"] for row in answer["stages"]} == finished
    assert page["campaign"] == story.rehearsal.name and Path(page["written"]["html"]).is_file()


def test_a_second_driver_is_refused_with_the_name_of_the_first(story: ObservedCampaign) -> None:
    assert story.second_driver.returncode == 75
    assert re.search(r"already has a driver.*process \d+", story.second_driver.stderr, re.S), story.second_driver.stderr


def test_a_killed_driver_is_continued_with_no_second_cluster(story: ObservedCampaign) -> None:
    assert len(of_kind(story, "driver.took-over")) >= 1
    finished = [data["stage"] for data in of_kind(story, "stage.finished")]
    assert finished.count("provision") == 1 and finished.count("supervise") == 1


def test_kubectl_and_pulumi_work_in_the_shell(story: ObservedCampaign) -> None:
    assert story.nodes.count(" Ready ") == 3 and f"{story.rehearsal.name}-a1-gang-0-0" in story.nodes
    assert "stewarding faulty" in story.logs
    assert "aws:eks/cluster:Cluster" in story.stack


def test_the_node_loss_is_seen_and_the_node_replaced(story: ObservedCampaign) -> None:
    ended = of_kind(story, "attempt.ended")
    assert [data["failure"] for data in ended] == ["node", None]
    assert len(of_kind(story, "node.quarantined")) == 1
    first, second = of_kind(story, "attempt.running")
    assert set(first["nodes"]) != set(second["nodes"]), "the second attempt runs on a new node"


def test_training_goes_on_from_the_newest_checkpoint(story: ObservedCampaign) -> None:
    """Saves are committed beside the training: the kill may come before the last one's end, not before the first's."""
    ended, second = of_kind(story, "attempt.ended")[0], of_kind(story, "attempt.launched")[1]
    assert second["committed_step"] >= ended["committed_at_end"] >= EVERY


def test_the_loss_after_the_node_loss_equals_an_undisturbed_twins_bit_for_bit(
    story: ObservedCampaign, struck: Any, tmp_path: Path
) -> None:
    assert struck.returncode == 0, _text(struck)
    config = TrainConfig.model_validate_json(story.rehearsal.archived("train.json").read_text())
    data = dataset.prepare(Spec.model_validate(story.rehearsal.spec), lambda _: None)
    world = World(tmp_path / "twin", data.folder, config)
    world.root.mkdir()
    twin = run(world, 1).losses()
    first, second = steps_of(story, 1), steps_of(story, 2)
    assert max(second) == STEPS and len(twin) == STEPS
    assert {step: loss for step, (loss, _) in (first | second).items()} == twin
    repeated = set(first) & set(second)
    assert repeated, "steps were repeated"
    assert all(first[step][0] == second[step][0] for step in repeated)


def test_the_golden_checkpoint_evaluates_as_recorded(story: ObservedCampaign, struck: Any) -> None:
    archived = of_kind(story, "archive.verified")[0]
    assert archived["step"] == STEPS
    assert archived["restored_evaluation_loss"] == archived["recorded_evaluation_loss"] is not None
    assert (story.rehearsal.archived("golden") / f"step-{STEPS:08d}" / "manifest.json").exists()
    assert (story.rehearsal.archived("huggingface") / "model.safetensors").exists()


def test_it_evaluates_the_same_at_home_from_what_the_site_left(story: ObservedCampaign, struck: Any) -> None:
    archived = story.rehearsal.archived
    command = [sys.executable, "-m", "trainer.builtin.evaluate", "--config", str(archived("train.json"))]
    command += ["--checkpoint", str(archived("golden") / f"step-{STEPS:08d}"), "--data", str(archived("data"))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and json.loads(done.stdout.splitlines()[-1])["equal"], done.stderr


def test_a_volume_with_the_campaigns_tag_that_the_stack_does_not_know_is_swept(story: ObservedCampaign) -> None:
    assert [data["outputs"]["swept"] for data in of_kind(story, "stage.finished") if data["stage"] == "teardown"] == [
        [f"volume {story.strayed}"]
    ]


def test_a_volume_with_only_a_name_of_ours_is_left_and_named_by_the_certificate(story: ObservedCampaign) -> None:
    assert not story.certificate_with_leak.startswith("exit 0")
    assert f"volume {story.left}" in story.certificate_with_leak


def test_the_last_certificate_is_clean(story: ObservedCampaign) -> None:
    verdicts = of_kind(story, "certified")
    assert [verdict["clean"] for verdict in verdicts] == [False, True], story.certificate_with_leak


def test_what_the_stewards_role_does_not_allow_is_denied(story: ObservedCampaign) -> None:
    assert story.denied == "UnauthorizedOperation"


def test_the_report_is_one_file_without_network_references(story: ObservedCampaign) -> None:
    page = (story.rehearsal.results / "report.html").read_text()
    assert not re.search(r"""(?:src|href)\s*=\s*["']https?://""", page) and "@import" not in page
    assert story.rehearsal.report()


def test_nothing_listens_on_the_host(story: ObservedCampaign) -> None:
    assert not story.listens


def test_down_all_leaves_nothing(story: ObservedCampaign, struck: Any) -> None:
    site = sites_dir() / story.rehearsal.site
    assert not site.exists(), list(site.rglob("*"))[:5]
    shutil.rmtree(story.rehearsal.folder / "pulumi", ignore_errors=True)
    left = [p for p in Path("/proc").glob("[0-9]*/cmdline") if story.rehearsal.site.encode() in _read(p)]
    assert not left, [_read(path) for path in left]


def test_the_status_of_a_campaign_that_is_gone_is_read_from_its_results(story: ObservedCampaign, struck: Any) -> None:
    done = story.rehearsal.run("status", story.rehearsal.name)
    assert done.returncode == 0, _text(done)
    assert "its record cannot be reached" in done.stdout and "faulty on rehearsal: ended" in done.stdout
    assert "certificate clean" in done.stdout, done.stdout


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
