"""Old prices are told in one line a day, and a refresh is offered where credentials are there."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from infra.cli import rendering
from infra.cli.rendering import print_findings
from infra.plan.checks import Finding, Level

CURE = "`bivouac catalogue refresh --write` takes over AWS's prices"


def finding(rule: str) -> Finding:
    words = {"message": "the catalogue's prices are older than 90 days", "seen": "as of 2026-07-20, 128 days"}
    return Finding(level=Level.WARNING, rule=rule, file=Path("s"), line=1, field="money", cure=CURE, **words)


def printed(*rules: str) -> str:
    console = Console(file=io.StringIO(), width=60)
    print_findings(console, Path("spec.yaml"), tuple(map(finding, rules)))
    return console.file.getvalue()  # type: ignore[attr-defined]


@pytest.fixture(autouse=True)
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BIVOUAC_CACHE", str(tmp_path / "cache"))
    for name in rendering._CREDENTIAL_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))


def test_old_prices_are_one_line_a_day_and_no_finding_of_the_spec(tmp_path: Path) -> None:
    line = "the catalogue's prices are older than 90 days: as of 2026-07-20, 128 days\n"
    assert printed("prices-are-fresh") == line + "spec.yaml: can be run (nothing found)\n"
    assert printed("prices-are-fresh") == "spec.yaml: can be run (nothing found)\n"
    assert "(1 warning)" in printed("prices-are-fresh", "another-rule") and line not in printed("prices-are-fresh")
    (tmp_path / "cache/shown-prices-are-fresh").write_text("2026-01-01")
    assert line in printed("prices-are-fresh"), "of another day"


def test_a_cache_that_cannot_be_written_hides_nothing(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    assert printed("prices-are-fresh") == printed("prices-are-fresh") != printed()


@pytest.mark.parametrize(
    ("file", "text", "variable", "offered"),
    [
        ("config", "[default]\nregion = us-east-1\n", "", False),
        ("config", "[profile a]\nsso_session = b\n", "", True),
        ("config", "[profile a]\nrole_arn=arn:aws:iam::111122223333:role/r\n", "", True),
        ("credentials", "[default]\naws_access_key_id = A\n", "", True),
        ("credentials", "# aws_access_key_id = A\n", "", False),
        ("credentials", "", "AWS_PROFILE", True),
        ("credentials", "", "AWS_ACCESS_KEY_ID", True),
    ],
)
def test_a_refresh_is_offered_where_credentials_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, text: str, variable: str, offered: bool
) -> None:
    (tmp_path / file).write_text(text)
    if variable:
        monkeypatch.setenv(variable, "x")
    assert ("catalogue refresh" in printed("prices-are-fresh")) is offered
