"""Provision: prepares the data, then makes the campaign's stack without GPU nodes."""

from __future__ import annotations

from infra.aws.base_image import find_base
from infra.aws.cost_tag import activate
from infra.bake.foundation import campaign_settings, foundation
from infra.bake.sources import keep_code
from infra.campaign import preparing
from infra.campaign.driver_notices import subscribe_people
from infra.data import dataset, in_cluster, source
from infra.data.dataset import DataSet
from infra.data.in_cluster import SourceListing
from infra.data.requirements import image_python
from infra.data.source import PackedSource, WeightFile
from infra.engine.engine import Engine
from infra.errors import UserError
from infra.folders import keep, writable
from infra.inventory import certify
from infra.plan import git_source
from infra.plan.survey import environment
from infra.record.payloads.outputs import ProvisionOutput
from infra.report.data_page import data_page
from infra.session.context import Context
from infra.session.session import STACK_CONFIG
from infra.spec.campaign import Spec, Workload
from infra.spec.sections import Role
from infra.spec.workload.git_reference import GitSource
from infra.spec.workload.links import INIT, MOUNTS
from infra.stack.outputs import CampaignOutputs
from trainer.contract import DATA_MOUNT
from trainer.contract.workload import INIT_FOLDER

DATA_PAGE = "data.html"
"""File in the results folder: statistics of the prepared data, and what was left out and why."""
SOURCE_COMMIT = "source-commit.json"
"""Object of the record with the commit that a workload's git reference became."""


def run(context: Context) -> ProvisionOutput:
    _refuse_lesser_driver(context)
    listing = None
    in_cluster.refuse_unmarked(context.account, context.spec)
    if context.spec.prepares_data:
        listing = in_cluster.listing(context.spec, context.progress.step)
    data, figures = (None, ProvisionOutput()) if listing is not None else job_data(context)
    context.progress.step("recording the account's resources before anything is made")
    certify.note_baseline(context)
    engine = Engine(context, writable(context.results / "pulumi"))
    foundation(context, engine)
    subscribe_people(context)
    context.progress.step("checking that AWS's bills know the campaign's tag")
    cost_tag = activate(context.account)
    context.progress.note(cost_tag.sentence())
    if listing is not None:
        data, figures = _prepare_in_cluster(context, engine, listing)
    assert data is not None, "either the driver has prepared it, or the cluster"
    upload(context, data)
    outputs, count = _stack(context, engine, data.digest)
    context.progress.note(f"{count} resources; cluster {outputs.cluster_name} at {outputs.cluster_endpoint}")
    facts = {"outputs": outputs.model_dump(mode="json"), "data_digest": data.digest, "resources": count}
    return figures.model_copy(update={**facts, "budget_counts": cost_tag.counting})


def _stack(context: Context, engine: Engine, data_digest: str | None) -> tuple[CampaignOutputs, int]:
    """Make the stack, or bring it to the data; return its outputs and the number of its resources."""
    context.progress.step("campaign stack")
    settings = campaign_settings(context, data_digest)
    keep_code(context, settings.closer_code)
    config = settings.to_config()
    context.store.put_json(STACK_CONFIG, config)
    stack = engine.stack(context.names.stack, config, settings.key_arn)
    if not context.state().attempts and (deletions := engine.clear_broken(stack)):
        context.progress.note(f"deleted to be made again, since they had failed: {', '.join(deletions)}")
    return CampaignOutputs.model_validate(engine.up(stack)), engine.resources(stack)


def _prepare_in_cluster(context: Context, engine: Engine, listing: SourceListing) -> tuple[DataSet, ProvisionOutput]:
    """Return the data that the cluster prepares, in a stack that has nodes for it meanwhile. What this campaign or
    another has prepared already from the same files is only verified."""
    bucket = context.buckets.data
    digest = in_cluster.result(context.account, bucket, listing.plan)
    if digest is None:
        _stack(context, engine, None)
        data = preparing.prepare(context, listing)
    else:
        data = in_cluster.verified_data(context.account, bucket, digest, context.progress.step)
        context.progress.note("data: prepared before from the same files; every file has its digest in S3")
    return data, _data_figures(context, data)


def _refuse_lesser_driver(context: Context) -> None:
    """Raise `UserError` if the spec gives whoever drives less than the cluster's making needs."""
    principal = context.account.principal(context.operator_arn)
    for number, grant in enumerate(context.spec.access):
        if grant.principal == principal and grant.role is not Role.ADMIN:
            cure = "let an admin run the campaign, write `role: admin`, or take the line out"
            raise UserError(f"access.{number}: whoever runs a campaign is its admin", seen=f"{grant.role}", cure=cure)


def upload(context: Context, data: DataSet | PackedSource) -> None:
    """Upload what is not in the data bucket yet."""
    account, bucket, say, root = context.account, context.buckets.data, context.progress.step, context.spec.bucket_root
    job = context.spec.job
    folder, weights = weights_of(context.spec, data)
    if weights and not (isinstance(data, PackedSource) and dataset.is_uploaded(account, bucket, data.digest, root)):
        assert job.init_from is not None, "its files are listed"
        source.upload_weights(account, bucket, job.init_from, weights, data.digest, say, folder, root)
    dataset.upload(account, bucket, data.folder, data.digest, say, root)


def weights_of(spec: Spec, data: DataSet | PackedSource) -> tuple[str, tuple[WeightFile, ...]]:
    """Return the weights of this machine that the job starts from, and their folder beside the data."""
    if isinstance(data, PackedSource):
        return INIT_FOLDER, data.weights
    if spec.job.init_from is None or spec.job.links:
        return INIT_FOLDER, ()
    files = source.weight_files(spec.job.init_from)
    return source.weights_folder(files), files


def job_data(context: Context) -> tuple[DataSet | PackedSource, ProvisionOutput]:
    """Return what the job's pods mount at `/data`, the prepared text or a workload's code, and what is told of it."""
    spec = context.spec
    if spec.workload is not None:
        return packed_source(context, spec.workload.on(spec.target))
    data = dataset.prepare(spec, context.progress.step)
    return data, _data_figures(context, data)


def packed_source(
    context: Context, workload: Workload, *, relaunches: bool = False
) -> tuple[PackedSource, ProvisionOutput]:
    """Return a job's code and packages, and what is recorded of them. `relaunches`: look again at a git reference."""
    python = None
    if isinstance(workload.source, GitSource):
        commit = _commit(context, workload.source, relaunches)
        workload = workload.model_copy(update={"source": str(git_source.checkout(workload.source, commit))})
    if workload.requirements is not None:
        python = image_python(workload, lambda: find_base(context.account, context.spec).python)
    package = source.pack(workload, python, context.progress.step)
    commit_text = f", commit {package.commit}" if package.commit else ""
    context.progress.note(f"source: {package.files} files{commit_text}")
    record = ProvisionOutput(source_sha256=package.sha256, source_commit=package.commit)
    if python is not None:
        context.progress.note(f"requirements: {len(package.packages)} packages for Python {python.version}")
        packages_for = (package.requirements, python.version)
        record = record.model_copy(update={"packages": package.packages, "packages_for": packages_for})
    return package, record


def _commit(context: Context, source: GitSource, relaunches: bool) -> str:
    """Return the commit of a git reference, which is recorded once: a branch that moves meanwhile changes nothing."""
    reference = source.model_dump()
    pin = context.store.get_json(SOURCE_COMMIT)
    if pin is not None and pin["reference"] == reference and not relaunches:
        return str(pin["commit"])
    context.progress.step(f"source: {source}")
    # No way leads out of a rehearsal: its reference was fetched before it was entered.
    commit = None if environment(context.spec).public_registries else git_source.known_commit(source)
    commit = commit or git_source.fetch(source)
    context.store.put_json(SOURCE_COMMIT, {"reference": reference, "commit": commit})
    return commit


def _data_figures(context: Context, data: DataSet) -> ProvisionOutput:
    """Return what is told of prepared text, and write its page. Raises `UserError` if the model does not fit it."""
    spec = context.spec
    model = spec.built_in[0].model
    if not model.reads(data.manifest.vocabulary):
        raise UserError(
            "the data has another vocabulary than the model",
            seen=data.manifest.vocabulary,
            cure="mend training.model.vocabulary",
        )
    if (model.document_attention or model.reset_positions) and model.end_of_document != data.manifest.end_of_document:
        cure = f"write training.model.end_of_document: {data.manifest.end_of_document}"
        raise UserError("the data end documents with another token", seen=model.end_of_document, cure=cure)
    keep(context.results / DATA_PAGE, data_page(data).encode(), context.progress.note)
    loss, tokens = data.manifest.unigram_loss, data.manifest.train_tokens
    return ProvisionOutput(unigram_loss=loss, train_tokens=tokens, init_from=_weights_of(spec))


def _weights_of(spec: Spec) -> str:
    """Return where the built-in trainer's pods find the weights to start from; empty if they start from none."""
    training, _ = spec.built_in
    if training.init_from is None:
        return ""
    if training.links:
        return f"{MOUNTS}/{INIT}"
    return f"{DATA_MOUNT}/{source.weights_folder(source.weight_files(training.init_from))}"
