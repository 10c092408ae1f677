"""Single figures of a plan by what the spec says of stage, disks, file system and count, held against paper.

What holds for all stands in `test_plan_on_paper`.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest

from tests.unit.plan.test_plan_on_paper import planned

# The unit tests' spec: 4 layers, width 192, context 128, vocabulary 4,096, float32; 16 B per parameter.
# hidden width 512; a block: 4 x 36,864 + 3 x 192 x 512 + 384 = 442,752
# 786,432 + 4 x 442,752 + 192 = 2,557,632 parameters
ZERO = {  # stage -> bytes of the fullest of 4 nodes: weights 10,230,528, optimizer 30,691,584
    0: 40_922_112,
    1: 17_903_424,  # 10,230,528 + 30,691,584 / 4
    2: 17_903_424,
    3: 10_230_528,  # 40,922,112 / 4
}


@pytest.mark.parametrize("stage", ZERO)
@pytest.mark.parametrize(("raid", "disks"), [("RAID0", 30_400_000_000_000), ("RAID10", 15_200_000_000_000)])
def test_what_a_node_holds_by_zero_stage_and_how_its_disks_are_joined(
    spec_file: Callable[..., Any], stage: int, raid: str, disks: int
) -> None:
    fleet = {"nodes.count": 4, "nodes.instance_type": "p5.48xlarge", "training.global_batch": 128}
    spec = spec_file(fleet | {"training.zero_stage": stage, "storage.local.layout": raid}).spec
    local = planned(spec).tiers[0]
    assert (local.checkpoint_bytes, local.needed_bytes) == (ZERO[stage], 3 * ZERO[stage])
    assert local.capacity_bytes == disks  # 8 x 3,800 GB, and half of it where each block lies twice


LARGE = {"training.model": {"layers": 32, "width": 4096, "heads": 32, "context": 512, "vocabulary": 32000}}
# 6,582,177,792 parameters as above, x 16 B = 105,314,844,672 B, written and read back


@pytest.mark.parametrize(
    ("changes", "seconds"),
    [
        # 125 x 1,200 / 1,024 = 146.484375 MB/s
        ({"storage.shared.throughput_mbs_per_tib": 125}, "1437.899"),
        # SCRATCH_2 writes 200 MB/s per TiB: 200 x 1,200 / 1,024 = 234.375 MB/s
        ({"storage.shared": {"deployment": "SCRATCH_2", "throughput_mbs_per_tib": None}}, "898.687"),
        # 1,000 x 48,000 / 1,024 = 46,875 MB/s, but two nodes send no more than 25,000
        ({"storage.shared": {"capacity_gib": 48000, "throughput_mbs_per_tib": 1000}}, "8.425"),
    ],
)
def test_the_shared_write_takes_what_the_slower_of_file_system_and_nodes_needs(
    spec_file: Callable[..., Any], changes: dict[str, Any], seconds: str
) -> None:
    assert str(planned(spec_file(LARGE | changes).spec).figure("shared write").value) == seconds


@pytest.mark.parametrize(
    ("count", "batch", "usd"),
    [
        # 100 steps x 0.3 s and 2 x 8 evaluations x 0.15 / 3 = 30.8 s, saves 3.0118 / 3.0: 30 + 30.92 = 61 s
        # 600 + 120 + 61 + 180 of archive, all of it by the one node: 961 s = 0.2669 h x 6.88
        (1, 8, "1.84"),
        # evaluations x 0.3 / 3: 31.6 s, saves 3.0093 / 3.0: 30 + 31.70 = 62 s
        # 600 + 120 + 62 + 60 + 120 / 2 = 902 s = 0.2506 h x 13.76
        (2, 8, "3.45"),
        # 600 + 120 + 62 + 60 + 120 / 64 = 843.875, a pilot alone 600 / 64 = 9.375: 853.25 s = 0.2370 h x 440.32
        (64, 256, "104.36"),
    ],
)
def test_while_the_archive_runs_one_node_is_planned(
    spec_file: Callable[..., Any], count: int, batch: int, usd: str
) -> None:
    plan = planned(spec_file({"nodes.count": count, "training.global_batch": batch}).spec)
    gpu = next(line for line in plan.cost if line.name == "GPU nodes")
    assert str(gpu.usd) == usd
    assert ("one node while the archive runs" in gpu.formula) == (count > 1)


def test_a_reservation_bills_from_the_first_stage_to_the_last(spec_file: Callable[..., Any]) -> None:
    held = {"nodes.capacity": "reservation", "nodes.reservation_id": "cr-0123456789abcdef0"}
    lines = {line.name: line for line in planned(spec_file(held).spec).cost}
    # 1,200 + 1,200 + 600 + 120 + 62 + 180 + 1,200 + 120 = 4,682 s = 1.3006 h; nodes 0.2506 h; the rest 1.0500 h x 13.76
    assert lines["GPU nodes"].usd == Decimal("3.45") and lines["reservation, unused"].usd == Decimal("14.45")
