"""Rules about model, batch and data."""

from __future__ import annotations

import json
from collections.abc import Iterator

from infra.plan.checks.finding import Case, Draft, error, info, warning
from infra.plan.estimates import sizing
from infra.plan.facts import MemoryPrediction
from infra.spec.models.hub import way_to
from trainer.contract import (
    Layout,
    Trouble,
    adapter_trouble,
    compile_trouble,
    dropout_trouble,
    layout_trouble,
    model_trouble,
    replay_trouble,
)
from trainer.contract.model.adapters import unknown_targets
from trainer.contract.model.shape import adapter_parameters, heads_of, matrices

SAFE_MARGIN = 0.1
"""Part of the memory that a prediction within a tenth of the truth should leave."""
REPEATED = 4
"""Epochs up to which repeated text is worth nearly as much as new text (Muennighoff et al. 2023, arXiv 2305.16264)."""


def global_batch_multiple(case: Case) -> Iterator[Draft]:
    """The global batch is micro_batch x data-parallel ranks x a whole number of accumulations."""
    training, world = case.spec.built_in[0], case.data_ranks
    if not world:
        return
    unit = training.micro_batch * world
    if training.global_batch % unit:
        multiple = training.global_batch // unit * unit
        yield error(
            "training.global_batch",
            "is no multiple of micro_batch x data-parallel ranks",
            seen=f"{training.global_batch}, with {training.micro_batch} x {world} = {unit}",
            cure=f"write {f'{multiple} or ' if multiple else ''}{multiple + unit}",
        )


def even_head_width(case: Case) -> Iterator[Draft]:
    """Rotary positions rotate pairs: each head has an even width."""
    model = case.spec.built_in[0].model
    if not model.name and model.width % (2 * model.heads):
        nearest = max(1, round(model.width / (2 * model.heads))) * 2 * model.heads
        message, cure = "is no multiple of 2 x heads", f"write {nearest}, or another number of heads"
        yield error("training.model.width", message, seen=f"width {model.width}, heads {model.heads}", cure=cure)


def layout_divides_model(case: Case) -> Iterator[Draft]:
    """The ranks form whole groups, and DeepSpeed trains, saves and reshapes in them as one process would."""
    training, world, per_node = case.spec.built_in[0], case.world_size, case.ranks_per_node
    if not Layout.of(training.parallel, 1).splits:
        return
    troubles = list[Trouble | None]()
    if world is not None and per_node is not None:
        troubles.append(layout_trouble(training.parallel, world, per_node, training.zero_stage))
    if (heads := heads_of(training.model)) is not None:
        troubles.append(model_trouble(training.parallel, heads, training.model.context))
    if training.optimizer.offload == "cpu" or training.gradients.accumulate or training.gradients.reduce:
        detail, cure = "training.optimizer.offload or training.gradients", "leave out either"
        yield error("training.parallel", "is not tried with offload or with other sums", seen=detail, cure=cure)
    for trouble in filter(None, troubles):
        yield error(f"training.{trouble.field}", trouble.message, seen=trouble.seen, cure=trouble.cure)


def whole_layer_compile(case: Case) -> Iterator[Draft]:
    """Layers are compiled only where nothing else works within one."""
    training = case.spec.built_in[0]
    trouble = compile_trouble(training.zero_stage, training.parallel, training.watch)
    if training.compile == "layers" and trouble is not None:
        yield error(f"training.{trouble.field}", trouble.message, seen=trouble.seen, cure=trouble.cure)


def adapter_support(case: Case) -> Iterator[Draft]:
    """Adapters are trained beside given weights that lie whole, and the model has the matrices that are named."""
    training = case.spec.built_in[0]
    model, warm = training.model, training.init_from is not None
    trouble = adapter_trouble(model, training.parallel, warm) or dropout_trouble(model, training.watch)
    if trouble is not None:
        yield error(f"training.{trouble.field}", trouble.message, seen=trouble.seen, cure=trouble.cure)
    if unknown := unknown_targets(model):
        cure = f"take of {', '.join(matrices(model))}"
        yield error("training.model.lora.targets", "the model has no such matrices", seen=", ".join(unknown), cure=cure)
    if model.lora is not None and training.compute is not None:
        detail, cure = "training.compute", "write steps, global_batch and learning_rate"
        yield error("training.model.lora", "is not what the dial's formulas were fitted to", seen=detail, cure=cure)


def accelerator_memory(case: Case) -> Iterator[Draft]:
    """Weights, gradients, optimizer state and activations fit, as one micro batch on fake tensors shows."""
    instance, world, (training, _) = case.facts.instance, case.world_size, case.spec.built_in
    if instance is None or world is None:
        return
    memory = case.facts.memory
    if memory is not None and not memory.trouble:
        yield from _by_prediction(memory, instance.accelerator)
        return
    size = sizing.static_bytes_per_rank(
        training.model, training.precision, world, training.zero_stage, training.optimizer.offload == "cpu"
    )
    size //= training.parallel.tensor
    detail = f"{size / sizing.GIB:.1f} GiB of state, {instance.accelerator_memory_gib:g} GiB per {instance.accelerator}"
    if memory is not None:
        detail += f"; activations are not known: {memory.trouble}"
    cure = "raise zero_stage, take more nodes, or a smaller model"
    if size > instance.accelerator_memory_gib * sizing.GIB:
        yield error("training.model", "does not fit one accelerator", seen=detail, cure=cure)
    elif size > 0.8 * instance.accelerator_memory_gib * sizing.GIB or memory is not None:
        yield warning("training.model", "leaves little memory for activations", seen=detail, cure=cure)


def _by_prediction(memory: MemoryPrediction, accelerator: str) -> Iterator[Draft]:
    parts = ", ".join(
        f"{name.replace('_', ' ')} {size / sizing.GIB:.1f}" for name, size in memory.parts.items() if size
    )
    detail = (
        f"{memory.peak / sizing.GIB:.1f} GiB of {memory.usable / sizing.GIB:.1f} usable per {accelerator} ({parts})"
    )
    if memory.peak <= memory.usable:
        margin = (memory.usable - memory.peak) / memory.usable
        tell = info if margin >= SAFE_MARGIN else warning
        message = f"fits one accelerator with a margin of {margin:.0%}"
        yield tell(
            "training.model", message, seen=detail, cure="nothing to do; no real GPU has confirmed the prediction"
        )
        return
    cure = "take more nodes with zero_stage 3, or a smaller model or context"
    if remedy := next((remedy for remedy in memory.cures if remedy.peak <= memory.usable), None):
        cure = f"write {remedy.words}: {remedy.peak / sizing.GIB:.1f} GiB"
    yield error("training.model", "does not fit one accelerator", seen=detail, cure=cure)


def precision_watch(case: Case) -> Iterator[Draft]:
    """One rank computes the loss in float32 alone: it has whole weights, and the training is not in float32."""
    training = case.spec.built_in[0]
    if not training.watch.precision_every:
        return
    no_whole_model = training.zero_stage == 3 or Layout.of(training.parallel, 1).splits
    if no_whole_model or training.precision == "float32":
        detail = "no rank has a whole model" if no_whole_model else "training.precision float32"
        yield error("training.watch.precision_every", "looks for nothing here", seen=detail, cure="leave it out")


def watch_needs_its_signal(case: Case) -> Iterator[Draft]:
    """An alarm with an action has what it looks at, and can tell who is wrong."""
    training = case.spec.built_in[0]
    watch, dead = training.watch, dict[str, str]()
    if training.optimizer.offload == "cpu":
        dead |= dict.fromkeys(("layers", "weights"), "training.optimizer.offload: the device has no such figures")
    if training.zero_stage == 3 or Layout.of(training.parallel, 1).splits:
        dead["straggler"] = "ranks wait for each other in the forward pass: nobody can tell who is slow"
        if watch.replay_every:
            yield _half_replay(watch.replay)
    for name, detail in dead.items():
        if (action := getattr(watch, name)) not in ("off", "log"):
            yield error(f"training.watch.{name}", f"never comes to {action}", seen=detail, cure="write log")
    if (trouble := replay_trouble(watch)) is not None:
        yield error(f"training.{trouble.field}", trouble.message, seen=trouble.seen, cure=trouble.cure)


def _half_replay(action: str) -> Draft:
    """Return what is said of a replay where no rank has whole weights: it may note, and not judge a node."""
    detail = "no rank computes a gradient alone: the forward pass is compared, the backward pass is not"
    if action == "log":
        cure = "nothing to do, or a zero_stage below 3 without a layout"
        return warning("training.watch.replay_every", "searches half of a step", seen=detail, cure=cure)
    return error("training.watch.replay", f"would {action} on half a search", seen=detail, cure="write log")


def model_size(case: Case) -> Iterator[Draft]:
    """Report the size of a model that the spec names, or that the dial derives."""
    training = case.spec.built_in[0]
    if training.model.name or training.parameters is not None or training.compute is not None:
        model = training.model
        adapters = f" and {adapter_parameters(model):,} of adapters" if model.lora is not None else ""
        flops = sizing.training_flops_per_token(model)
        detail = f"{sizing.parameters(model):,} parameters{adapters}, {flops:.4g} FLOP per token"
        cure = "nothing to do; `bivouac plan` has the formulas"
        yield info("training.model", "is of this size", seen=detail, cure=cure)


def initial_weights(case: Case) -> Iterator[Draft]:
    """A folder with weights is there, and has what can be loaded; an S3 prefix is for AWS."""
    training = case.spec.built_in[0]
    if training.init_from is None:
        return
    if training.links:
        if not case.facts.environment.inputs:
            cure = "give a folder of this machine, as a path from where the command is run"
            yield error("training.init_from", "a rehearsal has no such bucket", seen=training.init_from, cure=cure)
    elif training.init_from not in case.facts.folders:
        cure = way_to(training.init_from, "give a folder of this machine, as a path from where the command is run")
        yield error("training.init_from", "there is no such folder", seen=training.init_from, cure=cure)


def learning_rate_schedule(case: Case) -> Iterator[Draft]:
    """The learning rate ends no higher than it begins, and warm-up ends before training."""
    optimizer, steps = case.spec.built_in[0].optimizer, case.spec.job.steps
    if optimizer.minimum_learning_rate > optimizer.learning_rate:
        detail = f"{optimizer.minimum_learning_rate:g} above {optimizer.learning_rate:g}"
        cure = "write a tenth of the learning rate"
        yield error("training.optimizer.minimum_learning_rate", "is above the learning rate", seen=detail, cure=cure)
    if optimizer.warmup_steps >= steps:
        yield warning(
            "training.optimizer.warmup_steps",
            "the learning rate never finishes its warm-up",
            seen=f"{optimizer.warmup_steps} of {steps} steps",
            cure=f"write {max(1, steps // 20)}",
        )


def data_source(case: Case) -> Iterator[Draft]:
    """The data exist before anything is paid for."""
    data, data_facts = case.spec.built_in[1], case.facts.data
    if not data_facts.folder:
        cure = way_to(data_facts.location, "give a folder of text files, or python:stdlib")
        yield error("data.source", "there is no such folder", seen=data_facts.location, cure=cure)
    elif not data_facts.matches:
        message, cure = "no file of the source fits", "give a pattern relative to the source, such as **/*.txt"
        yield error("data.pattern", message, seen=f"{data.pattern!r} in {data_facts.location}", cure=cure)


def prepared_text_size(case: Case) -> Iterator[Draft]:
    """The size of text that the cluster prepares is known: time and cost depend on it."""
    data = case.spec.data
    if data is not None and data.in_cluster and case.facts.data.text_bytes is None:
        cure = "write data.prepare.text_gib, or let `bivouac check --online` ask S3 for the sizes"
        message = "neither time nor cost of the preparation is in the plan"
        yield warning("data.prepare.text_gib", message, seen="nothing", cure=cure)


def rehearsal_text(case: Case) -> Iterator[Draft]:
    """In a rehearsal each source in S3 has a folder of this machine: the emulated S3 is empty."""
    data = case.spec.data
    if data is None or case.facts.environment.inputs:
        return
    for part in data.parts:
        folder = data.rehearsal.get(part.name)
        if part.source.startswith("s3://") and folder not in case.facts.folders:
            cure = "give a small folder of this machine, as a path from where the command is run"
            yield error(f"data.rehearsal.{part.name}", "there is no such folder", seen=folder or "nothing", cure=cure)


def sample_attention(case: Case) -> Iterator[Draft]:
    """Samples of prompt and response are packed into sequences: each sees itself alone."""
    training, data = case.spec.built_in
    if data.format == "chat" and not training.model.document_attention:
        cure = "write document_attention: true, and end_of_document with the number of the data's token"
        detail = "data.format chat"
        yield error(
            "training.model.document_attention", "a sample would see the ones before it", seen=detail, cure=cure
        )


def document_beginning(case: Case) -> Iterator[Draft]:
    """Continued pre-training begins documents with the token that the base model has always seen there."""
    (training, data), token = case.spec.built_in, case.facts.first_token
    if training.init_from is not None and data.format != "chat" and token and data.beginning_of_document != token:
        detail = f"the tokenizer writes {token}, the data {data.beginning_of_document or 'nothing'}"
        message = "the base model's documents begin with a token that these do not have"
        cure = f"write data.beginning_of_document: {json.dumps(token)}"
        yield warning("data.beginning_of_document", message, seen=detail, cure=cure)


def data_epochs(case: Case) -> Iterator[Draft]:
    """Text is not repeated so often that the model memorizes it."""
    (training, data), data_facts = case.spec.built_in, case.facts.data
    max_epochs = data.max_epochs
    if not data_facts.tokens:
        return
    tokens = training.steps * training.global_batch * training.model.context
    epochs = tokens / data_facts.tokens
    basis = "prepared" if data_facts.prepared else "estimated from the files' size"
    detail = f"{tokens:.3g} tokens trained, {data_facts.tokens:.3g} there ({basis}): {epochs:.3g} epochs"
    if epochs > max_epochs:
        cure = f"take more data or fewer steps; or write data.max_epochs: {-(-epochs // 1):.0f}, if that is meant"
        yield error("training.steps", f"reads the data more than {max_epochs:g} times", seen=detail, cure=cure)
    elif epochs > REPEATED:
        yield warning("training.steps", "repeats the data often", seen=detail, cure="take more data, or fewer steps")
