"""A campaign elsewhere than in us-east-1: every command that takes a name looks where it is told to."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from infra.cli.main import app
from infra.errors import UserError
from tests.rehearsal.aws_account import World, signed_in

COMMANDS = (["shell", "far", "--", "true"], ["status", "far"], ["repair", "far"], ["down", "far"])


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
@pytest.mark.parametrize("how", ["--region", "AWS_REGION", "AWS_DEFAULT_REGION"])
def test_the_region_that_is_given_is_the_one_looked_in_and_an_unknown_name_is_told_of_it(
    world: World, monkeypatch: pytest.MonkeyPatch, command: list[str], how: str
) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    signed_in(monkeypatch, world)
    given = [*command[:2], "--region", "eu-west-1", *command[2:]] if how == "--region" else command
    if how != "--region":
        monkeypatch.setenv(how, "eu-west-1")
    refused = CliRunner().invoke(app, given).exception
    assert isinstance(refused, UserError)
    assert "eu-west-1" in str(refused.seen) and "give --region" in str(refused.cure)
