"""Command line of what looks at campaigns."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from infra.cli.options import Json, MaybeName, Name, Region, known_campaigns, runs, stderr


@runs("look.list:list_command")
def list_campaigns(region: Region = "us-east-1", as_json: Json = False) -> None:
    """List the campaigns that this machine rehearses, and those in the AWS account and region."""


@runs("look.status:status_command", enters=("campaign",))
def status(
    campaign: Name,
    region: Region = "us-east-1",
    as_json: Json = False,
    refresh: Annotated[bool, typer.Option("--refresh", help="Also compare with AWS; exits 2 on drift.")] = False,
) -> None:
    """Show a campaign's stage, driver, steward and cost."""


@runs("look.watch.watch:watch_command", enters=("campaign",))
def watch(
    campaign: Name,
    region: Region = "us-east-1",
    once: Annotated[bool, typer.Option("--once", help="Print one frame and end.")] = False,
) -> None:
    """Show a campaign live until it has ended or `q` is pressed; without a terminal, or once it has ended, as it is."""


@runs("look.report:report_command", enters=("campaign",))
def report(
    campaign: Name,
    region: Region = "us-east-1",
    show: Annotated[bool, typer.Option("--open", help="Show it in a browser.")] = False,
    as_json: Json = False,
) -> None:
    """Write a campaign's report; for one that is gone, from the record in the results folder."""


@runs("look.open:open_command", enters=("campaign",))
def open_places(
    campaign: Name,
    what: Annotated[str | None, typer.Argument(help="Show this place in a browser.")] = None,
    region: Region = "us-east-1",
    as_json: Json = False,
) -> None:
    """List where a campaign can be looked at: report, dashboards, Grafana, AWS' console; or open one of them."""


@runs("look.logs:logs_command", enters=("campaign",))
def logs(
    campaign: Name,
    region: Region = "us-east-1",
    attempt: Annotated[int | None, typer.Option(min=1, help="The attempt; default: the newest.")] = None,
    rank: Annotated[int | None, typer.Option(min=0, help="Only the node of this rank.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until training is over.")] = False,
    since: Annotated[str | None, typer.Option(help="Only what is not older, such as `90s`, `10m`, `2h`.")] = None,
    tail: Annotated[int | None, typer.Option(min=1, help="Only so many of each pod's newest lines.")] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Print events of the trainer as JSON, as they are.")] = False,
    of: Annotated[
        str, typer.Option(help="job, steward or driver.", autocompletion=lambda: ["job", "steward", "driver"])
    ] = "job",
) -> None:
    """Print what the job's pods printed, while they run and after they are gone; or the steward's log, or what drivers
    recorded."""


@runs("look.events:events_command", enters=("campaign",))
def events(
    campaign: Name,
    region: Region = "us-east-1",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the campaign has ended.")] = False,
    tail: Annotated[int | None, typer.Option(min=1, help="Only so many of the newest events.")] = None,
    as_json: Json = False,
) -> None:
    """Print a campaign's record in sentences, oldest first; for one that is gone, from the results folder."""


@runs("look.explain:explain_command", enters=("campaign",))
def explain(
    campaign: MaybeName = None,
    event: Annotated[str | None, typer.Argument(help="Its number or time in `bivouac events`.")] = None,
    region: Region = "us-east-1",
    as_json: Json = False,
) -> None:
    """Say what the steward does after each kind of failure, or why it decided an event of a campaign."""


@runs("look.alerts:alerts_command", enters=("campaign",))
def alerts(
    campaign: Name,
    route: Annotated[str | None, typer.Argument(help="With --test: this route alone, or an alert by all.")] = None,
    region: Region = "us-east-1",
    as_json: Json = False,
    test: Annotated[bool, typer.Option("--test", help="Send one message by each route of `notify`.")] = False,
    ack: Annotated[bool, typer.Option("--ack", help="Say that you have in hand what fires: no escalation.")] = False,
    lasts: Annotated[
        str | None,
        typer.Option("--silence", metavar="2h", help="Tell nobody of alerts, for at most 24h; off: tell again."),
    ] = None,
    why: Annotated[str, typer.Option(help="With --silence or --ack: the reason, for those who come later.")] = "",
    only: Annotated[
        str | None, typer.Option(metavar="ALERT", help="With --silence or --ack: this alert alone.")
    ] = None,
) -> None:
    """Print a campaign's alerts, which fire and which have ended, with their runbooks; acknowledge them, test the
    routes to people, or silence alerts for a maintenance window."""


@runs("look.metrics:metrics_command", enters=("campaign",))
def metrics(
    campaign: Name,
    query: Annotated[str, typer.Argument(help="PromQL, or a metric's name, such as `loss`.")],
    region: Region = "us-east-1",
    since: Annotated[str | None, typer.Option(help="Only the last of it, such as `10m`, `2h`.")] = None,
    as_json: Json = False,
) -> None:
    """Print a campaign's series: from Prometheus while its cluster stands, afterwards as they were kept."""


@runs("look.dashboard:dashboard_command", announces=False)
def dashboard(
    campaign: MaybeName = None,
    region: Region = "us-east-1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on 127.0.0.1; 0: a free one.")] = 0,
    grafana: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Write the dashboards for Grafana there, and end.")
    ] = None,
) -> None:
    """Show a campaign's dashboards in a browser of this machine, from series live or kept; without a name all campaigns
    side by side, from series that are kept."""


@runs("look.shell:shell_command", announces=False)
def shell(
    name: Annotated[
        str | None,
        typer.Argument(help="Name of a campaign, or path of a spec; else the account.", autocompletion=known_campaigns),
    ] = None,
    command: Annotated[list[str] | None, typer.Argument(help="After `--`: run this instead of a shell.")] = None,
    region: Region = "us-east-1",
) -> None:
    """Open a shell where the campaign runs, with `pulumi`, `kubectl` and credentials set."""


@runs("look.exec:exec_command", enters=("campaign",), output=stderr, announces=False)
def execute(
    campaign: Name,
    rank: Annotated[int, typer.Argument(min=0, help="Global rank of the newest attempt: its node's container.")],
    command: Annotated[list[str], typer.Argument(help="After `--`: the command and its words.")],
    region: Region = "us-east-1",
    stdin: Annotated[bool, typer.Option("--stdin", "-i", help="Pass standard input on.")] = False,
    terminal: Annotated[bool, typer.Option("--tty", "-t", help="Give it this terminal, as for a shell.")] = False,
) -> None:
    """Run a command in the container of a rank; its exit code becomes ours."""


@runs("look.profile:profile_command", enters=("campaign",), output=stderr)
def profile(
    campaign: Name,
    region: Region = "us-east-1",
    rank: Annotated[int, typer.Option(min=0, help="Global rank of the newest attempt.")] = 0,
    steps: Annotated[int, typer.Option(min=1, max=50, help="Steps to trace.")] = 3,
    folder: Annotated[str, typer.Option("--out", help="File or folder here for the trace.")] = ".",
) -> None:
    """Trace some steps of a rank with torch's profiler, while it trains, and fetch the trace."""


@runs("look.cp:cp_command", enters=("campaign",), output=stderr)
def cp(
    campaign: Name,
    source: Annotated[str, typer.Argument(help="`RANK:/path`, or a file or folder here.")],
    destination: Annotated[str, typer.Argument(help="The other side; a folder that is there gets the copy in it.")],
    region: Region = "us-east-1",
) -> None:
    """Copy a file or folder out of a rank's container, or into it; every byte is compared before it has its name."""
