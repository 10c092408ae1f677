"""`bivouac list`: rehearsals of this machine, campaigns in the account and region, and those in existing clusters."""

from __future__ import annotations

import json
import subprocess
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from rich.console import Console

from infra import target
from infra.aws.account import Account, NoCredentials
from infra.cli.answers import write_json
from infra.cli.look.status import facts_by, facts_of
from infra.cluster.kubernetes import OF_WORLD
from infra.console.tables import Listing
from infra.errors import BivouacError, first_line
from infra.folders import own_module, results_root
from infra.record import borrowing
from infra.record.store import CampaignStore
from infra.report.record import PACKED, unpacked
from infra.session.session import campaigns, record_of
from infra.spec import duration
from infra.spec.names import buckets

_AT_A_TIME = 8


def list_command(region: str, as_json: bool, console: Console) -> int:
    """List campaigns; exit code 0. Without credentials AWS is not asked, and a line says so."""
    with ThreadPoolExecutor(_AT_A_TIME) as workers:
        rows = list(workers.map(lambda site: rehearsal(*site), target.rehearsals().items()))
        try:
            rows += _in_account(region, workers)
            aws_note = None
        except NoCredentials:
            aws_note = "AWS was not asked: there are no credentials"
        rows += workers.map(_borrowing, borrowing.remembered())
        names = {facts["campaign"] for facts in rows}
        paths = (path for path in sorted(results_root().glob(f"*-*/*/{PACKED}")) if path.parent.name not in names)
        rows += filter(None, workers.map(_kept_status, paths))
    if as_json:
        write_json(console, {"campaigns": rows, "aws": aws_note or "asked"})
        return 0
    table = Listing("campaign", "target", "owner", "stage", ">age", ">spent USD", ">USD/h now")
    for facts in rows:
        table.row(
            facts["campaign"], facts["target"], facts.get("owner") or "", facts["stage"], _age(facts.get("begun")),
            *("" if (usd := facts.get(key)) is None else f"{usd:,.2f}" for key in ("spent_usd", "bills_usd_per_hour")),
        )  # fmt: skip
    if rows:
        table.show(console)
    else:
        console.print("no campaign is known here")
    if aws_note:
        console.print(aws_note)
    return 0


def rehearsal(name: str, runs: bool) -> dict[str, Any]:
    """Return the output of `status` inside the campaign's site, at least `campaign`, `target` and `stage`."""
    short = {"campaign": name, "target": "rehearsal"}
    if not runs:
        return short | {"stage": f"its site does not run: bivouac down {name}"}
    process = subprocess.run(
        own_module("infra.cli.main", "status", name, "--json"), capture_output=True, text=True, check=False
    )
    try:
        facts = json.loads(process.stdout)
    except ValueError:
        facts = None
    if isinstance(facts, dict) and "stage" in facts:  # an error is an object too
        return short | facts
    return short | {"stage": "its status cannot be read: bivouac status " + name}


def _borrowing(name: str) -> dict[str, Any]:
    """Return the status of a campaign in an existing cluster, or why it cannot be read."""
    try:
        return facts_of(record_of(name, ""))[0]
    except (*OF_WORLD, BivouacError, ValueError) as error:
        stage = f"its record cannot be read: {first_line(error)}"
        return {"campaign": name, "target": "kubernetes", "stage": stage}


def _kept_status(path: Path) -> dict[str, Any] | None:
    """Return the status of a campaign whose record is only in the results folder; None if it cannot be read."""
    try:
        record = unpacked(path.read_bytes())
    except (OSError, ValueError, TypeError, KeyError):
        return None
    facts = facts_by(record, {}, {})[0]
    return facts | {"stage": "ended", "bills_usd_per_hour": None, "results": str(path.parent)}


def _in_account(region: str, workers: ThreadPoolExecutor) -> list[dict[str, Any]]:
    account = Account(region)
    bucket = buckets(account.identity()["Account"], region).state
    s3 = account.client("s3")

    def facts(name: str) -> dict[str, Any]:
        try:
            return facts_of(CampaignStore(s3, bucket, name, ""))[0]
        except (BivouacError, ValueError) as error:  # pydantic's own are ValueErrors
            return {"campaign": name, "target": "aws", "stage": f"its record cannot be read: {first_line(error)}"}

    return list(workers.map(facts, campaigns(account, bucket)))


def _age(beginning: str | datetime | None) -> str:
    if beginning is None:
        return ""
    start = datetime.fromisoformat(beginning) if isinstance(beginning, str) else beginning
    return duration.text(timedelta(minutes=(datetime.now(UTC) - start) // timedelta(minutes=1)))
