"""Command line of `bivouac init` and `bivouac schema`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from infra.cli.options import console
from infra.errors import UserError


def init(
    path: Annotated[Path, typer.Argument(help="The file to write; none is overwritten.")] = Path("campaign.yaml"),
    name: Annotated[str, typer.Option(help="Name of the campaign; default: that of the file.")] = "",
    target: Annotated[str, typer.Option(help="rehearsal, on this machine, or aws.")] = "rehearsal",
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
    from infra.cli.prepare.init import Answers, init_command
    from infra.cli.prepare.script import look_at

    if path.exists():  # before anything is asked
        raise UserError("there is a file already", seen=str(path), cure="name another, or remove it")

    def asked(given: str, words: str, default: str | None = None) -> str:
        if given or target != "aws" or not sys.stdin.isatty():
            return given
        return str(typer.prompt(words, default=default))

    answers = Answers(
        name=name or path.stem.lower(),
        target=target,
        owner=owner,
        account=asked(account, "AWS account (12 digits)"),
        region=region,
        zone=asked(zone, "Availability zone", f"{region}a"),
        instance_type=asked(instance_type, "Instance type of the GPU nodes", "p5.48xlarge"),
        nodes=nodes,
        capacity=capacity,
        reservation=reservation,
        block_fee=block_fee,
        block_hourly=block_hourly,
        budget=budget,
        deadline=deadline,
        email=asked(email, "Email address for alarms of the budget"),
        api_cidr=asked(api_cidr, "Range that you come from, as 203.0.113.7/32 (see https://checkip.amazonaws.com)"),
        data="" if script is not None else asked(data, "Where the text lies (folder, file or s3://bucket/prefix)"),
        pattern=pattern,
        steps=steps,
        script=None if script is None else look_at(script),
    )
    if script is not None and run is None and sys.stdin.isatty():
        run = typer.confirm(f"Run a few steps of {script} here, at most {try_seconds} s, to measure them?")
    trial_s = try_seconds if run and script is not None else 0
    raise typer.Exit(init_command(path, answers, console, trial_s))


def schema() -> None:
    """Print a JSON schema of the spec, for editors."""
    from infra.cli.answers import write_json
    from infra.spec.schema import schema as made

    write_json(console, made())
