"""Command line of what ends a campaign."""

from __future__ import annotations

from typing import Annotated

import typer

from infra.cli.options import Json, MaybeName, Name, Region, YesRemove, runs


@runs("end.sites:end_command")
def down(
    campaign: MaybeName = None,
    all_sites: Annotated[bool, typer.Option("--all", help="Remove every rehearsal site of this machine.")] = False,
    abandon: Annotated[
        bool, typer.Option("--abandon", help="Tear down without an archive: what was trained is lost.")
    ] = False,
    consent: Annotated[bool, typer.Option("--yes", "-y", help="Do it without asking, as a script must.")] = False,
    region: Region = "us-east-1",
    as_json: Json = False,
) -> None:
    """Stop a campaign, archive what is sound, tear down, certify; or remove rehearsal sites: all, or that of a
    rehearsal that has ended. Asks first, with what stands and what would be lost."""


@runs("end.close:close_command", enters=("campaign",))
def close(campaign: Name, region: Region = "us-east-1") -> None:
    """End a campaign that is over and that nobody drives; what the closer in the account runs."""


@runs("end.sweep:clean_command", enters=("campaign",))
def sweep(
    campaign: MaybeName = None,
    orphans: Annotated[bool, typer.Option("--orphans", help="Leftovers of all dead campaigns of the account.")] = False,
    consent: YesRemove = False,
    abandon: Annotated[bool, typer.Option("--abandon", help="Give up what it may hold, without an archive.")] = False,
    region: Region = "us-east-1",
    as_json: Json = False,
) -> None:
    """List what a torn down campaign left, remove what is provably its own after a yes, and certify again."""
