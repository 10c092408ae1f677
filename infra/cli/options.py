"""Options shared by commands, and their console."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from infra.console.plain_console import PlainConsole

console = PlainConsole(highlight=False)
stderr = PlainConsole(stderr=True, highlight=False)
"""For what is said beside a command's own output."""

SpecPath = Annotated[Path, typer.Argument(help="The campaign's spec, a YAML file.")]
Name = Annotated[str, typer.Argument(help="Name of the campaign.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
Region = Annotated[str, typer.Option(envvar=["AWS_REGION", "AWS_DEFAULT_REGION"], help="AWS region.")]
YesRemove = Annotated[bool, typer.Option("--yes", "-y", help="Remove without asking.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Spend without asking.")]
