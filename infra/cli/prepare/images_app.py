"""`bivouac images` as the command line knows it; what it does is in `images`, imported when called."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

import typer

from infra.cli.options import Json, Region, YesRemove, console


def images(
    name: Annotated[str | None, typer.Argument(help="A campaign beside them: only a rehearsal needs it.")] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Remove those that nobody uses.")] = False,
    keep: Annotated[int, typer.Option(min=0, help="So many of the newest of each base stay in any case.")] = 1,
    older_than: Annotated[str, typer.Option(help="Younger ones stay in any case.")] = "7d",
    yes: YesRemove = False,
    region: Region = "us-east-1",
    json: Json = False,
) -> None:
    """Node and trainer images that bakes left: who uses them, what they cost; removes those that nobody uses."""
    from infra import target
    from infra.spec import duration

    age = duration.parse(older_than)
    if not isinstance(age, timedelta):
        raise typer.BadParameter(f"{older_than} is no duration: write one such as 7d or 12h")
    if name is not None:
        target.enter_where(name)
    from infra.cli.prepare.images import images_command

    raise typer.Exit(images_command(region, keep, age, remove, yes, json, console))
