"""The commands that run a campaign, as the command line knows them; what each does is imported when called."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from infra.cli.options import Json, Name, Region, SpecPath, Yes, console


def preview(
    spec: SpecPath,
    json: Json = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown, for a pull request.")] = False,
    before: Annotated[Path | None, typer.Option(help="The spec as it was: shows how the bill changes.")] = None,
    cluster: Annotated[bool, typer.Option(help="Look at what is inside the cluster too.")] = True,
) -> None:
    """Show what `run` would do to AWS now, what drifted, what the rules find. Reads only; exits 2 when something
    would change, 64 when it must not."""
    from infra.cli.run.preview import preview_command

    raise typer.Exit(preview_command(spec, json, console, as_markdown=markdown, before=before, inside=cluster))


def run(spec: SpecPath, yes: Yes = False, json: Json = False) -> None:
    """Run the whole campaign, from wherever it stands: run it again after any interruption."""
    from infra.cli.run.run import run_command

    raise typer.Exit(run_command(spec, yes, console, as_json=json))


def relaunch(
    name: Name,
    spec: Annotated[Path | None, typer.Option(help="The mended spec; without it only changed code counts.")] = None,
    now: Annotated[bool, typer.Option("--now", help="While it trains: stop at the next commit first.")] = False,
    yes: Yes = False,
    region: Region = "us-east-1",
    json: Json = False,
) -> None:
    """Begin a new attempt on a held, warm cluster, with a mended spec or code; then go on to the end."""
    from infra import target

    target.enter_where(name)
    from infra.cli.run.relaunch import relaunch_command

    raise typer.Exit(relaunch_command(name, region, spec, now, yes, console, as_json=json))


def repair(
    name: Name,
    region: Region = "us-east-1",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Repair without asking.")] = False,
    json: Json = False,
) -> None:
    """Set right what was changed or deleted by hand, or say why that must not be."""
    from infra import target

    target.enter_where(name)
    from infra.cli.run.repair import repair_command

    raise typer.Exit(repair_command(name, region, yes, console, as_json=json))
