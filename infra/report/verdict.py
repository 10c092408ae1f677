"""The report's summary: one sentence, six figures, and the warnings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from infra.console.words import clock, plural, share, usd
from infra.plan.layout import layout
from infra.record.events import CampaignState, Stage
from infra.record.payloads.checkpoints import CheckpointUnrecognised, Doubt
from infra.record.payloads.training import ArchiveFailed
from infra.report.model import (
    CertificateSummary,
    Golden,
    Interruption,
    KeyFigure,
    MoneySpent,
    ReportProblem,
    StageRun,
    TrainingCurves,
)
from infra.report.record import Record

Row = tuple[str, str]
"""Level and text of a notice."""
Parts = tuple[TrainingCurves, tuple[Interruption, ...], MoneySpent, Golden | None, CertificateSummary | None]


def status(state: CampaignState, rows: tuple[StageRun, ...], certificate: CertificateSummary | None) -> tuple[str, str]:
    """Return a few words and their level."""
    newest = rows[-1] if rows else None
    if certificate is not None:
        if not certificate.clean:
            return "ended, not certified", "bad"
        if certificate.suspects:
            return "ended, suspects to look at", "warning"
        manner = {"stopped": "stopped early", "held": "ended by an error"}.get(state.outcome or "", "ended")
        if state.archive is None and state.attempts and not state.abandoned:
            return f"{manner} without a proven checkpoint", "bad"
        good = state.outcome == "done" and state.archive is not None
        return f"{manner}, nothing left behind", "good" if good else "warning"
    if newest is None:
        return "nothing has begun", "open"
    if newest.ending == "failed":
        return f"failed at {newest.stage}", "bad"
    if Stage.TEARDOWN in state.finished_stages:
        return "torn down, not certified yet", "warning"
    if state.outcome == "held":
        return "held after an error that a retry would repeat", "warning"
    return f"under way: {newest.stage}" if newest.ending == "running" else f"waits after {newest.stage}", "open"


def verdict(record: Record, parts: Parts, state: CampaignState, clock_s: float) -> str:
    """Return one sentence; its clauses tell what is not known yet."""
    training, broken, money, golden, certificate = parts
    clauses = [_training_clause(record, training, state, clock_s), *_broken(broken), _cost(money)]
    if golden is not None:
        proof = "verified by reading it back" if golden.proven else "read back, but its loss was not compared"
        clauses.append(f"golden checkpoint of step {golden.step:,} {proof}")
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


def _training_clause(record: Record, training: TrainingCurves, state: CampaignState, clock_s: float) -> str:
    shape = layout(record.spec)
    machines = f"on {shape.nodes} x {record.spec.nodes.instance_type}"
    if not state.attempts:
        return f"Nothing trained yet of {training.steps_wanted:,} steps {machines}" + (
            f", {clock(clock_s)} after the start" if clock_s else ""
        )
    ending = {"held": ", then held by an error", "stopped": ", then stopped"}.get(state.outcome or "", "")
    doing = "Trained" if state.outcome is not None else "Training: at"
    return f"{doing} step {training.steps_done:,} of {training.steps_wanted:,} {machines}{ending}, in {clock(clock_s)}"


def _broken(broken: tuple[Interruption, ...]) -> Iterator[str]:
    failures = [row for row in broken if row.attempt is not None]
    if not failures:
        yield "no failure"
        return
    replacements = sum(row.action == "replaced" for row in failures)
    restarts = sum(row.action == "restarted" for row in failures)
    remainder = len(failures) - replacements - restarts
    if len(failures) == 1:
        yield (
            "a node died and was replaced"
            if replacements
            else "1 failure, answered by a restart"
            if restarts
            else "1 failure, after which training did not go on"
        )
        return
    answers = (
        (replacements, "answered by a new node"),
        (restarts, "by a restart"),
        (remainder, "after which training did not go on"),
    )
    counts = ", ".join(f"{count:,} {name}" for count, name in answers if count)
    yield f"{plural(len(failures), 'failure')} ({counts})"


def _cost(money: MoneySpent) -> str:
    would = "would have cost " if money.notional else "cost "
    return f"{would}{usd(money.total_usd)}{' on AWS' if money.notional else ''} of {usd(money.planned_usd)} planned"


def _left(certificate: CertificateSummary) -> str:
    counts = (
        (len(certificate.found), "found"),
        (len(certificate.suspects), "suspected"),
        (len(certificate.could_not_look), "not looked at"),
    )
    return ", ".join(f"{count} {name}" for count, name in counts if count)


def notices(
    record: Record, parts: Parts, state: CampaignState, rows: tuple[StageRun, ...]
) -> tuple[ReportProblem, ...]:
    """Return all problems, the worst first."""
    training, broken, money, golden, certificate = parts
    notice_rows: list[Row] = [
        *_of_certificate(certificate, state, record),
        *_of_archive(record, golden, state),
        *_of_doubts(record),
        *_of_training(training, broken, state),
        *_of_stages(rows),
    ]
    if money.total_usd > money.budget_usd:
        notice_rows.append(("bad", f"The budget of {usd(money.budget_usd)} is exceeded: {usd(money.total_usd)}."))
    elif money.total_usd > money.planned_usd:
        notice_rows.append(("warning", f"Costlier than planned: {usd(money.total_usd)} of {usd(money.planned_usd)}."))
    notice_rows += [("warning", f"{name}: no price is known, it counts as nothing.") for name in money.unpriced]
    notice_rows += [("warning", f"Could not be read: {item}") for item in record.unread]
    in_order = sorted(notice_rows, key=lambda row: ("bad", "warning", "open").index(row[0]))
    return tuple(ReportProblem(level=level, text=text) for level, text in in_order)


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
    part, node_count = record.reading.gpu_share, record.spec.nodes.count
    nodes = "with its GPU nodes" if part == 1 else f"with {part * node_count} of its {node_count} GPU nodes"
    rate = f"{usd(record.reading.usd_per_hour)} an hour {nodes if part else 'without GPU nodes'}"
    return f"{'AWS would bill' if record.site is not None else 'it bills'} {rate}"


def _of_archive(record: Record, golden: Golden | None, state: CampaignState) -> Iterator[Row]:
    failures = [event.payload for event in record.events if isinstance(event.payload, ArchiveFailed)]
    if golden is None:
        if failures:
            step = failures[-1].step
            safe = "" if step is None else f". Step {step} is in it all the same, every byte read back."
            yield "bad", f"The archive failed: {failures[-1].error}{safe}"
        if state.abandoned:
            yield "warning", "Torn down with --abandon: the trained model was not archived."
        elif state.attempts and state.outcome in ("done", "stopped") and not failures and state.unproven is None:
            yield "warning", "Training is over and nothing is archived yet."
        yield from _of_unrecognised(state, "bad")
        return
    yield from _of_unrecognised(state, "warning")
    if golden.restored_loss is None and record.spec.runtime.is_built_in:
        yield "warning", "The archived checkpoint was read back but not evaluated."
    elif golden.restored_loss is not None and golden.reference_loss is None:
        yield "warning", "The archived checkpoint was evaluated, but there is no loss to compare it with."
    elif golden.near:
        reference = f"{golden.reference_loss!r}, {golden.proof}: {golden.tolerance:g}"
        yield "warning", f"The archived checkpoint evaluates to {golden.restored_loss!r}; {reference}."
    elif golden.restored_loss is not None and not golden.proven:
        reference = f"{golden.reference_loss!r} ({golden.proof})"
        text = f"The archived checkpoint evaluates to {golden.restored_loss!r}, not {reference}."
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


def _of_training(training: TrainingCurves, broken: tuple[Interruption, ...], state: CampaignState) -> Iterator[Row]:
    end = state.attempts[-1].ended if state.attempts else None
    if state.outcome == "held":
        error = f": {end.detail if end is not None else None}" if state.attempts else ""
        text = f"Training is held and a person must act, since a retry would repeat its last error{error}."
        yield "bad", text
    elif state.outcome == "done" and end is not None and end.words:
        yield "warning", f"The job ended by itself: {end.words}."
    elif state.outcome == "stopped":
        steps, planned_steps = training.steps_done, training.steps_wanted
        yield "warning", f"Training was stopped at step {steps:,} of {planned_steps:,}."
    repeats = training.repeats
    if not repeats.bitwise_equal:
        differ = repeats.compared - repeats.equal
        yield "warning", f"{differ:,} of {repeats.compared:,} repeated steps gave another loss than before."
    if state.attempts and not training.steps_logged:
        yield "warning", "No step is in the logs that were read: loss, goodput and repeats are unknown."
    elif state.attempts and not training.losses:
        text = "The job told of no loss: its steps are counted, and what was run again is not compared."
        yield "warning", text
    failure = [row for row in broken if row.attempt is not None][-1:]
    if failure and failure[0].action == "none yet":
        yield "bad", f"Attempt {failure[0].attempt} has failed and no answer is on record yet: {failure[0].what}"


def _of_stages(rows: tuple[StageRun, ...]) -> Iterator[Row]:
    if rows and rows[-1].ending == "failed":
        yield "bad", f"{rows[-1].stage} failed: {rows[-1].error}"


def figures(parts: Parts, goodput: float | None, gpu_goodput: float | None, paid_s: float) -> tuple[KeyFigure, ...]:
    """Return the six most important figures, each with its meaning."""
    training, broken, money, _, certificate = parts
    rows: list[tuple[str, ...]] = []
    if goodput is not None:
        gpu = f"; {share(gpu_goodput)} of the time that GPU nodes were paid" if gpu_goodput is not None else ""
        rows.append(("Goodput", share(goodput), f"new training steps of {clock(paid_s)} paid{gpu}"))
    newest = max(training.evaluations, key=lambda row: row.step, default=None)
    if newest is not None:
        base = f"; knowing only how often tokens occur: {training.unigram_loss:.3f}" if training.unigram_loss else ""
        rows.append(("Held-out loss", f"{newest.loss:.3f}", f"nats per token at step {newest.step:,}{base}"))
    progress = f"{training.steps_done / training.steps_wanted:.0%} of the {training.steps_wanted:,} wanted"
    rows.append(("Training steps", f"{training.steps_done:,}", progress))
    failures = [row for row in broken if row.attempt is not None]
    lost_s, price = sum(row.seconds or 0.0 for row in failures), sum(row.usd or 0 for row in failures)
    meaning = f"{clock(lost_s)} of training time lost, worth {usd(price)}" if failures else "nothing was lost"
    rows.append(("Failures", str(len(failures)), meaning))
    budget_level = "bad" if money.total_usd > money.budget_usd else ""
    plan = f"planned {usd(money.planned_usd)}, budget {usd(money.budget_usd)}"
    name = "What AWS would have billed" if money.notional else "Cost"
    rows.append((name, usd(money.total_usd), plan, budget_level))
    rows.append(_left_behind(certificate))
    return tuple(
        KeyFigure(name=name, value=value, meaning=meaning, level="".join(level))
        for name, value, meaning, *level in rows
    )


def _left_behind(certificate: CertificateSummary | None) -> tuple[str, ...]:
    if certificate is None:
        return "Left behind", "not known", "checked after teardown"
    scope = f"{certificate.looks} kinds of resources checked"
    if certificate.clean and not certificate.suspects:
        return "Left behind", "nothing", scope, "good"
    level = "warning" if certificate.clean else "bad"
    return "Left behind", "not proven", f"{_left(certificate)}; {scope}", level
