"""Duration of each stage."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal

from infra.plan.estimates import storage, work
from infra.plan.estimates.figure import round_to
from infra.plan.estimates.preparing import PreparingTime
from infra.plan.estimates.saving import RANKS_START_S, Saving
from infra.plan.pilot import PILOT_TAKES, pilot_first, pilot_words
from infra.spec import waits
from infra.spec.campaign import Spec
from trainer.contract.frozen import Frozen

BEFORE_TRAINING = ("bake", "provision", "preflight", "launch")
UNTIL_ARCHIVED = (*BEFORE_TRAINING, "supervise", "archive")
BEFORE_STACK = ("bake",)
"""Stages during which no resource of the campaign's stack bills."""
GPU_STAGES = ("preflight", "launch", "supervise", "archive")
"""Stages with GPU nodes; in the last of them only one is up."""

GIVE_BACK_S = 60
"""Time that nodes bill after training, when all GPU nodes but one are given back. From general knowledge: EKS drains a
node, on which only daemons are left, before EC2 terminates it."""

TYPICAL_MINUTES = {
    "provision": (20, "control plane 10, file system beside it, then system node and add-ons 10"),
    "bake": (20, "node image: boot 2, roles 8, snapshot 10; trainer image 10 beside it; nothing where baked before"),
    "preflight": (10, "GPU nodes join 6, probes and all-reduce 4"),
    "launch": (2, "job, pods, image already on the node"),
    "archive": (3, "job, evaluation of the restored model"),
    "teardown": (20, "node groups 6, then control plane and file system 10, network 4"),
    "certify": (2, "every service, with retries for eventual consistency"),
}
"""Typical minutes on AWS from general knowledge, used until events of real campaigns replace them. Boot and snapshot of
a bake are the short ends of `infra.spec.waits`; `longest` counts the long ones."""
BORROWED_MINUTES = {
    "provision": (1, "objects in the namespace; images that no node has yet take longer"),
    "preflight": (5, "pods start 1, probes and all-reduce 4; nodes that are in use are waited for"),
    "teardown": (2, "objects of the campaign, and its folders"),
    "certify": (1, "namespace and bucket"),
}
"""Typical minutes at a cluster that stands, from general knowledge: no campaign has met such a cluster yet."""
_SLOW = ("p", "trn")
"""Beginnings of the types that boot as slowly as bare metal."""
WITHOUT_NODE_IMAGE = (10, "trainer image; nothing where the inputs were baked before")


_LAUNCH_MARGIN = timedelta(minutes=30)
"""For the health check, and for EC2 to take back nodes that are replaced."""


def launch_wait(spec: Spec) -> timedelta:
    """Return the longest time between two steps of the driver: nodes come, their pods start, the nodes are judged."""
    return spec.capacity_timeout + spec.recovery.startup_timeout + _LAUNCH_MARGIN


class StageTime(Frozen):
    stage: str
    seconds: Decimal
    formula: str
    longest: Decimal | None = None
    """Seconds if AWS takes its longest, by `infra.spec.waits`; None in plans older than the field."""


def clock(spec: Spec, saving: Saving, world_size: int, preparing: PreparingTime | None = None) -> tuple[StageTime, ...]:
    """Return every stage that takes time, in order. `preparing`: of data in the cluster, part of provision."""
    return tuple(
        _supervise(spec, saving, world_size) if stage == "supervise" else _stage(stage, spec, preparing)
        for stage in (*BEFORE_TRAINING, "supervise", "archive", "teardown", "certify")
    )


def borrowed(stages: tuple[StageTime, ...]) -> tuple[StageTime, ...]:
    """Return the stages of a campaign that makes no cluster: nothing is baked, and AWS takes no time."""
    times = {
        name: StageTime(stage=name, seconds=round_to(60 * minutes, 0), formula=formula)
        for name, (minutes, formula) in BORROWED_MINUTES.items()
    }
    left = [stage for stage in stages if stage.stage not in BEFORE_STACK]
    return tuple(times.get(stage.stage, stage.model_copy(update={"longest": None})) for stage in left)


def seconds(stages: tuple[StageTime, ...], *names: str) -> Decimal:
    """Return the sum over the named stages, or over all."""
    return sum((stage.seconds for stage in stages if not names or stage.stage in names), Decimal(0))


def longest_seconds(stages: tuple[StageTime, ...], *names: str) -> Decimal:
    """Return the sum over the named stages, or over all, if AWS takes its longest."""
    selection = (stage for stage in stages if not names or stage.stage in names)
    return sum((stage.seconds if stage.longest is None else stage.longest for stage in selection), Decimal(0))


def pilot_seconds(spec: Spec) -> Decimal:
    """Return the part of preflight in which only a pilot bills; 0 without one."""
    return Decimal(int(PILOT_TAKES.total_seconds())) if pilot_first(spec) else Decimal(0)


def gang_seconds(stages: tuple[StageTime, ...], nodes: int, pilot_s: Decimal = Decimal(0)) -> Decimal:
    """Return the billed GPU time in seconds of the whole gang; the archive and a pilot run on one node."""
    archive = seconds(stages, "archive")
    going = min(archive, Decimal(GIVE_BACK_S))
    return seconds(stages, *GPU_STAGES) - archive - pilot_s + going + (archive - going + pilot_s) / nodes


def _stage(stage: str, spec: Spec, preparing: PreparingTime | None) -> StageTime:
    minutes, formula = TYPICAL_MINUTES[stage]
    if stage == "bake" and spec.image.nodes != "bake":
        minutes, formula = WITHOUT_NODE_IMAGE
    if spec.storage.shared is None:
        formula = formula.replace("control plane 10, file system beside it", "control plane 10")
        formula = formula.replace("control plane and file system", "control plane")
    total = 60.0 * minutes
    if stage == "provision" and preparing is not None:
        total += float(preparing.seconds)
        formula += f"; {preparing.formula}"
    if stage == "preflight":
        total += float(pilot_seconds(spec))
        formula += pilot_words(spec)
    if stage == "archive":
        size = storage.checkpoint_bytes(spec)
        total += 2 * size / storage.S3_BYTES_PER_S
        formula += f"; {size / 1e9:.3g} GB out and read back at 1.25 GB/s"
        if judging_s := spec.runtime.judging.total_seconds():
            export_size = storage.export_bytes(spec)
            total += judging_s + (size + 2 * export_size) / storage.S3_BYTES_PER_S
            formula += f"; the checkpoint read once more, {export_size / 1e9:.3g} GB of export likewise out and back; "
            formula += f"{judging_s:g} s limits of workload.evaluate and workload.export"
    longest = round_to(total + 60 * _minutes_more(stage, spec), 0)
    return StageTime(stage=stage, seconds=round_to(total, 0), formula=formula, longest=longest)


def _minutes_more(stage: str, spec: Spec) -> float:
    """Return the minutes beyond the typical ones if each part of AWS's work takes its longest."""
    stack = max(waits.CLUSTER.longest, waits.FILE_SYSTEM.longest if spec.storage.shared is not None else 0)
    boots = (2 if pilot_first(spec) else 1) if spec.nodes.instance_type.startswith(_SLOW) else 0
    return {
        # Of the typical 20 of a node image 2 are the boot and 10 the snapshot.
        "bake": waits.BUILDER_BOOT.longest + waits.IMAGE.longest - 12 if spec.image.nodes == "bake" else 0,
        "provision": stack + waits.ADD_ON.longest - 20,
        "preflight": boots * (waits.BOOT.longest - 6),
        "teardown": waits.NODE_GROUP.longest + stack + 4 - 20,
    }.get(stage, 0)


def _supervise(spec: Spec, saving: Saving, world_size: int) -> StageTime:
    useful = work.training_seconds(spec) + work.evaluation_seconds(spec, world_size)
    # An efficiency of 0 would make an endless stage; a hundred times the work is a sufficient bound.
    total = RANKS_START_S + useful / max(saving.efficiency, 0.01)
    formula = f"{RANKS_START_S:g} s start + {useful:.5g} s training and evaluation / {saving.efficiency:.4f} efficiency"
    return StageTime(stage="supervise", seconds=round_to(total, 0), formula=formula)
