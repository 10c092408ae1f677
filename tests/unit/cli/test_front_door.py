"""The command line as a person meets it: help in the order of a campaign's life, version, completion, JSON."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from importlib import import_module
from inspect import signature
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import typer
from rich.console import Console
from typer.main import get_command
from typer.testing import CliRunner

from infra.cli import main
from infra.cli.answers import write_json
from infra.cli.machine import version
from infra.cli.main import app
from infra.cli.refusals import tell
from infra.errors import UserError
from tests.root import ROOT
from tests.tables import Table

TABLE = Table(__file__)

LIFE = {
    "Prepare": [
        "init",
        "check",
        "plan",
        "grant",
        "offers",
        "catalogue",
        "block",
        "bake",
        "images",
        "stack",
        "schema",
    ],
    "Run": ["preview", "rehearse", "drill", "run", "relaunch", "repair"],
    "Look": [
        "list", "status", "watch", "logs", "events", "explain", "alerts", "metrics", "dashboard", "exec",
        "cp", "profile", "report", "open", "shell",
    ],
    "End": ["down", "sweep"],
    "Data and checkpoints": ["data", "checkpoints"],
    "Administration": ["doctor", "addons"],
}  # fmt: skip
SAYS_NOTHING_TO_MACHINES = {
    "close",  # speaks into a build's log
    "init",  # writes a file and tells its name
    "grant",  # YAML is for machines
    "cp",  # the copy is what it tells
    "dashboard",  # the page is what it tells, and `metrics` has the series
    "exec",  # what runs in the container speaks for itself
    "logs",  # what pods printed, line by line
    "profile",  # the traces are what it tells
    "schema",  # is JSON anyway
    "shell",  # what runs in it speaks for itself
    "stack init",  # makes stacks and files and tells their names
    "watch",  # is for eyes: machines have `status --json`
    "token",  # is JSON anyway, in kubectl's form
}


def leaves(command: object, path: str = "") -> dict[str, object]:
    """Every command that does something, by its words."""
    inner = getattr(command, "commands", {})
    found = {path: command} if not inner or getattr(command, "invoke_without_command", False) else {}
    for name, one in inner.items():
        found |= leaves(one, f"{path} {name}".strip())
    return {name: one for name, one in found.items() if name}


def test_help_lists_the_commands_in_the_order_of_a_campaigns_life() -> None:
    stdout = CliRunner().invoke(app, ["--help"]).stdout
    seen: dict[str, list[str]] = {}
    panel = ""
    for line in stdout.splitlines():
        if title := re.match(r"╭─ ([A-Z][A-Za-z ]*?) ─", line):
            panel = title[1]
        elif (row := re.match(r"│ ([a-z]+)  ", line)) and panel != "Options":
            seen.setdefault(panel, []).append(row[1])
    assert seen == LIFE and list(seen) == list(LIFE)


def test_every_command_that_tells_something_tells_machines_too() -> None:
    without = {
        name
        for name, command in leaves(get_command(app)).items()
        if "--json" not in [option for param in command.params for option in param.opts]  # type: ignore[attr-defined]
    }
    assert without == SAYS_NOTHING_TO_MACHINES


def test_completion_knows_the_commands() -> None:
    shown = CliRunner().invoke(
        app, [], env={"_BIVOUAC_COMPLETE": "complete_bash", "COMP_WORDS": "bivouac re", "COMP_CWORD": "1"},
        prog_name="bivouac",
    )  # fmt: skip
    assert shown.stdout.split() == ["rehearse", "relaunch", "repair", "report"]


def test_the_version_names_the_commit_of_a_checkout_and_of_nothing_else(tmp_path: Path) -> None:
    alone = version(tmp_path)
    assert re.fullmatch(r"bivouac \d+\.\d+\.\d+", alone)

    def git(*arguments: str) -> str:
        own = ["-c", "user.name=x", "-c", "user.email=x@example.com", "-c", "commit.gpgsign=false"]
        done = subprocess.run(
            ["git", "-C", str(tmp_path), *own, *arguments], capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    git("init", "-q")
    (tmp_path / "file").write_text("one")
    git("add", "file")
    git("commit", "-qm", "one")
    commit = git("rev-parse", "HEAD")[:12]
    assert version(tmp_path) == f"{alone} (commit {commit})"
    (tmp_path / "file").write_text("two")
    assert version(tmp_path) == f"{alone} (commit {commit}, with changes)"
    (tmp_path / "project" / ".venv").mkdir(parents=True)
    assert version(tmp_path / "project" / ".venv") == alone, "the commit of another project's checkout"
    assert CliRunner().invoke(app, ["--version"]).stdout.startswith("bivouac ")


def test_amounts_are_numbers_in_json() -> None:
    out = io.StringIO()
    moment = datetime(2026, 8, 1, 12, tzinfo=UTC)
    value = {
        "usd": Decimal("12.50"),
        "count": Decimal("3"),
        "at": moment,
        "deadline": timedelta(hours=1),
        "x": Path("a"),
    }
    write_json(Console(file=out, width=20), value)
    assert json.loads(out.getvalue()) == {
        "usd": 12.5, "count": 3, "at": "2026-08-01T12:00:00Z", "deadline": "PT1H", "x": "a",
    }  # fmt: skip


@pytest.mark.parametrize("command", [["catalogue"], ["plan", str(ROOT / "infra/campaigns/p5-32-nodes.yaml")]])
def test_no_number_is_written_as_a_text(command: list[str]) -> None:
    def texts(value: object, path: str = "") -> list[str]:
        if isinstance(value, dict):
            return [text for key, one in value.items() for text in texts(one, f"{path}.{key}")]
        if isinstance(value, list):
            return [text for one in value for text in texts(one, path)]
        return [path] if isinstance(value, str) and re.fullmatch(r"-?\d+(\.\d+)?", value) else []

    stdout = CliRunner().invoke(app, [*command, "--json"]).stdout
    assert json.loads(stdout) and texts(json.loads(stdout)) == []


@TABLE.cases
def test_only_what_may_leave_something_standing_advises_down_when_it_is_interrupted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], line: str, again: bool, down: bool
) -> None:
    monkeypatch.setattr(sys, "argv", ["bivouac", *line.split()])
    with pytest.raises(SystemExit) as ended:
        main._tell_interrupted()
    errors = capsys.readouterr().err
    assert ended.value.code == 130 and errors.startswith("interrupted")
    assert ("run the same command again" in errors) is again and ("bivouac down" in errors) is down


@pytest.mark.parametrize("module", ["infra.cli.main", "infra.rehearsal.site.campaigns"])
def test_neither_help_nor_the_way_into_a_site_imports_models_or_clouds(module: str) -> None:
    code = f"import sys, {module}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert loaded & {"pydantic", "boto3", "botocore", "pulumi", "yaml", "torch", "lightkube", "jinja2"} == set()


LEAVES = {name: one for name, one in leaves(get_command(app)).items() if name != "catalogue"}


@pytest.mark.parametrize("name", LEAVES)
def test_every_command_declares_what_its_implementation_takes(name: str) -> None:
    callback: Any = LEAVES[name].callback  # type: ignore[attr-defined]
    module, _, function = callback.implementation.partition(":")
    implementation = getattr(import_module(f"infra.cli.{module}"), function)
    signature(implementation).bind(**dict.fromkeys(signature(callback).parameters), console=None)


@pytest.mark.parametrize("name", LEAVES)
def test_every_option_says_what_it_is_and_a_switch_that_is_off_has_no_second_name(name: str) -> None:
    if name in main.HIDDEN:
        return
    for option in LEAVES[name].params:  # type: ignore[attr-defined]
        assert option.help, option.name
        assert not option.secondary_opts or option.default is not False, option.opts


@pytest.mark.parametrize("words", [[], ["check"], ["checkpoints"], ["checkpoints", "list"]])
def test_a_short_option_shows_the_help_of_each_command(words: list[str]) -> None:
    shown = CliRunner().invoke(app, [*words, "-h"])
    assert shown.exit_code == 0 and "Usage:" in shown.stdout


def test_completion_knows_the_campaigns_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BIVOUAC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("BIVOUAC_RESULTS", str(tmp_path / "results"))
    (tmp_path / "cache/sites/default/campaigns").mkdir(parents=True)
    (tmp_path / "cache/sites/default/campaigns/train-two.json").write_text("{}")
    for name in ("train-one", "other"):
        (tmp_path / "results/123456789012-us-east-1" / name).mkdir(parents=True)
    for typed, known in (("status tr", ["train-one", "train-two"]), ("init --target r", ["rehearsal"])):
        shown = CliRunner().invoke(
            app, [], prog_name="bivouac",
            env={"_BIVOUAC_COMPLETE": "complete_bash", "COMP_WORDS": f"bivouac {typed}",
                 "COMP_CWORD": str(len(typed.split()))},
        )  # fmt: skip
        assert shown.stdout.split() == known, typed


def test_a_command_that_is_silent_for_long_says_what_it_does(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from infra.cli import options

    waited = Event()

    def announce(declaration: Any) -> None:
        real(declaration)
        waited.set()

    real = options._announce
    monkeypatch.setattr(options, "_announce", announce)
    monkeypatch.setattr(options, "SILENCE_S", 0.0)
    monkeypatch.setattr(options.PlainConsole, "silent", True)
    monkeypatch.setattr("infra.cli.machine.doctor_command", lambda as_json, console: 0 if waited.wait(30) else 1)
    with pytest.raises(typer.Exit) as ended:
        main.doctor(as_json=False)
    assert ended.value.exit_code == 0
    assert (
        capsys.readouterr().err.startswith("Show each tool, its version and origin") and not options.PlainConsole.silent
    )


def test_an_error_names_no_class_of_python(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["bivouac"])
    assert tell(UserError("no such thing", seen="x", cure="y")) == 64
    assert capsys.readouterr().err == "error: no such thing; seen: x; cure: y\n"


def test_each_command_that_a_module_declares_can_be_typed() -> None:
    """By the source's own words: a function below `@runs` is of `PANELS`, or of a group that is."""
    sources = [*(ROOT / "infra/cli").glob("*/commands.py"), ROOT / "infra/cli/main.py"]
    declared = {
        name for path in sources for name in re.findall(r"@runs\([^\n]*\n(?:@[^\n]*\n)*def (\w+)", path.read_text())
    }
    groups = [app, *(group.typer_instance for group in app.registered_groups if group.typer_instance is not None)]
    typed = {getattr(command.callback, "__name__", "") for group in groups for command in group.registered_commands}
    assert len(declared) > 30 and declared <= typed
