"""Report: time, cost and results of a campaign as one page and as JSON, from the record alone, at any time."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from infra.archive.manifest import MANIFEST_NAME
from infra.aws.account import explained, says_denied
from infra.campaign.billing import bills_on
from infra.console.words import clock, share
from infra.errors import LeaseLost, UserError, first_line
from infra.folders import keep
from infra.inventory.certify import CERTIFICATE
from infra.record import pod_logs, series
from infra.record.events import fold
from infra.record.identity import archive_prefix_of
from infra.record.payloads.outputs import BakeOutput, ProvisionOutput, ReportOutput
from infra.record.store import STACKS, CampaignStore
from infra.report.build import build
from infra.report.model import Report
from infra.report.page import render
from infra.report.record import PACKED, Record, unpacked
from infra.report.trainer_log import logs_to_keep
from infra.session.context import Context
from infra.session.session import SITE, stored_plan, stored_spec
from infra.spec.names import data_prefix
from trainer.contract import DATA_MANIFEST_NAME

HTML, JSON = "report.html", "report.json"


REWRITE_S, _REST, _LAST_PAGE_S = 60.0, 20, 5.0
"""Between two pages of a running campaign; at least so many times as long as the last one took; and the longest wait
for a page that is being written at the end."""


@contextmanager
def rewritten(context: Context) -> Iterator[None]:
    """Write the report again and again while the body runs. A page that cannot be written is tried again, and the first
    reason is said."""
    end = threading.Event()

    def rewrite() -> None:
        pause_s, reasons = REWRITE_S, list[str]()
        while not end.wait(pause_s):
            start = time.monotonic()
            try:
                context.guard()
                write(context.store, context.results, lambda refusal: None, is_cancelled=end.is_set)
            except LeaseLost:
                return
            except Exception as error:  # the campaign goes on without its page
                if not reasons:
                    reasons.append(first_line(error))
                    context.progress.note(f"the report page waits for its next try: {reasons[0]}")
            pause_s = max(REWRITE_S, _REST * (time.monotonic() - start))

    thread = threading.Thread(target=rewrite, name="report", daemon=True)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join(_LAST_PAGE_S)


def run(context: Context) -> ReportOutput:
    report, paths = write(context.store, context.results, context.progress.note)
    _keep_series(context)
    _keep_stacks(context)
    goodput = report.goodput
    if goodput is not None:
        context.progress.note(
            f"goodput {share(goodput)} of {clock(report.paid_s)} paid; {report.money.total_usd} USD "
            f"{'on AWS' if report.money.notional else ''}".rstrip()
        )
    if on := bills_on(context):
        context.progress.note(on)
    return ReportOutput(goodput=None if goodput is None else round(goodput, 4), **paths)


def _keep_series(context: Context) -> None:
    """Join the series in the results folder, piece by piece: those of months exceed a closer's memory. The campaign
    ends without them where that fails; the record has them."""
    path = context.results / series.JOINED
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        if keys := series.pieces(context.store):
            temporary.parent.mkdir(parents=True, exist_ok=True)
            with temporary.open("wb") as file:
                file.writelines(series.bodies(context.store, keys))
            temporary.replace(path)
    except (OSError, ClientError, BotoCoreError) as error:
        temporary.unlink(missing_ok=True)
        context.progress.note(f"{path} is not written ({first_line(error)}): the record in the state bucket keeps it")


def _keep_stacks(context: Context) -> None:
    """Copy the stacks of gangs that hung into the results folder. The campaign ends without them where that fails."""
    try:
        for key in context.store.keys(STACKS):
            path = context.results / key.removeprefix(f"{context.store.prefix}/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(context.store.get(key) or b"")
    except (OSError, ClientError, BotoCoreError) as error:
        context.progress.note(f"stacks are not copied ({first_line(error)}): the record in the state bucket has them")


def write(
    store: CampaignStore,
    results: Path,
    note: Callable[[str], None] = print,
    is_cancelled: Callable[[], bool] = lambda: False,
) -> tuple[Report, dict[str, str]]:
    """Write the report here and beside the campaign's record; return it and the paths here. `note` gets a message for a
    copy that the local disk refused, or that a viewer's rights do not allow. Nothing is written once `is_cancelled`."""
    record = read(store)
    report = build(record)
    if is_cancelled():
        return report, {}
    bodies = _bodies(report)
    try:
        for name, body in bodies.items():
            store.put(f"{store.prefix}/{name}", body)
    except ClientError as error:
        if not says_denied(error):
            raise
        note(f"the record keeps its earlier page, since you may not write there: {explained(error).seen}")
    return report, _files(results, bodies | {PACKED: record.packed()}, note)


def write_again(results: Path, note: Callable[[str], None] = print) -> tuple[Report, dict[str, str]]:
    """Write the report again from the packed record of an earlier one: needs neither site nor credentials. Raises
    `UserError` if that record is missing or cannot be read."""
    path = results / PACKED
    try:
        record = unpacked(path.read_bytes())
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            "no record of this campaign can be read here",
            seen=f"{path}: {error}",
            cure="give the name of a campaign that ran, its region, or BIVOUAC_RESULTS for another results folder",
        ) from error
    report = build(record)
    return report, _files(results, _bodies(report), note)


def read(store: CampaignStore) -> Record:
    """Return everything that a report needs; what cannot be read is named in it."""
    spec = stored_spec(store)
    events = store.events()
    logs = logs_to_keep(pod_logs.pods(store), lambda pods: _logs(store, pods))
    state, unread = fold(events), _Unread()
    certificate, site = unread.record_object(store, CERTIFICATE), unread.record_object(store, SITE)
    plan = stored_plan(store, spec)
    image = BakeOutput.known(state.finished_stages).manifest
    bucket = spec.buckets
    digest = ProvisionOutput.known(state.finished_stages).data_digest
    data_key = f"{spec.bucket_root}{data_prefix(digest)}{DATA_MANIFEST_NAME}"
    archive_key = f"{spec.bucket_root}{archive_prefix_of(store)}/{MANIFEST_NAME}"
    return Record(
        spec=spec,
        plan=plan,
        events=events,
        at=datetime.now(UTC),
        logs={pod: body.decode(errors="replace") for pod, body in logs.items()},
        certificate=certificate,
        site=site,
        image=unread.json(store, store.bucket, image) if image else None,
        data=unread.json(store, bucket.data, data_key) if digest else None,
        archive=unread.json(store, bucket.archive, archive_key) if state.archive is not None else None,
        unread=(*(f"{key}: {reason}" for key, reason in store.unread_objects().items()), *unread.reasons),
    )


def _logs(store: CampaignStore, pods: list[str]) -> dict[str, bytes]:
    with ThreadPoolExecutor(8, thread_name_prefix="log") as pool:
        pieces = {pod: [pool.submit(store.get, key) for key in pod_logs.pieces(store, pod)] for pod in pods}
    return {pod: b"".join(piece.result() or b"" for piece in parts) for pod, parts in pieces.items()}


class _Unread:
    """Reads optional parts of the page and keeps the reasons for failures."""

    def __init__(self) -> None:
        self.reasons: list[str] = []

    def record_object(self, store: CampaignStore, name: str) -> dict[str, Any] | None:
        """Return an object of the record that may be missing."""
        try:
            document = store.get_json(name)
            return None if document is None else dict(document)
        except (TypeError, ValueError) as error:
            self.reasons.append(f"{store.prefix}/{name}: {first_line(error)}")
            return None

    def json(self, store: CampaignStore, bucket: str, key: str) -> dict[str, Any] | None:
        try:
            return dict(json.loads(store.s3.get_object(Bucket=bucket, Key=key)["Body"].read()))
        except (ClientError, BotoCoreError, ValueError, TypeError, RecursionError) as error:
            self.reasons.append(f"s3://{bucket}/{key}: {error}")
            return None


def _files(results: Path, bodies: dict[str, bytes], note: Callable[[str], None]) -> dict[str, str]:
    for name, body in bodies.items():
        keep(results / name, body, note)
    return {"html": str(results / HTML), "json": str(results / JSON)}


def _bodies(report: Report) -> dict[str, bytes]:
    return {HTML: render(report).encode(), JSON: report.model_dump_json(indent=1).encode()}
