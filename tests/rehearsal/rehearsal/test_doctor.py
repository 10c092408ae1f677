"""What the doctor finds missing on a machine, and how it is got."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from infra.rehearsal import doctor
from infra.rehearsal.doctor import Diagnosis, diagnose
from infra.toolchain.table import TOOLS


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that has neither the tools nor Go."""
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    monkeypatch.setenv("BIVOUAC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("infra.toolchain.build.USUAL_GO", tmp_path / "no-go")


def test_the_doctor_finds_every_tool_of_an_empty_cache_missing_and_names_the_cure(bare: None) -> None:
    findings: dict[str, Diagnosis] = {finding.subject: finding for finding in diagnose()}
    assert {tool.name for tool in TOOLS} | {"python", "namespaces", "cores", "memory", "disk"} <= findings.keys()
    for needed in ("make", "git", "C compiler"):
        assert not findings[needed].ok and findings[needed].cure.startswith("install "), "nothing is on this PATH"
    for tool in TOOLS:
        assert not findings[tool.name].ok
        assert findings[tool.name].cure.startswith("make setup ")
    assert findings["python"].ok
    assert all(finding.ok or finding.cure for finding in findings.values())


def test_the_doctor_finds_go_where_a_build_would_take_it_from(
    bare: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Go's own instructions put it where PATH does not look."""
    usual = tmp_path / "go"
    usual.write_text("#!/bin/sh\necho go version go1.26.8\n")
    usual.chmod(0o755)
    monkeypatch.setattr("infra.toolchain.build.USUAL_GO", usual)
    found = {finding.subject: finding for finding in diagnose()}["go"]
    assert (found.ok, found.seen) == (True, "go1.26.8")


@pytest.mark.parametrize(
    ("clone", "packages", "bad"),
    [
        ('/home/ann/bivouac é "x"', '/home/ann/bivouac é "x"/.venv', set()),
        ("/home/ann/$5/bivouac", "/home/ann/$5/bivouac/.venv", {"clone's path"}),
        ("/a:b", "/opt/venv", {"clone's path"}),
        ("/home/ann/bivouac", "/opt/$5/venv", {"packages' path"}),
    ],
)
def test_a_folder_whose_name_breaks_the_tools_is_refused_and_shown_as_what_it_is(
    monkeypatch: pytest.MonkeyPatch, clone: str, packages: str, bad: set[str]
) -> None:
    monkeypatch.setattr(doctor, "CLONE", Path(clone))
    monkeypatch.setattr(sys, "prefix", packages)
    findings = {finding.subject: finding for finding in diagnose() if finding.subject.endswith(" path")}
    assert {subject for subject, finding in findings.items() if not finding.ok} == bad
    assert all(bool(finding.cure) is not finding.ok for finding in findings.values())
    assert findings["clone's path"].seen == clone
    apart = {finding.seen for subject, finding in findings.items() if subject != "clone's path"}
    assert apart == (set() if packages.startswith(f"{clone}/") else {packages})


def test_the_file_system_of_the_packages_is_looked_at_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """/proc stands for a file system of its own without room."""
    monkeypatch.setenv("BIVOUAC_CACHE", str(tmp_path / "not-yet/there"))
    monkeypatch.setattr(sys, "prefix", "/proc/self/none")
    apart = {finding.subject: finding for finding in diagnose() if finding.subject.startswith("disk")}
    assert str(tmp_path) in apart["disk"].seen and "/proc/self/none" not in apart["disk"].seen
    assert apart["disk of packages"].seen == "0 GiB free for /proc/self/none" and apart["disk of packages"].ok
    monkeypatch.setattr(doctor.metadata, "version", lambda name: "0.0.1")
    lacking = {finding.subject: finding for finding in diagnose()}["disk of packages"]
    assert not lacking.ok and lacking.cure.startswith("6.5 are needed")
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "venv"))
    (one,) = [finding for finding in diagnose() if finding.subject.startswith("disk")]
    assert str(tmp_path / "venv") in one.seen and str(tmp_path / "not-yet/there") in one.seen
