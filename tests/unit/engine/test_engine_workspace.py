"""What the engine's workspace does itself instead of starting Pulumi's CLI: here the CLI cannot be started at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from pulumi import automation as auto
from pulumi.automation._stack import StackInitMode

from infra.engine.engine import EngineStack, EngineWorkspace


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
    document = {"checkpoint": {"latest": {"resources": resources}}} if outputs else None
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
