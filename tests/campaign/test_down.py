"""Ended by hand in the middle of training: asked on a terminal, looked at and changed by hand, archived, destroyed by
hand, certified."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.campaign.rehearsal import BIVOUAC, Rehearsal, quick, until
from tests.root import ROOT
from tests.terminal import on_terminal
from tests.waiting import HUNG_S

pytestmark = pytest.mark.nightly

LONG = quick(60_000, campaign="stopped", data={"max_files": 100, "max_epochs": 10_000})
"""Hours of steps: however slow the machine, training is not over when `down` comes."""


@dataclass
class Ended:
    rehearsal: Rehearsal
    interrupted: int
    """Exit code of the driver that a Ctrl-C ended."""
    walk: dict[str, subprocess.CompletedProcess[str]] = field(default_factory=dict)
    """Each line of the walk by hand, run on the live campaign."""
    too_early: subprocess.CompletedProcess[str] | None = None
    """`pulumi destroy` while it trains."""
    money: list[dict[str, Any]] = field(default_factory=list)
    """The status twice while it trains, the second once the first one's bill has grown."""
    refused: tuple[int, str] = (0, "")
    """Exit code and words of a `down` on a terminal that was answered by no."""
    trained_on: int = 0
    """Step that training has reached after that."""
    consent: str = ""
    """Words of the `down` on a terminal that was answered by yes."""
    destroy: subprocess.CompletedProcess[str] | None = None
    down: subprocess.CompletedProcess[str] | None = None


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ended]:
    """Ctrl-C in training; the walk by hand; `down` until it has archived; `pulumi destroy` by hand; `down` again. An
    `up` before it reads that the archive is proven."""
    rehearsal = Rehearsal(tmp_path_factory.mktemp("down"), LONG)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BIVOUAC_CACHE", str(rehearsal.cache))
        try:
            driver = rehearsal.start()
            until(lambda: driver.poll() is not None or rehearsal.step() >= 30, "training is under way")
            assert driver.poll() is None, rehearsal.log()
            money = [rehearsal.status()]
            until(lambda: rehearsal.status()["spent_usd"] > money[0]["spent_usd"], "the bill grows")
            money.append(rehearsal.status())
            environment = rehearsal.environment | {"COLUMNS": "300"}
            refused = on_terminal([*BIVOUAC, "down", rehearsal.name], "no\n", environment, rehearsal.root)
            step = rehearsal.step()
            until(lambda: driver.poll() is not None or rehearsal.step() > step, "it trains on")
            trained_on = rehearsal.step()
            driver.send_signal(signal.SIGINT)
            seen = Ended(rehearsal, driver.wait(timeout=HUNG_S), money=money, refused=refused, trained_on=trained_on)
            seen.walk = {line: rehearsal.run(*shlex.split(line)[1:]) for line in walk(rehearsal.name)}
            shell = ("shell", rehearsal.name, "--", "pulumi")
            seen.too_early = rehearsal.run(*shell, "destroy", "--yes")
            before, (keyboard, terminal) = rehearsal.log(), os.openpty()
            os.write(keyboard, b"yes\n")
            down = rehearsal.start("down", rehearsal.name, keyboard=terminal)
            verified = "read back; evaluation"
            until(lambda: down.poll() is not None or verified in rehearsal.log(), "the archive is verified")
            down.send_signal(signal.SIGINT)
            down.wait(timeout=HUNG_S)
            seen.consent = rehearsal.log().removeprefix(before)
            os.close(keyboard)
            os.close(terminal)
            rehearsal.run(*shell, "up", "--yes")
            seen.destroy = rehearsal.run(*shell, "destroy", "--yes")
            seen.down = rehearsal.run("down", rehearsal.name, "--yes")
            yield seen
        finally:
            rehearsal.strike()


def walk(name: str) -> list[str]:
    """The commands of the page's section `By hand`, for a campaign of another name; comments fall away."""
    section = (ROOT / "docs/rehearsal.md").read_text().split("## By hand")[1]
    block = re.search(r"```sh\n(.*?)```", section, re.DOTALL)
    assert block is not None
    return [line.split(" #")[0].rstrip().replace("rehearsal", name) for line in block.group(1).splitlines()]


def test_ctrl_c_ends_the_driver_and_says_how_to_go_on(ended: Ended) -> None:
    assert ended.interrupted == 130
    assert "run the same command again to continue" in ended.rehearsal.log()
    assert "Traceback" not in ended.rehearsal.log()


def test_the_status_of_a_campaign_that_trains_has_its_money_in_two_parts_and_both_move(ended: Ended) -> None:
    earlier, later = ended.money
    for status in ended.money:
        assert status["stage"] == "in supervise" and status["training"]["step"] > 0
        assert status["spent_usd"] == pytest.approx(status["metered_usd"] + status["estimated_usd"], abs=2e-4)
        assert status["bills_usd_per_hour"] > 0
    assert later["metered_usd"] > earlier["metered_usd"] and later["estimated_usd"] >= earlier["estimated_usd"]


def test_a_no_on_the_terminal_leaves_training_as_it_was_and_a_yes_ends_it(ended: Ended) -> None:
    code, text = ended.refused
    assert code != 0 and "Tear it down?" in text and "nothing was changed" in text, text
    step = re.search(r"training +step (\d+) of 60000, (committed step \d+|no committed checkpoint)", text)
    assert step is not None and int(step[1]) >= 30, text
    assert re.search(r"stands +bills now: [0-9.]+ USD/h \(.*GPU nodes", text), text
    assert re.search(r"keeping +[0-9.,]+ USD a day, [0-9.,]+ USD so far", text), text
    assert re.search(r"lost +what is not committed; the rest is archived first", text), text
    if step[2].startswith("committed"):
        assert f"newest checkpoint known: {step[2].removeprefix('committed ')}" in text, text
    assert ended.trained_on > int(step[1])
    assert "Tear it down?" in ended.consent and "read back; evaluation" in ended.consent, ended.consent


def test_every_line_of_the_readmes_walk_works_by_hand(ended: Ended) -> None:
    assert len(ended.walk) >= 8
    for line, done in ended.walk.items():
        assert done.returncode == 0, f"{line}: {done.stdout[-2000:]} {done.stderr[-2000:]}"
    outputs = {line.rpartition("-- ")[2]: done.stdout for line, done in ended.walk.items()}
    for command in ("pulumi preview", "pulumi up --yes"):
        assert re.search(r"Resources:\s+\d+ unchanged", outputs[command]), outputs[command][-1000:]
    refreshed = outputs["pulumi refresh --yes"]
    changed = re.findall(r"^ ~ +(aws|kubernetes)(\S+) (\S+) .*\bupdated?\b", refreshed, re.MULTILINE)
    # The driver moves the launch budget's schedules itself: infra/campaign/launch_budget.py.
    others = [row for row in changed if not (row[1] == ":scheduler:Schedule" and row[2].startswith("launch"))]
    assert {row[:2] for row in others} == {("aws", ":eks:NodeGroup")}, refreshed[:3000]
    assert "Ready" in outputs["kubectl get nodes,pods"]
    assert "ACTIVE" in outputs[f"aws eks describe-cluster --name bivouac-{ended.rehearsal.name}"]


def test_pulumi_destroy_by_hand_refuses_while_it_trains(ended: Ended) -> None:
    assert ended.too_early is not None and ended.too_early.returncode != 0
    assert "LustreFileSystem::shared" in ended.too_early.stdout and "protected" in ended.too_early.stdout


def test_pulumi_destroy_by_hand_leaves_an_empty_stack(ended: Ended) -> None:
    assert ended.destroy is not None
    assert ended.destroy.returncode == 0, ended.destroy.stdout[-2000:] + ended.destroy.stderr[-2000:]
    assert ended.down is not None
    assert "the stack was empty and nothing is left" in ended.down.stdout


def test_what_is_sound_is_archived_before_everything_falls_and_is_certified(ended: Ended) -> None:
    assert ended.down is not None
    assert ended.down.returncode == 0, ended.down.stdout + ended.down.stderr
    events = ended.rehearsal.events()
    kinds = [event["kind"] for event in events]
    assert kinds.index("archive.verified") < kinds.index("certified")
    archived = next(event["data"] for event in events if event["kind"] == "archive.verified")
    finished = next(event["data"] for event in events if event["kind"] == "training.finished")
    assert finished["outcome"] == "stopped"
    ended_at = next(event["data"] for event in events if event["kind"] == "attempt.ended")
    assert archived["step"] == finished["committed_step"] >= ended_at["step"], "what the stop committed is archived"
    assert archived["restored_evaluation_loss"] == archived["reference_evaluation_loss"] is not None
    assert [event["data"]["clean"] for event in events if event["kind"] == "certified"] == [True]


def test_afterwards_nothing_bills(ended: Ended) -> None:
    assert ended.rehearsal.status()["bills_usd_per_hour"] == 0.0


def test_the_page_of_a_stopped_campaign_is_written(ended: Ended) -> None:
    assert Path(ended.rehearsal.results / "report.html").exists()
