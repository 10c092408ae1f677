"""Command line of `bivouac catalogue` and `bivouac block`."""

from __future__ import annotations

from typing import Annotated

import typer

from infra.cli.options import Json, Region, SpecPath, Yes, console

catalogue = typer.Typer(help="Instance types: hardware, prices, and what no source states.")
block = typer.Typer(no_args_is_help=True, help="Capacity blocks: bought outside of campaigns, never given back.")


@catalogue.callback(invoke_without_command=True)
def catalogue_list(context: typer.Context, json: Json = False) -> None:
    """List instance types: hardware, prices, and what no source states. Offline."""
    if context.invoked_subcommand is None:
        from infra.cli.prepare.catalogue import list_command

        raise typer.Exit(list_command(json, console))


@catalogue.command("thresholds")
def catalogue_thresholds(json: Json = False) -> None:
    """List what preflight's health check requires of a node, each limit with its source. Offline."""
    from infra.cli.prepare.catalogue import thresholds_command

    raise typer.Exit(thresholds_command(json, console))


@catalogue.command("refresh")
def catalogue_refresh(
    region: Region = "us-east-1",
    write: Annotated[bool, typer.Option("--write", help="Write AWS's figures to the catalogue's file.")] = False,
    json: Json = False,
) -> None:
    """Compare with DescribeInstanceTypes and the price list; exits 2 when figures differ."""
    from infra.cli.prepare.catalogue import refresh_command

    raise typer.Exit(refresh_command(region, write, json, console))


@block.command("buy")
def block_buy(
    spec: SpecPath,
    offering: Annotated[str, typer.Argument(help="Id of an offering that `bivouac offers` shows.")],
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Buy a capacity block for a campaign: paid at once, never given back."""
    from infra.cli.prepare.block import buy_command

    raise typer.Exit(buy_command(spec, offering, yes, json, console))
