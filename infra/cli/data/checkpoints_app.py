"""Command line of `bivouac checkpoints`; `checkpoints` is imported when called."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from infra.cli.options import Json, Region, YesRemove, console

checkpoints = typer.Typer(
    no_args_is_help=True, help="Checkpoints of a campaign, of a folder, or below an s3:// prefix."
)

Place = Annotated[str, typer.Argument(help="A campaign's name, a folder, or s3://bucket/prefix.")]
OneStep = Annotated[int | None, typer.Option("--step", help="Step; default: the golden one, else the newest.")]
Tier = Annotated[str | None, typer.Option("--tier", help="Tier of a campaign: archive, shared, or (to verify) local.")]


@checkpoints.command("list")
def checkpoints_list(place: Place, region: Region = "us-east-1", json: Json = False) -> None:
    """List every step on every tier that can be seen from here."""
    _enter_place(place)
    from infra.cli.data.checkpoints import list_command

    raise typer.Exit(list_command(place, region, json, console))


@checkpoints.command("verify")
def checkpoints_verify(
    place: Place, step: OneStep = None, tier: Tier = None, region: Region = "us-east-1", json: Json = False
) -> None:
    """Read every byte and compare digests; name each bad shard and exit 74 if there is one. For a campaign: the
    archive, and by its steward the shared tier and every node's disk."""
    _enter_place(place)
    from infra.cli.data.checkpoints import verify_command

    raise typer.Exit(verify_command(place, step, region, json, console, tier))


@checkpoints.command("diff")
def checkpoints_diff(
    place: Place,
    first: Annotated[int, typer.Argument(help="A step.")],
    second: Annotated[int, typer.Argument(help="Another step.")],
    other: Annotated[str | None, typer.Option("--in", help="Place of the second step; default: the same.")] = None,
    region: Region = "us-east-1",
    json: Json = False,
) -> None:
    """Show tensors and metadata in which two steps differ; exits 1 when they do."""
    _enter_place(place)
    from infra.cli.data.checkpoints import diff_command

    raise typer.Exit(diff_command((place, first), (other or place, second), region, json, console))


@checkpoints.command("restore")
def checkpoints_restore(
    place: Place,
    out: Annotated[Path, typer.Argument(help="Folder to bring it to; an interrupted restore continues.")],
    step: OneStep = None,
    tier: Tier = None,
    sealed: Annotated[bool, typer.Option("--sealed", help="Bring a job's shards and manifest, not its files.")] = False,
    region: Region = "us-east-1",
    json: Json = False,
) -> None:
    """Bring a step here from the archive or out of the cluster, verify every byte, and show how to load it. Of a job of
    one's own these are its files, with the names that it gave them."""
    _enter_place(place)
    from infra.cli.data.checkpoints import restore_command

    raise typer.Exit(restore_command(place, out, step, region, console, tier, as_json=json, sealed=sealed))


@checkpoints.command("prune")
def checkpoints_prune(
    place: Place,
    keep: Annotated[int, typer.Option(min=0, help="Newest committed steps to keep.")] = 2,
    yes: YesRemove = False,
    tier: Tier = None,
    region: Region = "us-east-1",
    json: Json = False,
) -> None:
    """Show old steps and remove them after a yes; the newest step that was proven by reading it always stays."""
    _enter_place(place)
    from infra.cli.data.checkpoints import prune_command

    raise typer.Exit(prune_command(place, keep, yes, region, json, console, tier))


@checkpoints.command("import")
def checkpoints_import(
    folder: Annotated[Path, typer.Argument(help="Folder of a tag that DeepSpeed saved, such as global_step100.")],
    out: Annotated[Path, typer.Argument(help="Folder of a tier, new or old: OUT/<campaign>/step-...")],
    campaign: Annotated[str, typer.Option(help="Name of the campaign that will continue from it.")],
    tokens: Annotated[int, typer.Option(min=0, help="Tokens consumed until then.")],
    position: Annotated[int, typer.Option(min=0, help="Sequences consumed until then, over all ranks.")],
    json: Json = False,
) -> None:
    """Import a folder without a manifest: checked by the allow-list, never executed, never replacing a step."""
    from infra.cli.data.checkpoints_import import import_command

    raise typer.Exit(import_command(folder, out, campaign, tokens, position, json, console))


def _enter_place(place: str) -> None:
    from infra import target
    from infra.checkpoints.find import is_campaign

    if is_campaign(place):
        target.enter_where(place)
