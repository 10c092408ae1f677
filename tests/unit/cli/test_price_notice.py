"""Old prices are told in one line a day, and a refresh is offered where credentials are there."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest
from rich.console import Console

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
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)


def test_old_prices_are_one_line_a_day_and_no_finding_of_the_spec(tmp_path: Path) -> None:
    line = "the catalogue's prices are older than 90 days: as of 2026-07-20, 128 days\n"
    assert printed("price-age") == line + "spec.yaml: can be run (nothing found)\n"
    assert printed("price-age") == "spec.yaml: can be run (nothing found)\n"
    assert "(1 warning)" in printed("price-age", "another-rule") and line not in printed("price-age")
    (tmp_path / "cache/shown-price-age").write_text("2026-01-01")
    assert line in printed("price-age"), "of another day"


def test_a_cache_that_cannot_be_written_hides_nothing(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    assert printed("price-age") == printed("price-age") != printed()


IN_A_BUILD, IN_A_POD = (f"AWS_CONTAINER_CREDENTIALS_{kind}_URI" for kind in ("RELATIVE", "FULL"))


@pytest.mark.parametrize(
    "there", ["AWS_PROFILE", "AWS_ACCESS_KEY_ID", IN_A_BUILD, IN_A_POD, ".aws/config", ".aws/credentials", ""]
)
def test_a_refresh_is_offered_where_credentials_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: str
) -> None:
    if there.startswith("AWS"):
        monkeypatch.setenv(there, "x")
    elif there:
        (tmp_path / ".aws").mkdir()
        (tmp_path / there).write_text("[default]\n")
    assert ("catalogue refresh" in printed("price-age")) is bool(there)
