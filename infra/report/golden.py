"""The golden checkpoint: place, files, and commands that fetch, verify and load it."""

from __future__ import annotations

from infra.record.events import CampaignState
from infra.record.payloads.training import ArchiveVerified
from infra.report.model import CommandRecipe, Golden, StoredFile
from infra.report.record import Record

_LOAD = """python - <<'END'
from pathlib import Path
from trainer.builtin.checkpoint.convert.weights import load_shard
from trainer.builtin.config import load_config
from trainer.builtin.model import build

model = build(load_config(Path("train.json")).model)
model.load_state_dict(load_shard(next(Path("golden").rglob("mp_rank_00_model_states.pt")))["module"])
print(sum(p.numel() for p in model.parameters()), "parameters loaded")
END"""

_LLAMA = """python - <<'END'
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("huggingface")
tokenizer = AutoTokenizer.from_pretrained("huggingface")
print(tokenizer.decode(model.generate(**tokenizer("def ", return_tensors="pt"), max_new_tokens=40)[0]))
END"""


def golden(record: Record, state: CampaignState) -> Golden | None:
    """Return the golden checkpoint; None if the archive has no verified one."""
    golden_event = state.archive
    if golden_event is None or golden_event.manifest is None:
        return None
    root = golden_event.manifest.rpartition("/")[0]
    folder = f"{root}/golden/step-{golden_event.step:08d}"
    return Golden(
        step=golden_event.step,
        tokens=(record.archive or {}).get("tokens"),
        manifest=golden_event.manifest,
        folder=folder,
        objects=golden_event.objects or 0,
        bytes=golden_event.bytes,
        proof=golden_event.proof,
        reference_loss=golden_event.wanted_loss,
        restored_loss=golden_event.restored_evaluation_loss,
        metrics=golden_event.metrics,
        export_metrics=golden_event.export_metrics,
        tolerance=golden_event.tolerance,
        files=_files(record),
        recipes=_recipes(record, golden_event, root, folder),
        refused=tuple(map(str, golden_event.refused)),
    )


def _files(record: Record) -> tuple[StoredFile, ...]:
    rows = [
        StoredFile(name=item["key"].partition("/golden/")[2], bytes=int(item["size_bytes"]), sha256=item["sha256"])
        for item in (record.archive or {}).get("objects", ())
        if "/golden/" in item["key"]
    ]
    return tuple(sorted(rows, key=lambda row: (-row.bytes, row.name)))


def _of_workload(campaign: str, step: int, root: str, export: str) -> tuple[CommandRecipe, ...]:
    fetch = CommandRecipe(
        title="Fetch it",
        commands=f"bivouac checkpoints restore {campaign} FOLDER --step {step}",
        note="Every file is compared with its digest and lies where the job wrote it, below `FOLDER/step-*/`, with its "
        "own name, links and permissions: its framework loads it as it is. `source/source.tar` is the job's code.",
    )
    if not export:
        return (fetch,)
    note = "Made by the job's own command from this checkpoint; the archive manifest has each file's SHA-256."
    copy = f"aws s3 cp --recursive {root}/{export}/ export/"
    return fetch, CommandRecipe(title="Fetch what the job has exported", commands=copy, note=note)


def _recipes(record: Record, archive: ArchiveVerified, root: str, folder: str) -> tuple[CommandRecipe, ...]:
    campaign = record.spec.campaign
    if record.spec.workload is not None:
        return _of_workload(campaign, archive.step, root, archive.export or "")
    local = "/".join(filter(None, ("archive", archive.identity)))
    fetch = "\n".join(
        (
            f"bivouac checkpoints restore {campaign} . --step {archive.step}",
            f"mv {folder.rpartition('/')[2]} golden",
            f"aws s3 cp {root}/train.json train.json",
            f"aws s3 cp --recursive {root}/data/ data/",
            f"aws s3 cp --recursive {root}/huggingface/ huggingface/",
        )
    )
    requirement = "The trainer's package has to be installed: `pip install` of this repository."
    recipes = [
        CommandRecipe(
            title="Fetch it, with its configuration, tokenizer and held-out split",
            commands=fetch,
            note="The first line verifies the checkpoint, and continues after an interruption.",
        ),
        CommandRecipe(
            title="Verify every byte and evaluate it",
            commands="python -m trainer.builtin.evaluate --checkpoint golden --config train.json --data data",
            note="Every shard is compared with its digest before it is loaded; the output is the held-out loss "
            f'and `"equal": true` if it is the recorded one. {requirement}',
        ),
        CommandRecipe(
            title="Load it with transformers",
            commands=_LLAMA,
            note="The same weights, bit for bit, as safetensors with Hugging Face's names, with a model card.",
        ),
        CommandRecipe(
            title="Load the sharded form's weights in Python",
            commands=_LOAD,
            note="Weights are under `module` in `mp_rank_00_model_states.pt`; optimizer states lie beside it. "
            "All files are in DeepSpeed's own format; weights that are frozen beside adapters lie in "
            "`frozen_mp_rank_00.pt`. `load_shard` takes both, and executes nothing that a file holds.",
        ),
    ]
    if record.site is not None:
        recipes.insert(
            0,
            CommandRecipe(
                title="After `bivouac down --all`: from the folder beside this page",
                commands=f"cp -r {local}/golden/{folder.rpartition('/')[2]} golden\ncp {local}/train.json train.json\n"
                f"cp -r {local}/data data\ncp -r {local}/huggingface huggingface",
                note="A rehearsal's S3 lasts as long as its site; what it keeps is exported to `archive/` beside this "
                "page: the checkpoint in both forms, tokenizer and held-out split, the record.",
            ),
        )
    return tuple(recipes)
