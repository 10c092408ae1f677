"""`bivouac data audit`: proves that every sample of the planned range was consumed exactly once."""

from __future__ import annotations

from pathlib import Path

from botocore.exceptions import BotoCoreError, ClientError
from rich.console import Console
from rich.markup import escape

from infra.campaign import report
from infra.checkpoints.find import export_folder, is_campaign
from infra.cli.records import record_of
from infra.console.plain_console import say
from infra.data import audit
from infra.data.audit import AuditEvidence
from infra.errors import UserError
from infra.folders import kept_results
from infra.record.store import CampaignStore
from infra.report.record import Record, unpacked
from infra.spec.recipe import folder_of
from trainer.contract import COMMITTED_NAME, Manifest, TrainConfig, parse_manifest
from trainer.contract.ledger import Audit

NOT_PROVED = 1


def audit_command(
    place: str,
    config: Path | None,
    data: Path | None,
    logs: list[Path] | None,
    region: str,
    json: bool,
    console: Console,
) -> int:
    """Return 0 when it is proved, 1 when it is not."""
    evidence = _of_campaign(place, region, data) if is_campaign(place) else _of_folder(place, config, data, logs or [])
    proof = audit.judge(evidence)
    if json:
        console.print_json(proof.model_dump_json())
    else:
        _print(proof, evidence.checkpoint, console)
    return 0 if proof.passes else NOT_PROVED


def _of_folder(place: str, config: Path | None, data: Path | None, logs: list[Path]) -> AuditEvidence:
    if not Path(place).is_dir():
        cure = "name a campaign, or a folder of committed checkpoints; `bivouac checkpoints restore` brings one here"
        raise UserError("there is no such folder", seen=place, cure=cure)
    path, checkpoint = audit.newest_checkpoint(Path(place))
    plan = audit.read_config(config or _config_beside(path))
    lines = {str(log_path): log_path.read_text(errors="replace") for log_path in logs}
    return AuditEvidence(checkpoint, plan, lines, data)


def _of_campaign(name: str, region: str, data: Path | None) -> AuditEvidence:
    """Return the evidence from record and archive; for a campaign that is gone, from its results folder."""
    try:
        store = record_of(name, region)
    except UserError:
        results = kept_results(name, region)
        if not (results / report.PACKED).exists():
            raise
        record = unpacked((results / report.PACKED).read_bytes())
        path, checkpoint = audit.newest_checkpoint(export_folder(name, region))
        return AuditEvidence(
            checkpoint, audit.read_config(_config_beside(path)), record.logs, data or _prepared_here(record)
        )
    record = report.read(store)
    checkpoint, config = _archived_evidence(record, store)
    return AuditEvidence(checkpoint, config, record.logs, data or _prepared_here(record))


def _archived_evidence(record: Record, store: CampaignStore) -> tuple[Manifest, TrainConfig]:
    keys = [str(item["key"]) for item in (record.archive or {}).get("objects", ())]
    manifest_keys = [key for key in keys if "/golden/" in key and key.endswith(f"/{COMMITTED_NAME}")]
    plans = [key for key in keys if key.endswith("/train.json")]
    if not manifest_keys or not plans:
        cure = "run it to its end, or name the folder of its checkpoints"
        raise UserError("nothing is archived yet", seen=store.campaign, cure=cure)
    bucket = record.spec.buckets.archive

    def read(key: str) -> bytes:
        return bytes(store.s3.get_object(Bucket=bucket, Key=key)["Body"].read())

    try:
        return parse_manifest(read(manifest_keys[0])), TrainConfig.model_validate_json(read(plans[0]))
    except (ClientError, BotoCoreError, ValueError) as error:
        cure = "look at the archive bucket"
        raise UserError("the archive cannot be read", seen=f"{bucket}: {error}", cure=cure) from error


def _prepared_here(record: Record) -> Path | None:
    """Return the data set in this machine's cache, if it is there and whole."""
    folder = folder_of(record.spec)
    return folder if audit.is_whole(folder) else None


def _config_beside(checkpoint: Path) -> Path:
    for parent in checkpoint.parents:
        if (parent / "train.json").exists():
            return parent / "train.json"
    raise UserError("no train.json lies beside the checkpoint", seen=checkpoint, cure="name it with --config")


def _print(audit: Audit, checkpoint: Manifest, console: Console) -> None:
    console.print(f"ledger of step {checkpoint.step}, attempt {checkpoint.attempt}, {len(audit.rows)} rows")
    for row in audit.rows:
        console.print(
            f"  attempt {row.attempt}: steps {row.first_step:,} to {row.last_step:,} on {row.world_size} ranks, "
            f"positions {row.first_position:,} to {row.end_position - 1:,}"
        )
    console.print(f"{audit.consumed:,} of {audit.planned:,} planned samples consumed")
    steps = sum(row.last_step - row.first_step + 1 for row in audit.rows)
    console.print(
        f"checked: {audit.checked_by_data:,} of {steps:,} steps against the data set, {audit.checked_by_log:,} against "
        f"the logs; {audit.repeated_steps:,} steps ran again after a restart and count once"
    )
    for reason in audit.unlooked:
        say(console, f"not looked at: {reason}")
    for finding in audit.findings:
        begin, end = finding.first_position, finding.end_position - 1
        range_text = f"positions {begin:,} to {end:,}: " if begin >= 0 else ""
        console.print(f"[red]{finding.kind}[/]: {range_text}{escape(finding.why)}", soft_wrap=True)
    proof = "exactly once" if audit.checked_by_data else "exactly once, by the ledger"
    console.print(f"proved: every planned sample was consumed {proof}" if audit.passes else "[red]not proved[/]")
