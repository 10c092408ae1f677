"""The report from a campaign's record: pure. Works on any part of a record."""

from __future__ import annotations

from infra.events import CampaignState, Kind, Stage, fold
from infra.layout import layout
from infra.names import buckets, data_prefix
from infra.reporting import sentences, trainer_log
from infra.reporting.interruptions import interruptions
from infra.reporting.ledger import Ledger, ledger, money, shares
from infra.reporting.model import (
    Cause,
    CertificateSummary,
    Fact,
    Golden,
    Happened,
    Interruption,
    LookRow,
    PlannedStage,
    Report,
    StageTime,
    Training,
)
from infra.reporting.record import Record
from infra.reporting.timeline import attempts, marks, ordered, stages
from infra.reporting.trainer_log import TrainerLog


def build(record: Record) -> Report:
    """Everything the page shows; nothing is invented where the record is silent."""
    log = trainer_log.read(record)
    stage_rows, attempt_rows = stages(record), attempts(record, log)
    book = ledger(record, stage_rows, attempt_rows, log)
    state = fold(record.events)
    training, golden, certificate = _training(record, state, log), _golden(record, state), _certificate(record, state)
    broken = interruptions(record, attempt_rows, book)
    status, level = _status(state, stage_rows, certificate)
    site = record.site or {}
    return Report(
        campaign=record.spec.campaign,
        purpose=record.spec.purpose,
        owner=record.spec.owner,
        target=record.spec.target,
        made_at=record.at,
        begun_at=record.begun_at,
        status=status,
        level=level,
        summary=_summary(training, broken, golden, certificate),
        goodput=book.seconds(Cause.USEFUL) / book.paid_s if book.paid_s else None,
        gpu_goodput=book.seconds(Cause.USEFUL) / book.gpu_s if book.gpu_s else None,
        paid_s=round(book.paid_s, 3),
        clock_s=round(max((row.ended_s for row in stage_rows), default=0.0), 3),
        facts=_facts(record, state, log),
        stages=stage_rows,
        attempts=attempt_rows,
        gpu_up=book.gpu_up,
        marks=marks(record),
        training=training,
        interruptions=broken,
        shares=shares(book) if book.paid_s else (),
        money=money(record, book),
        plan=_plan(record, stage_rows, book),
        golden=golden,
        certificate=certificate,
        emulated=tuple(str(item) for item in site.get("emulated", ())),
        not_rehearsed=tuple(str(item) for item in site.get("not_rehearsed", ())),
        happened=tuple(
            Happened(at_s=record.seconds(e.at), writer=e.writer, kind=e.kind, text=sentences.sentence(e))
            for e in ordered(record)
        ),
    )


def _training(record: Record, state: CampaignState, log: TrainerLog) -> Training:
    provision = state.finished_stages.get(Stage.PROVISION, {})
    return Training(
        losses=trainer_log.losses(log),
        evaluations=trainer_log.evaluated(log),
        unigram_loss=provision.get("unigram_loss"),
        repeats=trainer_log.repeats(log),
        steps_done=max((line.step for lines in log.steps.values() for line in lines), default=0),
        steps_wanted=record.spec.training.steps,
    )


def _status(
    state: CampaignState, rows: tuple[StageTime, ...], certificate: CertificateSummary | None
) -> tuple[str, str]:
    """A few words, and how good they are."""
    last = rows[-1] if rows else None
    if certificate is not None:
        return ("ended, nothing left behind", "good") if certificate.clean else ("ended, not certified", "bad")
    if last is None:
        return "nothing has begun", "open"
    if last.ending == "failed":
        return f"stands at {last.stage}, which failed", "bad"
    if Stage.TEARDOWN in state.finished_stages:
        return "torn down, not certified yet", "warning"
    if state.outcome == "held":
        return "ended by an error that a retry would repeat", "warning"
    return f"under way: {last.stage}", "open"


def _summary(
    training: Training,
    broken: tuple[Interruption, ...],
    golden: Golden | None,
    certificate: CertificateSummary | None,
) -> tuple[str, ...]:
    rows = [f"Training reached step {training.steps_done:,} of {training.steps_wanted:,}."]
    if training.evaluations and training.unigram_loss is not None:
        last = max(training.evaluations, key=lambda row: row.step)
        rows.append(
            f"Held-out loss {last.loss:.3f} at step {last.step:,}; a unigram model of the same data: "
            f"{training.unigram_loss:.3f}."
        )
    failures = [row for row in broken if row.attempt is not None]
    if failures:
        lost = sentences.clock(sum(row.seconds or 0.0 for row in failures))
        many = "1 failure" if len(failures) == 1 else f"{len(failures)} failures"
        survived = all(row.resumed_from is not None for row in failures)
        rows.append(f"It {'was carried through' if survived else 'met'} {many} that cost {lost} in all.")
    repeats = training.repeats
    if repeats.steps:
        agree = "all equal, bit for bit" if repeats.bitwise_equal else f"{repeats.steps - repeats.equal} differ"
        rows.append(f"{repeats.steps:,} steps were run again by a later attempt: {agree}.")
    if golden is not None:
        proof = "evaluates exactly as recorded" if golden.proven else "was read back"
        rows.append(f"The golden checkpoint of step {golden.step:,} lies in the archive and {proof}.")
    if certificate is not None:
        left = "nothing was left behind" if certificate.clean else "what was found or could not be seen stands below"
        rows.append(f"After teardown {certificate.looks} kinds of resources were looked through: {left}.")
    return tuple(rows)


def _facts(record: Record, state: CampaignState, log: TrainerLog) -> tuple[Fact, ...]:
    spec, training = record.spec, record.spec.training
    provision, bake = state.finished_stages.get(Stage.PROVISION, {}), state.finished_stages.get(Stage.BAKE, {})
    shape, model = layout(spec), training.model
    parameters = log.parameters or int(record.plan.figure("parameters").value)
    tokens = int(record.plan.figure("tokens").value)
    rows = [
        Fact(
            name="model",
            value=f"decoder-only transformer, {parameters:,} parameters: {model.layers} layers x {model.width} wide, "
            f"{model.heads} heads, context {model.context}, vocabulary {model.vocabulary}",
        ),
        Fact(
            name="training",
            value=f"{training.steps:,} steps x {training.global_batch:,} sequences = {tokens:,} tokens; "
            f"DeepSpeed ZeRO-{training.zero_stage}, {training.precision}, seed {training.seed}",
        ),
        Fact(
            name="machines",
            value=f"{shape.nodes} x {spec.nodes.instance_type} ({spec.nodes.capacity}), {shape.world_size} ranks, "
            f"{spec.zone}; Kubernetes {spec.kubernetes}",
        ),
        Fact(name="account", value=f"{spec.account}, {spec.region}, target {spec.target}"),
    ]
    source = f"{spec.data.source} ({spec.data.pattern}), {spec.data.held_out:.0%} held out, seed {spec.data.seed}"
    if "train_tokens" in provision:
        source += f"; {provision['train_tokens']:,} training tokens"
    rows.append(Fact(name="data", value=source))
    digests = {
        "data digest": provision.get("data_digest"),
        "image": bake.get("image"),
        "code digest": bake.get("code"),
        "spec digest": record.plan.spec_digest,
    }
    rows += [Fact(name=name, value=str(value), digest=True) for name, value in digests.items() if value]
    return tuple(rows)


def _plan(record: Record, rows: tuple[StageTime, ...], book: Ledger) -> tuple[PlannedStage, ...]:
    actual: dict[str, float] = {}
    for row in rows:
        actual[row.stage] = actual.get(row.stage, 0.0) + row.seconds
    return tuple(
        PlannedStage(
            stage=line.stage,
            planned_s=float(line.seconds),
            actual_s=round(actual[line.stage], 3) if line.stage in actual else None,
            formula=line.formula,
        )
        for line in record.plan.clock
    )


def _golden(record: Record, state: CampaignState) -> Golden | None:
    found = state.archive
    if found is None or "manifest" not in found:
        return None
    root = str(found["manifest"]).rpartition("/")[0]
    folder = f"{root}/golden/step-{int(found['step']):08d}"
    digest = state.finished_stages.get(Stage.PROVISION, {}).get("data_digest", "DIGEST")
    data = f"s3://{buckets(record.spec.account, record.spec.region).data}/{data_prefix(digest)}"
    return Golden(
        step=int(found["step"]),
        manifest=str(found["manifest"]),
        folder=folder,
        objects=int(found.get("objects", 0)),
        bytes=int(found.get("bytes", 0)),
        recorded_loss=found.get("recorded_evaluation_loss"),
        restored_loss=found.get("restored_evaluation_loss"),
        commands=(
            f"aws s3 cp --recursive {folder} golden",
            f"aws s3 cp {root}/train.json train.json",
            f"aws s3 cp --recursive {data} data",
            "python -m trainer.evaluate --checkpoint golden --config train.json --data data",
        ),
    )


def _certificate(record: Record, state: CampaignState) -> CertificateSummary | None:
    """The event says what was concluded; the stored certificate adds each look."""
    said, stored = state.certificate, record.certificate or {}
    if said is None:
        return None
    rows = tuple(
        LookRow(
            service=look["service"],
            kind=look["kind"],
            listed=look["listed"],
            found=tuple(look.get("found", ())),
            could_not_look=look.get("could_not_look"),
        )
        for look in stored.get("looks", ())
    )
    certified = [event for event in ordered(record) if event.kind is Kind.CERTIFIED]
    return CertificateSummary(
        clean=bool(said["clean"]),
        at=certified[-1].at,
        principal=stored.get("principal"),
        looks=int(said.get("looks", len(rows))),
        listed=sum(row.listed for row in rows),
        found=tuple(said.get("found", ())),
        could_not_look=tuple(said.get("could_not_look", ())),
        kept=tuple(said.get("kept", stored.get("kept", ()))),
        rows=rows,
    )
