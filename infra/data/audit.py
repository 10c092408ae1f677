"""Audit of the data: compares a committed ledger with the plan, the logs, and the data set if it is available."""

from __future__ import annotations

import hashlib
import json
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import ValidationError

from infra.data.dataset import trainer_command
from infra.errors import BivouacError, UserError
from trainer.contract import (
    COMMITTED_NAME,
    DATA_MANIFEST_NAME,
    DataManifest,
    Manifest,
    TrainConfig,
    parse_manifest,
    step_of_folder,
)
from trainer.contract.ledger import Audit, Executed, audit


@dataclass(frozen=True)
class AuditEvidence:
    checkpoint: Manifest
    config: TrainConfig
    logs: Mapping[str, str] = field(default_factory=dict)
    """Pod or file -> its JSON lines."""
    data: Path | None = None
    unlooked: tuple[str, ...] = ()


def judge(evidence: AuditEvidence) -> Audit:
    """Audit the evidence; raise `UserError` if the checkpoint has no ledger."""
    rows, config = evidence.checkpoint.consumed, evidence.config
    if not rows:
        fact = f"step {evidence.checkpoint.step} of attempt {evidence.checkpoint.attempt}"
        raise UserError("the checkpoint has no ledger of its data", seen=fact, cure="name one that this version wrote")
    gaps, expected = list(evidence.unlooked), None
    if evidence.data is None:
        gaps.append("the data set is not available: its samples were not read (see --data)")
    elif digests := {row.data_digest for row in rows} - {_digest_of(evidence.data)}:
        gaps.append(f"{evidence.data} is not the data set {', '.join(sorted(digests))}: it was not read")
    else:
        expected = _replay(evidence)
    return audit(rows, config.steps * config.global_batch, executed_steps(evidence.logs.values()), expected, gaps)


def executed_steps(logs: Iterable[str]) -> Iterator[Executed]:
    """Yield the steps in the logs, each once per start of the ranks."""
    keys: set[tuple[int, int, int]] = set()
    for line in (line for log in logs for line in log.splitlines() if '"samples"' in line):
        try:
            row = json.loads(line)
            key = (int(row["attempt"]), int(row.get("generation", 0)), int(row["step"]))
            row_executed = Executed(key[0], key[2], int(row["samples"], 16), key[1])
        except (ValueError, KeyError, TypeError, RecursionError):
            continue  # a dying node cut the line short
        if key not in keys:
            keys.add(key)
            yield row_executed


def newest_checkpoint(folder: Path) -> tuple[Path, Manifest]:
    """Return the newest committed checkpoint at or below a folder; raise `UserError` if there is none, and `OSError`
    where one cannot be read: it may be the newest."""
    rows: list[tuple[int, int, Path, Manifest]] = []
    for path in [folder / COMMITTED_NAME, *folder.rglob(f"step-*/{COMMITTED_NAME}")]:
        try:
            manifest = parse_manifest(path.read_bytes(), step_of_folder(path.parent.name))
        except (FileNotFoundError, NotADirectoryError, ValueError):
            continue
        rows.append((manifest.step, manifest.attempt, path, manifest))
    if not rows:
        cure = "name a campaign, or a folder of committed checkpoints"
        raise UserError("no committed checkpoint lies there", seen=folder, cure=cure)
    _, _, path, manifest = max(rows, key=lambda row: row[:2])
    return path, manifest


def read_config(path: Path) -> TrainConfig:
    try:
        return TrainConfig.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        cure = "name the campaign's train.json with --config"
        raise UserError("the training configuration cannot be read", seen=f"{path}: {error}", cure=cure) from error


def is_whole(folder: Path) -> bool:
    """Return True if the folder has a data set with its shards; an archive keeps only the manifest."""
    try:
        manifest = DataManifest.model_validate_json((folder / DATA_MANIFEST_NAME).read_bytes())
    except (OSError, ValidationError):
        return False
    return all((folder / shard.file).exists() for shard in manifest.train)


def _digest_of(folder: Path) -> str:
    try:
        return hashlib.sha256((folder / DATA_MANIFEST_NAME).read_bytes()).hexdigest()
    except OSError as error:
        cure = "name the folder of the prepared data"
        raise UserError("there is no data set", seen=f"{folder}: {error.strerror}", cure=cure) from error


def _replay(evidence: AuditEvidence) -> dict[int, int]:
    """Return step -> samples, computed by the trainer's tool in its own process."""
    with tempfile.TemporaryDirectory() as scratch:
        config, rows = Path(scratch, "train.json"), Path(scratch, "rows.json")
        config.write_text(evidence.config.model_dump_json())
        rows.write_text(json.dumps([row.model_dump(mode="json") for row in evidence.checkpoint.consumed]))
        command = trainer_command("data.replay", f"--config={config}", f"--rows={rows}", f"--data={evidence.data}")
        process = subprocess.run(command, capture_output=True, text=True)
    if process.returncode:
        cure = "give the data set that the campaign trained on, or leave out --data"
        raise BivouacError("the data cannot be replayed", seen=process.stderr.strip()[-1000:], cure=cure)
    return {row["step"]: int(row["samples"], 16) for row in map(json.loads, process.stdout.splitlines())}
