"""Place and size of checkpoints, and the time to write them."""

from __future__ import annotations

from typing import Literal

from infra.plan.estimates import sizing
from infra.plan.facts import Facts
from infra.spec.campaign import SharedStorage, Spec, Workload
from trainer.contract import CheckpointConfig
from trainer.contract.frozen import Frozen

USABLE_SHARE = 0.8
"""Usable share of a tier: data, logs, images and the file system itself need the rest."""
HOST_COPY_BYTES_PER_S = 6e9
"""Rate from device to host memory, per rank: 85 MB took 14 ms on a small CPU machine; PCIe is faster."""
NVME_BYTES_PER_S = 1e9
"""Durable write rate per disk. No figure for AWS's disks was found; this is low for any Gen4 drive."""
S3_BYTES_PER_S = 10e9 / 8
"""Rate of one client: the library's default target of 10 Gbit/s."""
CLIENT_BYTES_PER_S = 100e9 / 8
"""Rate from one node to FSx for Lustre without EFA: 100 Gbit/s."""
SLOWEST_TIER = 125
"""MB/s per TiB, used if the spec names none (which check refuses)."""
OWN_KEPT = 2
"""Checkpoints of its own that a workload is taken to have beside the sealed ones, which are copies: the last one and
the one that it writes. How many its framework keeps is not known here."""
GATHER_S = 0.005
"""Cost of a save besides the copy: DeepSpeed gathers its state; 2 ms were measured (tests/bench/saves.py)."""


class TierSize(Frozen):
    """The checkpoints of one tier on its fullest holder (a node, the file system, the bucket)."""

    name: Literal["local", "shared", "archive"]
    where: str
    checkpoint_bytes: int
    keep: int
    needed_bytes: int
    capacity_bytes: int | None
    """None: unlimited."""
    formula: str


def tiers(spec: Spec, facts: Facts, checkpoint: CheckpointConfig) -> tuple[TierSize, ...]:
    size, formula = checkpoint_bytes(spec), _formula(spec)
    makes_disks = facts.environment.makes_cluster
    nvme = facts.instance.nvme_count * facts.instance.nvme_gb * 10**9 if facts.instance and makes_disks else None
    if nvme is not None and spec.storage.local.layout == "RAID10":
        nvme //= 2
    shared, job = spec.storage.shared, spec.job
    place, room = "S3, from every node", None
    if shared is not None:
        name = "FSx for Lustre" if makes_disks else "the shared claim"
        place, room = f"{name}, {shared.capacity_gib} GiB", shared.capacity_gib * sizing.GIB
    if isinstance(job, Workload):
        of_node = f"{formula}, since a restart makes it whole on each node"
        keep, keep_local = job.checkpoints.keep, job.checkpoints.keep_local
    else:
        of_node = f"weights + optimizer / {spec.nodes.count} nodes"
        keep, keep_local = checkpoint.keep_shared, checkpoint.keep_local
    disk = "NVMe of each node" if makes_disks else "folder of each node"
    base, on_disks = _frozen_bytes(spec, spec.nodes.count), spec.runtime.on_disks
    local = _tier("local", disk, _node_bytes(spec), keep_local, nvme, of_node, on_disks, base)
    own_on_shared = isinstance(job, Workload) and not on_disks
    frozen_bytes = 0 if shared is None else _frozen_bytes(spec)  # S3 has no links
    return (
        *([] if own_on_shared else [local]),
        _with_export(_tier("shared", place, size, keep, room, formula, own_on_shared, frozen_bytes), spec),
        _with_export(
            TierSize(
                name="archive",
                where="S3",
                checkpoint_bytes=size,
                keep=1,
                needed_bytes=size,
                capacity_bytes=None,
                formula=f"{formula}, the golden one",
            ),
            spec,
        ),
    )


def _tier(
    name: Literal["local", "shared"],
    place: str,
    size: int,
    keep: int,
    capacity: int | None,
    formula: str,
    has_own_copies: bool,
    frozen: int,
) -> TierSize:
    """`has_own_copies`: a job writes its checkpoints there, and sealed copies of them lie beside. `frozen`: bytes of
    each checkpoint that all of them share, as links of one file."""
    total = frozen + (keep + 1 + (OWN_KEPT if has_own_copies else 0)) * (size - frozen)
    copies = (
        f"{keep} sealed copies + 1 being copied + {OWN_KEPT} of the job's own"
        if has_own_copies
        else f"{keep} kept + 1 being written"
    )
    return TierSize(
        name=name,
        where=place,
        checkpoint_bytes=size,
        keep=keep,
        needed_bytes=total,
        capacity_bytes=capacity,
        formula=f"({copies}) x ({formula})" + (", the frozen weights once" if frozen else ""),
    )


def _with_export(tier: TierSize, spec: Spec) -> TierSize:
    export_size = export_bytes(spec)
    if not export_size:
        return tier
    formula = f"{tier.formula} + an export, as large as a checkpoint at most"
    return tier.model_copy(update={"needed_bytes": tier.needed_bytes + export_size, "formula": formula})


def shared_bytes_per_s(shared: SharedStorage, nodes: int) -> float:
    """Return the write rate of all nodes together: the provisioned throughput, at most the sum of their links."""
    throughput = 200 if shared.deployment == "SCRATCH_2" else shared.throughput_mbs_per_tib or SLOWEST_TIER
    return min(throughput * 1e6 * shared.capacity_gib / 1024, nodes * CLIENT_BYTES_PER_S)


def checkpoint_bytes(spec: Spec) -> int:
    """Return the size of one whole checkpoint."""
    job = spec.job
    if isinstance(job, Workload):
        return job.checkpoint_bytes
    return sizing.checkpoint_bytes(job.model, job.precision)


def _frozen_bytes(spec: Spec, parts: int = 1) -> int:
    """Return what steps of a tier share on its fullest of `parts` holders."""
    training = spec.training
    if training is None:
        return 0
    return sizing.frozen_bytes(training.model, training.precision, parts, training.zero_stage if parts > 1 else 0)


def export_bytes(spec: Spec) -> int:
    """Return the size of what a workload exports: it leaves the optimizer's states out, so a checkpoint bounds it."""
    return 0 if spec.runtime.export is None else checkpoint_bytes(spec)


def _formula(spec: Spec) -> str:
    if spec.training is None:
        return "spec: workload.estimates.checkpoint_gib"
    weights = sizing.WEIGHT_BYTES[spec.training.precision]
    if spec.training.model.lora is not None:
        return f"{weights} B x parameters + {sizing.OPTIMIZER_BYTES} B x parameters of adapters"
    return f"{weights + sizing.OPTIMIZER_BYTES} B x parameters"


def _node_bytes(spec: Spec) -> int:
    """Return what a node's own tier holds of a checkpoint. Of a workload it is nothing if it writes to the shared tier;
    else it may be all: rank 0 may write everything, and a restart makes it whole on each node."""
    training = spec.training
    if training is None:
        return checkpoint_bytes(spec) if spec.runtime.on_disks else 0
    return sizing.checkpoint_bytes_per_node(training.model, training.precision, spec.nodes.count, training.zero_stage)


def stall_seconds(spec: Spec, facts: Facts, world_size: int) -> float:
    """Bytes of the busiest rank that train / rate of the host copy, plus the gathering of the state. Of a workload it
    is not known whether it trains on while it saves: its stall counts as the whole write."""
    training = spec.training
    if training is None:
        return local_write_seconds(spec, facts) if spec.runtime.on_disks else shared_read_seconds(spec)
    size = sizing.checkpoint_bytes_per_rank(training.model, training.precision, world_size, training.zero_stage)
    return (size - _frozen_bytes(spec, world_size)) / HOST_COPY_BYTES_PER_S + GATHER_S


def local_write_seconds(spec: Spec, facts: Facts) -> float:
    disks = facts.instance.nvme_count if facts.instance else 1
    return (_node_bytes(spec) - _frozen_bytes(spec, spec.nodes.count)) / (NVME_BYTES_PER_S * max(1, disks))


def sealing_seconds(spec: Spec, facts: Facts) -> float:
    """Return the time to seal a workload's checkpoint beside the training: every byte is read and written once more, by
    node 0 on the shared tier, by each node on its own disks. 0: the built-in trainer writes it sealed."""
    if spec.runtime.is_built_in:
        return 0.0
    if spec.runtime.on_disks:
        return 2 * local_write_seconds(spec, facts)
    shared = spec.storage.shared
    rate = CLIENT_BYTES_PER_S if shared is None else shared_bytes_per_s(shared, 1)
    return 2 * checkpoint_bytes(spec) / rate


def shared_write_seconds(spec: Spec) -> float:
    """Return the time until a checkpoint is proven on the shared tier: each node sends its part and reads it back.
    Frozen weights are there since the first one, and are read back alone."""
    return shared_read_seconds(spec) * (2 - _frozen_bytes(spec) / checkpoint_bytes(spec))


def shared_read_seconds(spec: Spec) -> float:
    """Return the time in which a checkpoint passes once between all nodes and the shared tier, in one direction."""
    shared, nodes = spec.storage.shared, spec.nodes.count
    rate = nodes * S3_BYTES_PER_S if shared is None else shared_bytes_per_s(shared, nodes)
    return checkpoint_bytes(spec) / rate
