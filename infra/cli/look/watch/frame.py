"""One frame of `bivouac watch`. Pure: from a snapshot, the time and a width, no terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal

from rich.table import Table
from rich.text import Text

from infra.cli.look.status import stage_text
from infra.cli.look.watch.grid import grid
from infra.cli.look.watch.snapshot import GangFacts, Snapshot
from infra.console.visible import visible
from infra.console.words import clock, plural, share, usd
from infra.notices.fired_alerts import history
from infra.record.payloads.checkpoints import CheckpointCopied
from infra.target import spends

LABEL = 9
"""Columns of a row's label, with the gap behind it."""
WIDEST = 120
_BARS = "▁▂▃▄▅▆▇█"
_MOST_EVENTS, _MOST_ALERTS = 6, 4
STALE = timedelta(seconds=30)
"""Age from which the steward's figures are shown in red: it writes them every five seconds."""

Row = tuple[str, Text]


def frame(snapshot: Snapshot, now: datetime, width: int, machines: GangFacts, trouble: str = "") -> Table:
    """Return a frame that is no wider than `width`. `trouble`: why the record cannot be read now.

    A low terminal cuts the end off: alerts come first, and the oldest events last.
    """
    body = max(min(width, WIDEST) - LABEL, 10)
    rows = [*_head(snapshot, now, trouble), *_alerts(snapshot, now, body), *_rows(snapshot, now, body, machines)]
    # Events that a driver prints, too.
    newest_events = [event for event in reversed(snapshot.record.events) if event.payload.watched][:_MOST_EVENTS]
    for event in newest_events:
        rows.append(("events", _cut(f"{event.at:%H:%M:%S} {event.sentence().removeprefix('decided: ')}", body)))
    return _table(rows, width)


def _table(rows: Sequence[Row], width: int) -> Table:
    table = Table.grid(padding=(0, 1, 0, 0))
    table.width = min(width, WIDEST)
    table.add_column(width=LABEL - 1, no_wrap=True, style="bold")
    table.add_column(ratio=1, overflow="fold")
    newest_label = ""
    for label, text in rows:
        table.add_row(label if label != newest_label else "", text)
        newest_label = label
    return table


def _head(snapshot: Snapshot, now: datetime, trouble: str) -> Iterator[Row]:
    spec, state = snapshot.record.spec, snapshot.state
    stage = "ended" if snapshot.ended else stage_text(state)
    yield "campaign", Text(f"{spec.campaign} on {spec.target}: {stage}", "bold")
    if snapshot.gone:
        yield "read", Text(f"from the record in the results folder, of {snapshot.record.at:%Y-%m-%d %H:%M} UTC", "dim")
        return
    read_text = Text(f"{now:%H:%M:%S} UTC, the record as of {clock(_age(now, snapshot.record.at))} ago", "dim")
    if snapshot.live and state.outcome is None:
        age = _age(now, datetime.fromisoformat(snapshot.live["at"]))
        old = age > STALE.total_seconds()
        read_text.append(f", the steward's look of {clock(age)} ago", "bold red" if old else "")
    yield "read", read_text
    if trouble:
        yield "read", Text(f"it cannot be read now: {visible(trouble)}", "bold red")


def _age(now: datetime, moment: datetime) -> float:
    return max((now - moment).total_seconds(), 0.0)


def _rows(snapshot: Snapshot, now: datetime, body: int, machines: GangFacts) -> Iterator[Row]:
    yield from _loss(snapshot, body)
    yield from _training(snapshot, now, body, machines)
    if snapshot.page is not None and snapshot.page.goodput is not None:
        old = "" if snapshot.gone else f", by the report of {clock(_age(now, snapshot.page.made_at))} ago"
        yield "goodput", Text(f"{share(snapshot.page.goodput)} of paid time is new training{old}")
    else:
        yield "goodput", Text("not known: a driver or `bivouac report` writes the report that has it", "dim")
    if snapshot.live and snapshot.state.outcome is None:
        nodes, count = snapshot.live.get("nodes") or (), snapshot.record.spec.nodes.count
        ready = sum(node.get("ready") is True for node in nodes)
        yield "nodes", Text(f"{ready} of {plural(count, 'node')} ready, {len(nodes)} there")
        yield from (("nodes", line) for line in grid(snapshot.live, machines.ranks_per_node))
    yield from _saved(snapshot, now)
    yield from _money(snapshot)


def _loss(snapshot: Snapshot, body: int) -> Iterator[Row]:
    losses = snapshot.losses
    if not losses:
        yield "loss", Text("none is known yet", "dim")
        return
    newest_step, newest = next(reversed(losses.items()))
    yield "loss", Text(f"{newest:.4g} at step {newest_step}, least {min(losses.values()):.4g}")
    if len(losses) > 1:
        yield "loss", Text(sparkline(losses, body), "cyan")


def sparkline(values: Mapping[int, float], width: int) -> str:
    """Return one character for each of `width` equal ranges of steps, high for a high mean; a blank where no step is
    known."""
    first_step, last_step = min(values), max(values)
    sums: list[list[float]] = [[] for _ in range(min(width, last_step - first_step + 1))]
    for step, value in values.items():
        sums[(step - first_step) * len(sums) // (last_step - first_step + 1)].append(value)
    means = [sum(group) / len(group) if group else None for group in sums]
    lowest_mean = min(mean for mean in means if mean is not None)
    spread = max(mean for mean in means if mean is not None) - lowest_mean
    top = len(_BARS) - 1
    return "".join(" " if mean is None else _BARS[round(top * (mean - lowest_mean) / (spread or 1))] for mean in means)


def _training(snapshot: Snapshot, now: datetime, body: int, machines: GangFacts) -> Iterator[Row]:
    state, training = snapshot.state, snapshot.training
    if hold := state.hold:
        yield "held", Text(visible(f"until {hold.until}: {hold.cause}", lines=False), "bold red")
    if state.outcome is not None:
        step = max((attempt.last_step(0) for attempt in state.attempts), default=0)
        steps = snapshot.record.spec.job.steps
        yield "training", Text(f"{state.outcome} at step {step} of {steps}, {plural(len(state.attempts), 'attempt')}")
        yield "training", _bar(step, steps, body)
        return
    if training is None:
        yield "training", Text("nothing is known to have trained", "dim")
        return
    restarts = state.restarted_in_place
    restart_text = f" ({plural(restarts, 'restart')} in place so far)" if restarts else ""
    head = f"attempt {snapshot.live['attempt']}{restart_text} {training['activity']}"
    yield "training", Text(f"{head}: step {training['step']} of {training['steps']}")
    yield "training", _bar(training["step"], training["steps"], body)
    if snapshot.live.get("why") not in (None, "", "training"):
        yield "training", _cut(str(snapshot.live["why"]), body)
    pace, ends = training["step_seconds"], Text()
    if pace:
        tokens = training["tokens_per_second"]
        rate = f"{clock(pace)} a step" + (f", {tokens:,} tokens/s" if tokens else "")
        yield "pace", Text(f"{rate}, ").append_text(_mfu(machines, pace))
        end = now + timedelta(seconds=training["seconds_to_end"])
        ends.append(f"in {clock(training['seconds_to_end'])} by this pace, {end:%d %b %H:%M} UTC")
    if snapshot.deadline is not None:
        left = (snapshot.deadline - now).total_seconds()
        ends.append("; " if ends else "").append("the deadline ")
        ends.append(f"is in {clock(left)}" if left > 0 else "has passed", "" if left > 0 else "bold red")
    yield "ends", ends if ends else Text("not known", "dim")


def _mfu(machines: GangFacts, pace: float) -> Text:
    if machines.mfu_seconds is None:
        return Text("MFU not known for this precision and job", "dim")
    mfu = machines.mfu_seconds / pace
    return Text(f"MFU {share(mfu)} of {machines.peak}") if mfu <= 1 else Text(f"MFU above {machines.peak}?", "yellow")


def _bar(step: int, steps: int, body: int) -> Text:
    part = min(max(step / steps, 0.0), 1.0) if steps else 0.0
    length = max(min(body, 60) - len(" 100.0 %"), 1)
    full_cells = round(part * length)
    return Text.assemble(("━" * full_cells, "green"), ("─" * (length - full_cells), "dim"), f" {share(part)}")


def _saved(snapshot: Snapshot, now: datetime) -> Iterator[Row]:
    """Yield the newest committed step of each tier. A tier's age is what a restart from it would train again."""
    state, training, places = snapshot.state, snapshot.training, list[Text]()
    if state.outcome is None:
        newest: dict[str, int] = {}
        for row in snapshot.tiers:
            if row.committed:
                newest[row.tier] = max(row.step, newest.get(row.tier, -1))
        if snapshot.live.get("committed_step", -1) >= 0:
            newest["shared"] = max(snapshot.live["committed_step"], newest.get("shared", -1))
        places += [Text(f"{tier} step {step}{_behind(step, training)}") for tier, step in sorted(newest.items())]
        if not newest:
            places.append(Text("no step is known to be committed", "yellow"))
    copies = [event for event in snapshot.record.events if isinstance(event.payload, CheckpointCopied)]
    for event in copies[-1:]:
        age = "" if snapshot.gone else f", copied {clock(_age(now, event.at))} ago"
        places.append(Text(f"S3 {event.payload.sentence().partition(' copied')[0]}{age}"))
    if state.archive is not None:
        places.append(Text(f"archive step {state.archive.step}, golden", "green"))
    elif state.outcome is not None:
        places.append(Text("nothing in the archive is proven", "yellow"))
    yield "saved", Text("; ").join(places)


def _behind(step: int, training: Mapping[str, float] | None) -> str:
    if training is None or training["step"] < step:
        return ""
    gap = int(training["step"]) - step
    pace = training["step_seconds"]
    return f", {plural(gap, 'step')} behind" + (f" or {clock(gap * pace)} of training" if pace else "")


def _money(snapshot: Snapshot) -> Iterator[Row]:
    reading, budget = snapshot.record.reading, snapshot.record.spec.money.budget_usd
    rate = reading.usd_per_hour if not snapshot.ended else Decimal(0)
    notional = " (what AWS would bill)" if not spends(snapshot.record.spec) else ""
    text = f"{usd(reading.spent_usd)} of {usd(budget)}, {usd(rate)} an hour now{notional}"
    money_text = Text(text, "bold red" if reading.spent_usd > budget else "")
    training = snapshot.training
    if training and training["seconds_to_end"] is not None:
        end_usd = reading.spent_usd + rate * Decimal(training["seconds_to_end"]) / 3600
        money_text.append(f"; {usd(end_usd)} at the last step", "yellow" if end_usd > budget else "")
    yield "money", money_text


def _alerts(snapshot: Snapshot, now: datetime, body: int) -> Iterator[Row]:
    firing = [alert for alert in history(snapshot.record.events) if alert.ended is None and not snapshot.ended]
    if not firing and not snapshot.ended:
        yield "alerts", Text("none fires, by the record", "dim")
    for alert in firing[-_MOST_ALERTS:]:
        head = f"{alert.payload.alert} ({alert.payload.severity}), {clock(_age(now, alert.event.at))}"
        style = "bold red" if alert.payload.severity == "page" else "yellow"
        yield "alerts", _cut(f"{head}: {alert.payload.summary}", body, style)


def _cut(text: str, body: int, style: str = "") -> Text:
    plain = visible(text, lines=False)
    longest = 2 * body - 1  # two lines
    return Text(plain if len(plain) <= longest else f"{plain[: longest - 1]}…", style)
