"""Command line of what runs a campaign; implementations are imported when called."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from infra.cli.options import Json, Name, Region, SpecPath, Yes, console


def preview(
    spec: SpecPath,
    json: Json = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown, for a pull request.")] = False,
    before: Annotated[Path | None, typer.Option(help="The old spec, to show how the bill changes.")] = None,
    cluster: Annotated[bool, typer.Option(help="Also look at objects inside the cluster.")] = True,
) -> None:
    """Show what `run` would change in AWS now, the drift, and the rules' findings. Reads only; exits 2 when something
    would change, 64 when it must not."""
    from infra.cli.run.preview import preview_command

    raise typer.Exit(preview_command(spec, json, console, as_markdown=markdown, before=before, inside=cluster))


def run(
    spec: SpecPath,
    yes: Yes = False,
    detach: Annotated[
        bool, typer.Option("--detach", help="Leave once training runs; the account ends the campaign by itself.")
    ] = False,
    json: Json = False,
) -> None:
    """Run the whole campaign; after an interruption, run it again to continue."""
    from infra.cli.run.run import run_command

    raise typer.Exit(run_command(spec, yes, console, as_json=json, detach=detach))


def rehearse(
    spec: SpecPath,
    nodes: Annotated[int, typer.Option(min=2, max=8, help="Nodes of the rehearsal.")] = 2,
    fault: Annotated[
        list[str] | None,
        typer.Option(help="kill-node@40% or kill-rank@40%; may be repeated. Default: the first."),
    ] = None,
    no_fault: Annotated[bool, typer.Option("--no-fault", help="Nothing dies.")] = False,
    json: Json = False,
) -> None:
    """Rehearse a spec for AWS on this machine: the same campaign, made small, with a node that dies."""
    from infra.cli.run.rehearse import parse_faults, rehearse_command

    raise typer.Exit(rehearse_command(spec, nodes, parse_faults(fault, no_fault), console, as_json=json))


def relaunch(
    name: Name,
    spec: Annotated[
        Path | None, typer.Option(help="The mended spec; default: the same spec, with changed code.")
    ] = None,
    now: Annotated[bool, typer.Option("--now", help="Stop a training campaign at its next commit first.")] = False,
    yes: Yes = False,
    region: Region = "us-east-1",
    json: Json = False,
) -> None:
    """Begin a new attempt on a held, warm cluster with a mended spec or code, and continue to the end."""
    from infra import target

    target.enter_where(name, spec)
    from infra.cli.run.relaunch import relaunch_command

    raise typer.Exit(relaunch_command(name, region, spec, now, yes, console, as_json=json))


def repair(
    name: Name,
    region: Region = "us-east-1",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Repair without asking.")] = False,
    json: Json = False,
) -> None:
    """Repair what was changed or deleted by hand, or say why that is not allowed."""
    from infra import target

    target.enter_where(name)
    from infra.cli.run.repair import repair_command

    raise typer.Exit(repair_command(name, region, yes, console, as_json=json))
