"""Rules about FSx for Lustre and the checkpoint tiers."""

from __future__ import annotations

from collections.abc import Iterator

from infra.plan.checks.finding import Case, Draft, error, warning
from infra.plan.estimates import storage
from infra.plan.estimates.storage import USABLE_SHARE
from infra.spec import duration
from infra.spec.workload.links import INIT
from trainer.contract.cadence import MAX_OVERHEAD

PERSISTENT_2_TIERS = (125, 250, 500, 1000)
SCRATCH_2_TIER = 200
EFA_STEPS_GIB = {125: 38400, 250: 19200, 500: 9600, 1000: 4800}
"""Throughput tier -> size increment of an EFA-enabled PERSISTENT_2 file system."""
METADATA_IOPS = (1500, 3000, 6000, *range(12000, 192001, 12000))
NO_LUSTRE_OVER_EFA = {"g5", "p4d", "p4de", "trn2"}
"""Families with EFA whose traffic to FSx stays on TCP: EFA to FSx needs Nitro v4 or later and excludes trn2 (user guide
of FSx for Lustre, configuring EFA clients)."""
EFA_CONNECTIONS, SPARE_CLIENTS = 1024, 1


def lustre_throughput(case: Case) -> Iterator[Draft]:
    """The throughput is a tier of the deployment: PERSISTENT_2 has four, SCRATCH_2 one."""
    shared = case.spec.storage.shared
    if shared is None:
        return
    tier, field = shared.throughput_mbs_per_tib, "storage.shared.throughput_mbs_per_tib"
    if shared.deployment == "SCRATCH_2" and tier not in (None, SCRATCH_2_TIER):
        # 250 is the default for PERSISTENT_2; a spec that omits the field is accepted.
        if "throughput_mbs_per_tib" in shared.model_fields_set:
            cure = "remove it"
            yield error(field, f"SCRATCH_2 always has {SCRATCH_2_TIER} MB/s per TiB", seen=tier, cure=cure)
    elif shared.deployment == "PERSISTENT_2" and tier not in PERSISTENT_2_TIERS:
        tiers = ", ".join(map(str, PERSISTENT_2_TIERS))
        yield error(field, "PERSISTENT_2 has no such throughput", seen=tier, cure=f"write one of {tiers}")


def linked_buckets(case: Case) -> Iterator[Draft]:
    """The buckets that the file system shows are there, and the driver may read them; known only if AWS was asked."""
    job = case.spec.runtime.section
    for name, refusal in case.facts.links.items():
        field = f"{job}.init_from" if name == INIT else f"{job}.mounts.{name}"
        yield error(field, refusal.what, seen=refusal.seen, cure=refusal.cure)


def lustre_capacity(case: Case) -> Iterator[Draft]:
    """The capacity is 1200, 2400 or a multiple of 2400 GiB; with EFA a multiple of the tier's increment."""
    shared = case.spec.storage.shared
    if shared is None:
        return
    capacity, field = shared.capacity_gib, "storage.shared.capacity_gib"
    if shared.efa and shared.deployment == "PERSISTENT_2":
        step = EFA_STEPS_GIB.get(shared.throughput_mbs_per_tib or 0)
        if step is not None and capacity % step:
            message = f"with EFA at {shared.throughput_mbs_per_tib} MB/s per TiB a file system grows by {step} GiB"
            yield error(field, message, seen=capacity, cure=f"write {_next(capacity, step)}")
    elif capacity != 1200 and capacity % 2400:
        cure = f"write {1200 if capacity < 1200 else _next(capacity, 2400)}"
        yield error(field, "FSx for Lustre comes in 1200, 2400 and multiples of 2400 GiB", seen=capacity, cure=cure)


def lustre_efa(case: Case) -> Iterator[Draft]:
    """EFA to the file system needs PERSISTENT_2 and nodes that have EFA."""
    shared, instance = case.spec.storage.shared, case.facts.instance
    if shared is None or not shared.efa:
        return
    if shared.deployment != "PERSISTENT_2":
        cure = "write deployment: PERSISTENT_2, or efa: false"
        yield error("storage.shared.efa", "only PERSISTENT_2 has EFA", seen=shared.deployment, cure=cure)
    if instance is None:
        return
    if instance.efa_interfaces == 0:
        yield error("storage.shared.efa", "the nodes have no EFA", seen=instance.name, cure="write efa: false")
    if instance.name.partition(".")[0] in NO_LUSTRE_OVER_EFA:
        cure = "write efa: false: you would pay EFA's size steps and use TCP"
        yield error("storage.shared.efa", "this type's EFA cannot reach FSx", seen=instance.name, cure=cure)
    clients = case.spec.nodes.count + SPARE_CLIENTS
    if clients > EFA_CONNECTIONS:
        cure = "write efa: false: over TCP there is no such limit"
        detail = f"{clients} nodes, including the spare one"
        message = f"an EFA-enabled file system takes {EFA_CONNECTIONS} connections, at least one for each node"
        yield error("storage.shared.efa", message, seen=detail, cure=cure)


def lustre_metadata(case: Case) -> Iterator[Draft]:
    """Metadata IOPS are provisioned only for PERSISTENT_2, in increments."""
    shared, field = case.spec.storage.shared, "storage.shared.metadata_iops"
    if shared is None or shared.metadata_iops is None:
        return
    if shared.deployment != "PERSISTENT_2":
        cure = "remove it, or write deployment: PERSISTENT_2"
        yield error(field, "only PERSISTENT_2 has a metadata configuration", seen=shared.deployment, cure=cure)
    elif isinstance(shared.metadata_iops, int) and shared.metadata_iops not in METADATA_IOPS:
        next_step = next((step for step in METADATA_IOPS if step >= shared.metadata_iops), METADATA_IOPS[-1])
        cure = f"write {next_step}, or automatic"
        yield error(field, "1500, 3000, 6000 and multiples of 12000 up to 192000 are sold", seen=shared.metadata_iops,
                    cure=cure)  # fmt: skip
    elif isinstance(shared.metadata_iops, int):
        message = "provisioned metadata operations bill by the month, at a price that the catalogue lacks"
        cure = "write automatic: it grows with the capacity; or expect more than the plan says"
        yield warning(field, message, seen=shared.metadata_iops, cure=cure)


def no_file_system(case: Case) -> Iterator[Draft]:
    """Only the built-in trainer runs without a shared file system: each checkpoint is in S3, unlocked."""
    spec, field = case.spec, "storage.shared"
    if spec.storage.shared is not None:
        return
    if not spec.runtime.is_built_in:
        message = (
            "a job of your own finds its code in a folder that all nodes share, and its checkpoints are kept there"
        )
        cure = "leave `shared: none` out, or write its fields; 1200 GiB of SCRATCH_2 are the smallest file system"
        yield error(field, message, seen="none, with a section `workload`", cure=cure)
    if spec.checkpoint is not None and spec.checkpoint.archive_every is not None:
        message = "has no meaning without a shared file system: each checkpoint goes to S3 at once"
        cure = "remove it; every_steps and shared_every set the cadence"
        yield error("checkpoint.archive_every", message, seen=duration.text(spec.checkpoint.archive_every), cure=cure)
    if (lock := spec.storage.archive.lock_for) is not None:
        message = "would lock every checkpoint of the training in S3, not only the golden one"
        cure = "remove it, or take a file system: its interval copies are few"
        yield error("storage.archive.lock_for", message, seen=duration.text(lock), cure=cure)


def local_disk_layout(case: Case) -> Iterator[Draft]:
    """RAID10 has at least four disks."""
    instance = case.facts.instance
    if case.spec.storage.local.layout == "RAID10" and instance is not None and instance.nvme_count < 4:
        detail = f"{instance.name} has {instance.nvme_count}"
        yield error("storage.local.layout", "RAID10 needs four disks", seen=detail, cure="write layout: RAID0")


def local_tier_size(case: Case) -> Iterator[Draft]:
    """One node's part of (keep_local + 1) checkpoints fits its NVMe."""
    yield from _fits(case, "local", "the nodes' NVMe is too small for the checkpoints", "lower keep_local")


def shared_tier_size(case: Case) -> Iterator[Draft]:
    """The kept checkpoints and one more fit the file system beside the data, and two of a job's own beside these."""
    yield from _fits(case, "shared", "the file system is too small for the checkpoints", "raise capacity_gib")


def shared_tier_speed(case: Case) -> Iterator[Draft]:
    """A checkpoint is complete on the shared tier before the next one starts to be copied."""
    guess = case.estimate
    if guess is None:
        return
    checkpoint, step = guess.saving.checkpoint, case.step_s
    interval = checkpoint.shared_every * checkpoint.every_steps * step
    write_s = storage.shared_write_seconds(case.spec)
    if write_s > interval:
        place = "the file system writes" if case.spec.storage.shared is not None else "S3 is written"
        yield warning(
            _checkpoint_field(case, "shared_every"),
            f"{place} more slowly than checkpoints are made",
            seen=f"{write_s:.0f} s to write, one every {interval:.0f} s",
            cure=f"write shared_every: {-(-write_s // (checkpoint.every_steps * step)):.0f}, or more throughput",
        )


def save_overhead(case: Case) -> Iterator[Draft]:
    """The stall of saving stays below the limit on overhead."""
    world, guess, step = case.world_size, case.estimate, case.step_s
    if world is None or guess is None:
        return
    every_steps, stall = guess.saving.checkpoint.every_steps, storage.stall_seconds(case.spec, case.facts, world)
    share = stall / (every_steps * step)
    if share > MAX_OVERHEAD:
        yield warning(
            _checkpoint_field(case, "every_steps"),
            f"saving takes more than {MAX_OVERHEAD:.1%} of the training time",
            seen=f"{share:.1%}: {stall:.2g} s every {every_steps} steps",
            cure=f"write {int(stall / (MAX_OVERHEAD * step)) + 1} or more, or leave `checkpoint` out",
        )


def emergency_save_time(case: Case) -> Iterator[Draft]:
    """Stall, local write and copy to the shared tier fit between SIGTERM and SIGKILL of a pod."""
    if case.world_size is None or case.estimate is None:
        return
    facts = case.estimate.saving
    save_s = next((item.value for item in facts.figures if item.name == "emergency save"), None)
    grace, is_built_in = case.spec.job.grace_s, case.spec.runtime.is_built_in
    if save_s is not None and float(save_s) > grace:
        yield warning(
            "training.collective_timeout_s" if is_built_in else "workload.grace",
            "an emergency save does not fit the grace period: a notice loses the work since the last checkpoint",
            seen=f"{float(save_s):.0f} s to save and replicate, {grace} s of grace",
            cure=f"write {float(save_s) / 2:.0f} or more (the grace period is twice that), or more throughput"
            if is_built_in
            else f"write {float(save_s):.0f}s or more, or more throughput",
        )


def shared_checkpoint(case: Case) -> Iterator[Draft]:
    """At least one checkpoint outlives its nodes before the run ends."""
    checkpoint, steps = case.spec.checkpoint, case.spec.job.steps
    if checkpoint is not None and checkpoint.every_steps * checkpoint.shared_every >= steps:
        yield warning(
            "checkpoint.shared_every",
            "no checkpoint reaches the shared tier before the end: a lost node costs the whole run",
            seen=f"{checkpoint.every_steps} x {checkpoint.shared_every} of {steps} steps",
            cure=f"write {max(1, steps // checkpoint.every_steps // 3)}, or a smaller every_steps",
        )


def older_checkpoint(case: Case) -> Iterator[Draft]:
    """An older checkpoint exists in case one is damaged."""
    checkpoint, workload = case.spec.checkpoint, case.spec.workload
    field, keep = "checkpoint.keep_shared", checkpoint.keep_shared if checkpoint is not None else None
    if workload is not None:
        field, keep = "workload.checkpoints.keep", workload.checkpoints.keep
    if keep is not None and keep < 2:
        message = "a damaged checkpoint would leave nothing to go back to"
        yield warning(field, message, seen=keep, cure="write 2 or more")


def _fits(case: Case, name: str, message: str, cure: str) -> Iterator[Draft]:
    tier = case.estimate.tier(name) if case.estimate else None
    if tier is None or tier.capacity_bytes is None or tier.needed_bytes <= USABLE_SHARE * tier.capacity_bytes:
        return
    usable = USABLE_SHARE * tier.capacity_bytes
    field = "storage.shared.capacity_gib"
    if name == "local":
        field = "workload.checkpoints.keep_local" if case.spec.workload else _checkpoint_field(case, "keep_local")
    detail = f"{tier.needed_bytes / 1e9:,.0f} GB = {tier.formula}, {usable / 1e9:,.0f} GB usable"
    yield error(field, message, seen=detail, cure=f"{cure}, or take a smaller model")


def _checkpoint_field(case: Case, field: str) -> str:
    if case.spec.checkpoint is not None:
        return f"checkpoint.{field}"
    return case.spec.runtime.section


def _next(value: int, step: int) -> int:
    return -(-value // step) * step
