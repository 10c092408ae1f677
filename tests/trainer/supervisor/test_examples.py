"""The example jobs under two supervisors each: one node is killed, and the loss does not show it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.spec.workload.workload import Workload
from tests.root import ROOT
from tests.unit.trainer.supervised import Supervisors, events, kill_node, stat_parent
from tests.waiting import HUNG_S, until
from trainer.contract import ExitCode
from trainer.contract.workload import Judgement
from trainer.supervisor import seal
from trainer.supervisor.pack import pack

pytestmark = pytest.mark.nightly
"""A run imports torch a dozen times; the supervisor's own tests, which need no torch, are quick."""
STEPS, EVERY = 30, 10
CLIENT = {"PYTHONPATH": str(ROOT / "trainer/client")}
"""In a pod it lies beside the supervisor."""


def losses(said: str) -> dict[int, float]:
    """Return the losses that the supervisor heard of, by line or by client; each step is told once."""
    steps = events(said, "step")
    assert len({step["step"] for step in steps}) == len(steps)
    return {step["step"]: step["loss"] for step in steps}


def run(
    camp: Supervisors, attempt: int, seconds: float, steps: int = STEPS, local: bool = False
) -> list[subprocess.Popen[str]]:
    """`local`: the job writes to its nodes' own disks."""
    first = ("python3", "train.py") if camp.launcher == "mpirun" else ("train.py",)
    words, started = (*first, str(steps), str(seconds)), []
    for rank in range(camp.nodes):
        if local:
            folder = str(camp.root / f"node-{rank}/local/tiny/own")
            kept = {"format": camp.format, "folder": folder, "tier": "local", "keep": 2, "keep_local": 2}
            camp.more = {**camp.more, "checkpoints": kept}
        started.append(camp.start(attempt, *words, steps=steps, rank=rank, env=CLIENT))
    return started


def example(name: str, root: Path, nodes: int = 2) -> Supervisors:
    """Return supervisors of an example as its spec has it."""
    folder = ROOT / "trainer/examples" / name
    workload = yaml.safe_load((folder / "rehearsal.yaml").read_text())["workload"]
    more = {"progress": workload.get("progress", {}).get("by")}
    root.mkdir()
    return Supervisors(
        root,
        nodes=nodes,
        launcher=workload.get("launcher", "torchrun"),
        folder=folder,
        format=workload["checkpoints"]["format"],
        more=more,
    )


def children_of(parent: int) -> list[int]:
    return [int(one) for one in os.listdir("/proc") if one.isdigit() and stat_parent(int(one)) == parent]


def nightly(*names: str) -> list[Any]:
    return [pytest.param(name, marks=pytest.mark.nightly) for name in names]


@pytest.mark.parametrize(
    "name", ["ddp", *nightly("fsdp", "deepspeed", "huggingface", "accelerate", "lightning", "megatron", "mpi")]
)
def test_neither_a_lost_node_nor_a_damaged_checkpoint_shows_in_the_loss(name: str, tmp_path: Path) -> None:
    twin, struck = example(name, tmp_path / "twin"), example(name, tmp_path / "struck")
    undisturbed = run(twin, 1, 0.0)
    whole = losses(undisturbed[0].communicate()[0])
    assert [process.wait() for process in undisturbed] == [0, 0] and list(whole) == list(range(1, STEPS + 1))

    first = run(struck, 1, 0.1)
    until(lambda: seal.committed(struck.tier), "a checkpoint is sealed")
    kill_node(first[1])
    for process in first:
        process.terminate()
    before = losses(first[0].communicate()[0])
    assert first[0].returncode == ExitCode.INTERRUPTED and max(before) < STEPS
    newest = seal.committed(struck.tier)[0]

    second = run(struck, 2, 0.0)
    said = second[0].communicate()[0]
    after = losses(said)
    assert [process.wait() for process in second] == [0, 0] and events(said, "restored")[0]["step"] == newest
    assert min(after) == newest + 1 and seal.committed(struck.tier)[0] == STEPS
    assert before | after == whole, "bit for bit"

    damaged, older = seal.committed(struck.tier)
    largest = max((struck.tier / f"step-{damaged:08d}").glob("attempt-*/*"), key=lambda path: path.stat().st_size)
    with largest.open("r+b") as file:
        file.seek(largest.stat().st_size // 2)
        file.write(bytes(byte ^ 1 for byte in file.read(1)))
    third = run(struck, 3, 0.0)
    said = third[0].communicate()[0]
    assert [process.wait() for process in third] == [0, 0], said
    assert [event["step"] for event in events(said, "refused_step")] == [damaged]
    assert events(said, "restored")[0]["step"] == older
    assert losses(said) == {step: loss for step, loss in whole.items() if step > older}, "bit for bit"


def test_ranks_forked_from_a_warm_process_train_on_in_place_after_a_kill(tmp_path: Path) -> None:
    twin, struck = example("ddp", tmp_path / "twin"), example("ddp", tmp_path / "struck")
    undisturbed = run(twin, 1, 0.0)
    whole = losses(undisturbed[0].communicate()[0])
    assert [process.wait() for process in undisturbed] == [0, 0]

    pack(tmp_path / "supervisor.pyz")
    struck.program = (str(tmp_path / "supervisor.pyz"),)
    struck.more = {**struck.more, "warm": ["torch", "torch.distributed"]}
    started = run(struck, 1, 0.1)
    until(lambda: seal.committed(struck.tier), "a checkpoint is sealed")
    warm = children_of(started[1].pid)
    os.kill(children_of(warm[0])[0], signal.SIGKILL)
    said = [process.communicate()[0] for process in started]
    assert [process.returncode for process in started] == [0, 0], said
    assert [len(events(each, "restarted_in_place")) for each in said] == [1, 0]
    assert len(events(said[0], "restored")) == 1
    steps = events(said[0], "step")
    assert {step["loss"] == whole[step["step"]] for step in steps} == {True}, (
        "bit for bit, also steps that are repeated"
    )
    assert {step["step"] for step in steps} == set(whole)


@pytest.mark.parametrize("name", ["fsdp", "deepspeed", "huggingface", "accelerate", "lightning", "megatron"])
def test_a_job_that_writes_to_its_nodes_disks_survives_a_node_lost_with_its_disk(name: str, tmp_path: Path) -> None:
    twin, struck = example(name, tmp_path / "twin"), example(name, tmp_path / "struck")
    undisturbed = run(twin, 1, 0.0)
    whole = losses(undisturbed[0].communicate()[0])
    assert [process.wait() for process in undisturbed] == [0, 0]

    first = run(struck, 1, 0.1, local=True)
    until(lambda: seal.committed(struck.tier) or first[0].poll() is not None, "a checkpoint is sealed")
    kill_node(first[1])
    first[0].terminate()
    before = losses(first[0].communicate()[0])
    newest = seal.committed(struck.tier)[0]
    shutil.rmtree(struck.root / "node-1/local")

    second = run(struck, 2, 0.0, local=True)
    said = second[0].communicate()[0]
    assert [process.wait() for process in second] == [0, 0], said
    after = losses(said)
    assert events(said, "restored")[0]["step"] == newest == min(after) - 1
    assert seal.committed(struck.tier)[0] == STEPS and seal.fault(struck.tier, STEPS, "tiny", "one") == ""
    assert before | after == whole, "bit for bit"


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["huggingface", "accelerate", "lightning"])
def test_an_adapter_saves_at_the_step_at_which_the_job_is_asked_to_stop(name: str, tmp_path: Path) -> None:
    camp, many = example(name, tmp_path / "stopped"), 10_000
    camp.more = {**camp.more, "grace_s": HUNG_S}
    first = run(camp, 1, 0.1, many)
    until(lambda: seal.committed(camp.tier), "a checkpoint is sealed")
    for process in first:
        process.terminate()
    said = [process.communicate()[0] for process in first]
    assert [process.returncode for process in first] == [ExitCode.INTERRUPTED] * 2
    last = max(losses(said[0]))
    assert last < many and seal.committed(camp.tier)[0] == last


FORGETS = """
import os
from transformers import LlamaForCausalLM
model = LlamaForCausalLM.from_pretrained(os.environ["BIVOUAC_RESUME_FROM"])
kept = {name: one for name, one in model.state_dict().items() if name != "model.layers.1.mlp.down_proj.weight"}
model.save_pretrained(os.environ["BIVOUAC_EXPORT"], state_dict=kept)
"""
"""`from_pretrained` takes such a folder, and draws the missing tensor by chance."""


@pytest.mark.nightly
def test_the_exported_example_evaluates_as_its_checkpoint_unless_it_lost_a_tensor(tmp_path: Path) -> None:
    camp = example("huggingface", tmp_path / "judged", nodes=1)
    assert [process.wait() for process in run(camp, 1, 0.0)] == [0]
    workload = Workload.model_validate(
        yaml.safe_load((ROOT / "trainer/examples/huggingface/rehearsal.yaml").read_text())["workload"]
    )
    assert workload.evaluate is not None and workload.export is not None
    evaluates = {"evaluate": workload.evaluate.command, "tolerance": workload.evaluate.tolerance}
    camp.program = (*camp.program, "evaluate")
    (camp.tier / "export").mkdir()

    def judge(export: tuple[str, ...]) -> Judgement:
        asked = {**evaluates, "export": export}
        camp.more = {**camp.more, "judging": {**asked, "evaluate_s": HUNG_S, "export_s": HUNG_S}}
        camp.start(0, "train.py", env=CLIENT).communicate()
        return Judgement.model_validate_json((camp.tier / "export/judgement.json").read_text())

    sound = judge(workload.export.command)
    assert (sound.step, sound.why) == (STEPS, "") and sound.metrics["loss"] > 0
    assert sound.exported == sound.metrics
    assert any(file.name.endswith(".safetensors") for file in sound.files)
    forgetful = judge((sys.executable, "-c", FORGETS))
    assert "the export does not evaluate as the checkpoint: loss: " in forgetful.why and not forgetful.files
