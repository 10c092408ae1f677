"""At the terminal: wrong arguments, readers that leave, full disks, folders that refuse. Never a traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from infra.cli.refusals import refusal
from infra.console.terminal import ask_yes
from infra.errors import BivouacError, UserError
from infra.folders import cache_root, keep, refuse_unwritable, writable
from tests.root import ROOT
from tests.waiting import HUNG_S

SPEC = "infra/campaigns/rehearsal.yaml"


def sh(script: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """`bivouac` stands for the command; a variable set to nothing is taken out."""
    python = f"{sys.executable} -m infra.cli.main"
    environment = {key: value for key, value in (os.environ | variables).items() if value or key not in variables}
    script = script.replace("bivouac", python)
    command = ["bash", "-c", f"set -o pipefail; {script}"]
    return subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=HUNG_S)


@pytest.mark.parametrize(
    ("typed", "yes"), [("y\n", True), (" YES \n", True), ("\n", False), ("no\n", False), ("", False)]
)
def test_a_question_shows_what_can_be_answered_and_silence_is_a_no(
    typed: str, yes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", StringIO(typed))
    stream = StringIO()
    assert ask_yes("Spend it?", Console(file=stream)) is yes
    assert stream.getvalue().startswith("Spend it? [y/N] ")


@pytest.mark.parametrize(
    ("script", "code", "told"),
    [
        ("bivouac chekc x", 64, "Did you mean 'check'"),
        ("bivouac check --jsno x", 64, "--json"),
        ("bivouac check", 64, "Missing argument"),
        ("bivouac data prepare /nowhere /tmp/nowhere", 64, "no such data folder"),
        (f"bivouac plan {SPEC} > /dev/full", 74, "standard output"),
        (f"bivouac plan {SPEC} | head -1", 0, ""),
        (f"bivouac check {SPEC} >&- 2>&- <&-", 0, ""),
    ],
)
def test_a_command_line_is_answered(script: str, code: int, told: str) -> None:
    done = sh(script)
    assert done.returncode == code, done.stdout + done.stderr
    assert told in done.stdout + done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("arguments", ["check --json", "check nowhere.yaml --json", "status --json --regoin x y"])
def test_with_json_an_error_is_json(arguments: str) -> None:
    done = sh(f"bivouac {arguments}")
    answer = json.loads(done.stdout)
    assert done.returncode == 64 and answer["ok"] is False and answer["error"]["what"] and answer["error"]["cure"]


def test_a_results_folder_that_refuses_stops_a_run_before_it_starts(tmp_path: Path) -> None:
    """A file stands where the folder should be: also root cannot write there."""
    (tmp_path / "file").write_text("")
    cache = tmp_path / "cache"
    done = sh(f"bivouac run {SPEC}", BIVOUAC_RESULTS=str(tmp_path / "file"), BIVOUAC_CACHE=str(cache))
    assert done.returncode == 64 and "BIVOUAC_RESULTS" in done.stderr, done.stderr
    assert not (cache / "sites").exists()


def test_check_and_plan_need_no_home() -> None:
    assert sh(f"bivouac plan {SPEC}", HOME="", XDG_CACHE_HOME="", BIVOUAC_CACHE="").returncode == 0


def test_a_relative_cache_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BIVOUAC_CACHE", "here")
    assert cache_root() == tmp_path / "here"


def test_a_copy_that_the_disk_refuses_is_said_and_nothing_stops(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    said: list[str] = []
    assert not keep(tmp_path / "file" / "report.html", "text", said.append)
    assert "report.html" in said[0] and "state bucket keeps it" in said[0]
    assert keep(tmp_path / "new" / "report.html", "text", said.append) and len(said) == 1
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["report.html"]
    assert writable(tmp_path / "file" / "pulumi").is_dir()
    with pytest.raises(UserError, match="BIVOUAC_X"):
        refuse_unwritable(tmp_path / "file" / "x", "BIVOUAC_X")


@pytest.mark.parametrize(
    "error", [OSError(28, "No space left", "/x"), OSError(13, "denied", "/x"), ModuleNotFoundError("no x", name="x")]
)
def test_any_error_has_a_cure(error: Exception) -> None:
    refused = refusal(error)
    assert isinstance(refused, BivouacError) and refused.cure and "x" in str(refused.seen)


def test_a_fault_of_ours_keeps_its_traceback_in_a_file() -> None:
    try:
        raise ZeroDivisionError("by zero")
    except ZeroDivisionError as error:
        refused = refusal(error)
    assert refused.exit_code == 70 and refused.cure is not None
    path = Path(refused.cure.split("with ")[1].split(";")[0])
    assert "ZeroDivisionError: by zero" in path.read_text()
    path.unlink()
