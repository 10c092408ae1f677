"""Facts about the campaign in groups, each value from the record: purpose, model, machines, data, code."""

from __future__ import annotations

from collections.abc import Iterator

import yaml

from infra.console.words import clock, moment, size
from infra.plan.layout import layout
from infra.record.events import CampaignState
from infra.record.payloads.outputs import BakeOutput, ProvisionOutput
from infra.report.model import Fact, FactGroup
from infra.report.record import Record
from infra.report.trainer_log import TrainerLog
from infra.spec.campaign import Workload
from trainer.contract import Layout

Row = tuple[str, str] | tuple[str, str, bool]
"""Name and value of a fact, and whether it is a digest."""
SHOWN_PACKAGES = ("torch", "deepspeed", "tokenizers", "numpy", "nvidia-nccl-cu13", "bivouac")


def facts(record: Record, state: CampaignState, log: TrainerLog) -> tuple[FactGroup, ...]:
    if record.spec.runtime.is_built_in:
        training, data = _model(record, log), _data(record, state)
    else:
        training, data = _job(record), _source(record, state)
    groups = {
        "Who and why": _purpose(record),
        "Model and training": training,
        "Machines": _machines(record),
        "Data": data,
        "Code and image": _code(record, state),
    }
    return tuple(
        FactGroup(
            name=name, facts=tuple(Fact(name=fact, value=value, digest=any(digest)) for fact, value, *digest in rows)
        )
        for name, rows in groups.items()
    )


def spec_text(record: Record) -> str:
    return yaml.safe_dump(record.spec.model_dump(mode="json", exclude_none=True), sort_keys=False, allow_unicode=True)


def _purpose(record: Record) -> Iterator[Row]:
    spec = record.spec
    yield "purpose", spec.purpose
    yield "owner", spec.owner
    if record.begun_at is not None:
        newest = max(event.at for event in record.events)
        yield "when", f"{moment(record.begun_at)} to {moment(newest)}"
    yield (
        "limits",
        f"budget {spec.money.budget_usd} USD, deadline {clock(spec.money.deadline.total_seconds())} after the start",
    )


def _job(record: Record) -> Iterator[Row]:
    job = record.spec.job
    assert isinstance(job, Workload)
    words = job.start if job.launcher == "none" else (job.launcher, *job.start)
    yield "job", " ".join((*words, *job.args))
    if job.env:
        yield "environment", ", ".join(f"{name}={value}" for name, value in job.env.items())
    yield "wanted", f"{job.steps:,} steps on {layout(record.spec).world_size} ranks"
    yield "checkpoints", f"the job's own, in the form `{job.checkpoints.format}`, sealed with digests"


def _source(record: Record, state: CampaignState) -> Iterator[Row]:
    provision, job = ProvisionOutput.known(state.finished_stages), record.spec.runtime
    yield "source", str(job.source or "in the image")
    if job.init_from is not None:
        yield "starts from", job.init_from
    if commit := provision.source_commit:
        yield "commit", commit, True
    if digest := provision.source_sha256:
        yield "digest", digest, True
    if packages := provision.packages:
        yield "packages", f"beside the image's: {', '.join(packages)}"


def _model(record: Record, log: TrainerLog) -> Iterator[Row]:
    (training, _), plan = record.spec.built_in, record.plan
    model, model_parameters = training.model, log.parameters
    kind = model.name or "decoder-only transformer"
    parameters = model_parameters or int(plan.figure("parameters").value)
    source = "counted by the trainer" if model_parameters else plan.figure("parameters").formula
    yield (
        "model",
        f"{kind}, {parameters:,} parameters ({source}): {model.layers} layers,"
        f" {model.width} wide, {model.heads} heads, context {model.context} tokens, vocabulary {model.vocabulary}",
    )
    batch = training.global_batch * model.context
    shape = layout(record.spec)
    yield (
        "batch",
        f"{training.global_batch:,} sequences of {model.context:,} tokens = {batch:,} tokens per step; "
        f"micro batch {training.micro_batch}, accumulation {shape.accumulation}",
    )
    yield "wanted", f"{training.steps:,} steps = {training.steps * batch:,} tokens"
    yield (
        "precision, parallelism",
        f"{training.precision}; DeepSpeed ZeRO stage {training.zero_stage}, "
        f"{shape.world_size} ranks: {Layout.of(training.parallel, shape.world_size).parts()} parallel",
    )
    optimizer = training.optimizer
    yield (
        "optimizer",
        f"learning rate {optimizer.learning_rate:g} to {optimizer.minimum_learning_rate:g}, "
        f"{optimizer.warmup_steps} steps of warm-up, weight decay {optimizer.weight_decay:g}, "
        f"clipped at {optimizer.clip:g}; seed {training.seed}",
    )
    saving = plan.checkpoint
    source_of_interval = "derived from the failure rate" if plan.checkpoint_derived else "as the spec asks"
    yield (
        "checkpoints",
        f"every {saving.every_steps:,} steps on each node, "
        f"every {saving.every_steps * saving.shared_every:,} steps on the shared tier ({source_of_interval})",
    )


def _machines(record: Record) -> Iterator[Row]:
    spec, shape = record.spec, layout(record.spec)
    prefix = "rehearsed on one machine as " if record.site is not None else ""
    yield (
        "nodes",
        f"{prefix}{shape.nodes} x {spec.nodes.instance_type}, {spec.nodes.capacity}, "
        f"{shape.ranks_per_node} rank{'s' if shape.ranks_per_node > 1 else ''} each",
    )
    yield "zone", f"{spec.zone}, account {spec.account}"
    shared = spec.storage.shared
    tier = f"FSx for Lustre {shared.deployment}, {shared.capacity_gib} GiB" if shared else "checkpoints in S3, no FSx"
    yield "cluster", f"Kubernetes {spec.kubernetes}; {tier}"


def _data(record: Record, state: CampaignState) -> Iterator[Row]:
    (_, spec), provision = record.spec.built_in, ProvisionOutput.known(state.finished_stages)
    sources = "; ".join(f"{part.source} ({part.pattern})" for part in spec.parts)
    yield "source", f"{sources}, {spec.held_out:.0%} held out, seed {spec.seed}"
    data = record.data
    if data is not None:
        yield (
            "contents",
            f"{data['documents']:,} documents, {size(int(data['source_bytes']))} of text, "
            f"{data['skipped_documents']} skipped; "
            f"{data['train_tokens']:,} training and {data['validation_tokens']:,} held-out tokens",
        )
    elif provision.train_tokens is not None:
        yield "contents", f"{provision.train_tokens:,} training tokens"
    if provision.data_digest:
        yield "manifest digest", provision.data_digest, True
    else:
        yield "manifest digest", "none yet: the data is prepared in provision"
    licences = dict.fromkeys(part.licence for part in spec.parts if part.licence)
    yield "licence", ", ".join(licences) or "not stated: see `data.licence` of the spec"


def _code(record: Record, state: CampaignState) -> Iterator[Row]:
    bake, image = BakeOutput.known(state.finished_stages), record.image
    for name, digest in (("code digest", bake.code), ("image", bake.image)):
        yield name, digest or "none yet: it comes with the bake", bool(digest)
    if image is not None:
        base = image.get("base_packages", {})
        packages = {**base, **image.get("layer_packages", {})}
        scope = "in all" if base else "in the layer; the base image's packages are not listed, its digest fixes them"
        package_texts = [f"{name} {packages[name]}" for name in SHOWN_PACKAGES if name in packages]
        yield "versions", f"{', '.join(package_texts)}; {len(packages)} packages {scope}"
        yield "base image", f"{image.get('base')} {image.get('base_digest')}", True
    yield "spec digest", record.plan.spec_digest, True
