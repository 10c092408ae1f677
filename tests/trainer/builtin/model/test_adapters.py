"""Adapters alone are trained, as `peft` with a plain loop trains them; they resume, reshape and go out merged."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file

from tests.trainer.agents import Attempt, World, run
from tests.trainer.builtin.checkpoint.convert.test_named_export import hugging_face, ours
from tests.trainer.builtin.model.test_layouts import HALF, LAST, halfway
from tests.trainer.test_zero_stages import folder_of, manifest_of
from trainer.builtin.checkpoint.convert.export import export
from trainer.builtin.checkpoint.convert.weights import load_weights
from trainer.builtin.data.reader import Reader, load_manifest
from trainer.builtin.evaluate import evaluate
from trainer.builtin.model import NamedModel, build
from trainer.client.bivouac_data.reader import folder_opener
from trainer.contract import (
    ExitCode,
    GradientConfig,
    LoraConfig,
    OptimizerConfig,
    ParallelConfig,
    RecomputeConfig,
    TrainConfig,
)

RATE = 2e-3
LORA = LoraConfig(rank=4, alpha=8)
LOSS = {"float32": 2e-5, "bfloat16": 2e-3}
"""Largest relative difference of a loss from the plain loop's, which computes in float32."""
LOGITS = {"float32": 1e-5, "bfloat16": 0.1}
"""Largest difference of logits, which reach 4, between the trained model and its export: in bfloat16 each sum of weight
and adapter is rounded to 8 bits."""


@dataclass(frozen=True)
class Form:
    stage: int
    precision: str = "float32"
    lora: LoraConfig = LORA
    beside: tuple[tuple[str, Any], ...] = ()
    """Other settings of the training."""

    def __str__(self) -> str:
        more = ["dropout"] if self.lora.dropout else [name for name, _ in self.beside]
        return "-".join([f"zero{self.stage}", self.precision, *more])


FEW = LORA.model_copy(update={"dropout": 0.2, "targets": ("q_proj", "v_proj")})
FORMS = [
    Form(3),
    *(
        pytest.param(form, marks=pytest.mark.nightly)
        for form in (
            *(Form(stage) for stage in (0, 1, 2)),
            *(Form(stage, "bfloat16") for stage in (0, 1, 2, 3)),
            Form(1, lora=FEW),
            Form(3, "bfloat16", FEW),
            Form(1, beside=(("parallel", ParallelConfig(sequence=2)),)),
            Form(3, beside=(("parallel", ParallelConfig(sequence=2)),)),
            Form(2, "bfloat16", beside=(("gradients", GradientConfig(accumulate="float32", reduce="float32")),)),
            Form(1, beside=(("recompute", RecomputeConfig(policy="full")),)),
        )
    ),
]


@dataclass(frozen=True)
class Trained:
    form: Form
    attempt: Attempt
    came: Path
    """The weights that it started from."""

    @property
    def config(self) -> TrainConfig:
        return self.attempt.world.config


@pytest.fixture(scope="module", params=FORMS, ids=str)
def whole(
    request: pytest.FixtureRequest, config: TrainConfig, data: Path, tmp_path_factory: pytest.TempPathFactory
) -> Trained:
    """Two undisturbed ranks, with a save in the middle."""
    form, root = request.param, tmp_path_factory.mktemp("whole")
    _, came = hugging_face("llama", root / "in")
    saving = config.checkpoint.model_copy(update={"every_steps": HALF})
    rate = OptimizerConfig(learning_rate=RATE, minimum_learning_rate=RATE, warmup_steps=0, clip=1e6)
    own = {"zero_stage": form.stage, "precision": form.precision, "init_from": str(came), "optimizer": rate}
    length = {"steps": LAST, "checkpoint": saving, "evaluate_every": HALF, "collective_timeout_s": 300}
    own |= dict(form.beside)
    model = ours("llama").model_copy(update={"lora": form.lora})
    config = config.model_copy(update={"model": model, **own, **length})
    attempt = run(World(root / "world", data, config), 1, nodes=1, ranks_per_node=2)
    assert attempt.agents[0].returncode == 0, attempt.log(0).read_text()
    return Trained(form, attempt, came)


def plain_loop(trained: Trained) -> tuple[list[float], Any]:
    """Losses and model of `peft` and torch's AdamW in one process, over whole batches in float32."""
    import peft  # takes a second and a half, which every worker of a run would pay for while it collects

    config, data = trained.config, trained.attempt.world.data
    reader = Reader(
        load_manifest(data, config.data.manifest_digest), folder_opener(data), config.model.context, config.data.seed
    )
    base = transformers.AutoModelForCausalLM.from_pretrained(trained.came, dtype=torch.float32)
    targets: Any = LORA.targets if trained.form.lora.targets == "all-linear" else list(trained.form.lora.targets)
    torch.manual_seed(config.seed)
    model = peft.get_peft_model(base, peft.LoraConfig(r=4, lora_alpha=8, target_modules=targets, bias="none"))
    optimizer = torch.optim.AdamW(
        [parameter for parameter in model.parameters() if parameter.requires_grad],
        lr=RATE,
        betas=(0.9, 0.95),
        weight_decay=0.1,
    )
    losses = []
    for step in range(LAST):
        rows = torch.tensor(reader.stored(range(step * config.global_batch, (step + 1) * config.global_batch)).tolist())
        scores = model(input_ids=rows[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(scores.flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses, model


def weights_of(trained: Trained) -> dict[str, torch.Tensor]:
    folder = folder_of(trained.attempt.world, LAST)
    return load_weights(folder, manifest_of(trained.attempt.world, LAST), trained.config.model)


def test_a_dozen_steps_have_the_losses_of_peft_with_a_plain_loop(whole: Trained) -> None:
    wanted, model = plain_loop(whole)
    losses = whole.attempt.losses()
    seen = [losses[step] for step in range(1, LAST + 1)]
    if whole.form.lora.dropout:
        assert seen[0] == pytest.approx(wanted[0], rel=LOSS["bfloat16"]), (
            "B is 0, so nothing that is dropped counts yet"
        )
        assert seen[1:] != pytest.approx(wanted[1:], rel=1e-6)
        return
    assert seen == pytest.approx(wanted, rel=LOSS[whole.form.precision])
    assert min(losses[step] for step in range(HALF, LAST)) < losses[1]
    if whole.form.precision == "float32":
        theirs = {name: one for name, one in model.state_dict().items() if ".lora_" in name}
        mine = {f"base_model.model.{name.removeprefix('network.')}": one for name, one in weights_of(whole).items()}
        assert len(theirs) == 2 * 7 * 2
        for name, tensor in theirs.items():
            assert torch.allclose(mine[name], tensor, rtol=0, atol=2e-4), name


def test_the_weights_that_came_are_kept_bit_for_bit(whole: Trained) -> None:
    came = load_file(whole.came / "model.safetensors")
    frozen = {
        name.removeprefix("network.").replace(".base_layer", ""): one
        for name, one in weights_of(whole).items()
        if ".lora_" not in name
    }
    assert frozen.keys() == came.keys()
    assert all(torch.equal(one, came[name].to(one.dtype)) for name, one in frozen.items())


def test_the_optimizer_and_the_files_hold_states_of_adapters_alone(whole: Trained) -> None:
    manifest = manifest_of(whole.attempt.world, LAST)
    sizes = {shard.file.rpartition("/")[2]: shard.size_bytes for shard in manifest.shards}
    trained = sum(one.numel() for name, one in weights_of(whole).items() if ".lora_" in name)
    weights = sum(weight.nbytes for weight in weights_of(whole).values())
    states = sum(size for name, size in sizes.items() if "optim_states" in name)
    models = sum(size for name, size in sizes.items() if "model_states" in name)
    frozen = {name: size for name, size in sizes.items() if name.startswith("frozen_")}
    if whole.form.stage:
        assert 12 * trained <= states < 12 * trained + 60_000
        assert weights <= models + sum(frozen.values()) < 1.1 * weights + 400_000
    adapters = sum(one.nbytes for name, one in weights_of(whole).items() if ".lora_" in name)
    assert models < 1.1 * adapters + 200_000 * len(frozen), "the states hold what trains"
    first, last = (folder_of(whole.attempt.world, step) / "attempt-0001" for step in (HALF, LAST))
    assert frozen and all((first / name).samefile(last / name) for name in frozen), "one file for both steps"


def test_the_archived_checkpoint_evaluates_as_recorded_and_goes_out_merged(whole: Trained, tmp_path: Path) -> None:
    import peft

    config, world = whole.config, whole.attempt.world
    answer = evaluate(folder_of(world, LAST), config, world.data)
    assert answer["equal"] and answer["recorded"] is not None, answer

    files = export(folder_of(world, LAST), config, world.data, out := tmp_path / "out")
    assert {"adapter/adapter_model.safetensors", "adapter/adapter_config.json", "model.safetensors"} <= set(files)
    model = build(config.model).eval()
    model.load_state_dict(weights_of(whole))
    assert isinstance(model, NamedModel)
    tokens = torch.randint(0, 512, (2, 32), generator=torch.Generator().manual_seed(1))
    kind = torch.float32 if whole.form.precision == "float32" else torch.bfloat16
    merged = transformers.AutoModelForCausalLM.from_pretrained(out, dtype=kind).eval()
    base = transformers.AutoModelForCausalLM.from_pretrained(whole.came, dtype=kind).eval()
    with torch.no_grad():
        trained = model.to(kind).logits(tokens).float()
        untrained = base(tokens).logits.float()
        theirs = peft.PeftModel.from_pretrained(base, str(out / "adapter")).eval()
        beside = theirs(tokens).logits.float()
        tolerance = LOGITS[whole.form.precision]
        torch.testing.assert_close(merged(tokens).logits.float(), trained, rtol=0, atol=tolerance)
        torch.testing.assert_close(beside, trained, rtol=0, atol=tolerance)
    assert (untrained - trained).abs().max() > 2 * tolerance
    wanted, found = theirs.float().merge_and_unload().state_dict(), merged.state_dict()
    assert wanted.keys() == found.keys()
    rounding = 1e-6 if kind == torch.float32 else 2**-8
    for name, tensor in found.items():
        torch.testing.assert_close(tensor.float(), wanted[name], rtol=rounding, atol=1e-7)


@pytest.mark.nightly
def test_a_resume_ends_with_the_same_bytes(whole: Trained, tmp_path: Path) -> None:
    world = halfway(whole.attempt, tmp_path / "world", whole.config)
    second = run(world, 2, nodes=1, ranks_per_node=2)
    assert second.agents[0].returncode == 0, second.log(0).read_text()
    assert second.events("restored")[0]["step"] == HALF
    assert second.losses() == {step: loss for step, loss in whole.attempt.losses().items() if step > HALF}
    digests = [
        {shard.file.rpartition("/")[2]: shard.sha256 for shard in manifest_of(each, LAST).shards}
        for each in (whole.attempt.world, world)
    ]
    assert digests[0] == digests[1]


@pytest.mark.nightly
def test_one_rank_goes_on_where_two_have_stopped(whole: Trained, tmp_path: Path) -> None:
    config = whole.config.model_copy(update={"parallel": ParallelConfig()})
    world = halfway(whole.attempt, tmp_path / "world", config)
    alone = run(world, 2, nodes=1, ranks_per_node=1)
    if whole.form.stage == 0:
        assert alone.agents[0].returncode == ExitCode.USER
        return
    assert alone.agents[0].returncode == 0, alone.log(0).read_text()
    assert [(event["from_ranks"], event["to_ranks"]) for event in alone.events("reshaped")] == [(2, 1)]
    expected = {step: loss for step, loss in whole.attempt.losses().items() if step > HALF}
    relative = 2e-2 if whole.form.lora.dropout else LOSS[whole.form.precision]
    assert alone.losses() == pytest.approx(expected, rel=relative)
    answer = evaluate(folder_of(world, LAST), config, world.data)
    assert answer["equal"], answer
