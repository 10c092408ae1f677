"""Events as sentences, sizes and times as people read them."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal

from infra.events import Event, Kind
from infra.reporting.timeline import short


def clock(seconds: float) -> str:
    """12.3 s, 4 min 05 s, 3 h 20 min, 2 d 4 h: never more than two units."""
    if seconds < 0:
        return f"-{clock(-seconds)}"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


def stamp(seconds: float) -> str:
    """Time since the beginning as 0:03:07, or 2 d 04:03:07."""
    days, rest = divmod(round(seconds), 86400)
    hours, minutes = divmod(rest // 60, 60)
    return f"{days} d {hours:02d}:{minutes:02d}:{rest % 60:02d}" if days else f"{hours}:{minutes:02d}:{rest % 60:02d}"


def moment(at: datetime) -> str:
    """A time of day that a reader elsewhere understands."""
    return at.astimezone(UTC).strftime("%d %B %Y, %H:%M UTC").lstrip("0")


def plural(count: int, one: str, many: str | None = None) -> str:
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def size(count: int) -> str:
    """Bytes with a decimal prefix."""
    value, unit = float(count), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if value < 1000:
            break
        value, unit = value / 1000, larger
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"


def usd(amount: Decimal | float) -> str:
    """To the cent; less than one is not nothing."""
    value = Decimal(str(amount))
    if 0 < value < Decimal("0.005"):
        return "< $0.01"
    return f"${value:,.2f}"


def fine(amount: Decimal, *, sign: bool = False) -> str:
    """To its own last digit: for parts that have to add up as printed."""
    mark = "\u2212" if amount < 0 else "+" if sign and amount else ""
    return f"{mark}${abs(amount):,f}"


def share(part: float) -> str:
    return f"{100 * part:.1f} %"


def sentence(event: Event) -> str:
    data = event.data
    match event.kind:
        case Kind.STAGE_STARTED:
            return f"{data['stage']} begins"
        case Kind.STAGE_FINISHED:
            return f"{data['stage']} finished in {clock(float(data.get('seconds', 0)))}"
        case Kind.STAGE_FAILED:
            return f"{data['stage']} failed: {data.get('error')}"
        case Kind.DRIVER_TOOK_OVER:
            return f"{data.get('holder')} took over from {data.get('previous')}"
        case Kind.NODE_VERDICT:
            return f"{short(data['node'])} ({data.get('instance')}) is {'fit' if data.get('fit') else 'unfit'}"
        case Kind.NODE_QUARANTINED:
            return f"{short(data['node'])} ({data.get('instance')}) quarantined: {data.get('reason')}"
        case Kind.ATTEMPT_LAUNCHED:
            begin = max(int(data.get("committed_step", -1)), 0)
            return f"attempt {data['attempt']} launched as {data.get('jobset')} from step {begin}"
        case Kind.ATTEMPT_RUNNING:
            nodes = ", ".join(short(node) for node in data.get("nodes", ()))
            return f"attempt {data['attempt']} trains on {nodes}"
        case Kind.ATTEMPT_ENDED:
            why = f"{data['failure']} failure: " if data.get("failure") else ""
            return f"attempt {data['attempt']} ended at step {data.get('step')}: {why}{data.get('detail')}"
        case Kind.CHECKPOINT_REFUSED:
            where = f"rank {data.get('rank')}, {data.get('file')}"
            return f"checkpoint of step {data.get('step')} refused on the {data.get('tier')} tier: {where}"
        case Kind.CHECKPOINT_RESTORED:
            return f"step {data.get('step')} restored"
        case Kind.DECISION:
            return f"decided: {data.get('action')}, since {data.get('why')}"
        case Kind.HELD:
            return f"held until {data.get('until')} at {data.get('usd_per_hour')} USD/h: {data.get('cause')}"
        case Kind.RELAUNCHED:
            fields = ", ".join(f"{c['field']} {c['old']} -> {c['new']}" for c in data.get("diff", ())) or "code only"
            begin = max(int(data.get("committed_step", -1)), 0)
            return f"relaunched by {data.get('who')} from step {begin}, spec {data.get('version')}: {fields}"
        case Kind.TRAINING_FINISHED:
            return f"training {data.get('outcome')}: {data.get('why')}"
        case Kind.ARCHIVE_VERIFIED:
            read_back = f"{data.get('objects')} objects, {size(data.get('bytes', 0))} read back"
            return f"step {data.get('step')} archived: {read_back}"
        case Kind.ARCHIVE_BEGUN:
            nodes, released = plural(data.get("nodes", 1), "node"), data.get("released")
            if released is not None:
                return f"the archive runs on {nodes} of {data.get('group')}: the others are given back"
            return f"the archive asks {data.get('group')} for {nodes}"
        case Kind.NODES_AT_ZERO:
            return f"{data.get('group')} is at zero nodes"
        case Kind.ABANDONED:
            return "what was trained was given up without an archive (--abandon)"
        case Kind.CERTIFIED:
            return "certified: nothing left" if data.get("clean") else f"not certified: {data.get('found')}"
    return ", ".join(f"{key} {value}" for key, value in data.items())
