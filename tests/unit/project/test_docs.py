"""README and docs/ against the code: generated pages, links, paths, and command lines."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer
from pydantic import TypeAdapter

from infra.cli.main import app
from infra.cli.prepare.checked import checked
from infra.plan.checks import failed
from infra.spec.campaign import Spec
from tests.docs import spec_reference
from tests.docs.__main__ import PAGES
from tests.root import ROOT

BESIDE_CODE = (ROOT / "infra/ci/README.md", ROOT / "infra/rehearsal/README.md")
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *BESIDE_CODE]
LONGEST_README = 150
LONGEST_JOB = 15
AT_ROOT = re.compile(r"(?:infra|trainer|tests|docs|images|playbooks|requirements|\.github|\.ci)/[\w./*-]*")
"""A path of this repository, as documents name it in code marks."""
ROOT_COMMAND = typer.main.get_command(app)
MAKEFILE = (ROOT / "Makefile").read_text()

each_document = pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))


def without_blocks(text: str) -> str:
    return re.sub(r"```.*?```", "", text, flags=re.DOTALL)


def marked(text: str) -> list[str]:
    """The inline code of a text."""
    return [" ".join(code.split()) for code in re.findall(r"`([^`]+)`", without_blocks(text))]


def shell_lines(text: str) -> list[str]:
    blocks = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    lines = [line.split(" #")[0].strip() for block in blocks for line in block.splitlines()]
    return [line for line in lines if line and not line.startswith("#")]


def anchors(path: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", without_blocks(path.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@each_document
def test_every_link_leads_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", without_blocks(document.read_text())):
        if target.startswith(("https://", "http://")):
            continue
        path, _, anchor = target.partition("#")
        page = document.parent / path if path else document
        assert page.exists(), f"{target}: no such file"
        assert not anchor or anchor in anchors(page), f"{target}: no such heading; there are {sorted(anchors(page))}"


@each_document
def test_every_path_of_the_repository_that_is_named_exists(document: Path) -> None:
    for code in marked(document.read_text()):
        for name in AT_ROOT.findall(code) if AT_ROOT.match(code) else []:
            found = list(ROOT.glob(name)) if "*" in name else [ROOT / name]
            assert found and found[0].exists(), f"`{code}`: no such file or folder"


@each_document
def test_every_shell_line_names_a_command_or_target_that_exists(document: Path) -> None:
    for line in shell_lines(document.read_text()):
        words = shlex.split(line)
        if words[0] == "bivouac":
            parsed(words[1:])
        elif words[0] == "make":
            made(words[1:])


@each_document
def test_inline_commands_name_commands_options_and_targets_that_exist(document: Path) -> None:
    for code in marked(document.read_text()):
        words = shlex.split(code)
        if words[0] == "make" and len(words) > 1:
            made(words[1:])
        elif words[0] == "bivouac" and len(words) > 1:
            command, rest = named(words[1:])
            known = {"--help", *(opt for one in command.params for opt in (*one.opts, *one.secondary_opts))}
            before = rest[: rest.index("--")] if "--" in rest else rest
            asked = {word.strip("[]") for word in before if word.strip("[]").startswith("-")}
            assert asked <= known, f"`{code}`: no option {sorted(asked - known)}"


def named(words: list[str]) -> tuple[Any, list[str]]:
    """The command that the first words name, and the words that are left."""
    command: Any = ROOT_COMMAND
    while hasattr(command, "commands") and words and not words[0].startswith(("-", "...")):
        assert words[0] in command.commands, f"no command {words[0]!r}; there are {sorted(command.commands)}"
        command, words = command.commands[words[0]], words[1:]
    return command, words


def parsed(words: list[str]) -> None:
    """Parse a whole command line as the program would, without running it; what does not parse raises."""
    command, rest = named(words)
    command.make_context("bivouac", rest)


def made(words: list[str]) -> None:
    """Refuse a target that the Makefile does not have, and a variable that it does not read."""
    targets = set(re.findall(r"^([a-z%-]+):", MAKEFILE, re.MULTILINE))
    for word in words:
        variable, equals, _ = word.partition("=")
        if equals:
            assert f"$({variable})" in MAKEFILE, f"the Makefile reads no {variable}"
        elif word.startswith("bench-"):
            name = word.removeprefix("bench-")
            assert name == "NAME" or (ROOT / f"tests/bench/{name}.py").exists(), f"no benchmark {name}"
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


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= LONGEST_README
