"""Command line of what runs a campaign."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from infra.cli.options import Json, Name, Region, SpecPath, Yes, runs


@runs("run.preview:preview_command")
def preview(
    path: SpecPath,
    as_json: Json = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown, for a pull request.")] = False,
    old_spec: Annotated[Path | None, typer.Option("--before", help="The old spec: how the bill changes.")] = None,
    look_inside: Annotated[
        bool, typer.Option("--cluster/--no-cluster", help="Also look at objects inside the cluster.")
    ] = True,
) -> None:
    """Show what `run` would change in AWS now, the drift, and the rules' findings. Reads only; exits 2 when something
    would change, 64 when it must not."""


@runs("run.run:run_command")
def run(
    path: SpecPath,
    consent: Yes = False,
    detach: Annotated[
        bool, typer.Option("--detach", help="Leave once training runs; on AWS the account ends the campaign by itself.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Run the whole campaign; after an interruption, run it again to continue."""


@runs("run.rehearse:rehearse_command")
def rehearse(
    path: SpecPath,
    nodes: Annotated[int, typer.Option(min=2, max=8, help="Nodes of the rehearsal.")] = 2,
    fault: Annotated[
        list[str] | None,
        typer.Option(
            help="kill-node@40%, kill-rank@40%, or FAULT@40% of `drill --list`; may be repeated. Default: the first."
        ),
    ] = None,
    no_fault: Annotated[bool, typer.Option("--no-fault", help="Nothing dies.")] = False,
    as_json: Json = False,
) -> None:
    """Rehearse a spec on this machine: the same campaign, made small, with a node that dies."""


@runs("run.drill:drill_command")
def drill(
    names: Annotated[list[str] | None, typer.Argument(metavar="FAULT", help="Faults, by their names.")] = None,
    draws: Annotated[
        int, typer.Option("--random", min=0, max=50, help="So many faults more, drawn by the seed, in a campaign.")
    ] = 0,
    seed: Annotated[int, typer.Option(help="Of what is drawn, and of the order in which the faults strike.")] = 1,
    show_list: Annotated[bool, typer.Option("--list", help="Show the faults, and what is expected.")] = False,
    page: Annotated[Path | None, typer.Option(help="Also write the table of all results into this page.")] = None,
    report: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="Write the page of a game day over all kept drills there. No fault named: runs none."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Rehearse faults on this machine: who sees each, what is done, which alert fires, what is lost. Exits 1 where that
    is not as expected."""


@runs("run.relaunch:relaunch_command", enters=("campaign", "path"))
def relaunch(
    campaign: Name,
    path: Annotated[
        Path | None, typer.Option("--spec", help="The mended spec; default: the same spec, with changed code.")
    ] = None,
    now: Annotated[bool, typer.Option("--now", help="Stop a training campaign at its next commit first.")] = False,
    consent: Yes = False,
    region: Region = "us-east-1",
    as_json: Json = False,
) -> None:
    """Begin a new attempt on a held, warm cluster with a mended spec or code, and continue to the end."""


@runs("run.repair:repair_command", enters=("campaign",))
def repair(
    campaign: Name,
    region: Region = "us-east-1",
    consent: Annotated[bool, typer.Option("--yes", "-y", help="Repair without asking.")] = False,
    as_json: Json = False,
) -> None:
    """Repair what was changed or deleted by hand, or say why that is not allowed."""
