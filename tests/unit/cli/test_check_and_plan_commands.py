"""`bivouac check` and `bivouac plan`: text for people, JSON for machines, 64 for a spec that cannot be run."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from infra.cli import main as main_module
from infra.cli.main import main
from infra.cli.prepare.check import check_command
from infra.cli.prepare.plan import plan_command
from infra.plan.plan import Plan
from tests.root import ROOT

CAMPAIGNS = ("rehearsal", "p5-32-nodes", "p5en-capacity-block")
HEAVY = ("pulumi", "boto3", "botocore", "torch", "kubernetes", "lightkube", "moto", "deepspeed", "requests")


def _run(command: Callable[..., int], path: Path, json: bool = False) -> tuple[int, str]:
    out = io.StringIO()
    code = command(path, json, Console(file=out, width=160))
    return code, out.getvalue()


@pytest.mark.parametrize("name", CAMPAIGNS)
def test_the_campaigns_that_come_with_it_can_be_run(campaigns: Path, name: str) -> None:
    code, text = _run(check_command, campaigns / f"{name}.yaml")
    assert code == 0 and "can be run" in text and "ERROR" not in text


@pytest.mark.parametrize("name", CAMPAIGNS)
def test_a_plan_shows_cost_clock_tiers_and_cadence(campaigns: Path, name: str) -> None:
    code, text = _run(plan_command, campaigns / f"{name}.yaml")
    assert code == 0
    for title in ("Work", "Clock", "Cost", "Checkpoint tiers", "Checkpoint cadence", "formula", "planned", "Daly"):
        assert title in text


def test_a_plan_begins_with_five_lines_that_say_what_matters(campaigns: Path) -> None:
    _, text = _run(plan_command, campaigns / "p5-32-nodes.yaml")
    cost, time, cadence, risk, decided, blank = text.splitlines()[:6]
    assert cost.startswith("cost     21,176.62 USD planned of a budget of 32,000.00 USD, at most 28,262.85 USD")
    planned, longest = "11h59m21s in all, 11h37m21s until archived", "12h34m21s if AWS takes its longest"
    assert time == f"time     {planned}, {longest}; the deadline is 16h"
    assert cadence.startswith("cadence  a checkpoint every 720 steps (22m48s)")
    # 38,000 s of training / (3,700 h / 32 nodes)
    assert risk.startswith("risk     0.091 node losses expected") and "at most 22m48s of training" in risk
    assert decided == "decided  checkpoint cadence derived" and blank == ""


def test_a_plan_names_the_defaults_that_were_taken(spec_file: Any, removed: object) -> None:
    _, text = _run(plan_command, spec_file({"money.deadline": removed, "on_stop": removed}).path)
    assert "deadline 7d" in text.splitlines()[4] and "on an error hold" in text.splitlines()[4]


def test_a_plan_in_json_reads_back_as_a_plan(campaigns: Path) -> None:
    code, text = _run(plan_command, campaigns / "p5-32-nodes.yaml", json=True)
    assert code == 0
    assert Plan.model_validate(json.loads(text)).layout.world_size == 256


def test_errors_are_shown_with_place_value_and_cure_and_exit_64(spec_file: Any) -> None:
    path = spec_file({"nodes.ranks_per_node": 2, "zone": "us-west-2a"}).path
    code, text = _run(check_command, path)
    line = path.read_text().splitlines().index("  ranks_per_node: 2") + 1
    assert code == 64
    assert f"{path}:{line}  ERROR  nodes.ranks_per_node" in text
    assert "cannot be run (" in text and "us-west-2a in us-east-1" in text and "cure" in text


def test_findings_in_json_carry_all_their_fields(spec_file: Any) -> None:
    code, text = _run(check_command, spec_file({"training.global_batch": 12}).path, json=True)
    answer = json.loads(text)
    (error,) = [finding for finding in answer["findings"] if finding["level"] == "error"]
    assert code == 64 and answer["ok"] is False
    assert set(error) == {"level", "rule", "file", "line", "field", "message", "seen", "cure"}


@pytest.mark.parametrize("command", [check_command, plan_command])
@pytest.mark.parametrize("text", ["", "campaign: x\n", "a: [\n"])
def test_a_file_that_is_no_spec_exits_64_in_both_forms(tmp_path: Path, command: Callable[..., int], text: str) -> None:
    path = tmp_path / "campaign.yaml"
    path.write_text(text)
    code, shown = _run(command, path)
    assert code == 64 and "cannot be run" in shown
    code, shown = _run(command, path, json=True)
    assert code == 64 and json.loads(shown)["findings"]


@pytest.mark.parametrize("command", ["check", "plan"])
def test_a_missing_file_exits_64_with_a_cure(
    tmp_path: Path, command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(main_module, "listen", lambda: None)  # its handlers would stay in this process
    for options in ((), ("--json",)):
        monkeypatch.setattr(sys, "argv", ["bivouac", command, str(tmp_path / "no.yaml"), *options])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 64
        output = capsys.readouterr()
        assert json.loads(output.out)["error"]["cure"] if options else "no such spec file" in output.err + output.out


def test_a_plan_is_still_shown_where_the_errors_allow_one(spec_file: Any) -> None:
    code, text = _run(plan_command, spec_file({"money.budget_usd": 1}).path)
    assert code == 64 and "Checkpoint cadence" in text and "costs more than the budget" in text
    code, text = _run(plan_command, spec_file({"training.global_batch": 9}).path)
    assert code == 64 and "Checkpoint cadence" not in text and "write 8 or 16" in text
    code, text = _run(plan_command, spec_file({"money.budget_usd": 1}).path, json=True)
    assert code == 64 and json.loads(text)["ok"] is False


def test_markup_in_a_spec_is_shown_as_written(spec_file: Any) -> None:
    code, text = _run(check_command, spec_file({"preflight.profile": "[red]x[/red]"}).path)
    assert code == 64 and "[red]x[/red]" in text


def test_neither_command_imports_what_is_slow_or_talks_to_a_network() -> None:
    code = "import sys, infra.cli.prepare.check, infra.cli.prepare.plan; print(*sys.modules)"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True, cwd=ROOT
    )
    names = done.stdout.split()
    assert {name.partition(".")[0] for name in names} & set(HEAVY) == set()
    assert [name for name in names if name.startswith(("infra.record.payloads", "infra.campaign"))] == []
