"""What comes from outside comes by a sum or a commit: Python packages, actions of workflows, what images stand on."""

from __future__ import annotations

import re
import tomllib

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.root import ROOT

DOCUMENT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = DOCUMENT["project"]
EXTRAS = [one for many in PROJECT["optional-dependencies"].values() for one in many]
DECLARED = {
    "all": [*PROJECT["dependencies"], *EXTRAS],
    "closer": PROJECT["dependencies"],
    "image": PROJECT["dependencies"],
    "steward": DOCUMENT["dependency-groups"]["steward"],
    "build": ["setuptools", "wheel"],
}


def lock(name: str) -> dict[str, str]:
    """Package -> version; every entry is one version with sums."""
    text = (ROOT / f"requirements/{name}.txt").read_text()
    versions = dict[str, str]()
    for entry in re.split(r"(?<!\\)\n", text):
        if entry.strip():
            match = re.fullmatch(r"(\S+)==(\S+)( ; [^\\]+)?((?: \\\n    --hash=sha256:[0-9a-f]{64})+)", entry)
            assert match, f"{name}: {entry[:80]}"
            versions[canonicalize_name(match[1])] = match[2]
    return versions


@pytest.mark.parametrize("name", DECLARED)
def test_a_lock_holds_what_the_project_declares_in_a_version_that_it_allows(name: str) -> None:
    pins = lock(name)
    for text in DECLARED[name]:
        requirement = Requirement(text)
        version = pins.get(canonicalize_name(requirement.name))
        assert version and requirement.specifier.contains(version), f"{text}: {version}; cure: make lock"


def test_the_locks_do_not_differ_in_what_both_hold() -> None:
    all_packages = lock("all")
    for name in ("closer", "image", "steward", "build"):
        pins = lock(name)
        assert pins and {key: all_packages.get(key) for key in pins} == pins


def test_only_what_people_develop_and_rehearse_with_stays_out_of_an_image() -> None:
    assert not {"moto", "pytest", "ansible-lint", "mypy"} & set(lock("image"))
    assert not {"moto", "pytest", "torch", "deepspeed", "tokenizers"} & set(lock("closer"))
    assert not {"torch", "numpy", "pulumi", "pulumi-aws", "ansible-core", "grpcio"} & set(lock("steward"))


def test_the_stewards_packages_are_asked_for_as_the_drivers() -> None:
    assert set(DOCUMENT["dependency-groups"]["steward"]) < set(PROJECT["dependencies"])


def test_a_lock_tells_no_place_that_packages_come_from() -> None:
    assert [path for path in (ROOT / "requirements").iterdir() if "://" in path.read_text()] == []


INSTALLED_BY = (
    "infra/stack/closer.py",
    "Makefile",
    "images/trainer.Dockerfile",
    ".github/workflows/images.yml",
    "infra/ci/install.sh",
    ".github/workflows/test.yml",
)


@pytest.mark.parametrize("name", INSTALLED_BY)
def test_pip_installs_nothing_whose_sum_is_not_written_down(name: str) -> None:
    text = (ROOT / name).read_text()
    commands = [line for line in text.splitlines() if re.search(r"(pip|\$\(PIP\)) install", line)]
    assert commands or name.endswith(("test.yml", "images.yml"))
    for line in commands:
        own_commands = re.search(r"--no-deps (-e \.|/var/tmp/bivouac)( |$)", line)
        assert "--require-hashes" in line or own_commands, line
        unbuilt = "--only-binary :all:" in line
        assert unbuilt or "build.txt" in line or "--no-build-isolation" in line, (
            f"an isolated build takes what it likes: {line}"
        )


def test_every_action_is_a_commit_with_its_version_beside_it() -> None:
    uses = [
        line.split("uses:")[1].strip()
        for path in sorted((ROOT / ".github").glob("**/*.yml"))
        for line in path.read_text().splitlines()
        if "uses:" in line and "uses: ./" not in line
    ]
    assert len(uses) > 6
    assert [use for use in uses if not re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}  # v\d+\.\d+\.\d+", use)] == []


def test_an_image_stands_on_nothing_that_has_no_digest() -> None:
    text = (ROOT / "images/trainer.Dockerfile").read_text()
    stages = re.findall(r"^FROM (\S+)(?: AS (\w+))?$", text, re.MULTILINE)
    outside = [base for base, _ in stages if base not in {name for _, name in stages}]
    assert set(outside) == {"${BASE}"} and re.search(r"^ARG BASE$", text, re.MULTILINE), "no default"
    versions = yaml.safe_load((ROOT / "images/versions.yaml").read_text())["versions"]
    for name in ("trainer_container", "slim_container"):
        assert re.fullmatch(r"sha256:[0-9a-f]{64}", versions[name].get("base_digest", "sha256:" + "0" * 64))
