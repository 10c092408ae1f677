"""Specs whose plan is refused: training, data, checkpoints, money, recovery."""

from __future__ import annotations

from datetime import date
from pathlib import Path

from tests.unit.refused import (
    HUGE,
    P5EN_BLOCK,
    E,
    I,
    Row,
    W,
)

PLANS = (
    Row(
        "preflight-profile-is-known", E, "preflight.profile", {"preflight.profile": "this-machin"}, cure="this-machine"
    ),
    Row(
        "the-floor-of-bandwidth-is-one",
        E,
        "preflight.bus_bandwidth_share",
        {**P5EN_BLOCK, "preflight.bus_bandwidth_share": 0.9, "preflight.profile": None},
        cure="preflight.bus_bandwidth_gb_s",
    ),
    Row(
        "the-floor-of-bandwidth-is-one",
        E,
        "preflight.bus_bandwidth_gb_s",
        {"preflight.bus_bandwidth_share": 0.9, "preflight.bus_bandwidth_gb_s": 0.01},
        cure="leave one",
    ),
    Row(
        "the-diagnostic-has-its-tools",
        I,
        "preflight.dcgm_level",
        {"target": "aws", "rehearsal": None, "preflight.dcgm_level": 1},
        cure="trainer.Dockerfile",
    ),
    Row("global-batch-divides", E, "training.global_batch", {"training.global_batch": 12}, cure="8 or 16"),
    Row("global-batch-divides", E, "training.global_batch", {"training.global_batch": 6}, cure="write 8"),
    Row("heads-divide-the-width", E, "training.model.width", {"training.model.heads": 7}, cure="196"),
    Row("model-fits-the-accelerator", E, "training.model", {"training.model": HUGE}, cure="zero_stage"),
    Row(
        "model-fits-the-accelerator",
        W,
        "training.model",
        {"training.model": {"layers": 38, "width": 4096, "heads": 32, "context": 512, "vocabulary": 32000}}
        | {"training.zero_stage": 2, "nodes.count": 2, "training.precision": "bfloat16"},
    ),
    Row(
        "step-estimate-is-plausible",
        W,
        "training.step_seconds_estimate",
        {"training.step_seconds_estimate": 1e-5},
        cure="40 %",
    ),
    Row(
        "learning-rate-makes-sense",
        E,
        "training.optimizer.minimum_learning_rate",
        {"training.optimizer.minimum_learning_rate": 0.1},
    ),
    Row("learning-rate-makes-sense", W, "training.optimizer.warmup_steps", {"training.optimizer.warmup_steps": 100}),
    Row("data-source-exists", E, "data.source", {"data.source": "/no/such/folder"}, cure="python:stdlib"),
    Row(
        "data-source-exists",
        E,
        "data.pattern",
        # A small folder: the look through a large one ends after a while, and takes it to be there.
        {"data.source": str(Path(__file__).parent), "data.pattern": "**/*.nothing"},
    ),
    Row("data-source-exists", E, "data.pattern", {"data.pattern": "/absolute/*.py"}),
    Row("checkpoints-fit-the-local-tier", E, "checkpoint.keep_local", {"checkpoint.keep_local": 2_000_000}),
    Row("checkpoints-fit-the-shared-tier", E, "storage.shared.capacity_gib", {"checkpoint.keep_shared": 2_000_000}),
    Row(
        "shared-tier-keeps-up",
        W,
        "checkpoint.shared_every",
        {"checkpoint.every_steps": 1, "training.step_seconds_estimate": 0.05},
        cure="shared_every: 3",
    ),
    Row(
        "saving-costs-little",
        W,
        "checkpoint.every_steps",
        {"checkpoint.every_steps": 1, "training.step_seconds_estimate": 0.1},
        cure="10 or more",
    ),
    Row(
        "an-emergency-save-fits-the-grace-period",
        W,
        "training.collective_timeout_s",
        {"training.model": {"layers": 32, "width": 4096, "heads": 32, "context": 512, "vocabulary": 32000}},
        cure="more throughput",
    ),
    Row("a-checkpoint-reaches-the-shared-tier", W, "checkpoint.shared_every", {"checkpoint.shared_every": 10}),
    Row("an-older-checkpoint-is-kept", W, "checkpoint.keep_shared", {"checkpoint.keep_shared": 1}, cure="2 or more"),
    Row("budget-lasts-to-the-end", I, "money.deadline", today=date(2026, 12, 31), cure="steward"),
    Row("planned-cost-is-within-the-budget", E, "money.budget_usd", {"money.budget_usd": 3}, cure="bivouac plan"),
    Row("deadline-caps-the-cost-below-the-budget", W, "money.deadline", {"money.deadline": "8h"}),
    Row("deadline-leaves-room-for-the-plan", E, "money.deadline", {"money.deadline": "30m"}, cure="2h"),
    Row("deadline-leaves-room-for-the-plan", W, "money.deadline", {"money.deadline": "68m"}, cure="failures take time"),
    Row(
        "planned-cost-is-within-the-budget",
        E,
        "money.budget_usd",
        P5EN_BLOCK | {"money.budget_usd": 1900},
        cure="bivouac plan",
    ),
    Row("a-blocks-fee-is-counted", E, "nodes.block_fee_usd", {"nodes.block_fee_usd": 100}, cure="remove it"),
    Row(
        "a-blocks-fee-is-counted",
        W,
        "nodes.block_fee_usd",
        {k: v for k, v in P5EN_BLOCK.items() if k != "nodes.block_fee_usd"},
        cure="bivouac block buy",
    ),
    Row(
        "everything-has-a-price",
        W,
        "nodes.instance_type",
        {k: v for k, v in P5EN_BLOCK.items() if k != "nodes.usd_per_hour"},
        cure="nodes.usd_per_hour",
    ),
    Row(
        "everything-has-a-price",
        W,
        "nodes.system_instance_type",
        {"nodes.system_instance_type": "m9.giant"},
        cure="prices",
    ),
    Row("everything-has-a-price", W, "storage.shared", {"storage.shared.throughput_mbs_per_tib": 300}),
    Row("prices-are-fresh", W, "money.budget_usd", today=date(2026, 11, 21), cure="refresh"),
    Row("prices-are-of-the-region", W, "region", {"region": "eu-west-1", "zone": "eu-west-1a"}),
    Row("budget-alarm-reaches-someone", I, "money.alarm_email", {"money.alarm_email": None}),
    Row("budget-alarm-reaches-someone", E, "money.alarm_email", {"money.alarm_email": "nobody"}),
    Row("timeouts-stand-in-order", E, "recovery.heartbeat_timeout", {"recovery.heartbeat_timeout": "60s"}),
    Row("timeouts-stand-in-order", E, "training.collective_timeout_s", {"training.collective_timeout_s": 60}),
    Row("timeouts-stand-in-order", E, "recovery.hang_timeout", {"recovery.hang_timeout": "2m"}),
    Row("timeouts-stand-in-order", E, "recovery.startup_timeout", {"recovery.startup_timeout": "5h"}),
    Row("timeouts-stand-in-order", E, "recovery.capacity_timeout", {"recovery.capacity_timeout": "5h"}),
    Row("timeouts-outlast-healthy-work", E, "training.collective_timeout_s", {"training.step_seconds_estimate": 12}),
    Row("timeouts-outlast-healthy-work", W, "training.collective_timeout_s", {"training.evaluate_batches": 60}),
    Row("faults-are-in-range", E, "rehearsal.faults.0.kill_node", {"rehearsal.faults.0.kill_node": 2}, cure="0 to 1"),
    Row("faults-are-in-range", E, "rehearsal.faults.0.after_step", {"rehearsal.faults.0.after_step": 100}, cure="100"),
    Row("faults-are-in-range", E, "recovery.node_replacements", {"recovery.node_replacements": 0}, cure="1 or more"),
    Row(
        "faults-come-after-a-checkpoint",
        E,
        "rehearsal.faults.0.after_step",
        {"rehearsal.faults.0.after_step": 10},
        cure="more than 10",
    ),
)
