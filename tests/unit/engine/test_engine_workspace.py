"""What the engine's workspace does itself instead of starting Pulumi's CLI: here the CLI cannot be started at all."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from pulumi import automation as auto
from pulumi.automation._stack import StackInitMode

from infra.engine.engine import Engine, EngineStack, EngineWorkspace
from infra.engine.state_copy import FORMAT_VERSION


class NoCommand(auto.PulumiCommand):
    def __init__(self) -> None:
        self.command, self.version = "pulumi", None
        self.starts: list[list[str]] = []

    def run(self, args: list[str], *_: Any, **__: Any) -> auto.CommandResult:
        self.starts.append(args)
        return auto.CommandResult(stdout="{}", stderr="", code=0)


def workspace(folder: Path, *outputs: dict[str, Any]) -> tuple[EngineWorkspace, NoCommand]:
    """A workspace whose stack is stored with these outputs; none: it is not stored."""
    command = NoCommand()
    settings = auto.ProjectSettings(name="bivouac", runtime="python")
    resources = [{"type": "aws:ec2/vpc:Vpc"}, *({"type": "pulumi:pulumi:Stack", "outputs": value} for value in outputs)]
    document = {"version": FORMAT_VERSION, "checkpoint": {"latest": {"resources": resources}}} if outputs else None
    stored: Any = {"campaign-train": document}.get
    return EngineWorkspace(stored, work_dir=str(folder), pulumi_command=command, project_settings=settings), command


def test_a_stack_that_is_stored_is_opened_without_the_cli_and_another_is_made(tmp_path: Path) -> None:
    stored, command = workspace(tmp_path, {})
    EngineStack("campaign-train", stored, StackInitMode.CREATE_OR_SELECT)
    assert command.starts == []
    fresh, command = workspace(tmp_path)
    EngineStack("campaign-train", fresh, StackInitMode.CREATE_OR_SELECT)
    assert command.starts == [["stack", "init", "campaign-train"]]


def test_a_configuration_replaces_an_older_one_and_leaves_what_opens_the_secrets(tmp_path: Path) -> None:
    file = tmp_path / "Pulumi.campaign-train.yaml"
    file.write_text("encryptionsalt: v1:abc\nconfig:\n  bivouac:old: left\n")
    stored, command = workspace(tmp_path, {})
    values = {"bivouac:spec": '{"a": 1}', "bivouac:protected": "true", "bivouac:account": "012345678901"}
    stored.set_all_config("campaign-train", {key: auto.ConfigValue(value) for key, value in values.items()})
    assert yaml.safe_load(file.read_text()) == {"encryptionsalt": "v1:abc", "config": values}
    file.unlink()
    stored.set_all_config("campaign-train", {"bivouac:account": auto.ConfigValue("012345678901")})
    assert yaml.safe_load(file.read_text()) == {"config": {"bivouac:account": "012345678901"}}
    assert command.starts == []


@pytest.mark.parametrize("rest", ["", "encryptionsalt", "config: {bivouac:a: 1}", "a: [b"])
def test_a_configuration_that_a_killed_driver_left_half_written_is_written_anew(tmp_path: Path, rest: str) -> None:
    file = tmp_path / "Pulumi.campaign-train.yaml"
    file.write_text(rest)
    stored, _ = workspace(tmp_path, {})
    stored.set_all_config("campaign-train", {"bivouac:account": auto.ConfigValue("012345678901")})
    assert yaml.safe_load(file.read_text()) == {"config": {"bivouac:account": "012345678901"}}


class StoredStack:
    """A stack whose exports by the CLI are counted, and whose imports are kept."""

    name = "campaign-train"

    def __init__(self) -> None:
        self.exports, self.imports = 0, list[auto.Deployment]()

    def export_stack(self) -> auto.Deployment:
        self.exports += 1
        return auto.Deployment(version=4, deployment={"resources": [{"urn": "a", "protect": True}]})

    def import_stack(self, state: auto.Deployment) -> None:
        self.imports.append(state)


@pytest.mark.parametrize(("version", "exports"), [(3, 0), (4, 1), (None, 1)])
def test_a_state_of_a_format_that_is_not_ours_is_exported_by_the_engine(
    tmp_path: Path, version: int | None, exports: int
) -> None:
    state = {"version": version, "checkpoint": {"latest": {"resources": [{"urn": "a", "protect": True}]}}}
    store = SimpleNamespace(get=lambda key: json.dumps(state).encode() if version else None)
    context: Any = SimpleNamespace(
        store=store, lease=None, buckets=SimpleNamespace(state="s"), account=SimpleNamespace(region="r")
    )
    stack: Any = StoredStack()
    Engine(context, tmp_path)._unprotect(stack)
    (stored,) = stack.imports
    assert stack.exports == exports and stored.version == (version or 4)
    assert stored.deployment == {"resources": [{"urn": "a"}]}


def test_outputs_are_read_from_the_state_unless_the_cli_alone_can_decrypt_one(tmp_path: Path) -> None:
    stored, command = workspace(tmp_path, {"name": "bivouac-train", "subnets": ["a", "b"], "count": 3})
    outputs = stored.stack_outputs("campaign-train")
    assert {name: output.value for name, output in outputs.items()} == {
        "name": "bivouac-train", "subnets": ["a", "b"], "count": 3,
    }  # fmt: skip
    assert command.starts == []
    hidden, command = workspace(tmp_path, {"keys": [{"4dabf18193072939515e22adb298388d": "1b47"}]})
    assert hidden.stack_outputs("campaign-train") == {}, "what this CLI prints"
    assert command.starts == [["stack", "output", "--json", "--show-secrets", "--stack", "campaign-train"]]
    begun, command = workspace(tmp_path, {})
    del begun._stored("campaign-train")["checkpoint"]["latest"]["resources"][1]["outputs"]  # type: ignore[index]
    assert begun.stack_outputs("campaign-train") == {} and command.starts == [], "its first update has failed"
    for document in ({"version": FORMAT_VERSION + 1, "checkpoint": {"latest": {"resources": [1]}}}, None):
        later, command = workspace(tmp_path, {"name": "bivouac-train"})
        later._stored = {"campaign-train": document}.get
        assert later.stack_outputs("campaign-train") == {} and len(command.starts) == 1, "the CLI knows its format"
