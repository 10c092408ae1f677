"""Text that nodes of the campaign prepare on a whole rehearsed cluster, a node of them killed, and training on it."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.campaign.rehearsal import quick, rehearsing, until

pytestmark = pytest.mark.nightly
STEPS = 40


def text(folder: Path) -> Path:
    folder.mkdir()
    for name in range(12):
        rows = [{"text": f"document {n} of {name} tells {n * n % 997} things. " * (2 + n % 11)} for n in range(20_000)]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_nodes_of_the_campaign_prepare_its_text_lose_one_of_them_and_it_trains_on_it(tmp_path: Path) -> None:
    data = {
        "source": "s3://somebodys-text/web",
        "pattern": "*.jsonl",
        "max_files": None,
        "prepare": {"where": "cluster", "nodes": 2, "instance_type": "m7i.large", "text_gib": 0.1},
        "rehearsal": {"text": str(text(tmp_path / "text"))},
    }
    with rehearsing(tmp_path, quick(STEPS, campaign="indata", data=data)) as rehearsal:
        driver = rehearsal.start()

        def kubectl(*words: str) -> dict[str, Any]:
            done = rehearsal.run("shell", "indata", "--", "kubectl", "get", *words, "-o", "json")
            return dict(json.loads(done.stdout)) if done.returncode == 0 else {}

        def working() -> list[str]:
            pods = kubectl("pods", "-n", "campaign", "-l", "bivouac.dev/role=data").get("items", [])
            return [pod["spec"]["nodeName"] for pod in pods if pod["status"].get("phase") == "Running"]

        lost = until(lambda: len(seen := working()) == 2 and seen[1], "both workers run")
        instance = kubectl("node", lost)["spec"]["providerID"].rpartition("/")[2]
        rehearsal.python(f"import boto3; boto3.client('ec2').terminate_instances(InstanceIds=['{instance}'])")
        assert driver.wait() == 0, rehearsal.log()
        events = rehearsal.events()
        (prepared,) = (event["data"]["digest"] for event in events if event["kind"] == "data.ended")
        marks = [event["data"].get("stage") if event["kind"] == "stage.started" else event["kind"] for event in events]
        assert marks.index("provision") < marks.index("data.ended") < marks.index("preflight")
        (told,) = (
            event["data"]["outputs"]
            for event in events
            if event["kind"] == "stage.finished" and event["data"]["stage"] == "provision"
        )
        assert told["data_digest"] == prepared
        # The driver's own path, over the same names and bytes in the same place.
        out = tmp_path / "alone"
        alone = rehearsal.inside("env", f"PYTHONPATH={rehearsal.root}", *_prepare(rehearsal.path, out))
        assert alone.returncode == 0, alone.stderr
        assert hashlib.sha256((out / "manifest.json").read_bytes()).hexdigest() == prepared
        assert rehearsal.report()["training"]["losses"][0]["points"][-1]["step"] == STEPS
        assert [event["data"]["clean"] for event in events if event["kind"] == "certified"] == [True]


def _prepare(spec: Path, out: Path) -> list[str]:
    return [sys.executable, "-m", "infra.cli.main", "data", "prepare", "--spec", str(spec), str(out)]
