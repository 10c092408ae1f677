"""The configuration of a campaign's pods, from spec and plan: of the built-in ranks, or of a workload's supervisor."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from infra.plan.catalogue.instance_types import InstanceType, instance_types
from infra.plan.estimates.zero import resolve_zero
from infra.plan.plan import Plan
from infra.spec.campaign import Spec
from infra.spec.names import data_source, shared_tier
from infra.spec.workload.links import INIT, MOUNTS
from infra.spec.workload.workload import GIB, Workload
from trainer.contract import DATA_MOUNT, LOCAL_CHECKPOINTS, SHARED_CHECKPOINTS, DataConfig, TrainConfig, grace_seconds
from trainer.contract.workload import (
    INIT_FOLDER,
    STAGED,
    STAGING_SOURCES,
    WORKSPACE,
    JudgingConfig,
    SealedCheckpoints,
    WorkloadConfig,
    requirements_name,
    source_name,
)

_FROM_TRAINING = (
    "model", "optimizer", "gradients", "steps", "global_batch", "micro_batch", "zero_stage", "precision", "seed",
    "evaluate_every", "evaluate_batches", "parallel", "recompute", "compile", "watch", "collective_timeout_s",
    "start_timeout_s",
)  # fmt: skip
"""Fields that the ranks take from the spec's section as they are."""


def train_config(spec: Spec, plan: Plan, data_digest: str, identity: str = "", init_from: str = "") -> TrainConfig:
    """Return the built-in ranks' configuration. `init_from`: where the pods see the weights to start from."""
    training, data = spec.built_in
    shares = spec.storage.shared is not None
    return TrainConfig(
        **{name: getattr(training, name) for name in _FROM_TRAINING},
        zero=resolve_zero(training, _instance(spec), spec.nodes.count, plan.layout.ranks_per_node),
        campaign=spec.campaign,
        identity=identity,
        shared_tier="" if shares else shared_tier(spec.account, spec.region, spec.campaign, identity),
        data=DataConfig(
            manifest_digest=data_digest,
            seed=data.seed,
            weights={part.name: part.weight for part in data.mixture},
            shuffle_blocks=data.shuffle_blocks,
            stream_from="" if shares else data_source(spec.account, spec.region, data_digest),
            cache_gib=data.cache_gib,
        ),
        checkpoint=plan.checkpoint,
        init_from=init_from,
        peak_bf16_tflops=_peak_tflops(spec),
        first_step_timeout_s=training.longest_first_step_s(spec.recovery.hang_timeout),
        save_timeout_s=training.longest_save_s(spec.recovery.hang_timeout),
        restarts_in_place=spec.recovery.restarts_in_place,
        # Half of the steward's wait for a silent pod, so that the meeting does not delay a lost node's replacement.
        meet_s=spec.recovery.heartbeat_timeout.total_seconds() / 2,
        grace_s=grace_seconds(training.collective_timeout_s),
    )


def _peak_tflops(spec: Spec) -> float | None:
    """Return the dense peak of one accelerator in bfloat16; None if the catalogue has none, or for another format."""
    if spec.built_in[0].precision != "bfloat16":
        return None
    instance = _instance(spec)
    return None if instance is None else instance.peak_bf16_tflops


def _instance(spec: Spec) -> InstanceType | None:
    return next((item for item in instance_types() if item.name == spec.nodes.instance_type), None)


def workload_config(
    spec: Spec, plan: Plan, data_digest: str, source_digest: str, identity: str, packages: Sequence[str] = ("", "")
) -> WorkloadConfig:
    """Return the configuration of a workload's supervisors. `source_digest`: SHA-256 of its code, empty without one;
    `packages`: that of the packages that it brings, and the Python that they are for."""
    job = spec.job
    assert isinstance(job, Workload), "the built-in trainer has another one"
    tiers = {"shared": SHARED_CHECKPOINTS, "local": LOCAL_CHECKPOINTS}
    return WorkloadConfig(
        identity=identity,
        launcher=job.launcher,
        command=(*job.start, *job.args),
        warm=job.warm,
        env={**job.nccl, **job.env},
        secrets=tuple(sorted(job.secrets)),
        folder=WORKSPACE,
        source=f"{DATA_MOUNT}/{source_name(source_digest)}" if source_digest else "",
        source_digest=source_digest,
        requirements=f"{DATA_MOUNT}/{requirements_name(packages[0])}" if packages[0] else "",
        requirements_digest=packages[0],
        requirements_python=packages[1],
        checkpoints=SealedCheckpoints(
            format=job.checkpoints.format,
            folder=f"{tiers[job.checkpoints.tier]}/{spec.campaign}/own",
            tier=job.checkpoints.tier,
            keep=job.checkpoints.keep,
            keep_local=job.checkpoints.keep_local,
        ),
        progress=job.progress.by,
        pattern=job.progress.pattern,
        steps=job.steps,
        ends=job.ends,
        save_every=plan.checkpoint.every_steps,
        grace_s=job.grace_s,
        init_from=_init_from(job),
        staged={name: int(size_gib * GIB) for name, size_gib in job.staged.items()},
        staging=(STAGING_SOURCES, f"{LOCAL_CHECKPOINTS}/{STAGED}"),
        judging=_judging(job),
        config_digest=hashlib.sha256(job.model_dump_json().encode()).hexdigest(),
        data_digest=data_digest,
    )


def _init_from(job: Workload) -> str:
    if job.init_from is None:
        return ""
    return f"{MOUNTS}/{INIT}" if INIT in job.links else f"{DATA_MOUNT}/{INIT_FOLDER}"


def _judging(job: Workload) -> JudgingConfig | None:
    evaluate, export = job.evaluate, job.export
    fields: dict[str, Any] = {}
    if evaluate is not None:
        fields |= {"evaluate": evaluate.command, "evaluate_s": evaluate.limit.total_seconds()}
        fields |= {"tolerance": evaluate.tolerance}
    if export is not None:
        fields |= {"export": export.command, "export_s": export.limit.total_seconds()}
    return JudgingConfig(**fields) if fields else None
