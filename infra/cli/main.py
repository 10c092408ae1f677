"""`bivouac`: selects what to do; a file describes it. Imports lazily, so that `--help` is quick."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, NoReturn

try:
    import typer
    from rich.console import Console
except ModuleNotFoundError as missing:
    sys.exit(f"a Python package is missing; seen: {missing.name}; cure: make setup")

from infra.cli.data.checkpoints_app import checkpoints
from infra.cli.data.data_app import data
from infra.cli.options import Json, Name, Region, SpecPath, Yes, YesRemove, console
from infra.cli.prepare.images_app import images
from infra.cli.prepare.market_app import block, catalogue
from infra.cli.refusals import of_file, refusal, tell, tell_usage
from infra.console.terminal import endure
from infra.errors import BivouacError
from infra.interruption import Interrupted, asked, listen

app = typer.Typer(
    name="bivouac",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="One ephemeral GPU cluster per training campaign, from spec to certificate.",
)
app.add_typer(data, name="data")
app.add_typer(catalogue, name="catalogue")
app.add_typer(block, name="block")
app.add_typer(checkpoints, name="checkpoints")
app.command()(images)


@app.command()
def check(
    spec: SpecPath,
    json: Json = False,
    online: Annotated[
        bool, typer.Option("--online", help="Also ask AWS: zones, quota, base image. Reads only.")
    ] = False,
) -> None:
    """Everything that is wrong with a spec, at once. Offline, unless it is told to ask AWS too."""
    from infra.cli.prepare.check import check_command

    raise typer.Exit(check_command(spec, json, console, online))


@app.command()
def plan(spec: SpecPath, json: Json = False) -> None:
    """Cost, clock, tiers, checkpoint cadence, each with its formula. Offline."""
    from infra.cli.prepare.plan import plan_command

    raise typer.Exit(plan_command(spec, json, console))


@app.command()
def preview(
    spec: SpecPath,
    json: Json = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown, for a pull request.")] = False,
    before: Annotated[Path | None, typer.Option(help="The spec as it was: shows how the bill changes.")] = None,
    cluster: Annotated[bool, typer.Option(help="Look at what is inside the cluster too.")] = True,
) -> None:
    """What `run` would do to AWS now, what drifted, what the rules find. Reads only; exits 2 when something would
    change, 64 when it must not."""
    from infra.cli.run.preview import preview_command

    raise typer.Exit(preview_command(spec, json, console, as_markdown=markdown, before=before, inside=cluster))


@app.command()
def offers(
    spec: SpecPath,
    types: Annotated[list[str] | None, typer.Option("--type", help="Another instance type; may be repeated.")] = None,
    alternatives: Annotated[bool, typer.Option("--alternatives", help="Also types with no less to offer.")] = False,
    json: Json = False,
) -> None:
    """What can be had for the campaign's nodes, for how much and when, with quotas. Reads only."""
    from infra.cli.prepare.offers import offers_command

    raise typer.Exit(offers_command(spec, types or [], alternatives, json, console))


@app.command()
def run(spec: SpecPath, yes: Yes = False) -> None:
    """The whole campaign, from wherever it stands: run it again after any interruption."""
    from infra.cli.run.run import run_command

    raise typer.Exit(run_command(spec, yes, console))


@app.command()
def bake(
    spec: SpecPath,
    force: Annotated[bool, typer.Option("--force", help="Bake also what was baked before.")] = False,
    yes: Yes = False,
) -> None:
    """Node image and trainer image of a spec, ahead of its campaign; what was baked before is skipped."""
    from infra.cli.prepare.bake import bake_command

    raise typer.Exit(bake_command(spec, force, yes, console))


@app.command()
def status(
    name: Name,
    region: Region = "us-east-1",
    json: Json = False,
    refresh: Annotated[bool, typer.Option("--refresh", help="Also compare with AWS; exits 2 on drift.")] = False,
) -> None:
    """Where a campaign stands, who drives it, what bills."""
    from infra import target

    target.enter_where(name)
    from infra.cli.look.status import status_command

    raise typer.Exit(status_command(name, region, json, console, refresh=refresh))


@app.command()
def repair(
    name: Name,
    region: Region = "us-east-1",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Repair without asking.")] = False,
) -> None:
    """Set right what was changed or deleted by hand, or say why that must not be."""
    from infra import target

    target.enter_where(name)
    from infra.cli.run.repair import repair_command

    raise typer.Exit(repair_command(name, region, yes, console))


@app.command()
def down(
    name: Annotated[str | None, typer.Argument(help="Name of the campaign.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Strike every rehearsal site of this machine.")] = False,
    abandon: Annotated[bool, typer.Option(help="Tear down without an archive: what was trained is lost.")] = False,
    region: Region = "us-east-1",
) -> None:
    """Stop a campaign, archive what is sound, tear down, certify; or strike all rehearsal sites."""
    from infra import target

    if everything:
        raise typer.Exit(target.strike_all(console.print))
    if name is None:
        raise typer.BadParameter("give the name of a campaign, or --all")
    target.enter_where(name)
    if target.strike_lost(name, console.print):
        raise typer.Exit(0)
    from infra.cli.end.down import down_command

    raise typer.Exit(down_command(name, region, abandon, console))


@app.command()
def report(
    name: Name,
    region: Region = "us-east-1",
    show: Annotated[bool, typer.Option("--open", help="Show it in a browser.")] = False,
) -> None:
    """Write the report of a campaign as it stands; of one that is gone, from the record in the results folder."""
    from infra import target

    target.enter_where(name)
    from infra.cli.look.report import report_command

    raise typer.Exit(report_command(name, region, show, console))


@app.command()
def relaunch(
    name: Name,
    spec: Annotated[Path | None, typer.Option(help="The mended spec; without it only changed code counts.")] = None,
    now: Annotated[bool, typer.Option("--now", help="While it trains: stop at the next commit first.")] = False,
    yes: Yes = False,
    region: Region = "us-east-1",
) -> None:
    """A new attempt on a held, warm cluster, with a mended spec or code; then on to the end."""
    from infra import target

    target.enter_where(name)
    from infra.cli.run.relaunch import relaunch_command

    raise typer.Exit(relaunch_command(name, region, spec, now, yes, console))


@app.command()
def sweep(
    name: Annotated[str | None, typer.Argument(help="Name of the campaign.")] = None,
    orphans: Annotated[bool, typer.Option("--orphans", help="What any dead campaign of the account left.")] = False,
    yes: YesRemove = False,
    abandon: Annotated[bool, typer.Option(help="Give up what it may hold: no archive is asked for.")] = False,
    region: Region = "us-east-1",
    json: Json = False,
) -> None:
    """What a torn down campaign left; removes what is provably its own, after a yes, and certifies again."""
    from infra import target

    if name is not None:
        target.enter_where(name)
    if orphans and abandon:
        raise typer.BadParameter("one campaign is given up at a time: bivouac sweep NAME --abandon")
    if orphans:
        from infra.cli.end.strays import strays_command

        raise typer.Exit(strays_command(region, yes, json, console))
    if name is None:
        raise typer.BadParameter("give the name of a campaign, or --orphans")
    from infra.cli.end.sweep import sweep_command

    raise typer.Exit(sweep_command(name, region, yes, json, console, abandon))


@app.command()
def shell(
    name: Name,
    command: Annotated[list[str] | None, typer.Argument(help="Run this instead of a shell.")] = None,
    region: Region = "us-east-1",
) -> None:
    """A shell where the campaign runs, with `pulumi`, `kubectl` and credentials set."""
    from infra import target

    target.enter_where(name)
    from infra.cli.look.shell import shell_command

    raise typer.Exit(shell_command(name, region, command or [], console))


@app.command()
def addons(
    kubernetes: Annotated[str, typer.Option(help="Version of the cluster.")] = "1.36",
    region: Region = "us-east-1",
    json: Json = False,
) -> None:
    """Builds of the EKS add-ons: pinned, default, newest. Reads only; exits 2 when a pin is missing or outdated."""
    from infra.cli.prepare.addons import addons_command

    raise typer.Exit(addons_command(kubernetes, region, json, console))


@app.command()
def token(cluster: Annotated[str, typer.Option()], region: Annotated[str, typer.Option()]) -> None:
    """An EKS token as kubectl's credential plugin wants it."""
    from infra.cli.look.token import token_command

    raise typer.Exit(token_command(cluster, region))


@app.command()
def doctor() -> None:
    """Each tool, its version and origin, whether namespaces work, and what is missing with its cure."""
    from infra import target

    table, fit = target.diagnose()
    table.show(console)
    raise typer.Exit(0 if fit else 1)


def _tell_interrupted() -> NoReturn:
    Console(stderr=True, highlight=False).print(
        "interrupted: run the same command again to continue, or `bivouac down NAME`"
    )
    sys.exit(130)


def main() -> None:
    """Errors are shown without a traceback, as what, seen, cure (with --json as JSON); exit codes follow sysexits."""
    out = endure()
    listen()
    try:
        code = app(standalone_mode=False)
    except (Interrupted, KeyboardInterrupt, typer.Abort):
        _tell_interrupted()
    except Exception as error:
        # A C library that calls back into Python makes its own error of whatever is raised there.
        if asked() and not isinstance(error, BivouacError):
            _tell_interrupted()
        code = tell_usage(error) if hasattr(error, "show") else tell(refusal(error))
    out.flush()
    if out.lost is not None:
        code = tell(of_file(out.lost)) or code
    sys.exit(code)


if __name__ == "__main__":
    main()
