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

import logging  # noqa: F401  its fork handlers must be registered before ours, so that they run inside ours
import os
import signal
import sys
import threading
from typing import Any

from infra.cli.data.commands import checkpoints, data
from infra.cli.end.commands import close, down, sweep
from infra.cli.look import commands as look
from infra.cli.options import Json, console, runs, stderr
from infra.cli.prepare.commands import (
    addons,
    bake,
    block,
    catalogue,
    check,
    grant,
    images,
    init,
    offers,
    plan,
    schema,
    stack,
)  # fmt: skip
from infra.cli.refusals import of_file, refusal, tell, tell_usage
from infra.cli.run.commands import drill, preview, rehearse, relaunch, repair, run
from infra.console.plain_console import say
from infra.console.terminal import endure
from infra.errors import BivouacError


@runs("machine:doctor_command")
def doctor(as_json: Json = False) -> None:
    """Show each tool, its version and origin, whether namespaces work, and what is missing with its cure."""


@runs("machine:token_command", announces=False)  # kubectl shows what a credential plugin says
def token(cluster: Annotated[str, typer.Option()], region: Annotated[str, typer.Option()]) -> None:
    """Print an EKS token as kubectl's credential plugin wants it."""


PANELS: dict[str, dict[str, Callable[..., None] | typer.Typer]] = {
    "Prepare": dict(
        init=init, check=check, plan=plan, grant=grant, offers=offers, catalogue=catalogue, block=block, bake=bake,
        images=images, stack=stack, schema=schema,
    ),
    "Run": dict(preview=preview, rehearse=rehearse, drill=drill, run=run, relaunch=relaunch, repair=repair),
    "Look": dict(
        list=look.list_campaigns, status=look.status, watch=look.watch, logs=look.logs, events=look.events,
        explain=look.explain, alerts=look.alerts, metrics=look.metrics, dashboard=look.dashboard, exec=look.execute,
        cp=look.cp, profile=look.profile,
        report=look.report, open=look.open_places, shell=look.shell,
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
    advice = "" if command in (*PANELS["Look"], "drill") else ": run the same command again to continue"
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


_NUMBERS = (signal.SIGINT, signal.SIGTERM)
_AGAIN_S = 0.1


class Interrupted(BaseException):
    """SIGINT or SIGTERM came. Not a KeyboardInterrupt: click would end the program without our message."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


_asked = threading.Event()


def asked() -> bool:
    """Return True if a signal has come: foreign code may have turned its exception into an error of its own."""
    return _asked.is_set()


def listen() -> None:
    """Make both signals raise `Interrupted`. SIGTERM also counts as an end by hand, so the lease is given back."""
    for number in _NUMBERS:
        signal.signal(number, _interrupt)
    sys.unraisablehook = _again
    # An exception inside another module's fork handler would be lost and leave that module's lock held.
    os.register_at_fork(before=_hold, after_in_parent=_release, after_in_child=_release)


def _interrupt(number: int, frame: object) -> NoReturn:
    _asked.set()
    raise Interrupted(number)


def _hold() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, _NUMBERS)


def _release() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _NUMBERS)


def _again(unraisable: Any) -> None:
    """Send the signal again a moment later: Python drops exceptions raised in a finalizer or around a fork."""
    if not isinstance(unraisable.exc_value, Interrupted):
        sys.__unraisablehook__(unraisable)
        return
    # A timer, since an exception raised in this hook would be dropped as well.
    timer = threading.Timer(_AGAIN_S, os.kill, (os.getpid(), unraisable.exc_value.number))
    timer.daemon = True
    timer.start()


if __name__ == "__main__":
    main()
