"""Options shared by commands, their consoles, and the binding of a declared command to its implementation."""

from __future__ import annotations

import functools
import gc
import threading
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from infra.console.plain_console import PlainConsole, say

console = PlainConsole(highlight=False)
stderr = PlainConsole(stderr=True, highlight=False)
"""For what is said beside a command's own output."""

SILENCE_S = 2.0
"""Time without a word after which a command says what it does."""


def runs(
    implementation: str, *, enters: tuple[str, ...] = (), output: PlainConsole = console, announces: bool = True
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator for a function that only declares a command's arguments and help. The command calls
    `implementation` (MODULE:FUNCTION below `infra.cli`), which is imported only then, and exits with its result.

    `enters`: the argument that names a campaign, whose rehearsal site is entered first, and further arguments of
    `target.enter_where`. An argument `place` may also be a folder or a prefix, which has no site. `announces`: after
    two seconds of silence it says on standard error what it does.
    """

    def bind(declaration: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(declaration)
        def command(**arguments: Any) -> None:
            notice = threading.Timer(SILENCE_S, _announce, (declaration,))
            notice.daemon = True
            if announces:
                notice.start()
            try:
                raise typer.Exit(call(arguments))
            finally:
                notice.cancel()

        def call(arguments: dict[str, Any]) -> int:
            names = [arguments[name] for name in enters]
            if "place" in enters:
                from infra.checkpoints.find import is_campaign

                names = [place for place in names if is_campaign(place)]
            if names and names[0] is not None:
                from infra import target

                target.enter_where(*names)
            module, _, function = implementation.partition(":")
            gc.disable()  # imports leave no garbage, and each collection walks over all that they have made
            try:
                run_command = getattr(import_module(f"infra.cli.{module}"), function)
            finally:
                gc.freeze()
                gc.enable()
            code: int = run_command(**arguments, console=output)
            return code

        command.implementation = implementation  # type: ignore[attr-defined]
        return command

    return bind


def site_steps(output: Console) -> Callable[[str], None]:
    """Return a function that prints a step of the start of a rehearsal's site."""
    return lambda step: say(output, f"{'site':<10} {step}")


def _announce(declaration: Callable[..., None]) -> None:
    if PlainConsole.silent:
        purpose = " ".join((declaration.__doc__ or "").split()).partition(". ")[0].rstrip(".")
        say(stderr, f"{purpose} ...")


def known_campaigns(incomplete: str) -> list[str]:
    """Return the campaigns that this machine rehearses or has results of, for completion; AWS is not asked."""
    from infra.folders import cache_root, results_root

    site_names = (path.stem for path in (cache_root() / "sites").glob("*/campaigns/*.json"))
    kept_names = (path.name for path in results_root().glob("*-*/*") if path.is_dir())
    return sorted(name for name in {*site_names, *kept_names} if name.startswith(incomplete))


SpecPath = Annotated[Path, typer.Argument(metavar="SPEC", help="The campaign's spec, a YAML file.")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the campaign.", autocompletion=known_campaigns)]
MaybeName = Annotated[
    str | None, typer.Argument(metavar="NAME", help="Name of the campaign.", autocompletion=known_campaigns)
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
Region = Annotated[str, typer.Option(envvar=["AWS_REGION", "AWS_DEFAULT_REGION"], help="AWS region.")]
YesRemove = Annotated[bool, typer.Option("--yes", "-y", help="Remove without asking.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Spend without asking.")]
