"""The plans of the shipped campaigns, every line, held against arithmetic done on paper.

The numbers of the specs, the catalogue's prices and the assumptions stand in the comments as they were when this was
worked out: who changes one of them works it out again here. Nothing but the spec's reader and the plan is the
product's.

What holds for all: host copy 6 GB/s, disk 1 GB/s, S3 1.25 GB/s, one node to Lustre 12.5 GB/s; 989 TFLOP/s of an H100 or
H200; a month has 730 h; a restart takes heartbeat + 300 s replacement + 30 s start.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from infra.plan.plan import Plan, make_plan
from infra.plan.survey import survey
from infra.spec.campaign import Spec, load

Numbers = dict[str, str]
Lines = dict[str, tuple[str, str, str]]
AROUND: Numbers = {
    "bake": "1200", "provision": "1200", "preflight": "600", "launch": "120", "teardown": "1200", "certify": "120",
}  # fmt: skip
"""20, 20, 10, 2, 20 and 2 minutes, whatever is trained."""

# 32 x p5.48xlarge: 8 H100, 8 disks of 3,800 GB, 55.04 USD/h. 32 layers, width 4,096, context 4,096, vocabulary 32,000.
# 20,000 steps of 1.9 s, batch 1,024 in micro batches of 2, bfloat16, ZeRO 1, 16 batches evaluated every 500 steps.
# Lustre 9,600 GiB at 500 MB/s per TiB, 0.340 USD per GB and month. 3,700 h between a node's failures. 16 h to the end.
P5_WORK: Numbers = {
    # hidden width: 8/3 x 4,096 = 10,922.7, up to a multiple of 32: 10,944
    # a block: 4 x 4,096 x 4,096 = 67,108,864; 3 x 4,096 x 10,944 = 134,479,872; 2 x 4,096 = 8,192; sum 201,596,928
    # 32,000 x 4,096 = 131,072,000; + 32 x 201,596,928 = 6,451,101,696; + 4,096
    "parameters": "6582177792",
    "FLOP per token": "45935517696",  # see below
    "tokens per step": "4194304",  # 1,024 x 4,096
    "steps": "20000",
    "tokens": "83886080000",  # 4,194,304 x 20,000
    "step time": "1.9",
    "training time": "38000",  # 20,000 x 1.9
    # a micro step of all 256 ranks: 1.9 x 2 x 256 / 1,024 = 0.95 s, a third of it forward: 0.316667 s
    # 20,000 / 500 = 40 evaluations x 16 batches x 0.316667
    "evaluation time": "202.667",
    # FLOP per token: 6 x 6,582,177,792 + 12 x 32 x 4,096 x 4,096 = 39,493,066,752 + 6,442,450,944 = 45,935,517,696
    # x 4,194,304 = 1.926675e17, of 1.9 x 256 x 989e12 = 4.810496e17
    "implied MFU": "40.051",
}
P5_CADENCE: Numbers = {
    # the busiest rank: 2 x 6,582,177,792 + 12 x 6,582,177,792 / 256 = 13,164,355,584 + 308,539,584 = 13,472,895,168 B
    # / 6e9 = 2.245483, + 0.005
    "save stall": "2.25",
    "local write": "1.954",  # 15,632,672,256 B (tier local) / 8e9
    # Lustre writes 500 x 9,600 / 1,024 = 4,687.5 MB/s; the nodes could 400,000: 2 x 92,150,489,088 B / 4.6875e9
    "shared write": "39.318",
    "emergency save": "43.522",  # 2.2505 + 1.9541 + 39.3176
    "MTBF of the job": "115.625",  # 3,700 / 32; 416,250 s
    # sqrt(2 x 2.250483 x 416,250) = 1,368.768; C/2mu = 2.70328e-6: root/3 = 5.4806e-4, /9 = 3.0e-7
    # 1,368.768 x 1.00054836
    "Daly's period": "1369.519",
    "Daly's interval": "719.615",  # (1,369.519 - 2.250) / 1.9
    "fewest steps": "119",  # 2.250483 / 0.01 = 225.05 s, / 1.9 = 118.4
    "most steps": "1894",  # 3,600 / 1.9 = 1,894.7; a tenth of the run would be 2,000
    "save every": "720",
    "re-evaluated": "1",
    "replicate every": "1",  # 19.66 s of 720 x 1.9 = 1,368 s
    "archive every": "3600",  # an hour, since a tenth of the training is longer
    # T = 1,370.2505, mu = 416,250, D = 30 + 300 + 30 = 360, R = 19.6588
    # 1,368 / [416,610 x 1.00004723 x (e^0.003291893 - 1 = 0.003297317)] = 1,368 / 1,373.760 = 0.9958070
    "expected waste": "0.419",
}
P5_CLOCK = AROUND | {
    "supervise": "38394",  # 30 + 38,202.667 / 0.9958070 = 30 + 38,363.526
    "archive": "327",  # 180 + 2 x 92.150489 / 1.25 = 180 + 147.441
}
# The stack is up for all but the bake: 1,200 + 600 + 120 + 38,394 + 327 + 1,200 + 120 = 41,961 s = 11.6558 h.
# The gang: 600 + 120 + 38,394, 60 until given back, then one of 32 nodes for 267 s: 39,174 + 8.344 = 39,182.344 s.
P5_COST: Lines = {
    "GPU nodes": ("1761.28", "10.884", "19169.77"),  # 32 x 55.04; 39,182.344 / 3,600; 1,761.28 x 10.884
    # it bills from the bake to the certificate, 43,161 s = 11.9892 h: 11.9892 - 10.884 = 1.1052 h x 1,761.28
    "reservation, unused": ("0", "1.1052", "1946.57"),
    "system node": ("0.1008", "11.6558", "1.17"),
    "builder": ("0.1008", "0.3333", "0.03"),  # two, each for half of 20 minutes
    "EKS control plane": ("0.1", "11.6558", "1.17"),
    "NAT gateway": ("0.05", "11.6558", "0.58"),  # 0.045 + 0.005 for its address
    "NAT traffic": ("0", "0", "2.97"),  # 33 nodes x 2 GB x 0.045
    "FSx for Lustre": ("4.471233", "11.6558", "52.12"),  # 9,600 x 0.340 / 730
    "S3 archive": ("0", "0", "2.12"),  # 92.150 GB x 0.023
    "S3 interval copies": ("0", "10.665", "0.12"),  # 3 kept + 1: 368.602 GB x 10.665 h / 730 x 0.023
}
P5_TIERS = {
    # 13,164,355,584 + 78,986,133,504 / 32 = 13,164,355,584 + 2,468,316,672; 2 kept + 1; 8 x 3,800 GB
    "local": (15_632_672_256, 46_898_016_768, 30_400_000_000_000),
    "shared": (92_150_489_088, 368_601_956_352, 10_307_921_510_400),  # 14 x parameters; 3 kept + 1; 9,600 x 2^30
    "archive": (92_150_489_088, 92_150_489_088, None),
}
P5_TOTALS: Numbers = {
    "clock": "43161",  # 41,961 + 1,200
    "gpu_clock": "41841",  # without the last 1,320
    # 19,169.77 + 1,946.57 + 1.17 + 0.03 + 1.17 + 0.58 + 2.97 + 52.12 + 2.12 + 0.12
    "usd": "21176.62",
    "usd_per_hour": "1766.002",  # 1,761.28 + 4.722
    "usd_per_hour_idle": "4.722",  # 0.1008 + 0.1 + 0.05 + 4.471233
    # 16 x 1,766.002033 = 28,256.0325; teardown 0.3333 x 4.722033 = 1.5739; builder, traffic, S3 5.24
    "usd_at_deadline": "28262.85",
}

# 16 x p5en.48xlarge: 8 H200, 8 disks of 3,800 GB; a block of 15,978.24 USD, 41.61 USD/h. 40 layers, width 5,120,
# context 4,096, vocabulary 32,000. 10,000 steps of 3.6 s, batch 512 in micro batches of 1, bfloat16, ZeRO 2, 16 batches
# evaluated every 500 steps. Lustre 4,800 GiB at 1,000 MB/s per TiB, 0.600 USD per GB and month. Interface endpoints.
P5EN_WORK: Numbers = {
    # hidden width: 8/3 x 5,120 = 13,653.3, up to a multiple of 32: 13,664
    # a block: 4 x 5,120 x 5,120 = 104,857,600; 3 x 5,120 x 13,664 = 209,879,040; 2 x 5,120 = 10,240; sum 314,746,880
    # 32,000 x 5,120 = 163,840,000; + 40 x 314,746,880 = 12,589,875,200; + 5,120
    "parameters": "12753720320",
    "FLOP per token": "86588651520",  # see below
    "tokens per step": "2097152",  # 512 x 4,096
    "steps": "10000",
    "tokens": "20971520000",
    "step time": "3.6",
    "training time": "36000",
    "evaluation time": "96",  # 3.6 x 1 x 128 / 512 = 0.9 s, a third 0.3 s; 20 evaluations x 16 x 0.3
    # 6 x 12,753,720,320 + 12 x 40 x 5,120 x 4,096 = 76,522,321,920 + 10,066,329,600 = 86,588,651,520 FLOP per token
    # x 2,097,152 = 1.815896e17, of 3.6 x 128 x 989e12 = 4.557312e17
    "implied MFU": "39.846",
}
P5EN_CADENCE: Numbers = {
    # 25,507,440,640 + 153,044,643,840 / 128 = 25,507,440,640 + 1,195,661,280 = 26,703,101,920 B / 6e9 + 0.005
    "save stall": "4.456",
    "local write": "4.384",  # 35,072,730,880 B / 8e9
    "shared write": "76.182",  # 1,000 x 4,800 / 1,024 = 4,687.5 MB/s; 2 x 178,552,084,480 B / 4.6875e9
    "emergency save": "85.022",  # 4.4555 + 4.3841 + 76.1822
    "MTBF of the job": "231.25",  # 3,700 / 16; 832,500 s
    # sqrt(2 x 4.455517 x 832,500) = 2,723.681; C/2mu = 2.67599e-6: root/3 = 5.4529e-4, /9 = 3.0e-7
    "Daly's period": "2725.167",
    "Daly's interval": "755.753",  # (2,725.167 - 4.456) / 3.6
    "fewest steps": "124",  # 445.55 s / 3.6 = 123.8
    "most steps": "1000",  # a tenth of 10,000; 3,600 s would be 1,000 too
    "save every": "756",
    "re-evaluated": "1",
    "replicate every": "1",
    "archive every": "3600",
    # T = 2,726.0555, mu = 832,500, D = 360, R = 38.0911
    # 2,721.6 / [832,860 x 1.00004576 x (e^0.003274541 - 1 = 0.003279908)] = 2,721.6 / 2,731.829 = 0.9962555
    "expected waste": "0.374",
}
P5EN_CLOCK = AROUND | {
    "supervise": "36262",  # 30 + 36,096 / 0.9962555 = 30 + 36,231.671
    "archive": "466",  # 180 + 2 x 178.552084 / 1.25 = 180 + 285.683
}
# Up: 1,200 + 600 + 120 + 36,262 + 466 + 1,200 + 120 = 39,968 s = 11.1022 h. The gang: 600 + 120 + 36,262 + 60, then one
# of 16 nodes for 406 s: 37,042 + 25.375 = 37,067.375 s.
P5EN_COST: Lines = {
    "GPU nodes": ("665.76", "10.2965", "6855.00"),  # 16 x 41.61; 37,067.375 / 3,600
    "capacity block, unused": ("0", "0", "9123.24"),  # 15,978.24 - 6,855.00
    "system node": ("0.1008", "11.1022", "1.12"),
    "builder": ("0.1008", "0.3333", "0.03"),  # two, each for half of 20 minutes
    "EKS control plane": ("0.1", "11.1022", "1.11"),
    # autoscaling, ec2, ecr.api, ecr.dkr, eks, eks-auth, fsx, logs, monitoring, scheduler, sns, ssm, ssmmessages, sts
    "interface endpoints": ("0.14", "11.1022", "1.55"),  # 14 x 0.01
    "FSx for Lustre": ("3.945205", "11.1022", "43.80"),  # 4,800 x 0.600 / 730
    "S3 archive": ("0", "0", "4.11"),  # 178.552 GB x 0.023
    "S3 interval copies": ("0", "10.0728", "0.23"),  # 714.208 GB x 10.0728 h / 730 x 0.023
}
P5EN_TIERS = {
    # 25,507,440,640 + 153,044,643,840 / 16 = 25,507,440,640 + 9,565,290,240
    "local": (35_072_730_880, 105_218_192_640, 30_400_000_000_000),
    "shared": (178_552_084_480, 714_208_337_920, 5_153_960_755_200),  # 4,800 x 2^30
    "archive": (178_552_084_480, 178_552_084_480, None),
}
P5EN_TOTALS: Numbers = {
    "clock": "41168",
    "gpu_clock": "39848",
    # 6,855.00 + 9,123.24 + 1.12 + 0.03 + 1.11 + 1.55 + 43.80 + 4.11 + 0.23
    "usd": "16030.19",
    "usd_per_hour": "670.046",  # 665.76 + 4.286
    "usd_per_hour_idle": "4.286",  # 0.1008 + 0.1 + 0.14 + 3.945205
    # 16 x 670.046005 = 10,720.7361; of the block 15,978.24 - 16 x 665.76 = 5,326.08; 0.3333 x 4.286 = 1.4286;
    # builder and S3 0.03 + 4.11 + 0.23
    "usd_at_deadline": "16052.61",
}

# 2 x p5.4xlarge: 1 H100, one disk of 3,800 GB, 6.88 USD/h. 2 layers, width 256, context 128, vocabulary 2,048. 110
# steps of 0.35 s, batch 16 in micro batches of 8, float32, ZeRO 1, 8 batches evaluated every 50 steps; saves every 20.
# Lustre 1,200 GiB at 250 MB/s per TiB, 0.210 USD per GB and month. 2,000 h between a node's failures, heartbeat 5 s.
SMALL_WORK: Numbers = {
    # hidden width: 8/3 x 256 = 682.7, up to a multiple of 32: 704
    # a block: 4 x 256 x 256 = 262,144; 3 x 256 x 704 = 540,672; 2 x 256 = 512; sum 803,328
    # 2,048 x 256 = 524,288; + 2 x 803,328 = 1,606,656; + 256
    "parameters": "2131200",
    "FLOP per token": "13573632",  # see below
    "tokens per step": "2048",  # 16 x 128
    "steps": "110",
    "tokens": "225280",
    "step time": "0.35",
    "training time": "38.5",
    "evaluation time": "2.8",  # 0.35 x 8 x 2 / 16 = 0.35 s, a third 0.116667; 110 / 50 makes 3 x 8 batches
    # (6 x 2,131,200 + 12 x 2 x 256 x 128 = 13,573,632) per token; no peak is known of float32, so no MFU
}
SMALL_CADENCE: Numbers = {
    "save stall": "0.009",  # (8,524,800 + 25,574,400 / 2 = 21,312,000 B) / 6e9 = 0.003552, + 0.005
    "local write": "0.021",  # 21,312,000 / 1e9
    "shared write": "0.233",  # 250 x 1,200 / 1,024 = 292.96875 MB/s; 2 x 34,099,200 B
    "emergency save": "0.263",  # 0.008552 + 0.021312 + 0.232784
    "MTBF of the job": "1000",  # 2,000 / 2
    "Daly's period": "248.145",  # sqrt(2 x 0.008552 x 3,600,000) = 248.142; x 1.0000115
    "Daly's interval": "708.961",  # (248.145 - 0.009) / 0.35
    "fewest steps": "3",  # 0.8552 s / 0.35 = 2.4
    "most steps": "11",  # a tenth of 110
    "save every": "20",
    "re-evaluated": "0",
    "replicate every": "1",
    "archive every": "300",  # 38.5 s / 10 is less than five minutes
    # T = 7.008552, mu = 3,600,000, D = 5 + 300 + 30: 7 / [3,600,335 x 1.00000003 x 1.946822e-6] = 7 / 7.009211
    "expected waste": "0.131",
}
SMALL_CLOCK = AROUND | {
    "supervise": "71",  # 30 + 41.3 / 0.9986858 = 71.354
    "archive": "180",  # 180 + 2 x 0.0341 / 1.25
}
# Up: 1,200 + 600 + 120 + 71 + 180 + 1,200 + 120 = 3,491 s = 0.9697 h. The gang: 600 + 120 + 71 + 60 + 120 / 2 = 911 s.
SMALL_COST: Lines = {
    "GPU nodes": ("13.76", "0.2531", "3.48"),  # 2 x 6.88; 911 / 3,600
    "system node": ("0.1008", "0.9697", "0.10"),
    "builder": ("0.1008", "0.3333", "0.03"),  # two, each for half of 20 minutes
    "EKS control plane": ("0.1", "0.9697", "0.10"),
    "NAT gateway": ("0.05", "0.9697", "0.05"),
    "NAT traffic": ("0", "0", "0.27"),  # 3 nodes x 2 GB x 0.045
    "FSx for Lustre": ("0.345205", "0.9697", "0.33"),  # 1,200 x 0.210 / 730
    "S3 archive": ("0", "0", "0.00"),  # 0.034 GB x 0.023
    "S3 interval copies": ("0", "0.0197", "0.00"),  # it ends before the first one is due
}
SMALL_TIERS = {
    "local": (21_312_000, 63_936_000, 3_800_000_000_000),
    "shared": (34_099_200, 136_396_800, 1_288_490_188_800),  # 16 x parameters; 3 kept + 1; 1,200 x 2^30
    "archive": (34_099_200, 34_099_200, None),
}
SMALL_TOTALS: Numbers = {
    "clock": "4691",
    "gpu_clock": "3371",
    "usd": "4.36",  # 3.48 + 0.10 + 0.03 + 0.10 + 0.05 + 0.27 + 0.33
    "usd_per_hour": "14.356",
    "usd_per_hour_idle": "0.596",  # 0.1008 + 0.1 + 0.05 + 0.345205
    "usd_at_deadline": "57.92",  # 4 x 14.356005 = 57.4240; 0.3333 x 0.596005 = 0.1986; 0.03 + 0.27
    "usd_of_dead_launch": "18.42",  # (45 + 2 + 30) / 60 x 14.356005
}

PAPER = {
    "p5-32-nodes": (P5_WORK, P5_CADENCE, P5_CLOCK, P5_COST, P5_TIERS, P5_TOTALS),
    "p5en-capacity-block": (P5EN_WORK, P5EN_CADENCE, P5EN_CLOCK, P5EN_COST, P5EN_TIERS, P5EN_TOTALS),
    "rehearsal": (SMALL_WORK, SMALL_CADENCE, SMALL_CLOCK, SMALL_COST, SMALL_TIERS, SMALL_TOTALS),
}


def planned(spec: Spec) -> Plan:
    return make_plan(spec, survey(spec))


@pytest.mark.parametrize("name", PAPER)
def test_every_line_of_a_shipped_campaigns_plan_is_what_paper_says(campaigns: Path, name: str) -> None:
    work, cadence, clock, cost, tiers, totals = PAPER[name]
    plan = planned(load(campaigns / f"{name}.yaml").spec)
    assert {one.name: str(one.value) for one in plan.work} == work
    assert {one.name: str(one.value) for one in plan.cadence} == cadence
    assert {one.stage: str(one.seconds) for one in plan.clock} == clock
    assert {one.name: (str(one.usd_per_hour), str(one.hours), str(one.usd)) for one in plan.cost} == cost
    assert {tier.name: (tier.checkpoint_bytes, tier.needed_bytes, tier.capacity_bytes) for tier in plan.tiers} == tiers
    figures = {key: getattr(plan.totals, key) for key in type(plan.totals).model_fields}
    assert {key: str(figure.value) for key, figure in figures.items() if figure is not None} == totals
    assert [one.name for one in plan.cost if one.gpu] == ["GPU nodes"] and not plan.unpriced


def test_the_ranks_of_the_shipped_campaigns_lie_as_paper_says(campaigns: Path) -> None:
    shapes = {name: planned(load(campaigns / f"{name}.yaml").spec).layout for name in PAPER}
    told = {key: (one.nodes, one.ranks_per_node, one.world_size, one.accumulation) for key, one in shapes.items()}
    assert told == {
        "p5-32-nodes": (32, 8, 256, 2),  # 1,024 / (2 x 256)
        "p5en-capacity-block": (16, 8, 128, 4),  # 512 / (1 x 128)
        "rehearsal": (2, 1, 2, 1),  # 16 / (8 x 2)
    }
