"""Rules about the purchase of the GPU nodes, and about figures that no source states."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, time, timedelta

from infra.plan.checks.finding import Case, Draft, error, info, warning
from infra.plan.estimates.clock import BEFORE_TRAINING, seconds
from infra.plan.purchase import SCALE_DOWN, own_reservation, purchase_problems
from infra.spec import duration
from infra.spec.campaign import Capacity


def purchase_option(case: Case) -> Iterator[Draft]:
    """AWS sells this combination of purchase option, reservation, type and placement."""
    for problem in purchase_problems(case.spec.nodes, case.facts.instance):
        yield error(f"nodes.{problem.field}", problem.what, seen=str(problem.seen), cure=problem.cure)


def block_end(case: Case) -> Iterator[Draft]:
    """Training and archive end before EKS removes the nodes of a block, counted from the beginning of today."""
    ends, guess = case.spec.nodes.block_end, case.estimate
    if ends is None or guess is None or case.spec.nodes.capacity is not Capacity.CAPACITY_BLOCK:
        return
    work_time = timedelta(seconds=int(seconds(guess.stages, *BEFORE_TRAINING, "supervise", "archive")))
    left = ends - SCALE_DOWN - datetime.combine(case.today, time(), UTC)
    if work_time > left:
        yield error(
            "nodes.block_end",
            "the block ends before training and archive are done",
            seen=f"{duration.text(work_time)} planned, {duration.text(max(left, timedelta(0)))} left until 40 minutes "
            f"before {ends.isoformat()}",
            cure="buy a longer block (bivouac offers), or plan less",
        )


def block_fee(case: Case) -> Iterator[Draft]:
    """A capacity block is paid at once: its whole fee belongs to plan and budget, used or not."""
    nodes = case.spec.nodes
    block = nodes.capacity is Capacity.CAPACITY_BLOCK
    if nodes.block_fee_usd is not None and not block:
        cure = "remove it, or write capacity: capacity-block"
        yield error(
            "nodes.block_fee_usd", "only a capacity block has a fee", seen=f"capacity: {nodes.capacity}", cure=cure
        )
    elif block and nodes.block_fee_usd is None and nodes.usd_per_hour is not None:
        message = "the block's fee is missing: the plan counts only the hours in use"
        cure = "write what was paid for the whole block: `bivouac block buy` prints it"
        yield warning("nodes.block_fee_usd", message, seen="nothing", cure=cure)


def absent_figures(case: Case) -> Iterator[Draft]:
    """Absent figures of the type are reported, with the consequence."""
    instance = case.facts.instance
    if instance is None or not case.facts.environment.hardware:
        return
    missing = []
    if instance.peak_bf16_tflops is None:
        missing.append(
            f"peak BF16 FLOP/s ({instance.why_absent('peak_bf16_tflops')}): no utilisation in plan and report"
        )
    own_floor = case.spec.preflight.bus_bandwidth_gb_s
    if case.facts.all_reduce_gb_s is None and own_floor is None and case.spec.nodes.count > 1:
        consequence = "preflight measures it without a limit, unless preflight.bus_bandwidth_gb_s sets one"
        missing.append(f"all-reduce bandwidth (no source states it): {consequence}")
    if missing:
        message = "the catalogue lacks figures of this type"
        cure = "nothing; `bivouac catalogue` lists what is absent and why"
        yield info("nodes.instance_type", message, seen=f"{instance.name}: {'; '.join(missing)}", cure=cure)


def spot_quota(case: Case) -> Iterator[Draft]:
    """Spot quotas of the type can be checked only if a source names the quota."""
    nodes, instance = case.spec.nodes, case.facts.instance
    if instance is not None and nodes.capacity is Capacity.SPOT and instance.spot_quota_family is None:
        detail = f"{instance.name}: {instance.why_absent('spot_quota_family')}"
        cure = f"see Service Quotas for {nodes.count * instance.vcpus} vCPUs of spot requests before a run"
        yield warning("nodes.capacity", "no quota can be checked for spot nodes of this type", seen=detail, cure=cure)


def service_quotas(case: Case) -> Iterator[Draft]:
    """The quotas have room for the campaign's resources besides its GPU nodes, if they were looked up."""
    for room in case.facts.quotas:
        if room.used + room.wanted > room.allowed:
            code, total = f"{room.quota.service} {room.quota.code}", room.used + room.wanted
            detail = f"{room.wanted} wanted, {room.used} of {room.allowed} in use"
            cure = f"ask for {total} in Service Quotas ({code}), or remove unused resources"
            yield error(room.field, f"the account's quota {room.quota.name} is too small", seen=detail, cure=cure)


def zone_offers(case: Case) -> Iterator[Draft]:
    """EC2 offers the types of all nodes in the spec's zone, if its offers were looked up."""
    nodes, zone, data = case.spec.nodes, case.spec.zone, case.spec.data
    types = {"nodes.instance_type": nodes.instance_type, "nodes.system_instance_type": nodes.system_instance_type}
    if data is not None and data.in_cluster:
        types["data.prepare.instance_type"] = data.prepare.instance_type
    for field, name in types.items():
        zones = (case.facts.sold or {}).get(name)
        if zones is not None and zone not in zones:
            zone_names = ", ".join(zones)
            yield error(
                field,
                "EC2 does not offer this type in the zone",
                seen=f"{name} in {zone}",
                cure=f"write a zone that has it ({zone_names}), or another type"
                if zones
                else "write another type or region",
            )


def reservation_room(case: Case) -> Iterator[Draft]:
    """The reservation is active, of the nodes' type and zone, and has a place for each node, if it was looked up."""
    refusal = case.facts.reservation
    if refusal is None:
        return
    level = error if own_reservation(case.spec.nodes) else warning  # a group or open reservations may get places later
    yield level("nodes.reservation_id", refusal.what, seen=refusal.seen, cure=refusal.cure)
