"""Report: what the campaign took, cost and left, as one page and as JSON; from the record alone, at any time."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from infra.folders import keep
from infra.lifecycle.certify import CERTIFICATE
from infra.lifecycle.context import Context
from infra.lifecycle.opening import SITE, stored_plan, stored_spec
from infra.reporting import Record, Report, build, pods_to_read, render
from infra.reporting.sentences import clock, share
from infra.store import CampaignStore

HTML, JSON = "report.html", "report.json"
_LOGS = "logs/"


def run(context: Context) -> dict[str, Any]:
    report = _of(context.store)
    written = _write(report, context.store, context.results, context.progress.note)
    goodput = report.goodput
    if goodput is not None:
        context.progress.note(
            f"goodput {share(goodput)} of {clock(report.paid_s)} paid; {report.money.total_usd} USD "
            f"{'on AWS' if report.money.notional else ''}".rstrip()
        )
    return {"goodput": round(goodput, 4) if goodput is not None else None, **written}


def write(store: CampaignStore, results: Path, note: Callable[[str], None] = print) -> dict[str, str]:
    """Write the report of a campaign as it stands, here and beside its record; returns the two paths here.

    `note` is told of a copy here that the disk refused.
    """
    return _write(_of(store), store, results, note)


def read(store: CampaignStore) -> Record:
    """Everything a report is computed from."""
    spec = stored_spec(store)
    keys = {key.rpartition("/")[2].removesuffix(".log"): key for key in store.keys(_LOGS)}
    pods = pods_to_read(list(keys))
    with ThreadPoolExecutor(8, thread_name_prefix="log") as pool:
        bodies = list(pool.map(lambda pod: store.get(keys[pod]), pods))
    return Record(
        spec=spec,
        plan=stored_plan(store, spec),
        events=store.events(),
        at=datetime.now(UTC),
        logs={pod: body.decode(errors="replace") for pod, body in zip(pods, bodies, strict=True) if body is not None},
        certificate=store.get_json(CERTIFICATE),
        site=store.get_json(SITE),
    )


def _of(store: CampaignStore) -> Report:
    return build(read(store))


def _write(report: Report, store: CampaignStore, results: Path, note: Callable[[str], None]) -> dict[str, str]:
    texts = {HTML: render(report), JSON: report.model_dump_json(indent=1)}
    for name, text in texts.items():
        store.put(f"{store.prefix}/{name}", text.encode())
        keep(results / name, text, note)
    return {"html": str(results / HTML), "json": str(results / JSON)}
