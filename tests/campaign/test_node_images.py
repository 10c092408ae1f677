"""A campaign on GPU nodes from each kind of image: our bake, EKS's own, and an AMI that the spec names."""

from __future__ import annotations

from pathlib import Path

import pytest

from infra.rehearsal.aws.ssm_parameters import recommended
from tests.campaign.rehearsal import quick, rehearsing

pytestmark = pytest.mark.nightly

NEWEST = recommended("1.36", "AL2023_x86_64_NVIDIA")
_STATES = """
import boto3
images = boto3.client("ec2").describe_images(Filters=[{{"Name": "image-id", "Values": ["{ami}"]}}])["Images"]
print([one["State"] for one in images])
"""


@pytest.mark.parametrize(("nodes", "ami"), [("bake", None), ("eks", NEWEST), (NEWEST, NEWEST)])
def test_nodes_from_any_image_pass_preflight_train_and_leave_the_image_where_it_was(
    nodes: str, ami: str | None, tmp_path: Path
) -> None:
    short = quick(10, campaign="given", image={"nodes": nodes}, checkpoint={"every_steps": 5})
    with rehearsing(tmp_path, short) as rehearsal:
        done = rehearsal.run("run", str(rehearsal.path), "--json")
        assert done.returncode == 0, done.stdout + done.stderr
        events = [(one["kind"], one["data"]) for one in rehearsal.events()]
        finished = {data["stage"]: data["outputs"] for kind, data in events if kind == "stage.finished"}
        image = finished["bake"]["node_image"]["ami"]
        assert ami in (None, image) and (image == NEWEST) == (nodes != "bake")
        assert [data["fit"] for kind, data in events if kind == "node.verdict"] == [True, True]
        assert [data["clean"] for kind, data in events if kind == "certified"] == [True]
        assert rehearsal.python(_STATES.format(ami=image)) == "['available']"
