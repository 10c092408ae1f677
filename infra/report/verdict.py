"""The report's summary: one sentence, six figures, and the warnings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from infra.console.words import clock, plural, share, usd
from infra.plan.layout import layout
from infra.record.events import CampaignState, Stage
from infra.record.payloads.checkpoints import CheckpointUnrecognised, Doubt
from infra.record.payloads.training import ArchiveFailed
from infra.report.model import CertificateSummary, Golden, Interruption, KeyFigure, Money, Notice, StageTime, Training
from infra.report.record import Record

Row = tuple[str, str]
"""Level and text of a notice."""
Parts = tuple[Training, tuple[Interruption, ...], Money, Golden | None, CertificateSummary | None]


def status(
    state: CampaignState, rows: tuple[StageTime, ...], certificate: CertificateSummary | None
) -> tuple[str, str]:
    """Return a few words and their level."""
    last = rows[-1] if rows else None
    if certificate is not None:
        if not certificate.clean:
            return "ended, not certified", "bad"
        if certificate.suspects:
            return "ended, suspects to look at", "warning"
        how = {"stopped": "stopped early", "held": "ended by an error"}.get(state.outcome or "", "ended")
        if state.archive is None and state.attempts and not state.abandoned:
            return f"{how} without a proven checkpoint", "bad"
        good = state.outcome == "done" and state.archive is not None
        return f"{how}, nothing left behind", "good" if good else "warning"
    if last is None:
        return "nothing has begun", "open"
    if last.ending == "failed":
        return f"failed at {last.stage}", "bad"
    if Stage.TEARDOWN in state.finished_stages:
        return "torn down, not certified yet", "warning"
    if state.outcome == "held":
        return "held after an error that a retry would repeat", "warning"
    return f"under way: {last.stage}" if last.ending == "running" else f"waits after {last.stage}", "open"


def verdict(record: Record, parts: Parts, state: CampaignState, clock_s: float) -> str:
    """Return one sentence; its clauses tell what is not known yet."""
    training, broken, money, golden, certificate = parts
    clauses = [_trained(record, training, state, clock_s), *_broken(broken), _cost(money)]
    if golden is not None:
        checked = "verified by reading it back" if golden.proven else "read back, but its loss was not compared"
        clauses.append(f"golden checkpoint of step {golden.step:,} {checked}")
    elif state.abandoned:
        clauses.append("the trained model was given up on purpose")
    elif state.copied_as_it_is:
        clauses.append("no checkpoint is proven, and what the job left was copied as it is")
    else:
        clauses.append("no checkpoint is archived" + ("" if certificate else " yet"))
    if certificate is None:
        clauses.append("nobody has checked yet whether anything is left")
    elif certificate.clean and not certificate.suspects:
        clauses.append("nothing is left behind")
    else:
        clauses.append(f"not proven that nothing is left: {_left(certificate)}")
    return "; ".join(clauses) + "."


def _trained(record: Record, training: Training, state: CampaignState, clock_s: float) -> str:
    shape = layout(record.spec)
    where = f"on {shape.nodes} x {record.spec.nodes.instance_type}"
    if not state.attempts:
        return f"Nothing trained yet of {training.steps_wanted:,} steps {where}" + (
            f", {clock(clock_s)} after the start" if clock_s else ""
        )
    how = {"held": ", then held by an error", "stopped": ", then stopped"}.get(state.outcome or "", "")
    doing = "Trained" if state.outcome is not None else "Training: at"
    return f"{doing} step {training.steps_done:,} of {training.steps_wanted:,} {where}{how}, in {clock(clock_s)}"


def _broken(broken: tuple[Interruption, ...]) -> Iterator[str]:
    failures = [row for row in broken if row.attempt is not None]
    if not failures:
        yield "no failure"
        return
    replaced = sum(row.action == "replaced" for row in failures)
    restarted = sum(row.action == "restarted" for row in failures)
    rest = len(failures) - replaced - restarted
    if len(failures) == 1:
        yield (
            "a node died and was replaced"
            if replaced
            else "1 failure, answered by a restart"
            if restarted
            else "1 failure, after which training did not go on"
        )
        return
    answers = (
        (replaced, "answered by a new node"),
        (restarted, "by a restart"),
        (rest, "after which training did not go on"),
    )
    counts = ", ".join(f"{count:,} {what}" for count, what in answers if count)
    yield f"{plural(len(failures), 'failure')} ({counts})"


def _cost(money: Money) -> str:
    would = "would have cost " if money.notional else "cost "
    return f"{would}{usd(money.total_usd)}{' on AWS' if money.notional else ''} of {usd(money.planned_usd)} planned"


def _left(certificate: CertificateSummary) -> str:
    counts = (
        (len(certificate.found), "found"),
        (len(certificate.suspects), "suspected"),
        (len(certificate.could_not_look), "not looked at"),
    )
    return ", ".join(f"{count} {what}" for count, what in counts if count)


def notices(record: Record, parts: Parts, state: CampaignState, rows: tuple[StageTime, ...]) -> tuple[Notice, ...]:
    """Return all problems, the worst first."""
    training, broken, money, golden, certificate = parts
    found: list[Row] = [
        *_of_certificate(certificate, state, record),
        *_of_archive(record, golden, state),
        *_of_doubts(record),
        *_of_training(training, broken, state),
        *_of_stages(rows),
    ]
    if money.total_usd > money.budget_usd:
        found.append(("bad", f"The budget of {usd(money.budget_usd)} is exceeded: {usd(money.total_usd)}."))
    elif money.total_usd > money.planned_usd:
        found.append(("warning", f"Costlier than planned: {usd(money.total_usd)} of {usd(money.planned_usd)}."))
    found += [("warning", f"{name}: no price is known, it counts as nothing.") for name in money.unpriced]
    found += [("warning", f"Could not be read: {item}") for item in record.unread]
    in_order = sorted(found, key=lambda row: ("bad", "warning", "open").index(row[0]))
    return tuple(Notice(level=level, text=text) for level, text in in_order)


def _of_certificate(certificate: CertificateSummary | None, state: CampaignState, record: Record) -> Iterator[Row]:
    if certificate is None:
        if Stage.TEARDOWN in state.finished_stages:
            yield "warning", "Torn down, but not certified yet: run certify."
        elif state.started_at is not None:
            yield "open", f"The campaign is not torn down: until it is, {_rate(record)}."
        return
    if certificate.found:
        yield "bad", f"Left behind and billing, perhaps: {', '.join(certificate.found[:5])}."
    if certificate.could_not_look:
        yield "bad", f"Could not look: {'; '.join(certificate.could_not_look[:3])}."
    if certificate.suspects:
        yield "warning", f"For a person to judge: {', '.join(certificate.suspects[:5])}."


def _rate(record: Record) -> str:
    """Return the present hourly cost, by the plan's rates."""
    part, of = record.reading.gpu_share, record.spec.nodes.count
    nodes = "with its GPU nodes" if part == 1 else f"with {part * of} of its {of} GPU nodes"
    rate = f"{usd(record.reading.usd_per_hour)} an hour {nodes if part else 'without GPU nodes'}"
    return f"{'AWS would bill' if record.site is not None else 'it bills'} {rate}"


def _of_archive(record: Record, golden: Golden | None, state: CampaignState) -> Iterator[Row]:
    failed = [event.payload for event in record.events if isinstance(event.payload, ArchiveFailed)]
    if golden is None:
        if failed:
            step = failed[-1].step
            safe = "" if step is None else f". Step {step} is in it all the same, every byte read back."
            yield "bad", f"The archive failed: {failed[-1].error}{safe}"
        if state.abandoned:
            yield "warning", "Torn down with --abandon: the trained model was not archived."
        elif state.attempts and state.outcome in ("done", "stopped") and not failed and state.unproven is None:
            yield "warning", "Training is over and nothing is archived yet."
        yield from _of_unrecognised(state, "bad")
        return
    yield from _of_unrecognised(state, "warning")
    if golden.restored_loss is None and record.spec.workload is None:
        yield "warning", "The archived checkpoint was read back but not evaluated."
    elif golden.restored_loss is not None and golden.reference_loss is None:
        yield "warning", "The archived checkpoint was evaluated, but there is no loss to compare it with."
    elif golden.near:
        wanted = f"{golden.reference_loss!r}, {golden.proof}: {golden.tolerance:g}"
        yield "warning", f"The archived checkpoint evaluates to {golden.restored_loss!r}; {wanted}."
    elif golden.restored_loss is not None and not golden.proven:
        wanted = f"{golden.reference_loss!r} ({golden.proof})"
        text = f"The archived checkpoint evaluates to {golden.restored_loss!r}, not {wanted}."
        yield "bad", text
    if golden.refused:
        yield "warning", f"Newer checkpoints were not sound: {'; '.join(golden.refused[:3])}."


def _of_unrecognised(state: CampaignState, level: Literal["bad", "warning"]) -> Iterator[Row]:
    """Return what the job left that no format recognised, and where it lies. Without a golden checkpoint it may be all
    that was trained."""
    left = state.unrecognised
    if state.unproven is not None:
        yield level, f"{state.unproven.sentence()}."
    elif left is not None and left.files:
        yield level, f"{left.sentence()}."
    elif state.attempts and state.outcome is not None and state.archive is None and not state.left_nothing:
        yield level, "Nobody could look at what the job left, and no checkpoint of it is proven."


def _of_doubts(record: Record) -> Iterator[Row]:
    """Return one line for each kind of doubt about a checkpoint, the newest of the newest attempt's."""
    newest = dict[str, str]()
    for event in record.events:
        if isinstance(event.payload, Doubt) and not isinstance(event.payload, CheckpointUnrecognised):
            newest[event.kind] = event.payload.sentence()
    for text in newest.values():
        yield "warning", f"{text[0].upper()}{text[1:]}."


def _of_training(training: Training, broken: tuple[Interruption, ...], state: CampaignState) -> Iterator[Row]:
    ended = state.attempts[-1].ended if state.attempts else None
    if state.outcome == "held":
        error = f": {ended.detail if ended is not None else None}" if state.attempts else ""
        text = f"Training is held and a person must act, since a retry would repeat its last error{error}."
        yield "bad", text
    elif state.outcome == "done" and ended is not None and ended.words:
        yield "warning", f"The job ended by itself: {ended.words}."
    elif state.outcome == "stopped":
        done, wanted = training.steps_done, training.steps_wanted
        yield "warning", f"Training was stopped at step {done:,} of {wanted:,}."
    repeats = training.repeats
    if not repeats.bitwise_equal:
        differ = repeats.compared - repeats.equal
        yield "warning", f"{differ:,} of {repeats.compared:,} repeated steps gave another loss than before."
    if state.attempts and not training.steps_logged:
        yield "warning", "No step is in the logs that were read: loss, goodput and repeats are unknown."
    elif state.attempts and not training.losses:
        text = "The job told of no loss: its steps are counted, and what was run again is not compared."
        yield "warning", text
    last = [row for row in broken if row.attempt is not None][-1:]
    if last and last[0].action == "none yet":
        yield "bad", f"Attempt {last[0].attempt} has failed and no answer is on record yet: {last[0].what}"


def _of_stages(rows: tuple[StageTime, ...]) -> Iterator[Row]:
    if rows and rows[-1].ending == "failed":
        yield "bad", f"{rows[-1].stage} failed: {rows[-1].error}"


def figures(parts: Parts, goodput: float | None, gpu_goodput: float | None, paid_s: float) -> tuple[KeyFigure, ...]:
    """Return the six most important figures, each with its meaning."""
    training, broken, money, _, certificate = parts
    rows: list[tuple[str, ...]] = []
    if goodput is not None:
        gpu = f"; {share(gpu_goodput)} of the time that GPU nodes were paid" if gpu_goodput is not None else ""
        rows.append(("Goodput", share(goodput), f"new training steps of {clock(paid_s)} paid{gpu}"))
    last = max(training.evaluations, key=lambda row: row.step, default=None)
    if last is not None:
        base = f"; knowing only how often tokens occur: {training.unigram_loss:.3f}" if training.unigram_loss else ""
        rows.append(("Held-out loss", f"{last.loss:.3f}", f"nats per token at step {last.step:,}{base}"))
    wanted = f"{training.steps_done / training.steps_wanted:.0%} of the {training.steps_wanted:,} wanted"
    rows.append(("Training steps", f"{training.steps_done:,}", wanted))
    failures = [row for row in broken if row.attempt is not None]
    lost, price = sum(row.seconds or 0.0 for row in failures), sum(row.usd or 0 for row in failures)
    meaning = f"{clock(lost)} of training time lost, worth {usd(price)}" if failures else "nothing was lost"
    rows.append(("Failures", str(len(failures)), meaning))
    over = "bad" if money.total_usd > money.budget_usd else ""
    plan = f"planned {usd(money.planned_usd)}, budget {usd(money.budget_usd)}"
    name = "What AWS would have billed" if money.notional else "Cost"
    rows.append((name, usd(money.total_usd), plan, over))
    rows.append(_left_behind(certificate))
    return tuple(
        KeyFigure(name=name, value=value, meaning=meaning, level="".join(level))
        for name, value, meaning, *level in rows
    )


def _left_behind(certificate: CertificateSummary | None) -> tuple[str, ...]:
    if certificate is None:
        return "Left behind", "not known", "checked after teardown"
    looked = f"{certificate.looks} kinds of resources checked"
    if certificate.clean and not certificate.suspects:
        return "Left behind", "nothing", looked, "good"
    level = "warning" if certificate.clean else "bad"
    return "Left behind", "not proven", f"{_left(certificate)}; {looked}", level
