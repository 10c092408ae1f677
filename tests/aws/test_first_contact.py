"""The first dollar: `first-contact.yaml` on a real account. `make test-aws`; it asks before it spends.

Environment: credentials as for boto3; AWS_REGION; BIVOUAC_ZONE and BIVOUAC_FROM, if the first zone that sells the nodes
and the address that the internet sees are not the right ones; BIVOUAC_SPEND_IN=ACCOUNT where nobody sits at a terminal;
BIVOUAC_DETACH=1 (`make test-aws DETACH=1`) kills the driver in place of a node, and waits for the account's closer.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.spec.campaign import load
from tests.aws import comparison
from tests.aws.contact import ENDED, KILLED, Contact, NotAgreed, first_contact
from tests.aws.transcript import Transcript, holds, known_here
from tests.root import ROOT

SPEC = ROOT / "infra/campaigns/first-contact.yaml"
TEARDOWN = timedelta(hours=3)
"""After the deadline at the latest the closer looks within half an hour, and archives and tears down."""
ADDRESS = "https://checkip.amazonaws.com"


def aws(region: str, *words: str) -> Any:
    told = subprocess.run(["aws", "--region", region, *words, "--output", "json"], capture_output=True, text=True)
    assert told.returncode == 0, told.stderr
    return json.loads(told.stdout)


def prepared(folder: Path, account: str, region: str) -> tuple[Path, dict[str, Any]]:
    """The shipped spec with this account, its zone, and the address that we come from."""
    spec = yaml.safe_load(SPEC.read_text())
    wanted = f"Name=instance-type,Values={spec['nodes']['instance_type']}"
    by_zone = ("--location-type", "availability-zone", "--filters", wanted)
    zones = sorted(
        offering["Location"]
        for offering in aws(region, "ec2", "describe-instance-type-offerings", *by_zone)["InstanceTypeOfferings"]
    )
    assert zones, f"no zone of {region} sells {spec['nodes']['instance_type']}: set AWS_REGION"
    address = os.environ.get("BIVOUAC_FROM")
    if address is None:
        with urllib.request.urlopen(ADDRESS, timeout=30) as answer:
            address = f"{answer.read().decode().strip()}/32"
    spec |= {"account": account, "region": region, "zone": os.environ.get("BIVOUAC_ZONE", zones[0])}
    spec["network"] = {"api_allowed_cidrs": [address]}
    spec["money"].pop("alarm_email")
    path = folder / "first-contact.yaml"
    path.write_text(yaml.safe_dump(spec, sort_keys=False))
    return path, spec


def agreed_here(account: str) -> Any:
    def agreed(planned: str, most: str) -> bool:
        words = f"\nThis spends about {planned} USD, at most {most} USD, in account {account}."
        if given := os.environ.get("BIVOUAC_SPEND_IN"):
            print(words)
            return given == account
        if not sys.stdin.isatty():
            pytest.exit(f"{words} Nobody can be asked here: set BIVOUAC_SPEND_IN={account}", returncode=1)
        return input(f"{words} Type the account number to go on: ").strip() == account

    return agreed


@pytest.mark.aws
def test_the_first_dollar() -> None:
    region = os.environ.get("AWS_REGION", "us-east-1")
    account = aws(region, "sts", "get-caller-identity")["Account"]
    folder = ROOT / "results/test-aws"
    folder.mkdir(parents=True, exist_ok=True)
    path, spec = prepared(folder, account, region)
    transcript = Transcript(folder / "transcript.txt", known_here(os.environ))
    # Lines are not to be broken: what is broken in two is not recognised.
    environment = os.environ | {"BIVOUAC_RESULTS": str(folder), "AWS_REGION": region, "COLUMNS": "2000"}
    contact = Contact(
        spec["campaign"], path, spec["nodes"]["instance_type"], [sys.executable, "-m", "infra.cli.main"],
        environment, transcript, detach=os.environ.get("BIVOUAC_DETACH", "") not in ("", "0"),
        ends_within_s=(load(path).spec.money.deadline + TEARDOWN).total_seconds(),
    )  # fmt: skip
    results = folder / f"{account}-{region}" / contact.name
    print(f"\ntranscript: {transcript.path}; everything is kept in {results}")
    try:
        end = first_contact(contact, agreed_here(account))
        seen = _compared(contact, results)
    except NotAgreed as refused:
        pytest.skip(f"nothing was spent: {refused}")
    finally:
        transcript.close()
        if holds(transcript.path.read_text(), account):
            transcript.path.unlink()
            pytest.fail("the transcript still held the account's number and was removed")
    certificate = contact.certificate()
    if contact.detach:
        assert ENDED in contact.said, "the account ended it, and nobody came back"
    else:
        assert any(line.startswith(KILLED) for line in contact.said), "no node was killed"
        assert end["attempts"] >= 2, "the gang started again after its node was gone"
    assert end["archive"] and end["certificate"]["clean"], end
    assert not comparison.disagreements(certificate, seen)


def _compared(contact: Contact, results: Path) -> tuple[comparison.Seen, ...]:
    """Write into the transcript what AWS's own services show after the teardown."""
    seen = comparison.left_over(contact.aws, contact.name, comparison.LISTED_S)
    for one in seen:
        contact.tell(str(one))
    contact.run("report", contact.name)  # who was not driven to its end has none here
    report = json.loads((results / "report.json").read_text())
    begin, end = (datetime.fromisoformat(report[name]).date() for name in ("begun_at", "made_at"))
    found, refused = comparison.costs(contact.aws, contact.name, begin, end + timedelta(days=1))
    _, words = comparison.bill(found, Decimal(str(report["money"]["total_usd"])))
    contact.tell(f"Cost Explorer: could not look: {refused}" if refused else words)
    contact.tell(f"ask Cost Explorer again tomorrow: python -m tests.aws.comparison {results / 'report.json'}")
    return seen
