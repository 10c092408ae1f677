"""Command line of what prepares a campaign; implementations are imported when called."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

import typer

from infra.cli.options import Json, Region, SpecPath, Yes, YesRemove, console

stack = typer.Typer(no_args_is_help=True, help="The stacks for `pulumi` typed by hand.")


def check(
    spec: SpecPath,
    json: Json = False,
    online: Annotated[
        bool, typer.Option("--online", help="Also ask AWS: zones, quota, base image. Reads only.")
    ] = False,
) -> None:
    """List all errors of a spec at once. Offline, unless `--online`."""
    from infra.cli.prepare.check import check_command

    raise typer.Exit(check_command(spec, json, console, online))


def plan(spec: SpecPath, json: Json = False) -> None:
    """Show cost, time, checkpoint cadence and risk, then each figure with its formula. Offline."""
    from infra.cli.prepare.plan import plan_command

    raise typer.Exit(plan_command(spec, json, console))


def offers(
    spec: SpecPath,
    types: Annotated[list[str] | None, typer.Option("--type", help="Another instance type; may be repeated.")] = None,
    alternatives: Annotated[bool, typer.Option("--alternatives", help="Also types that offer no less.")] = False,
    json: Json = False,
) -> None:
    """Show the offers for the campaign's nodes, with price, time and quota. Reads only."""
    from infra.cli.prepare.offers import offers_command

    raise typer.Exit(offers_command(spec, types or [], alternatives, json, console))


def bake(
    spec: SpecPath,
    force: Annotated[bool, typer.Option("--force", help="Bake again what was baked before.")] = False,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Bake a spec's node image and trainer image ahead of its campaign; skips what was baked before."""
    from infra.cli.prepare.bake import bake_command

    raise typer.Exit(bake_command(spec, force, yes, console, as_json=json))


def images(
    name: Annotated[str | None, typer.Argument(help="A campaign of the same site; only for a rehearsal.")] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Remove those that nobody uses.")] = False,
    keep: Annotated[int, typer.Option(min=0, help="The newest of each base that always stay.")] = 1,
    older_than: Annotated[str, typer.Option(help="Younger ones always stay.")] = "7d",
    yes: YesRemove = False,
    region: Region = "us-east-1",
    json: Json = False,
) -> None:
    """List baked images with users and cost, and newer releases of their base; remove unused ones."""
    from infra import target
    from infra.spec import duration

    age = duration.parse(older_than)
    if not isinstance(age, timedelta):
        raise typer.BadParameter(f"{older_than} is no duration: write one such as 7d or 12h")
    if name is not None:
        target.enter_where(name)
    from infra.cli.prepare.images import images_command

    raise typer.Exit(images_command(region, keep, age, remove, yes, json, console))


@stack.command("init")
def stack_init(
    name: Annotated[str, typer.Argument(help="Path of a spec, or name of a campaign that has begun.")],
    region: Region = "us-east-1",
) -> None:
    """Make the state bucket, both stacks and their files, where they are missing. To be called in the clone."""
    from infra.cli.hand.by_hand import init_command

    raise typer.Exit(init_command(name, region, console))
