"""An archive that S3 refuses: said, no GPU node bills, restored without one; the steward's restart tries again."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.campaign.rehearsal import Rehearsal, quick, until
from tests.waiting import HUNG_S

pytestmark = pytest.mark.nightly

SPEC = quick(60, campaign="refused")
REFUSALS = [
    {
        "service": "s3", "action": action, "path": "/bivouac-archive-*", "status": 403, "code": "AccessDenied",
        "message": "a bucket policy that denies", "times": None,
    }
    for action in ("GetObject", "PutObject")  # a HeadObject is refused without words
]  # fmt: skip


@dataclass
class Seen:
    rehearsal: Rehearsal
    failed: int
    """Exit code of the driver whose archive was refused."""
    said: str
    """All that it printed."""
    status: dict[str, Any]
    restored: subprocess.CompletedProcess[str]
    again: int
    """Exit code of the driver of the second try: pressed twice in the middle of the teardown."""
    down: subprocess.CompletedProcess[str]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seen]:
    rehearsal = Rehearsal(tmp_path_factory.mktemp("refused"), SPEC)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BIVOUAC_CACHE", str(rehearsal.cache))
        try:
            driver = rehearsal.start()
            # Nothing uses the archive's bucket before the archive; once training is seen that may already have begun.
            until(lambda: driver.poll() is not None or "preflight  " in rehearsal.log(), "the cluster is there")
            assert driver.poll() is None, rehearsal.log()
            faults(rehearsal, add=REFUSALS)
            failed, said, status = driver.wait(timeout=HUNG_S), rehearsal.log(), rehearsal.status()
            until(lambda: not _gpu_nodes(rehearsal), "no GPU node is left")
            folder = str(rehearsal.folder / "restored")
            restored = rehearsal.run("checkpoints", "restore", rehearsal.name, folder, "--tier", "shared")
            faults(rehearsal, clear=True)
            shell(rehearsal, "kubectl", "rollout", "restart", "deployment/steward")
            until(lambda: "asks" in told(rehearsal), "the restarted steward asks for a node")
            driver = rehearsal.start()
            until(lambda: driver.poll() is not None or _destroys(rehearsal), "the campaign is being torn down")
            assert driver.poll() is None, rehearsal.log()
            for _ in range(2):
                driver.send_signal(signal.SIGINT)
                until(lambda: driver.poll() is not None or "another Ctrl-C" in rehearsal.log(), "it was heard")
            again = driver.wait(timeout=HUNG_S)
            down = rehearsal.run("down", rehearsal.name, "--yes")
            yield Seen(rehearsal, failed, said, status, restored, again, down)
        finally:
            rehearsal.strike()


def faults(rehearsal: Rehearsal, **asked: Any) -> None:
    shell(rehearsal, "sh", "-c", f"curl -sSfd '{json.dumps(asked)}' $AWS_ENDPOINT_URL/_site/faults")


def shell(rehearsal: Rehearsal, *command: str) -> str:
    done = rehearsal.run("shell", rehearsal.name, "--", *command)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _gpu_nodes(rehearsal: Rehearsal) -> str:
    listed = ("get", "nodes", "--selector=bivouac.dev/pool=gpu", "--output=name")
    return shell(rehearsal, "kubectl", *listed).strip()


def told(rehearsal: Rehearsal) -> list[str]:
    """The record's kinds; where an archive asks for a node, other than where one of the gang stays for it, `asks`."""
    return [
        "asks" if event["kind"] == "archive.begun" and "released" not in event["data"] else event["kind"]
        for event in rehearsal.events()
    ]


def _destroys(rehearsal: Rehearsal) -> bool:
    """Whether the engine is at work on the stack's end."""
    if "teardown" not in rehearsal.log().rpartition("archive")[2]:
        return False
    return rehearsal.python(_LOCKS) != "0"


_LOCKS = """
import boto3
from infra.spec.names import buckets
state = buckets("123456789012", "us-east-1").state
print(boto3.client("s3").list_objects_v2(Bucket=state, Prefix=".pulumi/locks/")["KeyCount"])
"""


def test_a_refused_archive_is_said_with_its_cure_and_bills_no_gpu_node(seen: Seen) -> None:
    assert seen.failed != 0 and "AccessDenied" in seen.said and "a bucket policy that denies" in seen.said
    assert "rollout restart deployment/steward" in seen.said and "--tier shared" in seen.said
    assert seen.status["bills_usd_per_hour"] > 0


def test_the_checkpoint_is_restored_from_the_shared_tier_without_a_node(seen: Seen) -> None:
    assert seen.restored.returncode == 0, seen.restored.stdout + seen.restored.stderr
    assert list(Path(seen.rehearsal.folder / "restored").iterdir())


def test_a_restarted_steward_archives_on_a_node_of_its_own(seen: Seen) -> None:
    events = seen.rehearsal.events()
    kinds = told(seen.rehearsal)
    assert kinds.count("archive.failed") == kinds.count("asks") == kinds.count("archive.verified") == 1
    assert kinds.index("archive.failed") < kinds.index("asks") < kinds.index("archive.verified")
    archived = next(event["data"] for event in events if event["kind"] == "archive.verified")
    assert archived["step"] == 60 and archived["restored_evaluation_loss"] == archived["reference_evaluation_loss"]


def test_an_engine_ended_by_force_leaves_a_lock_that_the_next_down_passes(seen: Seen) -> None:
    assert seen.again == 130 and seen.down.returncode == 0, seen.down.stdout + seen.down.stderr
    certified = [event["data"]["clean"] for event in seen.rehearsal.events() if event["kind"] == "certified"]
    assert certified == [True]
