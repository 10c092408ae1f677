"""The estimated cost: rate x hours per line, in Decimal US dollars."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import Literal

from infra.plan.catalogue import Prices
from infra.plan.estimates import storage
from infra.plan.estimates.clock import BEFORE_STACK, StageTime, gang_seconds, pilot_seconds, seconds
from infra.plan.estimates.figure import cents, round_to
from infra.plan.estimates.preparing import preparing_time
from infra.plan.estimates.saving import archive_every
from infra.plan.facts import Facts
from infra.plan.purchase import own_reservation
from infra.spec import duration
from infra.spec.campaign import Capacity, Egress, Spec
from infra.spec.checkpoint import KEPT_COPIES
from infra.spec.names import BUILDER_TYPE
from trainer.contract import CheckpointConfig
from trainer.contract.frozen import Frozen

HOURS_PER_MONTH = Decimal(730)
_STANDBY = "if one dies, the steward on the other takes over within half a minute"
_NO_STANDBY = (
    "if it dies, nothing ends a hung gang until a new node is up minutes later; system_count: 2 adds a standby steward"
)
NAT_GB_PER_NODE = 2
"""Traffic through the NAT gateway: what is neither in the image nor in S3 (its gateway endpoint is free)."""
BLOCK_REST = "capacity block, unused"
"""Line for the part of a block's fee beyond the hours in which its nodes are up."""
DATA_NODES = "data nodes"
"""Line of the nodes that prepare the data; they have gone when the GPU nodes come."""
_GONE_BY_THEN = ("builder", DATA_NODES)
RESERVATION_REST = "reservation, unused"
"""Line for the reservation's bill while it waits for the nodes and during the teardown."""


class CostLine(Frozen):
    name: str
    usd_per_hour: Decimal
    """Rate while it is up; 0 for a line that bills by size."""
    hours: Decimal
    """Hours of all its nodes; an hour with only one node up counts as that node's part. Of a line by size: the hours
    over which it passes."""
    usd: Decimal
    """Rounded to the cent."""
    formula: str
    gpu: bool = False
    """Stops billing when the GPU node group goes to zero."""
    priced: bool = True
    """False: no price is known and the line counts as 0."""
    upfront_usd: Decimal | None = None
    """Paid at once for the GPU nodes; the line's `usd` is this less the cost of the nodes' own line."""
    passes: Literal["at once", "nodes", "archive", "training", "waiting"] = "at once"
    """When a line by size counts: with the GPU nodes that were asked for, with the archive, over the hours of training,
    over those without GPU nodes."""


def cost(spec: Spec, facts: Facts, stages: tuple[StageTime, ...]) -> tuple[CostLine, ...]:
    return tuple(_lines(spec, facts, stages))


def total_usd(lines: tuple[CostLine, ...]) -> Decimal:
    return sum((line.usd for line in lines), Decimal("0.00"))


def rate_usd_per_hour(lines: tuple[CostLine, ...], *, gpu: bool) -> Decimal:
    """Return the hourly rate with GPU nodes up, or with their group at zero; builder and data nodes have gone."""
    return sum((x.usd_per_hour for x in lines if x.name not in _GONE_BY_THEN and (gpu or not x.gpu)), Decimal(0))


def usd_at_deadline(spec: Spec, lines: tuple[CostLine, ...], teardown_hours: Decimal) -> Decimal:
    """Return the cost with GPU nodes up from the first hour to the deadline, and the rest until after a teardown."""
    deadline_hours = Decimal(str(spec.money.deadline.total_seconds())) / 3600
    # Until then a reservation bills by the nodes' rate: its line is contained in their hours.
    bills = [line for line in lines if line.name != RESERVATION_REST]
    fixed_usd = sum((line.usd for line in bills if not line.usd_per_hour or line.name in _GONE_BY_THEN), Decimal(0))
    for line in (line for line in lines if line.upfront_usd is not None):
        fixed_usd += (
            unused_usd(line, deadline_hours * sum((x.usd_per_hour for x in lines if x.gpu), Decimal(0))) - line.usd
        )
    with_gpu = deadline_hours * rate_usd_per_hour(lines, gpu=True)
    return cents(fixed_usd + with_gpu + teardown_hours * rate_usd_per_hour(lines, gpu=False))


def unused_usd(line: CostLine, gpu_usd: Decimal) -> Decimal:
    """Return the upfront payment less the counted cost of the GPU nodes."""
    return max(Decimal(0), (line.upfront_usd or Decimal(0)) - gpu_usd)


def hours(stages: tuple[StageTime, ...], *names: str) -> Decimal:
    return round_to(seconds(stages, *names) / 3600, 4)


def lustre_usd_per_gb_month(spec: Spec, prices: Prices) -> Decimal | None:
    """Return USD per GB and month; None if this tier has no price. AWS bills a GiB of capacity as one GB."""
    shared = spec.storage.shared
    if shared is None:
        return None
    tiers = prices.lustre_usd_per_gb_month.get(shared.deployment, {})
    return next(iter(tiers.values())) if len(tiers) == 1 else tiers.get(shared.throughput_mbs_per_tib or 0)


def _lines(spec: Spec, facts: Facts, stages: tuple[StageTime, ...]) -> Iterator[CostLine]:
    prices, stack_hours = (
        facts.prices,
        hours(stages, *(stage.stage for stage in stages if stage.stage not in BEFORE_STACK)),
    )
    count, bake_hours = spec.nodes.count, hours(stages, "bake")
    gpu_hours = round_to(gang_seconds(stages, count, pilot_seconds(spec)) / 3600, 4)
    price = facts.offer.usd_per_hour if facts.offer else None
    nodes = _hourly_line("GPU nodes", price, gpu_hours, f"{count} x {spec.nodes.instance_type}", count, gpu=True)
    if nodes.priced and count > 1:
        pilot = ", and while a pilot proves itself" if pilot_seconds(spec) else ""
        nodes = nodes.model_copy(update={"formula": f"{nodes.formula} (one node while the archive runs{pilot})"})
    yield nodes
    if not facts.environment.makes_cluster:
        return  # all else is on its owner's bill
    if spec.nodes.capacity is Capacity.CAPACITY_BLOCK and spec.nodes.block_fee_usd is not None:
        yield _block_line(spec.nodes.block_fee_usd, nodes)
    reservation = own_reservation(spec.nodes)
    if reservation and nodes.priced:
        yield _reservation_line(reservation, nodes, hours(stages) - gpu_hours)
    system, systems = prices.system_node_usd_per_hour.get(spec.nodes.system_instance_type), spec.nodes.system_count
    system_line = _hourly_line(
        "system node", system, stack_hours, f"{systems} x {spec.nodes.system_instance_type}", systems
    )
    stands_by = _STANDBY if systems > 1 else _NO_STANDBY
    yield system_line.model_copy(update={"formula": f"{system_line.formula} ({stands_by})"})
    builder = prices.system_node_usd_per_hour.get(BUILDER_TYPE)
    builders = f"1 x {BUILDER_TYPE}"
    if spec.image.nodes == "bake":  # while EC2 makes the node image, its builder is stopped
        builders = f"2 x {BUILDER_TYPE}, each for half of it"
    yield _hourly_line("builder", builder, bake_hours, builders)
    if (preparing := preparing_time(spec, facts)) is not None and spec.data is not None:
        prepare = spec.data.prepare
        price = prices.system_node_usd_per_hour.get(prepare.instance_type)
        nodes_text = f"{prepare.nodes} x {prepare.instance_type}"
        line = _hourly_line(DATA_NODES, price, round_to(preparing.nodes_s / 3600, 4), nodes_text, prepare.nodes)
        spot = "; at the price on demand, spot costs less" if prepare.capacity == "spot" else ""
        yield line.model_copy(update={"formula": f"{line.formula} ({preparing.formula}{spot})"})
    yield _hourly_line("EKS control plane", prices.eks_cluster_usd_per_hour, stack_hours, "1 cluster")
    # An existing network's gateway and endpoints are on its owner's bill.
    if spec.network.made and spec.network.egress is Egress.NAT:
        gateway = prices.nat_gateway_usd_per_hour + prices.public_ipv4_usd_per_hour
        yield _hourly_line("NAT gateway", gateway, stack_hours, "1 gateway with a public address")
        traffic = NAT_GB_PER_NODE * (spec.nodes.count + 1)
        yield _size_line("NAT traffic", prices.nat_gateway_usd_per_gb, Decimal(traffic), f"{traffic} GB", "nodes")
    elif spec.endpoint_services:
        per_hour = prices.interface_endpoint_usd_per_hour
        services = len(spec.endpoint_services)  # each in the nodes' zone
        yield _hourly_line("interface endpoints", per_hour, stack_hours, f"{services} endpoints", services)
    shared = spec.storage.shared
    if shared is not None:
        month = lustre_usd_per_gb_month(spec, prices)
        lustre = None if month is None else shared.capacity_gib * month / HOURS_PER_MONTH
        yield _hourly_line(
            "FSx for Lustre",
            lustre,
            stack_hours,
            f"{shared.capacity_gib} GB at {month} USD/month / {HOURS_PER_MONTH} h =",
        )
    golden = round_to((storage.checkpoint_bytes(spec) + storage.export_bytes(spec)) / 1e9, 3)
    yield _size_line("S3 archive", prices.s3_standard_usd_per_gb_month, golden, f"{golden} GB, first month", "archive")
    trains = hours(stages, "supervise")
    yield _copies(spec, prices, trains) if shared is not None else _checkpoints(spec, prices, trains)


def _checkpoints(spec: Spec, prices: Prices, trains: Decimal) -> CostLine:
    """Return the line of the shared tier in S3, where retention removes old steps with all their versions."""
    stay = (spec.checkpoint or CheckpointConfig()).keep_shared + 1
    size, months = (round_to(storage.checkpoint_bytes(spec) * stay / 1e9, 3), round_to(trains / HOURS_PER_MONTH, 6))
    line = f"{stay} checkpoints, {size} GB x {months} months"
    return _size_line("S3 checkpoints", prices.s3_standard_usd_per_gb_month, size * months, line, "training", trains)


def _copies(spec: Spec, prices: Prices, trains: Decimal) -> CostLine:
    """Return the line of the interval copies. They go with the golden archive, those under a lock when it ends."""
    copy_count = int(trains * 3600 / Decimal(str(archive_every(spec).total_seconds())))
    lock = spec.storage.archive.lock_for
    stay, lasts = min(copy_count, KEPT_COPIES + 1), trains
    copies_text = f"{stay} copies"
    if lock is not None:
        stay, lasts = copy_count, trains + Decimal(str(lock.total_seconds())) / 3600
        copies_text = f"{stay} copies, each locked for {duration.text(lock)}"
    size = round_to(storage.checkpoint_bytes(spec) * stay / 1e9, 3)
    months = round_to(lasts / HOURS_PER_MONTH, 6)
    line = f"{copies_text}, {size} GB x {months} months"
    return _size_line(
        "S3 interval copies", prices.s3_standard_usd_per_gb_month, size * months, line, "training", trains
    )


def _hourly_line(
    name: str, price: Decimal | None, duration: Decimal, unit_text: str, count: int = 1, *, gpu: bool = False
) -> CostLine:
    rate = round_to((price or Decimal(0)) * count, 6)
    glue = "" if unit_text.endswith("=") else " x"
    formula = f"{unit_text}{glue} {round_to(price or Decimal(0), 6)} USD/h x {duration} h"
    return CostLine(
        name=name,
        usd_per_hour=rate,
        hours=duration,
        usd=cents(rate * duration),
        formula=formula if price is not None else f"{unit_text}: no price known",
        gpu=gpu,
        priced=price is not None,
    )


def _block_line(fee: Decimal, nodes: CostLine) -> CostLine:
    line = CostLine(
        name=BLOCK_REST,
        usd_per_hour=Decimal(0),
        hours=Decimal(0),
        usd=Decimal(0),
        formula=f"{cents(fee):,} USD paid at once - {nodes.usd:,} USD for the hours above",
        upfront_usd=fee,
    )
    return line.model_copy(update={"usd": cents(unused_usd(line, nodes.usd))})


def _reservation_line(reservation: str, nodes: CostLine, waits: Decimal) -> CostLine:
    """Return a line without an hourly rate: once the nodes are up, their own line has it."""
    return CostLine(
        name=RESERVATION_REST,
        usd_per_hour=Decimal(0),
        hours=waits,
        usd=cents(nodes.usd_per_hour * waits),
        formula=f"{reservation} bills {nodes.usd_per_hour} USD/h without nodes too x {waits} h, and on until cancelled",
        passes="waiting",
    )


def _size_line(
    name: str,
    price: Decimal,
    size: Decimal,
    unit_text: str,
    passes: Literal["nodes", "archive", "training"],
    hours: Decimal = Decimal(0),
) -> CostLine:
    return CostLine(
        name=name,
        usd_per_hour=Decimal(0),
        hours=hours,
        usd=cents(price * size),
        formula=f"{unit_text} x {price} USD",
        passes=passes,
    )
