"""Command line of what looks at campaigns; implementations are imported when called."""

from __future__ import annotations

from typing import Annotated

import typer

from infra.cli.options import Json, Name, Region, console


def list_campaigns(region: Region = "us-east-1", json: Json = False) -> None:
    """List the campaigns that this machine rehearses, and those in the AWS account and region."""
    from infra.cli.look.list import list_command

    raise typer.Exit(list_command(region, json, console))


def status(
    name: Name,
    region: Region = "us-east-1",
    json: Json = False,
    refresh: Annotated[bool, typer.Option("--refresh", help="Also compare with AWS; exits 2 on drift.")] = False,
) -> None:
    """Show a campaign's stage, driver, steward and cost."""
    from infra import target

    target.enter_where(name)
    from infra.cli.look.status import status_command

    raise typer.Exit(status_command(name, region, json, console, refresh=refresh))


def report(
    name: Name,
    region: Region = "us-east-1",
    show: Annotated[bool, typer.Option("--open", help="Show it in a browser.")] = False,
    json: Json = False,
) -> None:
    """Write a campaign's report; for one that is gone, from the record in the results folder."""
    from infra import target

    target.enter_where(name)
    from infra.cli.look.report import report_command

    raise typer.Exit(report_command(name, region, show, console, as_json=json))


def logs(
    name: Name,
    region: Region = "us-east-1",
    attempt: Annotated[int | None, typer.Option(min=1, help="The attempt; default: the newest.")] = None,
    rank: Annotated[int | None, typer.Option(min=0, help="Only the node of this rank.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until training is over.")] = False,
) -> None:
    """Print what the job's pods printed, while they run and after they are gone."""
    from infra import target

    target.enter_where(name)
    from infra.cli.look.logs import logs_command

    raise typer.Exit(logs_command(name, region, attempt, rank, follow, console))


def shell(
    name: Name,
    command: Annotated[list[str] | None, typer.Argument(help="Run this instead of a shell.")] = None,
    region: Region = "us-east-1",
) -> None:
    """Open a shell where the campaign runs, with `pulumi`, `kubectl` and credentials set."""
    from infra import target

    target.enter_where(name)
    from infra.cli.look.shell import shell_command

    raise typer.Exit(shell_command(name, region, command or [], console))
