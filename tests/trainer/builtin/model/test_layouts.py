"""Each layout trains, saves, is reshaped and exported as one process would: real agents, on one node or two."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.trainer.agents import Attempt, World, run
from tests.trainer.test_zero_stages import folder_of, manifest_of
from trainer.builtin.checkpoint.convert.export import export
from trainer.builtin.evaluate import evaluate
from trainer.contract import ExitCode, Layout, ModelConfig, ParallelConfig, TrainConfig

LAST = 12
HALF = LAST // 2
LOSS = {"float32": 1e-5, "bfloat16": 1e-3}
"""Largest relative difference of a loss from one process's."""
WEIGHT = {"float32": 2e-4, "bfloat16": 2e-2}
"""Largest difference of a weight after 20 steps of Adam at a rate of 2e-3, which enlarges the last bit of small
gradients: a lost or foreign tensor differs by its whole size."""


@dataclass(frozen=True)
class Form:
    """A layout to be held against one process."""

    ranks: int
    tensor: int = 1
    sequence: int = 1
    stage: int = 1
    precision: str = "float32"
    model: str = ""
    nodes: int = 1

    def __str__(self) -> str:
        parts = Layout(self.ranks, self.tensor, self.sequence).parts().replace(" ", "")
        nodes = f"-{self.nodes}nodes" if self.nodes > 1 else ""
        return f"{self.model or 'decoder'}-{parts}-zero{self.stage}-{self.precision}{nodes}"

    def config(self, config: TrainConfig) -> TrainConfig:
        saving = config.checkpoint.model_copy(update={"every_steps": HALF})
        model = config.model if not self.model else named(self.model)
        parallel = ParallelConfig(tensor=self.tensor, sequence=self.sequence)
        own = {"zero_stage": self.stage, "precision": self.precision, "parallel": parallel, "model": model}
        return config.model_copy(update={"steps": LAST, "checkpoint": saving, "evaluate_every": HALF, **own})


def named(kind: str) -> ModelConfig:
    """A small model of `transformers` with grouped queries."""
    values = {
        "model_type": kind, "vocab_size": 512, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 128,
        "tie_word_embeddings": kind != "qwen2",
    }  # fmt: skip
    return ModelConfig(name=kind, config=values, layers=2, width=64, heads=4, context=64, vocabulary=512)


def started(world: World, number: int, form: Form) -> Attempt:
    return run(world, number, nodes=form.nodes, ranks_per_node=form.ranks // form.nodes)


def done(attempt: Attempt) -> Attempt:
    codes = [agent.returncode for agent in attempt.agents]
    assert codes == [0] * attempt.nodes, attempt.log(0).read_text()
    return attempt


def trained(form: Form, root: Path, data: Path, config: TrainConfig) -> Attempt:
    return done(started(World(root, data, form.config(config)), 1, form))


FORMS = [
    Form(2, tensor=2, model="qwen3"),
    Form(2, sequence=2, stage=3, model="llama"),
    *(
        pytest.param(form, marks=pytest.mark.nightly)
        for form in (
            Form(2, tensor=2),
            Form(2, tensor=2, model="llama", precision="bfloat16"),
            Form(2, sequence=2, stage=3, precision="bfloat16"),
            Form(4, tensor=2, stage=2, model="qwen2"),
            Form(4, tensor=4, stage=2),
            Form(2, sequence=2, stage=0, model="qwen3"),
            Form(4, sequence=2),
            Form(4, sequence=2, stage=2, model="qwen2"),
            Form(4, tensor=2, nodes=2),
            Form(4, sequence=4, stage=3, nodes=2),
            *(Form(2, stage=stage) for stage in (0, 1, 2, 3)),
        )
    ),
]


@pytest.fixture(scope="module", params=FORMS, ids=str)
def whole(
    request: pytest.FixtureRequest, config: TrainConfig, data: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Form, Attempt, Attempt]:
    """A layout, its undisturbed training, and that of one process."""
    form: Form = request.param
    alone = trained(
        Form(1, stage=max(form.stage, 1), precision=form.precision, model=form.model),
        tmp_path_factory.mktemp("one"),
        data,
        config,
    )
    return form, trained(form, tmp_path_factory.mktemp("whole"), data, config), alone


def exported(attempt: Attempt, out: Path) -> dict[str, torch.Tensor]:
    world = attempt.world
    export(folder_of(world, LAST), world.config, world.data, out)
    return load_file(out / "model.safetensors")


def test_a_dozen_steps_have_the_losses_of_one_process_and_count_each_sequence_once(
    whole: tuple[Form, Attempt, Attempt],
) -> None:
    form, many, one = whole
    assert many.losses() == pytest.approx(one.losses(), rel=LOSS[form.precision])
    assert len(many.losses()) == LAST
    norms = [{event["step"]: event["norm"] for event in attempt.events("step")} for attempt in (many, one)]
    if form.stage:
        assert norms[0] == pytest.approx(norms[1], rel=1e-3 if form.precision == "float32" else 5e-2)
    samples = [[event["samples"] for event in attempt.events("step")] for attempt in (many, one)]
    assert samples[0] == samples[1], "the step's digest of all sequences"
    chains = [manifest_of(attempt.world, LAST).consumed[-1].chain for attempt in (many, one)]
    assert chains[0] == chains[1], "the ledger's last link"
    assert [event["position"] for event in many.events("restored")] == []
    losses = [[event["loss"] for event in attempt.events("evaluated")] for attempt in (many, one)]
    assert losses[0] == pytest.approx(losses[1], rel=LOSS[form.precision])


def test_the_watch_reads_the_same_figures(whole: tuple[Form, Attempt, Attempt]) -> None:
    form, many, one = whole
    if form.stage in (0, 3):
        return  # DeepSpeed shows no gradients by layer without ZeRO; with stage 3 the same, tested elsewhere
    layers = [attempt.events("step")[-1]["layers"] for attempt in (many, one)]
    assert layers[0] and layers[0] == pytest.approx(layers[1], rel=1e-2 if form.precision == "float32" else 0.2)


def test_the_manifest_has_the_layout_and_every_part(whole: tuple[Form, Attempt, Attempt]) -> None:
    form, many, _ = whole
    manifest = manifest_of(many.world, LAST)
    assert manifest.layout == Layout(form.ranks, form.tensor, form.sequence)
    names = {shard.file.rpartition("/")[2] for shard in manifest.shards}
    if form.stage < 3:
        assert {name for name in names if name.startswith("mp_rank_")} == {
            f"mp_rank_{rank:02d}_model_states.pt" for rank in range(form.tensor)
        }
    if form.stage:
        assert len([name for name in names if "optim_states" in name]) == form.ranks


def test_every_exported_weight_is_that_of_one_process(whole: tuple[Form, Attempt, Attempt], tmp_path: Path) -> None:
    form, many, one = whole
    same_weights(many, one, form.precision, tmp_path)


def test_one_process_evaluates_the_checkpoint_as_the_ranks_did(whole: tuple[Form, Attempt, Attempt]) -> None:
    form, many, _ = whole
    answer = evaluate(folder_of(many.world, LAST), many.world.config, many.world.data)
    assert answer["equal"], answer
    assert answer["evaluation_loss"] == pytest.approx(answer["recorded"], rel=LOSS[form.precision])


def halfway(many: Attempt, root: Path, config: TrainConfig) -> World:
    """The world as it was before the last step was saved."""
    world = many.world.copy(root, config)
    for tier in (world.shared, *(world.local(node) for node in range(many.nodes))):
        shutil.rmtree(tier / "tiny" / f"step-{LAST:08d}")
    return world


@pytest.mark.nightly
def test_a_resume_ends_with_the_same_bytes(whole: tuple[Form, Attempt, Attempt], tmp_path: Path) -> None:
    form, many, _ = whole
    world = halfway(many, tmp_path / "world", many.world.config)
    second = done(started(world, 2, form))
    assert second.events("restored")[0]["step"] == HALF
    assert second.losses() == {step: loss for step, loss in many.losses().items() if step > HALF}
    digests = [
        {shard.file.rpartition("/")[2]: shard.sha256 for shard in manifest_of(each, LAST).shards}
        for each in (many.world, world)
    ]
    assert digests[0] == digests[1]


@pytest.mark.nightly
@pytest.mark.parametrize(
    "other", [Form(1), Form(2), Form(2, tensor=2), Form(4, tensor=2), Form(2, sequence=2)], ids=str
)
def test_another_layout_goes_on_as_one_process(
    whole: tuple[Form, Attempt, Attempt], other: Form, tmp_path: Path
) -> None:
    form, many, one = whole
    if other.tensor > 1 and form.stage not in (1, 2):
        return
    goal = Form(other.ranks, other.tensor, other.sequence, form.stage, form.precision, form.model).config(
        many.world.config
    )
    world = halfway(many, tmp_path / "world", goal)
    resized = started(world, 2, other)
    before, after = Layout(form.ranks, form.tensor, form.sequence), Layout(other.ranks, other.tensor, other.sequence)
    if form.stage == 0 and before.shards != after.shards:
        assert resized.agents[0].returncode == ExitCode.USER
        return
    done(resized)
    told = [(event["from_layout"], event["to_layout"]) for event in resized.events("reshaped")]
    assert told == ([] if before.shards == after.shards else [(before.parts(), after.parts())])
    ends_as(resized, one, form.precision, tmp_path)


@pytest.mark.nightly
def test_what_one_process_saved_the_layout_goes_on_with(whole: tuple[Form, Attempt, Attempt], tmp_path: Path) -> None:
    form, many, one = whole
    if form.stage == 0:
        return  # one process is trained with stage 1
    attempt = done(started(halfway(one, tmp_path / "world", many.world.config), 2, form))
    after = Layout(form.ranks, form.tensor, form.sequence).parts()
    assert [(event["from_layout"], event["to_layout"]) for event in attempt.events("reshaped")] == [("1 data", after)]
    ends_as(attempt, one, form.precision, tmp_path)


def ends_as(resized: Attempt, one: Attempt, precision: str, folder: Path) -> None:
    """Compare the second half of a training with that of one process: losses, evaluation, and each weight."""
    expected = {step: loss for step, loss in one.losses().items() if step > HALF}
    assert resized.losses() == pytest.approx(expected, rel=LOSS[precision])
    ends = [manifest_of(each.world, LAST).evaluation_loss for each in (resized, one)]
    assert ends[0] == pytest.approx(ends[1], rel=LOSS[precision])
    same_weights(resized, one, precision, folder)


def same_weights(many: Attempt, one: Attempt, precision: str, folder: Path) -> None:
    theirs, ours = exported(many, folder / "many"), exported(one, folder / "one")
    assert theirs.keys() == ours.keys()
    for name, tensor in ours.items():
        assert theirs[name].shape == tensor.shape
        differ = (theirs[name] - tensor).abs().max()
        assert torch.allclose(theirs[name], tensor, rtol=0, atol=WEIGHT[precision]), (name, differ)
