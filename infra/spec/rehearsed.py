"""Derives a rehearsal from a spec for AWS: the same campaign, small enough for one machine. Pure, on the document."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from infra.errors import UserError
from infra.spec.campaign import MAX_NAME, Capacity, Spec
from infra.spec.sections import THIS_MACHINE
from trainer.contract import ModelConfig, ParallelConfig
from trainer.contract.frozen import Frozen

ACCOUNT, REGION = "123456789012", "us-east-1"
"""Of the emulated AWS."""
SUFFIX = "-dry"
_TINY = {"layers": 2, "width": 64, "heads": 4, "context": 64, "vocabulary": 1024}
_TINY_NAMED = {"name": "debug", "context": 64, "vocabulary": 1024}
_STEPS, _EVERY = 240, 20
"""A step may take 40 ms, and what strikes sees training's figures seconds late."""
_STEPS_OF_CHATS, _EVERY_OF_CHATS = 15, 3
_SECONDS_PER_SCORE = 1.5e-8
"""A debug model's step takes so long on one processor, for each position and token of the vocabulary."""


class Difference(Frozen):
    """A field of the rehearsal that differs from the spec for AWS."""

    field: str
    real: str
    rehearsed: str
    why: str


class Derived(Frozen, extra="ignore"):
    document: dict[str, Any]
    """The rehearsal's spec as YAML content."""
    differences: tuple[Difference, ...]


def name_of(campaign: str) -> str:
    """Return the rehearsal's name: never that of a campaign which bills."""
    return campaign[: MAX_NAME - len(SUFFIX)].rstrip("-") + SUFFIX


def derive(document: dict[str, Any], spec: Spec, nodes: int, faults: tuple[str, ...], weights: Path) -> Derived:
    """Return the rehearsal of a spec for AWS; `document` is its file's content.

    `weights`: the folder of drawn weights that a rehearsal starts from when the spec starts from given ones.
    `faults`: `kill-node@40%` kills the last node after that share of the steps, `kill-rank@40%` one of its ranks.
    Raises `UserError` for a spec that is a rehearsal already, and for another fault.
    """
    if spec.target != "aws":
        raise UserError("this spec is a rehearsal already", seen=spec.campaign, cure="`bivouac run` runs it")
    made = _Made(copy.deepcopy(document))
    made.set("campaign", name_of(spec.campaign), "no name of a campaign that bills")
    made.set("target", "rehearsal", "this machine")
    made.set("account", ACCOUNT, "the emulated account")
    if spec.region != REGION:
        made.set("region", REGION, "the emulated region")
        made.set("zone", REGION + spec.zone[-1], "a zone of it")
        made.drop("second_zone", "a zone of the other region")
    made.set("nodes.count", nodes, "this machine's size; --nodes")
    shared = [kind for kind, size in _shared_by(spec) if size > 1]
    made.set("nodes.ranks_per_node", 2 if shared else 1, "ranks are processes on this machine's processors")
    for kind in shared:
        made.set(f"training.parallel.{kind}", 2, "a group has two ranks of one node")
    _buy(made, spec)
    _without_what_only_the_account_has(made, spec)
    steps, every = _shrink(made, spec, nodes, weights)
    made.set("preflight.profile", THIS_MACHINE, "no GPU: speeds are those of loopback")
    for field, value in (("heartbeat_timeout", "10s"), ("hang_timeout", "60s"), ("startup_timeout", "180s")):
        made.set(f"recovery.{field}", value, "a rehearsal's steps take less than a second")
    made.set("on_stop", "teardown", "nobody waits to relaunch a rehearsal")
    killed = [_fault(one, nodes, steps, every) for one in faults]
    made.set("rehearsal.faults", killed, "--fault")
    return Derived(document=made.document, differences=tuple(made.differences))


def _buy(made: _Made, spec: Spec) -> None:
    if spec.nodes.capacity not in (Capacity.ON_DEMAND, Capacity.SPOT):
        here = "of the same kind and name, free for these nodes"
        made.tell("nodes.reservation_id", str(spec.nodes.reservation_id), here, "the emulated account holds it")
    made.drop("nodes.block_end", "the emulated block has begun and lasts a day")


def _without_what_only_the_account_has(made: _Made, spec: Spec) -> None:
    made.set("image.base", "bivouac/base:host", "this machine's own Python stands for the base image")
    made.drop("image.steward_base", "the same, with the steward's packages only, stands for it")
    made.drop("image.builders", "a subnet of the real account")
    if spec.image.nodes not in ("bake", "eks"):
        made.drop("image.nodes", "an AMI of the real account")
    made.drop("encryption.key_arn", "a key of the real account")
    for field in ("driver_vpc", "vpc_id", "subnet_ids"):
        made.drop(f"network.{field}", "a network of the real account")
    if spec.network.driver_cidrs:
        made.drop("network.api_allowed_cidrs", "ranges of the real network")
    made.drop("network.api_endpoint", "the driver is in the emulated network already")
    made.drop("money.alarm_topic_arn", "a topic of the real account")
    made.drop("money.freeze_roles", "roles of the real account")
    made.drop("access", "people of the real account")
    made.drop("notify.topic", "a topic of the real account")
    made.drop("notify.webhook", "nobody is told of a rehearsal")
    for field, is_given in (("secrets", spec.secrets), ("pull_secret", spec.pull_secret)):
        if is_given and spec.workload is not None:
            given = f"those in {spec.workload.rehearsal.secrets}"
            made.tell(f"workload.{field}", "the account's values", given, "the real values stay where they are")


def _shrink(made: _Made, spec: Spec, nodes: int, weights: Path) -> tuple[int, int]:
    """Make the job small; return its steps, and the steps between checkpoints."""
    if spec.workload is not None:
        if spec.workload.rehearsal.image is None:
            why = "the emulated registry lacks it: the trainer image stands in"
            if spec.workload.image is not None:
                made.tell("workload.image", spec.workload.image, "the trainer image", why)
        steps = spec.workload.on("rehearsal").steps
        every = max(1, min(10, steps // 4))
        made.set("checkpoint.every_steps", every, "a checkpoint before each fault")
        return steps, every
    assert spec.training is not None, "a spec has either section"
    _small_text(made, spec, nodes)
    model, steps, every, seconds = _small_model(spec, spec.training.model)
    batch = 1 if _has_own_chats(spec) else 2
    made.set("training.model", model, "a debug model that the same code builds")
    for field in ("parameters", "compute"):
        made.drop(f"training.{field}", "of another model")
    if spec.training.init_from is not None:
        made.set("training.init_from", str(weights), "weights that this machine draws for the debug model")
    for field, value in (
        ("steps", steps), ("global_batch", batch**2 * nodes), ("micro_batch", batch), ("precision", "float32"),
        ("evaluate_every", steps // 2), ("evaluate_batches", batch), ("step_seconds_estimate", seconds),
        ("collective_timeout_s", max(10, round(5 * seconds))), ("optimizer.warmup_steps", 5),
    ):  # fmt: skip
        made.set(f"training.{field}", value, "a model that this machine can train")
    made.drop("training.watch.precision_every", "the rehearsal computes in float32")
    for field in ("accumulate", "reduce"):
        if getattr(spec.training.gradients, field) == "bfloat16":
            made.drop(f"training.gradients.{field}", "the rehearsal computes in float32")
    made.set("checkpoint.every_steps", every, "a checkpoint before each fault")
    return steps, every


def _small_model(spec: Spec, real: ModelConfig) -> tuple[dict[str, Any], int, int, float]:
    """Return the debug model, its steps, those between checkpoints, and a step's seconds. Samples of chats are cut by
    the real tokenizer and have to fit, so they keep its vocabulary and the context, and few steps have to do."""
    model: dict[str, Any] = dict(_TINY_NAMED if real.name else _TINY)
    model |= {name: True for name in ("document_attention", "reset_positions") if getattr(real, name)}
    if real.lora is not None:
        model["lora"] = real.lora.model_dump(mode="json")
    if not _has_own_chats(spec):
        return model, _STEPS, _EVERY, 0.2
    model |= {"context": real.context, "vocabulary": real.vocabulary, "end_of_document": real.end_of_document}
    if real.name:
        model["config"] = {"max_position_embeddings": real.context}
    seconds = round(max(0.2, real.context * real.vocabulary * _SECONDS_PER_SCORE), 1)
    return model, _STEPS_OF_CHATS, _EVERY_OF_CHATS, seconds


def _has_own_chats(spec: Spec) -> bool:
    return spec.data is not None and spec.data.format == "chat" and bool(spec.data.rehearsal)


def _shared_by(spec: Spec) -> tuple[tuple[str, int], ...]:
    """Return how many ranks share a matrix, and a sequence."""
    parallel = spec.training.parallel if spec.training is not None else ParallelConfig()
    return ("tensor", parallel.tensor), ("sequence", parallel.sequence)


def _small_text(made: _Made, spec: Spec, nodes: int) -> None:
    data = spec.data
    if data is None or not (data.in_cluster or data.rehearsal):
        why = "text that every machine has; `data.rehearsal` gives a folder of this machine in its place"
        made.set("data", {"source": "python:stdlib", "max_files": 60}, why)
        return
    if not data.rehearsal:
        text = {"source": "s3://rehearsed-text/python", "pattern": "*.py", "rehearsal": {"text": "python:stdlib"}}
        made.set("data", {**text, "prepare": {"where": "cluster"}}, "text that every machine has, in the emulated S3")
    if not _has_own_chats(spec):
        made.drop("data.tokenizer", "the debug model has a small vocabulary")
        made.drop("data.end_of_document", "of that tokenizer")
    made.set("data.max_files", 60, "text that this machine prepares")
    made.set("data.max_epochs", 1000, "there is little text, and it is read again")
    if data.in_cluster:
        made.set("data.prepare.nodes", nodes, "this machine's size; --nodes")


def _fault(told: str, nodes: int, steps: int, every: int) -> dict[str, int]:
    what, _, share = told.partition("@")
    number = share.removesuffix("%")
    known = what in ("kill-node", "kill-rank")
    if not known or not share.endswith("%") or not number.isdigit() or not 0 < int(number) < 100:
        raise UserError("there is no such fault", seen=told, cure="write kill-node@40% or kill-rank@40%, or --no-fault")
    # A checkpoint lies behind the fault, and another is perhaps not committed yet.
    after = min(max(2 * every + 1, steps * int(number) // 100), steps - 1)
    return {what.replace("-", "_"): nodes - 1, "after_step": after}


class _Made:
    """The document that is changed, and each change."""

    def __init__(self, document: dict[str, Any]) -> None:
        self.document = document
        self.differences: list[Difference] = []

    def set(self, field: str, value: Any, why: str) -> None:
        section, name = self._section(field)
        before = section.get(name)
        section[name] = value
        if before != value:
            self.differences.append(Difference(field=field, real=_said(before), rehearsed=_said(value), why=why))

    def tell(self, field: str, real: str, rehearsed: str, why: str) -> None:
        """Note what differs though the document does not."""
        self.differences.append(Difference(field=field, real=real, rehearsed=rehearsed, why=why))

    def drop(self, field: str, why: str) -> None:
        at: Any = self.document
        *above, name = field.split(".")
        for part in above:
            at = at.get(part) if isinstance(at, dict) else None
        if isinstance(at, dict) and name in at:
            self.differences.append(Difference(field=field, real=_said(at.pop(name)), rehearsed="left out", why=why))

    def _section(self, field: str) -> tuple[dict[str, Any], str]:
        *above, name = field.split(".")
        at = self.document
        for part in above:
            if not isinstance(at.get(part), dict):
                at[part] = {}
            at = at[part]
        return at, name


def _said(value: Any) -> str:
    if value is None:
        return "default"
    if isinstance(value, dict):
        return ", ".join(f"{key} {_said(one)}" for key, one in value.items())
    return str(value)
