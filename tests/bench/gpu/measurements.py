"""The measurements of `tests.bench.gpu`: each tells rows."""

from __future__ import annotations

import math
import os
import platform
import statistics
import time
import warnings
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, get_args

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from tests.bench import in_place
from tests.bench.gpu.machine import Machine
from tests.bench.gpu.update import update_parts
from tests.bench.saves import Bench
from trainer.builtin.checkpoint.convert.universal import convert, load_universal
from trainer.builtin.checkpoint.tiers import campaign_tiers
from trainer.builtin.data.feed import Fed
from trainer.builtin.engine import build_engine, import_deepspeed, initialize_distributed
from trainer.builtin.evaluation import evaluation_loss
from trainer.builtin.gang import Gang
from trainer.builtin.model import recompute
from trainer.builtin.model.memory import footprint
from trainer.builtin.model.named import NamedModel, import_transformers
from trainer.builtin.watch import replay
from trainer.builtin.watch.figures import Mine
from trainer.builtin.watch.overseer import Overseer
from trainer.contract import ModelConfig, TrainConfig

DEEPSPEED, TRANSFORMERS = import_deepspeed(), import_transformers()
_WIDE = {"vocab_size": 128256, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "head_dim": 64}
_1B = _WIDE | {"vocab_size": 32000, "intermediate_size": 5632, "num_hidden_layers": 22, "num_key_value_heads": 4}
_1B["tie_word_embeddings"] = False
_TINY = {"vocab_size": 512, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "head_dim": 2}
_8B = {"vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 4, "head_dim": 128}
_8B |= {"num_key_value_heads": 8, "tie_word_embeddings": False}
MODELS = {"1b": _1B, "1b-shallow": _1B | {"num_hidden_layers": 4}, "1b-wide": _WIDE | {"num_key_value_heads": 8}}
MODELS["8b-shallow"] = _8B
"""The catalogue's `1b`, a part of it, one with the vocabulary of Llama 3, and four of the layers of its 8B."""
DECODER = ModelConfig(layers=2, width=64, heads=4, context=64, vocabulary=512)
BACKENDS = (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION, None)
"""None: FlexAttention. The memory-efficient kernel has no key heads that are fewer than the others."""
MICRO_BATCH_TOKENS, H100_TFLOPS = 8192, 989.4


def train_config(
    machine: Machine,
    model: str = "1b",
    context: int = 2048,
    documents: bool = False,
    micro_batches: int = 1,
    **settings: Any,
) -> TrainConfig:
    """Return the configuration of one rank; without a GPU that of a tiny model of the same kind."""
    context, batch = (context, MICRO_BATCH_TOKENS // context) if machine.gpu else (64, 2)
    values = {"model_type": "llama", "num_attention_heads": 32, "max_position_embeddings": context, **MODELS[model]}
    values |= {} if machine.gpu else _TINY
    sizes: dict[str, Any] = {"context": context, "vocabulary": values["vocab_size"]}
    model_config = ModelConfig(name=model, config=values, document_attention=documents, **sizes)
    base = TrainConfig(campaign="bench", model=model_config, steps=1000, global_batch=batch, micro_batch=batch)
    settings["global_batch"] = batch * micro_batches
    settings = {"precision": "bfloat16", "collective_timeout_s": 600.0, "peak_bf16_tflops": H100_TFLOPS, **settings}
    return TrainConfig.model_validate(base.model_dump() | settings)


@contextmanager
def drawn_on_device() -> Iterator[None]:
    """Draw first weights where they lie: a CPU takes ten seconds for each billion, to have equal ones everywhere."""

    def initialize(model: NamedModel, gather: Callable[[torch.Tensor], Any]) -> None:
        model.renew_rotations()
        for parameter in model.parameters():
            with gather(parameter), torch.no_grad():
                parameter.normal_(std=0.02) if parameter.dim() > 1 else parameter.fill_(1.0)

    drawn = NamedModel.initialize
    NamedModel.initialize = initialize  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        NamedModel.initialize = drawn  # type: ignore[method-assign]


class Rank:
    """The only rank of a gang, with engine and overseer."""

    def __init__(self, machine: Machine, config: TrainConfig) -> None:
        if not torch.distributed.is_initialized():
            os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
            os.environ["MASTER_PORT"] = str(torch.distributed.TCPStore("127.0.0.1", 0, is_master=True).port)
            initialize_distributed(config)
        with drawn_on_device() if machine.gpu else nullcontext():
            self.config, self.engine = config, build_engine(config, 1)
        tiers = campaign_tiers(machine.folder, machine.folder, config.campaign)
        self.overseer = Overseer(config, Gang.join(timedelta(minutes=10)), self.engine, tiers.shared, 1)
        shape = (config.micro_batch, config.model.context + 1)
        self.tokens = torch.randint(0, config.model.vocabulary, shape, generator=torch.Generator().manual_seed(1))
        self.batch = self.tokens.to(self.engine.device)

    def __enter__(self) -> Rank:
        return self

    def __exit__(self, *_: object) -> None:
        """Give the memory back: the engine's hooks hold it in circles of their own."""
        self.engine.destroy()

    def step(self) -> Mine:
        """Compute a step as the loop does; it ends when the device has ended."""
        return self.overseer.compute(Fed(0, (self.tokens.numpy(),) * self.engine.gradient_accumulation_steps(), 0))


def timed(work: Callable[[], Any]) -> float:
    synchronize: Callable[[], Any] = torch.cuda.synchronize if torch.cuda.is_available() else lambda: None
    synchronize()
    start = time.perf_counter()
    work()
    synchronize()
    return time.perf_counter() - start


def medians(machine: Machine, turns: int = 20, **works: Callable[[], Any]) -> dict[str, float]:
    """Return the median seconds of `turns` turns of each work, after 3 warm ones; without a GPU of one, after one."""
    warm, turns = (3, turns) if machine.gpu else (1, 1)
    rounds = [{name: timed(work) for name, work in works.items()} for _ in range(warm + turns)]
    return {name: statistics.median(seconds[name] for seconds in rounds[warm:]) for name in works}


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
    with Rank(machine, train_config(machine, zero_stage=3).model_copy(update={"model": DECODER})) as rank:
        machine.tell("zero_3", "small decoder, a step", loss=rank.step().loss)


def reshaped(machine: Machine) -> None:
    """A step after a checkpoint in the universal format: fused AdamW needs its step count on the device."""
    with Rank(machine, train_config(machine).model_copy(update={"model": DECODER})) as rank:
        rank.step()
        rank.engine.save_checkpoint(str(machine.folder), tag="saved")
        convert(machine.folder / "saved", machine.folder / "universal" / "saved")
        load_universal(rank.engine, machine.folder / "universal" / "saved")
        machine.tell("reshaped", "a step", loss=rank.step().loss)


def replays(machine: Machine, backend: SDPBackend | None) -> None:
    """Two runs of a micro batch: are bits equal, how far are gradients apart, and what does determinism cost?"""
    config = train_config(machine, "1b-shallow", documents=backend is None, watch={"replay_every": 1})
    with Rank(machine, config) as rank, sdpa_kernel(backend) if backend else nullcontext():
        # cuDNN's attention has no deterministic backward pass.
        for kernels in get_args(replay.Kernels)[int(backend == SDPBackend.CUDNN_ATTENTION) :]:
            run = partial(replay.compute, rank.engine, rank.batch, False, kernels)
            digests = run()
            figures = {"seconds": timed(run), "peak_gib": peak_gib(run), "refusal": digests.refusal}
            first, again = digests.sketches if kernels == "training" else ([digests.first], [digests.again])
            apart = math.dist(first, again) / math.hypot(*first) if kernels == "training" else None
            case = f"{backend.name if backend else 'FlexAttention'}, {kernels}"
            machine.tell("replays", case, equal=first == again, apart=apart, **figures)


def steps(machine: Machine, model: str, context: int, mask: str, stage: int = 1, policy: str = "none") -> None:
    """Where a step's time goes, how often it waits for the device, and its memory beside the prediction."""
    settings: dict[str, Any] = {"documents": mask != "causal", "zero_stage": stage, "recompute": {"policy": policy}}
    split = list[dict[str, float]]()
    with Rank(machine, train_config(machine, model, context, **settings)) as rank:
        if mask == "dense":
            rank.engine.module.network.set_attn_implementation("sdpa")
            rank.engine.module._blockwise = False
        step_s = medians(machine, step=lambda: split.append(rank.step().parts))["step"]
        figures = {name: statistics.median(parts[name] for parts in split) for name in split[-1]}
        figures |= {"seconds": step_s, "gap": step_s - sum(figures.values()), "peak_gib": peak_gib(rank.step)}
        figures["predicted_gib"] = footprint(rank.config, 1, overlaps=machine.gpu).peak / 2**30
        figures["waits"] = waits(machine, rank.step)
        figures |= update_parts(rank.engine, rank.step)
    machine.tell("steps", f"{model} {context} {mask}, ZeRO {stage}, {policy}", **figures)


def waits(machine: Machine, work: Callable[[], Any]) -> int:
    """Return how often `work` waits for the GPU; 0 without one."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if machine.gpu:
            torch.cuda.set_sync_debug_mode("warn")
        work()
        if machine.gpu:
            torch.cuda.set_sync_debug_mode("default")
    return sum("synchroniz" in str(warning.message) for warning in caught)


def loss(machine: Machine) -> None:
    """The loss and its gradients alone by rows at once, and the error of the weight's gradient from one in float32."""
    rows, width, vocabulary = (MICRO_BATCH_TOKENS, 2048, 128256) if machine.gpu else (1024, 64, 512)
    device = "cuda" if machine.gpu else "cpu"
    inputs = [torch.randn(size, width, device=device, dtype=torch.bfloat16) / 8 for size in (rows, vocabulary)]
    targets = torch.randint(0, vocabulary, (rows,), device=device)

    def gradient(kind: torch.dtype = torch.bfloat16) -> torch.Tensor:
        hidden, weight = (tensor.to(kind).requires_grad_() for tensor in inputs)
        return torch.autograd.grad(recompute.next_token_loss(hidden, weight, targets), weight)[0].float()

    exact = gradient(torch.float32)
    for at_once in (rows, 130, 512, 2048):
        recompute.LEAST_ROWS, recompute.LOGITS_AT_ONCE = 1, at_once * vocabulary
        error = float(torch.dist(gradient(), exact) / exact.norm())
        seconds = medians(machine, loss=gradient)["loss"]
        machine.tell("loss", f"{at_once} rows", seconds=seconds, peak_gib=peak_gib(gradient), gradient_error=error)


def speed(machine: Machine, model: str, context: int, compiled: str = "none", policy: str = "none") -> None:
    """Tokens/s, MFU and HFU of steps of four micro batches, beside a plain loop of the same model, in turns.

    The loop computes nothing again, so it stands beside `policy` `none` alone.
    """
    config = train_config(machine, model, context, micro_batches=4, compile=compiled, recompute={"policy": policy})
    with Rank(machine, config) as rank:
        works: dict[str, Callable[[], Any]] = {"ours": rank.step}
        if policy == "none":
            works["plain"] = plain_step(rank)
        seconds = medians(machine, 7, **works)
        usage, tokens = rank.overseer.utilisation, rank.config.tokens_per_step()
        figures: dict[str, Any] = {name: tokens / median for name, median in seconds.items()}
        figures |= {"mfu": usage.mfu(seconds["ours"]), "hfu": usage.hfu(seconds["ours"])}
        if policy == "none":
            figures["ratio"] = seconds["plain"] / seconds["ours"]
        figures |= {"peak_gib": peak_gib(rank.step), "card": card("clocks.sm,power.draw,power.limit")}
        case = f"{model}, {context} tokens, compile: {compiled}, {policy}"
        machine.tell("speed", case, **figures)
        if machine.profiles is not None:
            profile(machine.profiles / f"{case.replace(', ', '-').replace(' ', '-').replace(':', '')}.txt", rank.step)


def profile(path: Path, work: Callable[[], Any]) -> None:
    """Write what took the device's time, and the host's, during `work`."""
    with torch.profiler.profile() as profiler:
        timed(work)
    keys = ("self_device_time_total", "self_cpu_time_total") if torch.cuda.is_available() else ("self_cpu_time_total",)
    tables = [profiler.key_averages().table(sort_by=key, row_limit=40, max_name_column_width=90) for key in keys]
    path.write_text("\n".join(tables))


def plain_step(rank: Rank) -> Callable[[], float]:
    """Return a step of `transformers`' own model and loss, in bfloat16 with fused AdamW, on the same tokens.

    Its AdamW keeps its moments in bfloat16 and no weights in float32: less work than ours, and less exact.
    """
    model_config = TRANSFORMERS.AutoConfig.for_model(**rank.config.model.config)
    with rank.engine.device:
        network = TRANSFORMERS.AutoModelForCausalLM.from_config(model_config, dtype=torch.bfloat16)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-4, fused=True)
    tokens, micro_batches = rank.batch[:, :-1], rank.engine.gradient_accumulation_steps()

    def step() -> float:
        for _ in range(micro_batches):
            result = network(input_ids=tokens, labels=tokens, use_cache=False).loss / micro_batches
            result.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return float(result.detach())

    return step


def saves(machine: Machine) -> None:
    """A save's stall, and what the steps beside it lose, beside DCP's `async_save` with kept, pinned staging."""
    bench = Bench(Namespace(width=1008 if machine.gpu else 48, layers=24 if machine.gpu else 1), machine.folder)
    for name, save in [("ours", bench.bivouac), ("DCP", bench.async_save_cached)] * (2 if machine.gpu else 1):
        machine.tell("saves", name, **bench.round(save))
    pinned_bytes = sum(buffer.nbytes for buffer in bench.ours.buffers.values() if buffer.is_pinned())
    machine.tell("saves", "pinned buffers", gib=pinned_bytes / 2**30)


def evaluation(machine: Machine) -> None:
    """The held-out loss twice in this process, and against the process that computed it before."""
    with Rank(machine, train_config(machine, "1b-shallow", evaluate_batches=1)) as rank:
        reader: Any = type("Reader", (), {"held_out": lambda self, sequences: rank.tokens.numpy()})()
        losses = [evaluation_loss(rank.engine.module, reader, rank.config, rank.engine.device) for _ in range(2)]
    earlier = [row["loss"] for row in machine.rows() if row["measurement"] == "evaluation"]
    machine.tell("evaluation", f"process {len(earlier) + 1}", loss=losses[0], equal=len({*losses, *earlier}) == 1)


def restart(machine: Machine) -> None:
    """From SIGKILL of a rank to the first new step in place, against a cold start."""
    world = in_place.world(machine.folder)
    world.config = world.config.model_copy(update={"model": DECODER})
    machine.tell("restart", "one rank", **in_place.pair(world, 1, nodes=1))


def description() -> dict[str, str]:
    packages = {"torch": torch, "transformers": TRANSFORMERS, "deepspeed": DEEPSPEED}
    versions = {name: str(module.__version__) for name, module in packages.items()}
    return versions | {"python": platform.python_version(), "card": card("name,driver_version")}


_LEAN = ((1, "none"), (1, "selective"), (1, "full"), (0, "full"), (2, "full"), (3, "full"))
CASES: dict[str, list[tuple[Any, ...]]] = {
    "replays": [(backend,) for backend in BACKENDS],
    "speed": [
        *[("1b", 2048, compiled) for compiled in ("none", "layers")],
        *[("8b-shallow", 4096, compiled) for compiled in ("none", "layers")],
        *[("8b-shallow", 4096, compiled, "selective") for compiled in ("none", "layers")],
        ("1b-wide", 4096, "layers"),
    ],
    "steps": [("1b-shallow", 4096, mask) for mask in ("FlexAttention", "dense", "causal")]
    + [("1b", 2048, "causal", stage, policy) for stage, policy in _LEAN],
}
"""Arguments of the measurements that have several."""
