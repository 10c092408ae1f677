"""Command line of `bivouac init` and `bivouac schema`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from infra.cli.options import console


def init(
    path: Annotated[Path, typer.Argument(help="The file to write; none is overwritten.")] = Path("campaign.yaml"),
    name: Annotated[str, typer.Option(help="Name of the campaign; default: that of the file.")] = "",
    target: Annotated[str, typer.Option(help="rehearsal, on this machine, or aws.")] = "rehearsal",
    owner: Annotated[str, typer.Option(help="Person responsible; default: your login.")] = "",
    account: Annotated[str, typer.Option(help="AWS account, 12 digits.")] = "",
    region: Annotated[str, typer.Option(help="AWS region.")] = "us-east-1",
    zone: Annotated[str, typer.Option(help="Availability zone; default: the region's `a`.")] = "",
    instance_type: Annotated[str, typer.Option(help="Instance type of the GPU nodes; default: p5.48xlarge.")] = "",
    nodes: Annotated[int, typer.Option(min=1, help="Number of GPU nodes.")] = 2,
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
) -> None:
    """Write a first spec, with comments, that passes `check`, for a rehearsal or AWS. On a terminal it asks for what a
    campaign on AWS needs."""
    from infra.cli.prepare.init import Answers, init_command

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
        data=asked(data, "Where the text lies (folder, file or s3://bucket/prefix)"),
        pattern=pattern,
        steps=steps,
    )
    raise typer.Exit(init_command(path, answers, console))


def schema() -> None:
    """Print a JSON schema of the spec, for editors."""
    from infra.cli.answers import write_json
    from infra.spec.schema import schema as made

    write_json(console, made())
