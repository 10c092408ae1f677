"""The golden checkpoint: where it lies, what it consists of, and commands that fetch, verify and load it."""

from __future__ import annotations

import shlex

from infra.events import CampaignState, Stage
from infra.names import buckets, data_prefix
from infra.reporting.model import Golden, Recipe, StoredFile
from infra.reporting.record import Record
from infra.survey import STANDARD_LIBRARY

_STANDARD_LIBRARY = """"$(python -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')\""""
_LOAD = """python - <<'END'
from pathlib import Path
from trainer.checkpoint.deepspeed_engine import load_safely
from trainer.config import load_config
from trainer.model import Transformer

model = Transformer(load_config(Path("train.json")).model)
model.load_state_dict(load_safely(next(Path("golden").rglob("mp_rank_00_model_states.pt")))["module"])
print(sum(p.numel() for p in model.parameters()), "parameters loaded")
END"""


def golden(record: Record, state: CampaignState) -> Golden | None:
    """None where nothing was verified in the archive."""
    found = state.archive
    if found is None or "manifest" not in found:
        return None
    root = str(found["manifest"]).rpartition("/")[0]
    folder = f"{root}/golden/step-{int(found['step']):08d}"
    return Golden(
        step=int(found["step"]),
        tokens=(record.archive or {}).get("tokens"),
        manifest=str(found["manifest"]),
        folder=folder,
        objects=int(found.get("objects", 0)),
        bytes=int(found.get("bytes", 0)),
        proof=found.get("proof", "recorded in training"),
        reference_loss=found.get("reference_evaluation_loss", found.get("recorded_evaluation_loss")),
        restored_loss=found.get("restored_evaluation_loss"),
        files=_files(record),
        recipes=_recipes(record, state, root, folder),
        refused=tuple(str(item) for item in found.get("refused", ())),
    )


def _files(record: Record) -> tuple[StoredFile, ...]:
    rows = [
        StoredFile(name=item["key"].partition("/golden/")[2], bytes=int(item["size_bytes"]), sha256=item["sha256"])
        for item in (record.archive or {}).get("objects", ())
        if "/golden/" in item["key"]
    ]
    return tuple(sorted(rows, key=lambda row: (-row.bytes, row.name)))


def _recipes(record: Record, state: CampaignState, root: str, folder: str) -> tuple[Recipe, ...]:
    data = record.spec.data
    digest = state.finished_stages.get(Stage.PROVISION, {}).get("data_digest", "DIGEST")
    source = f"s3://{buckets(record.spec.account, record.spec.region).data}/{data_prefix(digest)}"
    fetch = "\n".join(
        (
            f"aws s3 cp --recursive {folder}/ golden/",
            f"aws s3 cp {root}/train.json train.json",
            f"aws s3 cp --recursive {source} data/",
        )
    )
    where = "The trainer's package has to be installed: `pip install` of this repository."
    recipes = [
        Recipe(title="Fetch it, with its configuration and data", commands=fetch),
        Recipe(
            title="Verify every byte and evaluate it",
            commands="python -m trainer.evaluate --checkpoint golden --config train.json --data data",
            note="Every shard is compared with its digest before anything is loaded; then it prints the held-out loss "
            f'and `"equal": true` where that is the recorded one. {where}',
        ),
        Recipe(
            title="Load its weights in Python",
            commands=_LOAD,
            note="Weights are under `module` in `mp_rank_00_model_states.pt`; optimizer states lie beside it. "
            "All files are in DeepSpeed's own format. `load_safely` executes nothing that a file holds.",
        ),
    ]
    if record.site is not None:
        limit = f" --max-files {data.max_files}" if data.max_files else ""
        text = _STANDARD_LIBRARY if str(data.source) == STANDARD_LIBRARY else shlex.quote(str(data.source))
        prepared = (
            f"bivouac data prepare {text} data --pattern {shlex.quote(data.pattern)}{limit} "
            f"--held-out {data.held_out:g} --seed {data.seed} --vocabulary {record.spec.training.model.vocabulary}"
        )
        recipes.insert(
            0,
            Recipe(
                title="After `bivouac down --all`: from the folder beside this page",
                commands=f"cp -r archive/golden/step-{int((state.archive or {})['step']):08d} golden\n"
                f"cp archive/train.json train.json\n{prepared}",
                note="A rehearsal's S3 lasts as long as its site; what it keeps is exported to `archive/` beside this "
                "page. Token shards are not part of it: the same text, prepared again, gives the same digest.",
            ),
        )
    return tuple(recipes)
