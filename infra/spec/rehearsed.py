"""Derives a rehearsal from a spec: the same campaign, small enough for one machine. Pure, on the document."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from infra.errors import UserError
from infra.spec.campaign import MAX_NAME, Capacity, Spec
from infra.spec.drills.scenarios import scenarios
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
    """Return the rehearsal of a spec; `document` is its file's content. Of one for an existing cluster it shows the job
    and its recovery: the campaign makes a cluster of its own, as on AWS.

    `weights`: the folder of drawn weights that a rehearsal starts from when the spec starts from given ones.
    `faults`: `kill-node@40%` kills the last node after that share of the steps, `kill-rank@40%` one of its ranks; other
    names are those of `infra.spec.drills`.
    Raises `UserError` for a spec that is a rehearsal already, and for another fault.
    """
    if spec.target == "rehearsal":
        raise UserError("this spec is a rehearsal already", seen=spec.campaign, cure="`bivouac run` runs it")
    draft = _Made(copy.deepcopy(document))
    draft.set("campaign", name_of(spec.campaign), "no name of a campaign that bills")
    draft.set("target", "rehearsal", "this machine")
    draft.set("account", ACCOUNT, "the emulated account")
    if spec.region != REGION:
        draft.set("region", REGION, "the emulated region")
        draft.set("zone", REGION + ("a" if spec.borrows_nodes else spec.zone[-1]), "a zone of it")
        draft.drop("second_zone", "a zone of the other region")
    if spec.borrows_nodes:
        draft.drop("cluster", "the rehearsal makes a cluster of its own: the job and its recovery are rehearsed")
        draft.drop("nodes.usd_per_hour", "the price of borrowed nodes")
    draft.set("nodes.count", nodes, "this machine's size; --nodes")
    shared = [kind for kind, size in _shared_by(spec) if size > 1]
    draft.set("nodes.ranks_per_node", 2 if shared else 1, "ranks are processes on this machine's processors")
    for kind in shared:
        draft.set(f"training.parallel.{kind}", 2, "a group has two ranks of one node")
    _buy(draft, spec)
    _without_what_only_the_account_has(draft, spec)
    steps, save_every = _shrink(draft, spec, nodes, weights)
    draft.set("preflight.profile", THIS_MACHINE, "no GPU: speeds are those of loopback")
    for field, value in (("heartbeat_timeout", "10s"), ("hang_timeout", "60s"), ("startup_timeout", "180s")):
        draft.set(f"recovery.{field}", value, "a rehearsal's steps take less than a second")
    if spec.recovery.min_nodes is not None:
        draft.set("recovery.min_nodes", 1, "of this machine's nodes; a batch that divides over all divides over one")
        draft.set("recovery.spare_timeout", "30s", "the emulated EC2 takes seconds")
    draft.set("on_stop", "teardown", "nobody waits to relaunch a rehearsal")
    small_faults = [_fault(fault, nodes, steps, save_every) for fault in faults]
    draft.set("rehearsal.faults", small_faults, "--fault")
    return Derived(document=draft.document, differences=tuple(draft.differences))


def _buy(draft: _Made, spec: Spec) -> None:
    if spec.nodes.capacity not in (Capacity.ON_DEMAND, Capacity.SPOT):
        substitute = "of the same kind and name, free for these nodes"
        draft.tell("nodes.reservation_id", str(spec.nodes.reservation_id), substitute, "the emulated account holds it")
    draft.drop("nodes.block_end", "the emulated block has begun and lasts a day")


def _without_what_only_the_account_has(draft: _Made, spec: Spec) -> None:
    draft.set("image.base", "bivouac/base:host", "this machine's own Python stands for the base image")
    draft.drop("image.steward_base", "the same, with the steward's packages only, stands for it")
    draft.drop("image.builders", "a subnet of the real account")
    if spec.image.nodes not in ("bake", "eks"):
        draft.drop("image.nodes", "an AMI of the real account")
    draft.drop("encryption.key_arn", "a key of the real account")
    for field in ("driver_vpc", "vpc_id", "subnet_ids"):
        draft.drop(f"network.{field}", "a network of the real account")
    if spec.network.driver_cidrs:
        draft.drop("network.api_allowed_cidrs", "ranges of the real network")
    draft.drop("network.api_endpoint", "the driver is in the emulated network already")
    draft.drop("money.alarm_topic_arn", "a topic of the real account")
    draft.drop("money.freeze_roles", "roles of the real account")
    draft.drop("access", "people of the real account")
    draft.drop("addons.remote_write", "a rehearsal writes its series nowhere")
    draft.drop("notify.topic", "a topic of the real account")
    draft.drop("notify.webhook", "nobody is told of a rehearsal")
    draft.drop("notify.routes", "nobody is told of a rehearsal")
    draft.drop("notify.escalate_after", "nobody is told of a rehearsal")
    for field, is_given in (("secrets", spec.secrets), ("pull_secret", spec.pull_secret)):
        if is_given:
            rehearsal_secrets = f"those in {spec.runtime.rehearsal.secrets}"
            draft.tell(
                f"workload.{field}", "the account's values", rehearsal_secrets, "the real values stay where they are"
            )


def _shrink(draft: _Made, spec: Spec, nodes: int, weights: Path) -> tuple[int, int]:
    """Make the job small; return its steps, and the steps between checkpoints."""
    if spec.workload is not None:
        if spec.workload.rehearsal.image is None:
            reason = "the emulated registry lacks it: the trainer image stands in"
            if spec.workload.image is not None:
                draft.tell("workload.image", spec.workload.image, "the trainer image", reason)
        steps = spec.workload.on("rehearsal").steps
        save_every = max(1, min(10, steps // 4))
        draft.set("checkpoint.every_steps", save_every, "a checkpoint before each fault")
        return steps, save_every
    training, _ = spec.built_in
    _small_text(draft, spec, nodes)
    model, steps, save_every, seconds = _small_model(spec, training.model)
    batch = 1 if _has_own_chats(spec) else 2
    draft.set("training.model", model, "a debug model that the same code builds")
    for field in ("parameters", "compute"):
        draft.drop(f"training.{field}", "of another model")
    if training.init_from is not None:
        draft.set("training.init_from", str(weights), "weights that this machine draws for the debug model")
    for field, value in (
        ("steps", steps), ("global_batch", batch**2 * nodes), ("micro_batch", batch), ("precision", "float32"),
        ("evaluate_every", steps // 2), ("evaluate_batches", batch), ("step_seconds_estimate", seconds),
        ("collective_timeout_s", max(10, round(5 * seconds))), ("optimizer.warmup_steps", 5),
    ):  # fmt: skip
        draft.set(f"training.{field}", value, "a model that this machine can train")
    draft.drop("training.watch.precision_every", "the rehearsal computes in float32")
    for field in ("accumulate", "reduce"):
        if getattr(training.gradients, field) == "bfloat16":
            draft.drop(f"training.gradients.{field}", "the rehearsal computes in float32")
    draft.set("checkpoint.every_steps", save_every, "a checkpoint before each fault")
    return steps, save_every


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


def _small_text(draft: _Made, spec: Spec, nodes: int) -> None:
    data = spec.data
    if data is None or not (data.in_cluster or data.rehearsal):
        reason = "text that every machine has; `data.rehearsal` gives a folder of this machine in its place"
        draft.set("data", {"source": "python:stdlib", "max_files": 60}, reason)
        return
    if not data.rehearsal:
        text = {"source": "s3://rehearsed-text/python", "pattern": "*.py", "rehearsal": {"text": "python:stdlib"}}
        draft.set("data", {**text, "prepare": {"where": "cluster"}}, "text that every machine has, in the emulated S3")
    if not _has_own_chats(spec):
        draft.drop("data.tokenizer", "the debug model has a small vocabulary")
        draft.drop("data.end_of_document", "of that tokenizer")
        draft.drop("data.beginning_of_document", "of that tokenizer")
    draft.set("data.max_files", 60, "text that this machine prepares")
    draft.set("data.max_epochs", 1000, "there is little text, and it is read again")
    if data.in_cluster:
        draft.set("data.prepare.nodes", nodes, "this machine's size; --nodes")


def _fault(text: str, nodes: int, steps: int, save_every: int) -> dict[str, int | str]:
    action, _, share = text.partition("@")
    number = share.removesuffix("%")
    is_kill = action in ("kill-node", "kill-rank")
    is_known = is_kill or action in scenarios()
    if not is_known or not share.endswith("%") or not number.isdigit() or not 0 < int(number) < 100:
        cure = "write kill-node@40%, kill-rank@40% or a name of `bivouac drill --list` with @40%, or --no-fault"
        raise UserError("there is no such fault", seen=text, cure=cure)
    # A checkpoint lies behind the fault, and another is perhaps not committed yet.
    after_step = min(max(2 * save_every + 1, steps * int(number) // 100), steps - 1)
    strikes: dict[str, int | str] = {action.replace("-", "_"): nodes - 1} if is_kill else {"fault": action}
    return strikes | {"after_step": after_step}


class _Made:
    """The document that is changed, and each change."""

    def __init__(self, document: dict[str, Any]) -> None:
        self.document = document
        self.differences: list[Difference] = []

    def set(self, field: str, value: Any, reason: str) -> None:
        section, name = self._section(field)
        previous = section.get(name)
        section[name] = value
        if previous != value:
            self.differences.append(
                Difference(field=field, real=_sentence(previous), rehearsed=_sentence(value), why=reason)
            )

    def tell(self, field: str, real: str, rehearsal_value: str, reason: str) -> None:
        """Note what differs though the document does not."""
        self.differences.append(Difference(field=field, real=real, rehearsed=rehearsal_value, why=reason))

    def drop(self, field: str, reason: str) -> None:
        section: Any = self.document
        *parents, name = field.split(".")
        for part in parents:
            section = section.get(part) if isinstance(section, dict) else None
        if isinstance(section, dict) and name in section:
            self.differences.append(
                Difference(field=field, real=_sentence(section.pop(name)), rehearsed="left out", why=reason)
            )

    def _section(self, field: str) -> tuple[dict[str, Any], str]:
        *parents, name = field.split(".")
        section = self.document
        for part in parents:
            if not isinstance(section.get(part), dict):
                section[part] = {}
            section = section[part]
        return section, name


def _sentence(value: Any) -> str:
    if value is None:
        return "default"
    if isinstance(value, dict):
        return ", ".join(f"{key} {_sentence(item)}" for key, item in value.items())
    return str(value)
