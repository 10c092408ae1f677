"""`bivouac checkpoints`: list, verify, compare, restore and prune checkpoints."""

from __future__ import annotations

import json as json_text
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rich.console import Console

from infra.archive.manifest import EvaluationProof
from infra.checkpoints import work
from infra.checkpoints.find import COPY, TIERS_EVERY_S, Copied, FoundPlace, copies_of, find
from infra.checkpoints.place import BucketPlace, FolderPlace
from infra.checkpoints.requests import has_steward
from infra.cli.answers import write_json
from infra.cli.data import checkpoints_live as live
from infra.cli.data.checkpoints_text import compare_steps, next_steps, show_difference
from infra.cli.options import stderr
from infra.console.plain_console import say
from infra.console.progress import Progress
from infra.console.tables import Listing
from infra.console.terminal import ask_yes
from infra.console.visible import visible
from infra.console.words import clock, size
from infra.data.dataset import trainer_command
from infra.errors import BivouacError, PermanentError, UserError
from trainer.contract import COMMITTED_NAME, ExitCode, step_folder
from trainer.contract.listing import Listed, StepVerdict
from trainer.contract.tree import printable


def list_command(place: str, region: str, json: bool, console: Console) -> int:
    """List checkpoints; exit code 0 even if there are none. JSON is a list of rows."""
    source = find(place, region)
    copies: tuple[Copied, ...] = ()
    if source.store is not None and isinstance(source.place, BucketPlace):
        copies_place, copies = copies_of(source.store, source.place.bucket)
    read_back = {step_copy.row.step: step_copy.read_back_at for step_copy in copies}
    rows = [*source.tiers, *source.place.rows(), *(step_copy.row for step_copy in copies)]
    rows.sort(key=lambda row: (-row.step, row.tier, row.node))
    golden = source.archive.step if source.archive else None
    if json:
        proof = str(source.archive.proof) if source.archive else None
        body = [
            row.model_dump()
            | {"proof": proof if _is_golden(row, golden) else None}
            | {"read_back_at": read_back[row.step] if row.tier == COPY else None}
            for row in rows
        ]
        write_json(console, body)
        return 0
    if not rows:
        say(console, f"no checkpoints at {source.place.name}")
        return 0
    now = datetime.now(UTC)
    ages = {step: None if read_at is None else now - read_at for step, read_at in read_back.items()}
    table(rows, golden, ages, source.archive.proof if source.archive else None).show(console)
    if copies:
        say(console, f"copies: `bivouac checkpoints restore {copies_place.name} FOLDER` fetches one")
    if source.tiers:
        console.print(f"local and shared: as last seen by the steward, which looks every {TIERS_EVERY_S:.0f} s")
    return 0


def table(
    rows_of_tiers: Iterable[Listed],
    golden: int | None,
    read_back: Mapping[int, timedelta | None] = MappingProxyType({}),
    proof: EvaluationProof | None = None,
) -> Listing:
    """`read_back`: step of an interval copy -> how long ago its last byte was read back; None: not by the record.
    `proof`: of the golden step."""
    rows = Listing("step", "tier", "node", "~state", "~checkpoint", "shards", "size", "tokens", "loss", "held-out loss")
    for row in rows_of_tiers:
        state = "committed" if row.committed else "not committed"
        if _is_golden(row, golden):
            state = (
                f"golden: {'read back' if proof in (None, EvaluationProof.READ_BACK) else 'read back and evaluated'}"
            )
        if row.tier == COPY and row.committed:
            age = read_back.get(row.step)
            state = "not verified" if age is None else f"read back {clock(age.total_seconds())} ago"
        rows.row(
            str(row.step), row.tier, row.node, f"{state}{': ' if row.why else ''}{row.why}", row.name,
            f"{row.here} of {row.shards}" if row.committed else "", size(row.bytes) if row.committed else "",
            f"{row.tokens:,}" if row.tokens is not None else "", f"{row.loss:.4f}" if row.loss is not None else "",
            f"{row.evaluation_loss:.4f}" if row.evaluation_loss is not None else "",
        )  # fmt: skip
    return rows


def verify_command(
    place: str, step: int | None, region: str, json: bool, console: Console, tier: str | None = None
) -> int:
    """Verify committed steps. Exit code 0 when all are sound, 74 when one, or its manifest, is not. For a campaign,
    reads the archive from here, and shared and local tiers by its steward while there is one."""
    source = find(place, region, archive=tier not in live.TIERS)
    tier = live.chosen_tier(source, tier, (live.ALL, live.ARCHIVE, live.SHARED, live.LOCAL), live.ALL)
    step = step if step is not None else source.step
    verdicts, notes = list[StepVerdict](), list[str]()
    if tier in (live.ALL, live.ARCHIVE):
        steps = [row.step for row in source.place.rows() if row.committed and step in (None, row.step)]
        broken = [row for row in source.place.rows() if row.damaged and step in (None, row.step)]
        if steps:
            with _progress(
                console, json, "verify", f"every byte of {len(steps)} steps at {source.place.name}"
            ) as progress:
                verdicts = list(work.verify(source.place, steps, progress.step))
        verdicts += [StepVerdict(step=row.step, bytes=0, faults=((COMMITTED_NAME, row.why),)) for row in broken]
    if source.store is not None and tier != live.ARCHIVE:
        if tier != live.ALL or has_steward(source.store):
            with _progress(console, json, "verify", f"the live tiers of {place}, read by its steward") as progress:
                answer = live.verify(source, tier, step, progress.step)
            verdicts += answer.verdicts
            notes += [f"not looked at: {node}" for node in answer.unreachable]
        else:
            notes.append("not looked at: shared and local tiers, since no steward runs")
    if not verdicts:
        raise UserError("no committed step to verify", seen=source.place.name, cure="see `bivouac checkpoints list`")
    if json:
        body = [verdict.model_dump() | {"sound": verdict.sound, "faults": dict(verdict.faults)} for verdict in verdicts]
        write_json(console, body)
        for note in notes:
            print(visible(note), file=sys.stderr)
    else:
        _show_verdicts(verdicts, notes, console)
    return 0 if all(verdict.sound for verdict in verdicts) else int(ExitCode.STORAGE)


def _show_verdicts(verdicts: list[StepVerdict], notes: list[str], console: Console) -> None:
    for verdict in verdicts:
        location = " ".join(filter(None, (verdict.tier, verdict.node)))
        sound = "sound" if verdict.sound else "NOT SOUND"
        say(console, f"step {verdict.step}{f' on {location}' if location else ''}: {sound}, {size(verdict.bytes)} read")
        for file, fault in verdict.faults:
            say(console, f"  {step_folder(verdict.step)}/{file}: {fault}")
    for note in notes:
        say(console, note)


def restore_command(
    place: str,
    out: Path,
    step: int | None,
    region: str,
    console: Console,
    tier: str | None = None,
    *,
    as_json: bool = False,
    sealed: bool = False,
) -> int:
    """Restore a step as what wrote it loads it. Raises `PermanentError` naming a shard that the place does not hold
    soundly; where no step was named, an older one is taken before that."""
    source = find(place, region, archive=tier not in live.TIERS)
    in_archive = tier is not None or source.store is None or source.archive is not None or bool(source.place.rows())
    tier = live.chosen_tier(source, tier, (live.ARCHIVE, live.SHARED), live.ARCHIVE if in_archive else live.SHARED)
    if tier == live.SHARED:
        step_text = "the newest sound step" if step is None else f"step {step}"
        with _progress(console, as_json, "restore", f"{step_text} of {place}'s shared tier to {out}") as progress:
            outcome = live.restore(source, step, out, progress.step, sealed)
    else:
        outcome = _restore_step(source, step, out, console, as_json, sealed)
    if as_json:
        write_json(console, {"folder": str(outcome.folder), "sound_before_bytes": outcome.before_bytes})
        return 0
    if outcome.before_bytes:
        console.print(f"{size(outcome.before_bytes)} of it are from an earlier try and sound")
    folder_text = printable(str(outcome.folder))
    say(console, f"{folder_text}: every {'shard' if outcome.tree is None else 'file'} has its digest")
    say(console, next_steps(outcome, folder_text))
    return 0


def _restore_step(
    source: FoundPlace, step: int | None, path: Path, console: Console, as_json: bool, as_sealed: bool
) -> work.Restored:
    """Restore a step of a place; without one named the newest that proves sound, the golden one first."""
    wish = step if step is not None else source.step
    newest = _step_of(source, wish)
    choices = [newest, *(row.step for row in source.place.rows() if row.committed and row.step < newest)]
    for choice in choices if wish is None else choices[:1]:
        try:
            with _progress(console, as_json, "restore", f"step {choice} of {source.place.name} to {path}") as progress:
                return work.restore_for_use(source.place, choice, path, progress.step, as_sealed)
        except PermanentError as error:
            if wish is not None or choice == choices[-1]:
                raise
            print(f"step {choice} is left out: {error.seen}", file=sys.stderr)
    raise AssertionError("the last choice returns or raises")


def diff_command(
    place: str, first: int, second: int, region: str, json: bool, console: Console, second_place: str | None = None
) -> int:
    """Compare two steps of one place, or of it and `other`; those in S3 are brought here first. Exit code 0 when equal,
    else 1."""
    pairs = [(find(place, region), first), (find(second_place or place, region), second)]
    manifests = [source.place.manifest(_step_of(source, step)) for source, step in pairs]
    trees = [work.job_tree(source.place, manifest) for (source, _), manifest in zip(pairs, manifests, strict=True)]
    if all(trees):
        answer = work.difference(*((tree, manifest) for tree, manifest in zip(trees, manifests, strict=True) if tree))
    else:
        answer = _tensor_difference(pairs, json, console)
    write_json(console, answer) if json else show_difference(answer, console)
    equal = all(row["equal"] for row in answer["shards"]) and not (answer["only_in_first"] or answer["only_in_second"])
    return 0 if equal and not answer["metadata"] else 1


def _tensor_difference(pairs: list[tuple[FoundPlace, int]], json: bool, console: Console) -> dict[str, Any]:
    with (
        tempfile.TemporaryDirectory(prefix="bivouac-diff-") as scratch,
        _progress(console, json, "diff", "both are verified, then compared") as progress,
    ):
        folders = [
            _local(source, step, Path(scratch) / str(number), progress) for number, (source, step) in enumerate(pairs)
        ]
        progress.step("comparing tensors")
        return compare_steps(*folders)


def prune_command(
    place: str, keep: int, consent: bool, region: str, json: bool, console: Console, tier: str | None = None
) -> int:
    """Show the steps to remove, then ask. Raises `PermanentError` if no step is proven."""
    source = find(place, region, archive=tier not in live.TIERS)
    shared = live.chosen_tier(source, tier, (live.ARCHIVE, live.SHARED), live.ARCHIVE) == live.SHARED
    tier_text = f"{place}'s shared tier" if shared else source.place.name
    if source.unread and not shared:
        raise PermanentError(
            "the golden step cannot be determined, so nothing is removed",
            seen=source.unread,
            cure="restore an earlier version of that object; the bucket keeps them",
        )
    protected_steps = [source.archive.step] if source.archive else []
    with _progress(console, json, "prune", f"looking for the newest proven step at {tier_text}") as progress:
        if shared:
            plan = live.prune(source, keep, None, progress.step)
        else:
            plan = work.pruning(source.place, keep, protected_steps, progress.step)
    cut = False
    if not json:
        console.print(f"kept: {', '.join(map(str, plan.keep))}; step {plan.proven} is proven: every byte was read")
        for row in plan.drop:
            say(console, f"would go: step {row.step}, {size(row.bytes)} {row.why}")
    if plan.drop and (consent or (not json and ask_yes(f"Remove {len(plan.drop)}?", console))):
        with _progress(console, json, "prune", f"removing {len(plan.drop)} steps") as progress:
            if shared:
                plan = live.prune(source, keep, plan, progress.step)
            else:
                work.prune(source.place, plan, progress.step)
        cut = True
    elif not json:
        console.print("nothing was removed" if plan.drop else "nothing to remove")
    if json:
        body = {
            "keep": plan.keep, "proven": plan.proven, "drop": [row.step for row in plan.drop], "removed": cut,
        }  # fmt: skip
        write_json(console, body)
    return 0


def _step_of(source: FoundPlace, step: int | None) -> int:
    if step is not None or source.step is not None:
        return int(step if step is not None else source.step or 0)
    if source.archive is not None:
        return source.archive.step
    newest = next((row.step for row in source.place.rows() if row.committed), None)
    if newest is None:
        raise UserError("there is no committed step", seen=source.place.name, cure="see `bivouac checkpoints list`")
    return newest


def _local(source: FoundPlace, step: int | None, scratch: Path, progress: Progress) -> Path:
    step_number = _step_of(source, step)
    if isinstance(source.place, FolderPlace):
        return source.place.root / step_folder(step_number)
    return work.restore(source.place, step_number, scratch, progress.step)[0]


def _is_golden(row: Listed, golden: int | None) -> bool:
    return row.tier == "archive" and row.step == golden


@contextmanager
def _progress(console: Console, json: bool, name: str, purpose: str) -> Iterator[Progress]:
    """Show progress, with JSON on standard error."""
    progress = Progress(stderr if json else console)
    with progress.stage(name, purpose):
        yield progress


def import_command(
    folder: Path, tier: Path, campaign: str, tokens: int, position: int, json: bool, console: Console
) -> int:
    """Import in a process of the trainer, which has torch; nothing in the folder is executed. Raises `UserError` for a
    missing folder, `BivouacError` with the trainer's message for a refused one."""
    if not folder.is_dir():
        raise UserError("there is no such folder", seen=folder, cure="name the tag's folder, such as global_step100")
    place = ("--campaign", campaign, "--shared", str(tier), "--tokens", str(tokens), "--position", str(position))
    command = trainer_command("checkpoint.convert.adopt", str(folder), *place)
    progress = Progress(stderr if json else console)
    with progress.stage("import", f"{folder} is read through the allow-list, copied, and sealed in {tier / campaign}"):
        progress.step("torch is imported, then every file is read twice")
        process = subprocess.run(command, capture_output=True, text=True)
        if process.returncode != 0:
            error_lines = process.stderr.strip().splitlines() or ["no word"]
            cure = "bring together all files of the tag as DeepSpeed wrote them; a refused file must not be loaded"
            raise _Refused("the folder is not imported", seen=error_lines[-1][:500], cure=cure)
    answer = json_text.loads(process.stdout.strip().splitlines()[-1])
    step_path = tier / campaign / step_folder(answer["step"])
    if json:
        write_json(console, answer | {"folder": str(step_path)})
        return 0
    say(
        console,
        f"{step_path}: {answer['shards']} shards of {answer['world_size']} ranks, sealed as they are now\n"
        "their history, their loss and the state of their random generators are not known\n"
        f"look at it: bivouac checkpoints verify {tier / campaign}\n"
        f"to train on from it: put the step folder into the shared tier of a campaign that is called {campaign},\n"
        "with the same model and ZeRO stage; the trainer begins at the newest sound step it finds there",
    )
    return 0


class _Refused(BivouacError):
    exit_code = int(ExitCode.STORAGE)
