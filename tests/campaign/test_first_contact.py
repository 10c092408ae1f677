"""The body of `make test-aws` goes through a rehearsal that is derived from the shipped `first-contact.yaml`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from infra.spec.campaign import load
from infra.spec.rehearsed import derive
from tests.aws import comparison
from tests.aws.contact import KILLED, Contact, first_contact
from tests.aws.transcript import Transcript, holds
from tests.campaign.rehearsal import BIVOUAC, rehearsing
from tests.root import ROOT

SPEC = ROOT / "infra/campaigns/first-contact.yaml"
STEPS = 200


@pytest.mark.nightly
def test_a_node_is_killed_and_what_aws_shows_afterwards_agrees_with_the_certificate(tmp_path: Path) -> None:
    content, spec = yaml.safe_load(SPEC.read_text()), load(SPEC).spec
    derived = derive(content, spec, nodes=2, faults=(), weights=tmp_path / "weights")
    base = tmp_path / "derived.yaml"
    base.write_text(yaml.safe_dump(derived.document))
    with rehearsing(tmp_path, {"campaign": "contact", "training": {"steps": STEPS}}, base=str(base)) as rehearsal:
        transcript = Transcript(tmp_path / "transcript.txt", [str(tmp_path)])
        contact = Contact(
            rehearsal.name, rehearsal.path, rehearsal.spec["nodes"]["instance_type"], BIVOUAC,
            rehearsal.environment | {"COLUMNS": "2000"}, transcript, online=False, pause_s=1.0,
        )  # fmt: skip
        end = first_contact(contact, lambda planned, most: float(planned) < float(most))
        seen = comparison.left_over(contact.aws, contact.name, comparison.LISTED_S)
        transcript.close()
        told = transcript.path.read_text()
        assert any(line.startswith(KILLED) for line in contact.said), told
        assert end["attempts"] >= 2 and end["certificate"]["clean"] and end["archive"], told
        certificate = json.loads((rehearsal.results / "certificate.json").read_text())
        assert not comparison.disagreements(certificate, seen) and not seen[0].could_not_look
        assert not holds(told, rehearsal.spec["account"]) and str(tmp_path) not in told
