"""Money by cause and by item, compared with the plan. Printed parts sum exactly to printed totals."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import ROUND_DOWN, Decimal

from infra.console.words import clock, size
from infra.plan.catalogue.prices import service_prices
from infra.record.events import CampaignState
from infra.record.meter import price
from infra.record.payloads.outputs import BakeOutput, ProvisionOutput
from infra.report.causes import TimeCause
from infra.report.ledger import TimeLedger
from infra.report.model import Item, KeptResource, MoneySpent, Share
from infra.report.record import Record
from infra.spec.campaign import Capacity
from infra.spec.names import data_prefix

_FINE, _CENT, _MILLISECOND = Decimal("0.0001"), Decimal("0.01"), Decimal("0.001")
_FINE_BELOW = Decimal(10)


def allot(parts: Sequence[Decimal], unit: Decimal) -> list[Decimal]:
    """Round parts to `unit` so that they sum to their rounded sum: the largest remainders are rounded up."""
    amounts = [part.quantize(unit, ROUND_DOWN) for part in parts]
    missing = int((sum(parts, Decimal(0)).quantize(unit) - sum(amounts, Decimal(0))) / unit)
    remainders = sorted(range(len(parts)), key=lambda index: amounts[index] - parts[index])
    for index in remainders[:missing]:
        amounts[index] += unit
    return amounts


def shares(record: Record, book: TimeLedger) -> tuple[Share, ...]:
    """Return all causes that took time, in the order of `TimeCause`."""
    causes = [cause for cause in TimeCause if book.micros(cause)]
    exact = [book.usd(cause) for cause in causes]
    total = sum(exact, Decimal(0))
    seconds = allot([Decimal(book.micros(cause)) / 1_000_000 for cause in causes], _MILLISECOND)
    amounts = allot(exact, resolution(record))
    return tuple(
        Share(
            cause=cause,
            label=cause.label,
            meaning=cause.meaning,
            seconds=float(duration),
            time_share=book.seconds(cause) / book.paid_s,
            usd=usd,
            money_share=float(part / total) if total else 0.0,
        )
        for cause, duration, usd, part in zip(causes, seconds, amounts, exact, strict=True)
    )


def money(record: Record, book: TimeLedger, state: CampaignState) -> MoneySpent:
    unit = resolution(record)
    by_time = sum((book.usd(cause) for cause in TimeCause), Decimal(0)).quantize(unit)
    by_size = record.reading.estimated_usd.quantize(unit)
    return MoneySpent(
        notional=record.site is not None,
        by_time_usd=by_time,
        by_size_usd=by_size,
        total_usd=by_time + by_size,
        resolution_usd=unit,
        planned_usd=record.plan.totals.usd.value,
        budget_usd=record.plan.budget_usd,
        prices_as_of=record.plan.prices_as_of.isoformat(),
        items=_items(record, book, unit),
        kept=kept(record, state),
        unpriced=record.plan.unpriced,
        assumptions=(
            "All but GPU nodes and builder bill from the start of provision to the end of teardown, an upper bound.",
            "GPU nodes bill from the start of preflight until the node group is at zero, as many as the spec asks for, "
            "or as the steward has counted since; one while a pilot proves itself.",
            "Lines that bill by size are not measured: the plan's estimate counts as it passes.",
            *(
                "A capacity block is paid at once: its unused part is paid too."
                for line in record.plan.cost
                if line.upfront_usd is not None
            ),
            *(
                (
                    "A reservation bills all its places until it is cancelled: what is unused counts here as planned, "
                    "and not at all after teardown, or where a group or any open reservation was named.",
                )
                if record.spec.nodes.capacity is Capacity.RESERVATION
                else ()
            ),
        ),
    )


def resolution(record: Record) -> Decimal:
    """Return the unit of amounts: a cent, or a hundredth of it if the total is a few dollars."""
    return _FINE if record.reading.spent_usd < _FINE_BELOW else _CENT


def _items(record: Record, book: TimeLedger, unit: Decimal) -> tuple[Item, ...]:
    """Return the plan's lines in order; those that bill by time with their part of the money by time."""
    amounts = allot([price(line, book.line_micros(line)) for line in book.lines], unit)
    amount_of = dict(zip((line.name for line in book.lines), amounts, strict=True))
    estimates = record.reading.estimated
    amount_of |= dict(zip(estimates, allot(list(estimates.values()), unit), strict=True))
    rows = []
    for line in record.plan.cost:
        seconds = None
        if line.name not in estimates:
            seconds = book.line_micros(line) / 1e6
            formula = f"{line.usd_per_hour} USD/h x {clock(seconds)}"
        elif line.upfront_usd is not None and book.paid:
            formula = f"{line.upfront_usd:,} USD paid at once - what the GPU nodes count for"
        else:
            part = estimates[line.name] / line.usd if line.usd else Decimal(1)
            formula = "nothing begun" if not book.paid else "as planned" if part == 1 else f"{part:.0%} of the plan's"
        rows.append(
            Item(
                name=line.name,
                planned_usd=line.usd,
                planned=line.formula,
                usd=amount_of[line.name],
                counted=formula if line.priced else "no price is known: counted as nothing",
                seconds=seconds,
            )
        )
    return tuple(rows)


def kept(record: Record, state: CampaignState) -> tuple[KeptResource, ...]:
    """Return resources that stay on purpose, with S3's monthly price."""
    spec, rows = record.spec, []
    if state.archive is not None:
        root = (state.archive.manifest or "").rpartition("/")[0]
        name = f"golden checkpoint of step {state.archive.step}, with record"
        rows.append(_in_s3(name, f"{root}/", state.archive.bytes))
    if digest := ProvisionOutput.known(state.finished_stages).data_digest:
        address = f"s3://{spec.buckets.data}/{spec.bucket_root}{data_prefix(digest)}"
        shared = ", shared by campaigns" if record.spec.runtime.is_built_in else ""
        rows.append(_in_s3(record.spec.runtime.data_name + shared, address, _data_bytes(record)))
    if state.started_at is not None:
        address = f"s3://{spec.buckets.state}/{spec.bucket_root}campaigns/{spec.campaign}/"
        rows.append(_in_s3("record", address, None))
    images, formula = BakeOutput.known(state.finished_stages), "its size and ECR's price are not on record"
    rows += [
        KeptResource(name=kind, where=image, formula=formula)
        for image, kind in ((images.image, "trainer image"), (images.steward_image, "steward image"))
        if image
    ]
    return tuple(rows)


def _in_s3(name: str, address: str, count: int | None) -> KeptResource:
    prices = service_prices()
    if count is None:
        return KeptResource(name=name, where=address, formula="its size is not on record")
    rate = prices.s3_standard_usd_per_gb_month
    formula = f"{size(count)} x {rate} USD per GB and month (S3 standard, {prices.as_of})"
    return KeptResource(name=name, where=address, bytes=count, usd_per_month=rate * count / 10**9, formula=formula)


def _data_bytes(record: Record) -> int | None:
    """Return the size of a workload's code, else of the shards alone; see `trainer.contract.data`."""
    data = record.data
    if data is None:
        return None
    if record.spec.workload is not None:
        return int(data["bytes"])
    token_bytes = 4 if data.get("dtype") == "int32" else 2
    return token_bytes * (int(data["train_tokens"]) + int(data["validation_tokens"]))
