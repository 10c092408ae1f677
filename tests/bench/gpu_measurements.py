"""The measurements of `tests.bench.gpu`: each tells rows."""

from __future__ import annotations

import math
import os
import platform
import statistics
import time
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.nn.attention import SDPBackend, sdpa_kernel

from tests.bench import in_place
from tests.bench.gpu import Machine
from trainer.builtin.checkpoint.commit import Begun, Committer, ManifestIdentity, TrainingProgress
from trainer.builtin.checkpoint.convert.universal import convert, load_universal
from trainer.builtin.checkpoint.deepspeed_engine import HostCopyEngine
from trainer.builtin.checkpoint.tiers import campaign_tiers
from trainer.builtin.data.feed import Fed
from trainer.builtin.engine import build_engine, import_deepspeed, initialize_distributed
from trainer.builtin.evaluation import evaluation_loss
from trainer.builtin.gang import Gang
from trainer.builtin.model import recompute
from trainer.builtin.model.memory import footprint
from trainer.builtin.model.named import import_transformers
from trainer.builtin.watch import replay
from trainer.builtin.watch.figures import Mine
from trainer.builtin.watch.overseer import Overseer
from trainer.contract import CheckpointConfig, ModelConfig, TrainConfig, attempt_folder

DEEPSPEED, TRANSFORMERS = import_deepspeed(), import_transformers()
_WIDE = {"vocab_size": 128256, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "head_dim": 64}
_1B = _WIDE | {"vocab_size": 32000, "intermediate_size": 5632, "num_hidden_layers": 22, "num_key_value_heads": 4}
_1B["tie_word_embeddings"] = False
_TINY = {"vocab_size": 512, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "head_dim": 2}
MODELS = {"1b": _1B, "1b-shallow": _1B | {"num_hidden_layers": 4}, "1b-wide": _WIDE | {"num_key_value_heads": 8}}
"""The catalogue's `1b`, a part of it, and one with the vocabulary of Llama 3."""
DECODER = ModelConfig(layers=2, width=64, heads=4, context=64, vocabulary=512)
BACKENDS = (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, None)
MICRO_BATCH_TOKENS, H100_TFLOPS = 8192, 989.4


def train_config(
    machine: Machine, model: str = "1b", context: int = 2048, documents: bool = False, **settings: Any
) -> TrainConfig:
    """Return the configuration of one rank; without a GPU that of a tiny model of the same kind."""
    context, batch = (context, MICRO_BATCH_TOKENS // context) if machine.gpu else (64, 2)
    values = {"model_type": "llama", "num_attention_heads": 32, "max_position_embeddings": context, **MODELS[model]}
    values |= {} if machine.gpu else _TINY
    sizes: dict[str, Any] = {"context": context, "vocabulary": values["vocab_size"]}
    described = ModelConfig(name=model, config=values, document_attention=documents, **sizes)
    base = TrainConfig(campaign="bench", model=described, steps=1000, global_batch=batch, micro_batch=batch)
    settings = {"precision": "bfloat16", "collective_timeout_s": 600.0, "peak_bf16_tflops": H100_TFLOPS, **settings}
    return TrainConfig.model_validate(base.model_dump() | settings)


class Rank:
    """The only rank of a gang, with engine and overseer."""

    def __init__(self, machine: Machine, config: TrainConfig) -> None:
        if not torch.distributed.is_initialized():
            os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
            os.environ["MASTER_PORT"] = str(torch.distributed.TCPStore("127.0.0.1", 0, is_master=True).port)
            initialize_distributed(config)
        self.config, self.gang = config, Gang.join(timedelta(minutes=10))
        self.tiers = campaign_tiers(machine.folder / "local", machine.folder / "shared", config.campaign)
        self.engine = build_engine(config, 1)
        self.engine.checkpoint_engine = HostCopyEngine(lambda path, file: None)
        self.overseer = Overseer(config, self.gang, self.engine, self.tiers.shared, 1)
        shape = (config.micro_batch, config.model.context + 1)
        self.tokens = torch.randint(0, config.model.vocabulary, shape, generator=torch.Generator().manual_seed(1))
        self.batch = self.tokens.to(self.engine.device)

    def step(self) -> Mine:
        """Compute a step as the loop does; it ends when the device has ended."""
        return self.overseer.compute(Fed(0, (self.tokens.numpy(),), 0))

    def steps(self, machine: Machine) -> list[Mine]:
        return [self.step() for _ in range(10 if machine.gpu else 1)]

    def saving(self) -> Committer:
        """Return a committer whose buffers are made, after a step."""
        keep = CheckpointConfig(every_steps=1, shared_every=10**6, keep_local=1, neighbour=False)
        committer = Committer(self.gang, self.tiers, keep, ManifestIdentity("bench", 1, 1, "", "", "", ""), Begun())
        self.step()
        committer.make_ready(self.engine)
        committer.drain(replicate=False)
        return committer


def timed(work: Callable[[], Any]) -> float:
    synchronize: Callable[[], Any] = torch.cuda.synchronize if torch.cuda.is_available() else lambda: None
    synchronize()
    begun = time.perf_counter()
    work()
    synchronize()
    return time.perf_counter() - begun


def medians(machine: Machine, **works: Callable[[], Any]) -> dict[str, float]:
    """Return the median seconds of 20 turns of each work, after 5 warm ones; without a GPU of one, after one."""
    warm, turns = (5, 25) if machine.gpu else (1, 2)
    rounds = [{name: timed(work) for name, work in works.items()} for _ in range(turns)]
    return {name: statistics.median(each[name] for each in rounds[warm:]) for name in works}


def peak_gib(work: Callable[[], Any]) -> float:
    """Return the most that the allocator held during `work`; 0 without a GPU."""
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    work()
    return torch.cuda.max_memory_allocated() / 2**30 if torch.cuda.is_available() else 0.0


def card(fields: str) -> str:
    """Return what the driver says of the card; empty without one."""
    return os.popen(f"nvidia-smi --query-gpu={fields} --format=csv,noheader 2> /dev/null").read().strip()


def zero_3(machine: Machine) -> None:
    """The small decoder with ZeRO stage 3: its rotation table has to lie on the device."""
    rank = Rank(machine, train_config(machine, zero_stage=3).model_copy(update={"model": DECODER}))
    machine.tell("zero_3", "small decoder, a step", loss=rank.step().loss)


def reshaped(machine: Machine) -> None:
    """A step after a checkpoint in the universal format: fused AdamW needs its step count on the device."""
    rank = Rank(machine, train_config(machine).model_copy(update={"model": DECODER}))
    committer, target = rank.saving(), machine.folder / "universal" / "step"
    committer.save(rank.engine, TrainingProgress(1, 0, 0, 1.0))
    committer.drain(replicate=False)
    convert(rank.tiers.local.folder(1) / attempt_folder(1), target)
    load_universal(rank.engine, target)
    machine.tell("reshaped", "a step", loss=rank.step().loss)


def replays(machine: Machine, backend: SDPBackend | None) -> None:
    """Two runs of a micro batch: are bits equal, how far are gradients apart, and what does determinism cost?"""
    documents = backend is None
    rank = Rank(machine, train_config(machine, "1b-shallow", documents=documents, watch={"replay_every": 1}))
    # cuDNN's attention has no deterministic backward pass.
    for kernels in ("training", "deterministic")[: 1 if backend == SDPBackend.CUDNN_ATTENTION else 2]:
        run = partial(replay.compute, rank.engine, rank.batch, False, kernels)
        with sdpa_kernel(backend) if backend else nullcontext():
            digests = run()
            figures = {"seconds": timed(run), "peak_gib": peak_gib(run), "refusal": digests.refusal}
        first, again = digests.sketches if kernels == "training" else ([digests.first], [digests.again])
        apart = math.dist(first, again) / math.hypot(*first) if kernels == "training" else None
        case = f"{backend.name if backend else 'FlexAttention'}, {kernels}"
        machine.tell("replays", case, equal=first == again, apart=apart, **figures)


def parts(machine: Machine) -> None:
    """Where a step's time goes, how often it waits for the device, and the loss alone by rows at once."""
    rank, split = Rank(machine, train_config(machine)), list[dict[str, float]]()
    step = medians(machine, step=lambda: split.append(rank.step().parts))["step"]
    figures = {name: statistics.median(each[name] for each in split) for name in split[-1]}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if machine.gpu:
            torch.cuda.set_sync_debug_mode("warn")
        rank.step()
    waits = sum("synchroniz" in str(warning.message) for warning in caught)
    machine.tell("parts", "a step", seconds=step, gap=step - sum(figures.values()), waits=waits, **figures)


def loss(machine: Machine) -> None:
    """The loss and its gradients alone, by rows at once."""
    rows, width, vocabulary = (MICRO_BATCH_TOKENS, 2048, 128256) if machine.gpu else (128, 64, 512)
    device = "cuda" if machine.gpu else "cpu"
    inputs = [torch.randn(size, width, device=device, dtype=torch.bfloat16) for size in (rows, vocabulary)]
    targets = torch.randint(0, vocabulary, (rows,), device=device)

    def work() -> None:
        recompute.next_token_loss(*(one.detach().requires_grad_() for one in inputs), targets).backward()

    for at_once in (130, 512, 2048, rows):
        recompute.LOGITS_AT_ONCE = at_once * vocabulary
        machine.tell("loss", f"{at_once} rows", seconds=medians(machine, loss=work)["loss"], peak_gib=peak_gib(work))


def speed(machine: Machine, model: str, context: int, compiled: bool) -> None:
    """Tokens/s, MFU and HFU beside a plain loop of the same model, in turns."""
    rank = Rank(machine, train_config(machine, model, context))
    plain = plain_step(rank, compiled)
    if compiled:
        rank.engine.module.compile()
    seconds = medians(machine, ours=rank.step, plain=plain)
    usage, tokens = rank.overseer.utilisation, rank.config.tokens_per_step()
    figures: dict[str, Any] = {name: tokens / each for name, each in seconds.items()}
    figures |= {"mfu": usage.mfu(seconds["ours"]), "hfu": usage.hfu(seconds["ours"])}
    figures |= {"ratio": seconds["plain"] / seconds["ours"], "card": card("clocks.sm,power.draw,power.limit")}
    machine.tell("speed", f"{model}, {context} tokens{', compiled' if compiled else ''}", **figures)


def plain_step(rank: Rank, compiled: bool) -> Callable[[], float]:
    """Return a step of `transformers`' own model and loss, in bfloat16 with fused AdamW, on the same tokens."""
    described = TRANSFORMERS.AutoConfig.for_model(**rank.config.model.config)
    with rank.engine.device:
        network = TRANSFORMERS.AutoModelForCausalLM.from_config(described, dtype=torch.bfloat16)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-4, fused=True)
    run, tokens = torch.compile(network) if compiled else network, rank.batch[:, :-1]

    def step() -> float:
        result = run(input_ids=tokens, labels=tokens, use_cache=False).loss
        result.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return float(result.detach())

    return step


def saves(machine: Machine) -> None:
    """A save's stall and what the next ten steps lose, beside DCP's `async_save` with kept, pinned staging."""
    rank = Rank(machine, train_config(machine))
    committer, stager = rank.saving(), DefaultStager(StagingOptions(machine.gpu, False, machine.gpu, machine.gpu))

    def ours(number: int) -> Callable[[], Any]:
        committer.save(rank.engine, TrainingProgress(number, 0, 0, 1.0))
        return partial(committer.drain, replicate=False)

    def theirs(number: int) -> Callable[[], Any]:
        state = {"model": rank.engine.module.state_dict(), "optimizer": rank.engine.optimizer.state_dict()}
        answer: Any = dcp.async_save(state, checkpoint_id=str(machine.folder / "dcp"), async_stager=stager)
        return getattr(answer, "upload_completion", answer).result  # type: ignore[no-any-return]

    for number in range(1, 3 if machine.gpu else 2):
        for save in (ours, theirs):
            quiet = timed(partial(rank.steps, machine))
            begun = time.perf_counter()
            wait = save(number)
            stall = time.perf_counter() - begun
            dip = timed(partial(rank.steps, machine)) - quiet
            wait()
            durable = time.perf_counter() - begun
            machine.tell("saves", save.__name__, stall_s=stall, dip_s=dip, durable_s=durable)
    pinned = sum(one.nbytes for one in rank.engine.checkpoint_engine.buffers.values() if one.is_pinned())
    machine.tell("saves", "pinned buffers", gib=pinned / 2**30)


def evaluation(machine: Machine) -> None:
    """The held-out loss twice in this process, and against the process that computed it before."""
    rank = Rank(machine, train_config(machine, "1b-shallow", evaluate_batches=1))
    reader: Any = type("Reader", (), {"held_out": lambda self, sequences: rank.tokens.numpy()})()
    losses = [evaluation_loss(rank.engine.module, reader, rank.config, rank.engine.device) for _ in range(2)]
    before = [row["loss"] for row in machine.rows("evaluation")]
    machine.tell("evaluation", f"process {len(before) + 1}", loss=losses[0], equal=len({*losses, *before}) == 1)


def restart(machine: Machine) -> None:
    """From SIGKILL of a rank to the first new step in place, against a cold start."""
    world = in_place.world(machine.folder)
    world.config = world.config.model_copy(update={"model": DECODER})
    machine.tell("restart", "one rank", **in_place.pair(world, 1, nodes=1))


def documents(machine: Machine, mask: str) -> None:
    """Documents kept apart by a mask of all pairs and by FlexAttention, beside plain causal attention."""
    rank = Rank(machine, train_config(machine, "1b-shallow", 4096, documents=mask != "none"))
    if mask == "dense":
        rank.engine.module.network.set_attn_implementation("sdpa")
        rank.engine.module._blockwise = False
    machine.tell("documents", mask, seconds=medians(machine, step=rank.step)["step"], peak_gib=peak_gib(rank.step))


def memory(machine: Machine, stage: int, policy: str) -> None:
    """What was predicted for a rank, and what the allocator held at the most."""
    config = train_config(machine, zero_stage=stage, recompute={"policy": policy})
    predicted, rank = footprint(config, 1, overlaps=machine.gpu).peak / 2**30, Rank(machine, config)
    seen = max(peak_gib(rank.step) for _ in range(2))
    machine.tell("memory", f"stage {stage}, {policy}", predicted_gib=predicted, seen_gib=seen)


def description() -> dict[str, str]:
    packages = {"torch": torch, "transformers": TRANSFORMERS, "deepspeed": DEEPSPEED}
    versions = {name: str(module.__version__) for name, module in packages.items()}
    return versions | {"python": platform.python_version(), "card": card("name,driver_version")}


CASES: dict[str, list[tuple[Any, ...]]] = {
    "replays": [(backend,) for backend in BACKENDS],
    "speed": [(model, length, False) for model in ("1b", "1b-wide") for length in (2048, 4096)] + [("1b", 2048, True)],
    "documents": [("dense",), ("FlexAttention",), ("none",)],
    "memory": [(1, "none"), (1, "selective"), (1, "full"), (0, "full"), (2, "full"), (3, "full")],
}
"""Arguments of the measurements that have several."""
