"""README and docs/ against the code: generated pages, links, paths, and command lines."""

from __future__ import annotations

import importlib
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import boto3
import pytest
import typer
from pydantic import TypeAdapter

from infra.cli.main import app
from infra.cli.prepare.checked import checked
from infra.plan.checks import failed
from infra.record.events import Stage
from infra.record.payloads.stages import StageStarted
from infra.record.store import CampaignStore
from infra.spec.campaign import Spec
from infra.spec.names import buckets
from tests.docs import spec_reference
from tests.docs.__main__ import PAGES
from tests.root import ROOT
from tests.worlds.s3 import FakeS3, Time

DOCUMENTS = [
    ROOT / "README.md", ROOT / "CHANGELOG.md",
    *(path for folder in ("docs", "infra", "trainer") for path in sorted((ROOT / folder).rglob("*.md"))),
]  # fmt: skip
LONGEST_README, WIDEST = 150, 120
LONGEST_JOB = 15
AT_ROOT = re.compile(r"(?:infra|trainer|tests|docs|images|playbooks|requirements|\.github|\.ci)/[\w./*-]*")
"""A path of this repository, as documents name it in code marks."""
ROOT_COMMAND = typer.main.get_command(app)
MAKEFILE = (ROOT / "Makefile").read_text()

each_document = pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))


def without_blocks(text: str) -> str:
    return re.sub(r"```.*?```", "", text, flags=re.DOTALL)


def inline_code(text: str) -> list[str]:
    """The inline code of a text."""
    return [" ".join(code.split()) for code in re.findall(r"`([^`]+)`", without_blocks(text))]


def shell_lines(text: str) -> list[str]:
    blocks = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    lines = [line.split(" #")[0].strip() for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    return [line for line in lines if line and not line.startswith("#")]


def anchors(path: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", without_blocks(path.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@each_document
def test_every_link_leads_somewhere(document: Path) -> None:
    text = re.sub(r"`[^`]*`", "", without_blocks(document.read_text()))  # a pattern in code may look like a link
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith(("https://", "http://")):
            continue
        path, _, anchor = target.partition("#")
        page = document.parent / path if path else document
        assert page.exists(), f"{target}: no such file"
        assert not anchor or anchor in anchors(page), f"{target}: no such heading; there are {sorted(anchors(page))}"


@each_document
def test_no_line_is_wider_than_a_reader_of_plain_text_sees(document: Path) -> None:
    assert [line for line in document.read_text().splitlines() if len(line) > WIDEST] == []


@each_document
def test_every_path_of_the_repository_that_is_named_exists(document: Path) -> None:
    for code in inline_code(document.read_text()):
        for name in AT_ROOT.findall(code) if AT_ROOT.match(code) else []:
            paths = list(ROOT.glob(name)) if "*" in name else [ROOT / name]
            assert paths and paths[0].exists(), f"`{code}`: no such file or folder"


@each_document
def test_every_shell_line_names_a_command_or_target_that_exists(document: Path) -> None:
    for line in shell_lines(document.read_text()):
        words = shlex.split(line)
        if words[0] == "bivouac":
            parse(words[1:])
        elif words[0] == "make":
            check_targets(words[1:])


@each_document
def test_inline_commands_name_commands_options_and_targets_that_exist(document: Path) -> None:
    for code in inline_code(document.read_text()):
        words = shlex.split(code)
        if words[0] == "make" and len(words) > 1:
            check_targets(words[1:])
        elif words[0] == "bivouac" and len(words) > 1:
            command, arguments = command_of(words[1:])
            choices = {"--help", *(opt for field in command.params for opt in (*field.opts, *field.secondary_opts))}
            own_words = arguments[: arguments.index("--")] if "--" in arguments else arguments
            options = {word.strip("[]") for word in own_words if word.strip("[]").startswith("-")}
            assert options <= choices, f"`{code}`: no option {sorted(options - choices)}"


def command_of(words: list[str]) -> tuple[Any, list[str]]:
    """The command that the first words name, and the words that are left."""
    command: Any = ROOT_COMMAND
    while hasattr(command, "commands") and words and not words[0].startswith(("-", "...")):
        assert words[0] in command.commands, f"no command {words[0]!r}; there are {sorted(command.commands)}"
        command, words = command.commands[words[0]], words[1:]
    return command, words


def parse(words: list[str]) -> None:
    """Parse a whole command line as the program would, without running it; what does not parse raises."""
    command, arguments = command_of(words)
    command.make_context("bivouac", arguments)


def check_targets(words: list[str]) -> None:
    """Refuse a target that the Makefile does not have, and a variable that it does not read."""
    targets = set(re.findall(r"^([a-z%-]+):", MAKEFILE, re.MULTILINE))
    for word in words:
        variable, equals, _ = word.partition("=")
        if equals:
            assert f"$({variable})" in MAKEFILE, f"the Makefile reads no {variable}"
        elif word.startswith("bench-"):
            name = word.removeprefix("bench-").replace(".", "/")
            assert name == "NAME" or any(
                (ROOT / "tests/bench" / place).exists() for place in (f"{name}.py", f"{name}/__main__.py")
            ), name
        else:
            assert word in targets, f"no target {word!r}; there are {sorted(targets)}"


@pytest.mark.parametrize("path", PAGES)
def test_generated_pages_are_as_make_docs_writes_them(path: str) -> None:
    assert (ROOT / path).read_text() == PAGES[path](), f"{path} is not what the code says: run `make docs`"


def test_every_field_of_the_spec_is_described() -> None:
    for path, model in spec_reference.sections().items():
        assert not set(model.model_fields) - set(spec_reference.descriptions(model)), f"section {path!r}"


def test_every_example_of_a_section_is_valid() -> None:
    for path, example in spec_reference.examples().items():
        field: Any = None
        model: Any = Spec
        for name in path.split("."):
            field, model = model.model_fields[name], spec_reference.model_in(model.model_fields[name].annotation)
        TypeAdapter(field.annotation).validate_python(example)


def test_the_readmes_own_job_is_a_spec_of_fifteen_lines_that_can_be_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(ROOT)
    (text,) = re.findall(r"```yaml\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert len(text.splitlines()) <= LONGEST_JOB
    path = tmp_path / "campaign.yaml"
    path.write_text(text)
    assert not failed(checked(path).findings)


PYTHON = [
    block
    for name in ("python.md", "changing.md")
    for block in re.findall(r"^```python\n(.*?)^```", (ROOT / "docs" / name).read_text(), re.DOTALL | re.MULTILINE)
]
"""Programs of pages that can run alone; those of a training script need its job."""


@pytest.mark.parametrize("block", PYTHON)
def test_a_program_of_a_page_runs(block: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    s3: Any = FakeS3(Time())
    monkeypatch.setattr(boto3, "client", lambda service: s3)
    store = CampaignStore(s3, buckets("123456789012", "us-east-1").state, "rehearsal", "driver")
    store.append(StageStarted(stage=Stage.BAKE, who="ada"))
    monkeypatch.chdir(tmp_path)
    Path("campaign.yaml").write_text((ROOT / "infra/campaigns/rehearsal.yaml").read_text())
    exec(compile(block, "page", "exec"), {"__name__": "page"})


def test_what_another_program_may_import_is_there() -> None:
    rows = re.findall(r"^\| `([\w.]+)` \| (.*?) \|", (ROOT / "docs/python.md").read_text(), re.MULTILINE)
    assert len(rows) > 5
    for module, names in rows:
        assert set(re.findall(r"`(\w+)`", names)) <= set(dir(importlib.import_module(module))), module


def test_the_changelog_begins_with_the_projects_version() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    (newest, *_) = re.findall(r"^## (\S+?),? (\d{4}-\d\d-\d\d)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest[0] == version


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= LONGEST_README
