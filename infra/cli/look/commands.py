"""Command line of what looks at campaigns; implementations are imported when called."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from infra.cli.options import Json, Name, Region, console, stderr


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
    since: Annotated[str | None, typer.Option(help="Only what is not older, such as `90s`, `10m`, `2h`.")] = None,
) -> None:
    """Print what the job's pods printed, while they run and after they are gone."""
    from infra import target

    target.enter_where(name)
    from infra.cli.look.logs import Asked, logs_command, moment

    asked = Asked(attempt, rank, follow, moment(since))
    raise typer.Exit(logs_command(name, region, asked, console, stderr))


def shell(
    name: Annotated[str | None, typer.Argument(help="Name of a campaign, or path of a spec; else the account.")] = None,
    command: Annotated[list[str] | None, typer.Argument(help="After `--`: run this instead of a shell.")] = None,
    region: Region = "us-east-1",
) -> None:
    """Open a shell where the campaign runs, with `pulumi`, `kubectl` and credentials set."""
    from infra.cli.look.shell import shell_command

    if sys.argv[2:3] == ["--"]:  # typer takes the command's first word for the name
        name, command = None, [*filter(None, [name]), *(command or [])]
    raise typer.Exit(shell_command(name, region, command or [], console))


def execute(
    name: Name,
    rank: Annotated[int, typer.Argument(min=0, help="Global rank of the newest attempt: its node's container.")],
    command: Annotated[list[str], typer.Argument(help="After `--`: the command and its words.")],
    region: Region = "us-east-1",
    stdin: Annotated[bool, typer.Option("--stdin", "-i", help="Pass standard input on.")] = False,
    tty: Annotated[bool, typer.Option("--tty", "-t", help="Give it this terminal, as for a shell.")] = False,
) -> None:
    """Run a command in the container of a rank; its exit code becomes ours."""
    from infra import target

    target.enter_where(name)
    from infra.cli.look.exec import exec_command

    raise typer.Exit(exec_command(name, region, rank, command, stdin, tty, stderr))


def profile(
    name: Name,
    region: Region = "us-east-1",
    rank: Annotated[int, typer.Option(min=0, help="Global rank of the newest attempt.")] = 0,
    steps: Annotated[int, typer.Option(min=1, max=50, help="Steps to trace.")] = 3,
    out: Annotated[str, typer.Option(help="File or folder here for the trace.")] = ".",
) -> None:
    """Trace some steps of a rank with torch's profiler, while it trains, and fetch the trace."""
    from infra import target

    target.enter_where(name)
    from infra.cli.look.profile import profile_command

    raise typer.Exit(profile_command(name, region, rank, steps, out, stderr))


def cp(
    name: Name,
    source: Annotated[str, typer.Argument(help="`RANK:/path`, or a file or folder here.")],
    destination: Annotated[str, typer.Argument(help="The other side; a folder that is there gets the copy in it.")],
    region: Region = "us-east-1",
) -> None:
    """Copy a file or folder out of a rank's container, or into it; every byte is compared before it has its name."""
    from infra import target

    target.enter_where(name)
    from infra.cli.look.cp import cp_command

    raise typer.Exit(cp_command(name, region, source, destination, stderr))
