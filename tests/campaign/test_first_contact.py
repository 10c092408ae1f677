"""What a first campaign on AWS meets: the body of `make test-aws` goes through a rehearsal that is derived from the
shipped `first-contact.yaml`, and nodes start from each kind of image."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from infra.rehearsal.aws.ssm_parameters import recommended_image
from infra.spec.campaign import load
from infra.spec.rehearsed import derive
from tests.aws import comparison
from tests.aws.contact import ENDED, KILLED, Contact, first_contact
from tests.aws.transcript import Transcript, holds
from tests.campaign.rehearsal import BIVOUAC, quick, rehearsing
from tests.root import ROOT
from tests.waiting import HUNG_S

SPEC = ROOT / "infra/campaigns/first-contact.yaml"
STEPS = 200
NEWEST = recommended_image("1.36", "AL2023_x86_64_NVIDIA")
_STATES = """
import boto3
print([one["State"] for one in boto3.client("ec2").describe_images(ImageIds=["{ami}"])["Images"]])
"""


@pytest.mark.nightly
@pytest.mark.parametrize("detach", [False, True], ids=["a node is killed", "the driver is killed"])
def test_what_aws_shows_after_a_contact_agrees_with_its_certificate(detach: bool, tmp_path: Path) -> None:
    content, spec = yaml.safe_load(SPEC.read_text()), load(SPEC).spec
    derived = derive(content, spec, nodes=2, faults=(), weights=tmp_path / "weights")
    base = tmp_path / "derived.yaml"
    base.write_text(yaml.safe_dump(derived.document))
    name = "contact-alone" if detach else "contact"
    with rehearsing(tmp_path, {"campaign": name, "training": {"steps": STEPS}}, base=str(base)) as rehearsal:
        transcript = Transcript(tmp_path / "transcript.txt", [str(tmp_path)])
        contact = Contact(
            rehearsal.name, rehearsal.path, rehearsal.spec["nodes"]["instance_type"], BIVOUAC,
            rehearsal.environment | {"COLUMNS": "2000"}, transcript, online=False, pause_s=1.0, detach=detach,
            ends_within_s=HUNG_S,
        )  # fmt: skip
        end = first_contact(contact, lambda planned, most: float(planned) < float(most))
        seen, certificate = comparison.left_over(contact.aws, contact.name, comparison.LISTED_S), contact.certificate()
        transcript.close()
        text = transcript.path.read_text()
        if detach:
            assert ENDED in contact.said and not [line for line in contact.said if line.startswith("$ bivouac down")]
            assert [event["data"]["why"] for event in rehearsal.events() if event["kind"] == "closing"] == [
                "the steward is done"
            ]
        else:
            assert any(line.startswith(KILLED) for line in contact.said) and end["attempts"] >= 2, text
        assert end["certificate"]["clean"] and end["archive"], text
        assert not comparison.disagreements(certificate, seen) and not seen[0].could_not_look
        assert not holds(text, rehearsal.spec["account"]) and str(tmp_path) not in text


@pytest.mark.nightly
@pytest.mark.parametrize(("nodes", "ami"), [("bake", None), ("eks", NEWEST), (NEWEST, NEWEST)])
def test_nodes_from_any_image_pass_preflight_train_and_leave_the_image_where_it_was(
    nodes: str, ami: str | None, tmp_path: Path
) -> None:
    short = quick(10, campaign="given", image={"nodes": nodes}, checkpoint={"every_steps": 5})
    with rehearsing(tmp_path, short) as rehearsal:
        done = rehearsal.run("run", str(rehearsal.path), "--json")
        assert done.returncode == 0, done.stdout + done.stderr
        events = [(event["kind"], event["data"]) for event in rehearsal.events()]
        finished = {data["stage"]: data["outputs"] for kind, data in events if kind == "stage.finished"}
        image = finished["bake"]["node_image"]["ami"]
        assert ami in (None, image) and (image == NEWEST) == (nodes != "bake")
        assert [data["fit"] for kind, data in events if kind == "node.verdict"] == [True, True]
        assert [data["clean"] for kind, data in events if kind == "certified"] == [True]
        assert rehearsal.python(_STATES.format(ami=image)) == "['available']"
