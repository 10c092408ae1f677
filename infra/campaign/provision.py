"""Provision: prepares the data, then makes the campaign's stack without GPU nodes."""

from __future__ import annotations

from typing import Any

from infra.aws.cost_tag import activated
from infra.bake.closer_code import keep_code
from infra.bake.foundation import foundation
from infra.bake.keeping import campaign_settings
from infra.campaign.telling import have_them_hear
from infra.data import dataset, source, weights
from infra.data.dataset import DataSet
from infra.data.source import PackedSource
from infra.engine.engine import Engine
from infra.errors import UserError
from infra.folders import keep, writable
from infra.inventory import certify
from infra.report.data_page import data_page
from infra.session.context import Context
from infra.session.session import STACK_CONFIG
from infra.spec.access import Role
from infra.spec.campaign import Spec, Training, Workload
from infra.spec.workload import INIT, MOUNTS
from infra.stack.outputs import CampaignOutputs
from trainer.contract import DATA_MOUNT

DATA_PAGE = "data.html"
"""File in the results folder: statistics of the prepared data, and what was left out and why."""


def run(context: Context) -> dict[str, Any]:
    _refuse_lesser_driver(context)
    data, told = job_data(context)
    context.progress.step("recording the account's resources before anything is made")
    certify.note_baseline(context)
    engine = Engine(context, writable(context.results / "pulumi"))
    foundation(context, engine)
    have_them_hear(context)
    context.progress.step("checking that AWS's bills know the campaign's tag")
    counted = activated(context.account)
    context.progress.note(counted.sentence())
    _upload(context, data)
    context.progress.step("campaign stack")
    settings = campaign_settings(context, data.digest)
    keep_code(context, settings.closer_code)
    config = settings.to_config()
    context.store.put_json(STACK_CONFIG, config)
    stack = engine.stack(context.names.stack, config)
    if not context.state().attempts and (cleared := engine.clear_broken(stack)):
        context.progress.note(f"deleted to be made again, since they had failed: {', '.join(cleared)}")
    outputs = CampaignOutputs.model_validate(engine.up(stack))
    count = engine.resources(stack)
    context.progress.note(f"{count} resources; cluster {outputs.cluster_name} at {outputs.cluster_endpoint}")
    return {
        "outputs": outputs.model_dump(mode="json"),
        "data_digest": data.digest,
        **told,
        "resources": count,
        "budget_counts": counted.counting,
    }


def _refuse_lesser_driver(context: Context) -> None:
    """Raise `UserError` if the spec gives whoever drives less than the cluster's making needs."""
    principal = context.account.principal(context.operator_arn)
    for number, one in enumerate(context.spec.access):
        if one.principal == principal and one.role is not Role.ADMIN:
            cure = "let an admin run the campaign, write `role: admin`, or take the line out"
            raise UserError(f"access.{number}: whoever runs a campaign is its admin", seen=f"{one.role}", cure=cure)


def _upload(context: Context, data: DataSet | PackedSource) -> None:
    account, bucket, say = context.account, context.buckets.data, context.progress.step
    job = context.spec.job
    if isinstance(job, Training) and job.init_from is not None and not job.links:
        files = weights.listed(job.init_from)
        weights.upload(account, bucket, job.init_from, files, data.digest, say, weights.folder_of(files))
    if isinstance(data, PackedSource) and data.weights and not dataset.uploaded(account, bucket, data.digest):
        assert isinstance(job, Workload) and job.init_from is not None, "its files are listed"
        weights.upload(account, bucket, job.init_from, data.weights, data.digest, say)
    dataset.upload(account, bucket, data.folder, data.digest, say)


def job_data(context: Context) -> tuple[DataSet | PackedSource, dict[str, Any]]:
    """Return what the job's pods mount at `/data`, the prepared text or a workload's code, and what is told of it."""
    spec = context.spec
    if spec.workload is not None:
        packed = source.pack(spec.workload.on(spec.target))
        at = f", commit {packed.commit}" if packed.commit else ""
        context.progress.note(f"source: {packed.files} files{at}")
        return packed, {"source_sha256": packed.sha256, "source_commit": packed.commit}
    data = dataset.prepare(spec, context.progress.step)
    if spec.training is not None and not spec.training.model.reads(data.manifest.vocabulary):
        raise UserError(
            "the data has another vocabulary than the model",
            seen=data.manifest.vocabulary,
            cure="mend training.model.vocabulary",
        )
    keep(context.results / DATA_PAGE, data_page(data).encode(), context.progress.note)
    told = {"unigram_loss": data.manifest.unigram_loss, "train_tokens": data.manifest.train_tokens}
    return data, told | _weights_of(spec)


def _weights_of(spec: Spec) -> dict[str, Any]:
    """Return where the built-in trainer's pods find the weights to start from; nothing if they start from none."""
    if spec.training is None or spec.training.init_from is None:
        return {}
    if spec.training.links:
        return {"init_from": f"{MOUNTS}/{INIT}"}
    return {"init_from": f"{DATA_MOUNT}/{weights.folder_of(weights.listed(spec.training.init_from))}"}
