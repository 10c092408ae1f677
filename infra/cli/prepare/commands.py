"""Command line of what prepares a campaign."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from infra.cli.options import Json, MaybeName, Region, SpecPath, Yes, YesRemove, console, runs

stack = typer.Typer(no_args_is_help=True, help="The stacks for `pulumi` typed by hand.")
catalogue = typer.Typer(help="Instance types: hardware, prices, and what no source states.")
block = typer.Typer(no_args_is_help=True, help="Capacity blocks: bought outside of campaigns, never given back.")


@runs("prepare.check:check_command")
def check(
    path: SpecPath,
    json: Json = False,
    online: Annotated[
        bool, typer.Option("--online", help="Also ask AWS, or the existing cluster. Makes nothing.")
    ] = False,
) -> None:
    """List all errors of a spec at once. Offline, unless `--online`."""


@runs("prepare.plan:plan_command")
def plan(path: SpecPath, json: Json = False) -> None:
    """Show cost, time, checkpoint cadence and risk, then each figure with its formula. Offline."""


@runs("prepare.grant:grant_command")
def grant(
    path: SpecPath,
    user: Annotated[str, typer.Option(help="User of the cluster who runs bivouac; default: an account.")] = "",
    group: Annotated[str, typer.Option(help="Group of the cluster whose members run bivouac.")] = "",
) -> None:
    """Print what an admin of an existing cluster applies once, each object with its reason. Offline."""


@runs("prepare.block:offers_command")
def offers(
    path: SpecPath,
    types: Annotated[list[str] | None, typer.Option("--type", help="Another instance type; may be repeated.")] = None,
    more: Annotated[bool, typer.Option("--alternatives", help="Also types that offer no less.")] = False,
    as_json: Json = False,
) -> None:
    """Show the offers for the campaign's nodes, with price, time and quota. Reads only."""


@runs("prepare.bake:bake_command")
def bake(
    path: SpecPath,
    force: Annotated[bool, typer.Option("--force", help="Bake again what was baked before.")] = False,
    consent: Yes = False,
    as_json: Json = False,
) -> None:
    """Bake a spec's node image and trainer image ahead of its campaign; skips what was baked before."""


@runs("prepare.images:clean_command", enters=("campaign",))
def images(
    campaign: MaybeName = None,
    remove: Annotated[bool, typer.Option("--remove", help="Remove those that nobody uses.")] = False,
    keep: Annotated[int, typer.Option(min=0, help="The newest of each base that always stay.")] = 1,
    older_than: Annotated[str, typer.Option(help="Younger ones always stay.")] = "7d",
    consent: YesRemove = False,
    region: Region = "us-east-1",
    json: Json = False,
) -> None:
    """List baked images with users and cost, and newer releases of their base; remove unused ones."""


@runs("prepare.check:schema_command")
def schema() -> None:
    """Print a JSON schema of the spec, for editors."""


@runs("prepare.addons:addons_command")
def addons(
    kubernetes: Annotated[str, typer.Option(help="Version of the cluster.")] = "1.36",
    region: Region = "us-east-1",
    json: Json = False,
) -> None:
    """List the builds of the EKS add-ons: pinned, default, newest. Reads only; exits 2 when a pin is missing or
    outdated."""


@stack.command("init")
@runs("hand.by_hand:init_command")
def stack_init(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Path of a spec, or name of a campaign that has begun.")],
    region: Region = "us-east-1",
) -> None:
    """Make the state bucket, both stacks and their files, where they are missing. To be called in the clone."""


@catalogue.callback(invoke_without_command=True)
def catalogue_list(context: typer.Context, json: Json = False) -> None:
    """List instance types: hardware, prices, and what no source states. Offline."""
    if context.invoked_subcommand is None:
        from infra.cli.prepare.catalogue import list_command

        raise typer.Exit(list_command(json, console))


@catalogue.command("thresholds")
@runs("prepare.catalogue:thresholds_command")
def catalogue_thresholds(as_json: Json = False) -> None:
    """List what preflight's health check requires of a node, each limit with its source. Offline."""


@catalogue.command("refresh")
@runs("prepare.catalogue:refresh_command")
def catalogue_refresh(
    region: Region = "us-east-1",
    write: Annotated[bool, typer.Option("--write", help="Write AWS's figures to the catalogue's file.")] = False,
    as_json: Json = False,
) -> None:
    """Compare with DescribeInstanceTypes and the price list; exits 2 when figures differ."""


@block.command("buy")
@runs("prepare.block:buy_command")
def block_buy(
    path: SpecPath,
    offering: Annotated[str, typer.Argument(help="Id of an offering that `bivouac offers` shows.")],
    consent: Yes = False,
    as_json: Json = False,
) -> None:
    """Buy a capacity block for a campaign: paid at once, never given back."""


@runs("prepare.init:init_command")
def init(
    path: Annotated[Path, typer.Argument(help="The file to write; none is overwritten.")] = Path("campaign.yaml"),
    name: Annotated[str, typer.Option(help="Name of the campaign; default: that of the file.")] = "",
    target: Annotated[
        str, typer.Option(help="rehearsal, on this machine, or aws.", autocompletion=lambda: ["aws", "rehearsal"])
    ] = "rehearsal",
    owner: Annotated[str, typer.Option(help="Person responsible; default: your login.")] = "",
    account: Annotated[str, typer.Option(help="AWS account, 12 digits.")] = "",
    region: Annotated[str, typer.Option(help="AWS region.")] = "us-east-1",
    zone: Annotated[str, typer.Option(help="Availability zone; default: the region's `a`.")] = "",
    instance_type: Annotated[str, typer.Option(help="Instance type of the GPU nodes; default: p5.48xlarge.")] = "",
    nodes: Annotated[int, typer.Option(min=0, help="Number of GPU nodes; default: 2, or 1 if no ranks meet.")] = 0,
    capacity: Annotated[str, typer.Option(help="on-demand, spot, reservation or capacity-block.")] = "on-demand",
    reservation: Annotated[str, typer.Option(help="cr-..., of a reservation or capacity block.")] = "",
    block_fee: Annotated[str, typer.Option(help="USD for the whole capacity block.")] = "",
    block_hourly: Annotated[str, typer.Option(help="USD: the block's fee / (nodes x hours).")] = "",
    budget: Annotated[str, typer.Option(help="USD; default: the most that the plan may cost.")] = "",
    deadline: Annotated[str, typer.Option(help="Such as 16h; default: 1.5 times the planned time.")] = "",
    email: Annotated[str, typer.Option(help="Address for the alarms of AWS Budgets.")] = "",
    api_cidr: Annotated[str, typer.Option(help="Range that may reach the cluster's API, as 203.0.113.7/32.")] = "",
    data: Annotated[str, typer.Option(help="Folder, file or s3://bucket/prefix of the text.")] = "",
    pattern: Annotated[str, typer.Option(help="Files of the data.")] = "**/*",
    steps: Annotated[int, typer.Option(min=0, help="Training steps; default 110, on AWS 2000.")] = 0,
    script: Annotated[
        Path | None,
        typer.Option("--script", "--workload", help="Your own training script, or its folder: proposes a workload."),
    ] = None,
    run: Annotated[
        bool | None, typer.Option("--try/--no-try", help="Run a few of its steps here, and write what they show.")
    ] = None,
    try_seconds: Annotated[int, typer.Option(min=1, help="Longest time of that.")] = 120,
) -> None:
    """Write a first spec, with comments, that passes `check`, for a rehearsal or AWS; for a script of your own with
    `--script`. On a terminal it asks for what a campaign on AWS needs."""
