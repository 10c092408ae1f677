"""The body of `make test-aws` against a `bivouac` that keeps a diary: what it does, and in which order."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest

from infra.bake import trial_build
from tests.aws.contact import ENDED, KILLED, LEFT, Contact, NotAgreed, _kill_driver, first_contact
from tests.aws.transcript import Transcript

FAKE = """
import json, os, pathlib, sys, time
here = pathlib.Path(os.environ["DIARY"])
words = sys.argv[1:]
with (here / "diary").open("a") as diary:
    diary.write(" ".join(words) + "\\n")
told = lambda name: json.loads((here / "story.json").read_text()).get(name)
match words:
    case ["check", *_]:
        print("all sound in 482915037261")
        sys.exit(told("check") or 0)
    case ["plan", *_]:
        print(json.dumps({"totals": {"usd": {"value": 3.29}, "usd_at_deadline": {"value": 10.6}}}))
    case ["status", *_]:
        looks = len([line for line in (here / "diary").read_text().splitlines() if line.startswith("status")])
        live = {"committed_step": 150 if looks > 2 and (here / "printed").exists() else None}
        ended = (told("ends_after") or 0) and looks > told("ends_after")
        print(json.dumps({"live": live, "attempts": 2, "stage": "ended" if ended else "supervise"}))
    case ["run", *_]:
        print("from 198.51.100.23", flush=True)
        (here / "printed").touch()
        while told("run") is None and "terminate-instances" not in (here / "diary").read_text():
            time.sleep(0.01)
        print("trained, torn down", flush=True)
        sys.exit(told("run") or 0)
    case ["shell", _, "--", "aws", "ec2", "describe-instances", *_]:
        print(json.dumps({"Reservations": [{"Instances": [{"InstanceId": one}]} for one in ("i-1", "i-2")]}))
    case ["shell", *_]:
        print("{}")
"""


@pytest.fixture
def contact(tmp_path: Path) -> Callable[..., Contact]:
    def made(**story: int) -> Contact:
        (tmp_path / "story.json").write_text(json.dumps(story))
        (tmp_path / "fake.py").write_text(FAKE)
        return Contact(
            "first-contact", tmp_path / "spec.yaml", "g6.8xlarge", [sys.executable, str(tmp_path / "fake.py")],
            os.environ | {"DIARY": str(tmp_path)}, Transcript(tmp_path / "transcript.txt"), pause_s=0.01,
        )  # fmt: skip

    return made


def diary(contact: Contact) -> list[str]:
    lines = (contact.spec.parent / "diary").read_text().splitlines()
    return [line for line in lines if not line.startswith("status")]


def test_a_node_is_killed_after_a_commit_and_the_campaign_is_torn_down(contact: Callable[..., Contact]) -> None:
    usds: list[tuple[str, str]] = []
    one = contact()
    end = first_contact(one, lambda *usd: not usds.append(usd))
    assert usds == [("3.29", "10.60")] and end["attempts"] == 2
    first, plan, run, looked, killed, down = diary(one)
    assert first.endswith("--online") and plan.startswith("plan") and run.endswith("--yes")
    assert "tag:bivouac:campaign,Values=first-contact" in looked and "instance-type,Values=g6.8xlarge" in looked
    assert "terminate-instances --instance-ids i-2" in killed and down == "down first-contact --yes"
    assert f"{KILLED} i-2" in one.said
    text = one.transcript.path.read_text()
    assert "all sound in <account-1>" in text and "from <ip-1>" in text and "trained, torn down" in text


@pytest.mark.parametrize(("story", "says"), [({"check": 64}, True), ({}, False)], ids=["unsound", "not agreed"])
def test_without_a_sound_spec_and_a_yes_nothing_is_made(
    contact: Callable[..., Contact], story: dict[str, int], says: bool
) -> None:
    one = contact(**story)
    with pytest.raises(NotAgreed):
        first_contact(one, lambda *_: says)
    assert not [line for line in diary(one) if line.split()[0] not in ("check", "plan")]


@pytest.mark.parametrize(
    ("story", "down", "says"),
    [({"ends_after": 5}, False, ENDED), ({}, True, "nobody has ended it within 0 s")],
    ids=["ended", "not ended"],
)
def test_a_killed_driver_stays_dead_and_down_is_asked_where_the_account_has_not_ended(
    contact: Callable[..., Contact], story: dict[str, int], down: bool, says: str
) -> None:
    one = contact(**story)
    one.detach, one.ends_within_s = True, 60.0 if story else 0.1
    first_contact(one, lambda *_: True)
    assert [line.split()[0] for line in diary(one)] == ["check", "plan", "run"] + ["down"] * down
    assert any(line.startswith(LEFT) for line in one.said) and says in one.said
    assert "bivouac run ended with exit code -9" in one.said


def test_where_there_is_no_closer_the_driver_is_left_alive(contact: Callable[..., Contact]) -> None:
    one, driver = contact(), Mock()
    one.tell(trial_build._what_to_ask("us-east-1", "Cannot have more than 0 builds in queue for the account"))
    _kill_driver(one, driver)
    assert not driver.kill.called and "this account has no closer" in one.said[-1]


def test_a_run_that_ends_early_is_torn_down_and_kills_nothing(contact: Callable[..., Contact]) -> None:
    one = contact(run=70)
    first_contact(one, lambda *_: True)
    assert diary(one)[-1] == "down first-contact --yes" and not [line for line in diary(one) if "terminate" in line]
    assert "bivouac run ended with exit code 70" in one.said


def test_an_interrupted_contact_ends_its_run_and_tears_down(
    contact: Callable[..., Contact], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = contact()

    def interrupted() -> dict[str, int]:
        raise KeyboardInterrupt

    monkeypatch.setattr(one, "status", interrupted)
    with pytest.raises(KeyboardInterrupt):
        first_contact(one, lambda *_: True)
    assert diary(one)[-1] == "down first-contact --yes"
