"""The `bivouac` command: it selects what to do; a file describes it. Imports lazily, so that `--help` is quick."""

from __future__ import annotations

import sys
from collections.abc import Callable
from copy import copy
from typing import Annotated, NoReturn

try:
    import typer
    from typer.core import TyperGroup
except ModuleNotFoundError as missing:
    sys.exit(f"a Python package is missing; seen: {missing.name}; cure: make setup")

from infra.cli.data.commands import checkpoints, data
from infra.cli.end.commands import close, down, sweep
from infra.cli.look.commands import cp, events, execute, list_campaigns, logs, profile, report, shell, status
from infra.cli.options import Json, console, runs, stderr
from infra.cli.prepare.commands import (
    addons,
    bake,
    block,
    catalogue,
    check,
    images,
    init,
    offers,
    plan,
    schema,
    stack,
)  # fmt: skip
from infra.cli.refusals import of_file, refusal, tell, tell_usage
from infra.cli.run.commands import preview, rehearse, relaunch, repair, run
from infra.console.plain_console import say
from infra.console.terminal import endure
from infra.errors import BivouacError
from infra.interruption import Interrupted, asked, listen


@runs("machine:doctor_command")
def doctor(as_json: Json = False) -> None:
    """Show each tool, its version and origin, whether namespaces work, and what is missing with its cure."""


@runs("machine:token_command", announces=False)  # kubectl shows what a credential plugin says
def token(cluster: Annotated[str, typer.Option()], region: Annotated[str, typer.Option()]) -> None:
    """Print an EKS token as kubectl's credential plugin wants it."""


PANELS: dict[str, dict[str, Callable[..., None] | typer.Typer]] = {
    "Prepare": dict(
        init=init, check=check, plan=plan, offers=offers, catalogue=catalogue, block=block, bake=bake, images=images,
        stack=stack, schema=schema,
    ),
    "Run": dict(preview=preview, rehearse=rehearse, run=run, relaunch=relaunch, repair=repair),
    "Look": dict(
        list=list_campaigns, status=status, logs=logs, events=events, exec=execute, cp=cp, profile=profile,
        report=report, shell=shell,
    ),
    "End": dict(down=down, close=close, sweep=sweep),
    "Data and checkpoints": dict(data=data, checkpoints=checkpoints),
    "Administration": dict(doctor=doctor, addons=addons, token=token),
}  # fmt: skip
"""Commands in the order of a campaign's life, as help shows them."""
HIDDEN = frozenset({"close", "token"})


class _LifeOrder(TyperGroup):
    """Lists commands in the order of `PANELS`: typer puts groups of commands last."""

    def list_commands(self, ctx: object) -> list[str]:
        return [name for commands in PANELS.values() for name in commands]


app = typer.Typer(
    name="bivouac", cls=_LifeOrder, no_args_is_help=True, add_completion=True, pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="One ephemeral GPU cluster per training campaign, from spec to certificate.",
)  # fmt: skip
for _panel, _commands in PANELS.items():
    for _name, _command in _commands.items():
        if isinstance(_command, typer.Typer):
            app.add_typer(_command, name=_name, rich_help_panel=_panel)
        else:
            app.command(_name, rich_help_panel=_panel, hidden=_name in HIDDEN)(_command)


def _show_version(flag: bool) -> None:
    if flag:
        from infra.cli.machine import version

        say(console, version())
        raise typer.Exit


@app.callback()
def bivouac(
    _: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """One ephemeral GPU cluster per training campaign, from spec to certificate."""


def _tell_interrupted() -> NoReturn:
    command = next((word for word in sys.argv[1:] if not word.startswith("-")), "")
    advice = "" if command in PANELS["Look"] else ": run the same command again to continue"
    end = ", or `bivouac down NAME`" if command in ("run", "rehearse", "relaunch", "repair") else ""
    stderr.print(f"interrupted{advice}{end}")
    sys.exit(130)


def _command_line(name: str) -> typer.Typer:
    """Return the named command alone, all for another word: to build all of them takes as long as a check of a spec."""
    if not any(name in commands for commands in PANELS.values()):
        return app
    line = copy(app)
    line.registered_commands = [command for command in app.registered_commands if command.name == name]
    line.registered_groups = [group for group in app.registered_groups if group.name == name]
    return line


def main() -> None:
    """Run the command line. Errors have no traceback but what, seen, cure (with --json as JSON); exit codes follow
    sysexits."""
    output = endure()
    listen()
    try:
        code = _command_line(next(iter(sys.argv[1:]), ""))(standalone_mode=False)
    except (Interrupted, KeyboardInterrupt, typer.Abort):
        _tell_interrupted()
    except Exception as error:
        # A C library that calls back into Python converts exceptions to its own error.
        if asked() and not isinstance(error, BivouacError):
            _tell_interrupted()
        code = tell_usage(error) if hasattr(error, "show") else tell(refusal(error))
    output.flush()
    if output.lost is not None:
        code = tell(of_file(output.lost)) or code
    sys.exit(code)


if __name__ == "__main__":
    main()
