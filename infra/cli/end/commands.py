"""Command line of what ends a campaign; implementations are imported when called."""

from __future__ import annotations

from typing import Annotated

import typer

from infra.cli.options import Json, Name, Region, YesRemove, console


def down(
    name: Annotated[str | None, typer.Argument(help="Name of the campaign.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Remove every rehearsal site of this machine.")] = False,
    abandon: Annotated[bool, typer.Option(help="Tear down without an archive: what was trained is lost.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do it without asking, as a script must.")] = False,
    region: Region = "us-east-1",
    json: Json = False,
) -> None:
    """Stop a campaign, archive what is sound, tear down, certify; or remove rehearsal sites: all, or that of a
    rehearsal that has ended. Asks first, with what stands and what would be lost."""
    from infra import target
    from infra.cli.end.sites import all_command, site_command

    if everything:
        raise typer.Exit(all_command(yes, console, as_json=json))
    if name is None:
        raise typer.BadParameter("give the name of a campaign, or --all")
    if not target.inside() and (code := site_command(name, yes, abandon, console, as_json=json)) is not None:
        raise typer.Exit(code)
    target.enter_where(name)
    from infra.cli.end.down import down_command

    raise typer.Exit(down_command(name, region, abandon, console, yes=yes, as_json=json))


def close(name: Name, region: Region = "us-east-1") -> None:
    """End a campaign that is over and that nobody drives; what the closer in the account runs."""
    from infra import target

    target.enter_where(name)
    from infra.cli.end.close import close_command

    raise typer.Exit(close_command(name, region, console))


def sweep(
    name: Annotated[str | None, typer.Argument(help="Name of the campaign.")] = None,
    orphans: Annotated[bool, typer.Option("--orphans", help="Leftovers of all dead campaigns of the account.")] = False,
    yes: YesRemove = False,
    abandon: Annotated[bool, typer.Option(help="Give up what it may hold, without an archive.")] = False,
    region: Region = "us-east-1",
    json: Json = False,
) -> None:
    """List what a torn down campaign left, remove what is provably its own after a yes, and certify again."""
    from infra import target

    if name is not None:
        target.enter_where(name)
    if orphans and abandon:
        raise typer.BadParameter("one campaign is given up at a time: bivouac sweep NAME --abandon")
    if orphans:
        from infra.cli.end.orphans import orphans_command

        raise typer.Exit(orphans_command(region, yes, json, console))
    if name is None:
        raise typer.BadParameter("give the name of a campaign, or --orphans")
    from infra.cli.end.sweep import sweep_command

    raise typer.Exit(sweep_command(name, region, yes, json, console, abandon))
