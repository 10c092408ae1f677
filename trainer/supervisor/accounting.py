"""What lies in a job's own folder and is no checkpoint that is sealed, or older than one that is.

Such content may be the model, so it is counted, told and published: `trainer.contract.unrecognised`. While the job
runs, what is newer than the newest sealed checkpoint and younger than two save intervals may be one being written.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import time
from collections import Counter
from pathlib import Path
from typing import Any, Iterable, Iterator, Mapping, NamedTuple, Protocol

from trainer.supervisor import ends, seal
from trainer.supervisor.formats import KINDS, Finished, Recogniser, find, later, layouts, names, tree
from trainer.supervisor.place import Place

NAME, OWN = "unrecognised.json", "own"
"""`trainer.contract.UNRECOGNISED_NAME`, `OWN_FOLDER`."""
_EVERY_S, _INTERVAL_S, _SHORTEST_S, _TICK_S = 30.0, 300.0, 5.0, 0.02
"""Between two accounts; a save interval that nothing tells, and the shortest one; a clock of files may be late."""
_MOST = 10_000
"""Entries; of more, the folders at the top stand for all, or the job's folder itself."""
_LOOKS_FOR = {
    "auto": "checkpoints of all known formats",
    "dcp": "folders with `.metadata`",
    "huggingface": "folders `checkpoint-N` with `trainer_state.json`",
    "accelerate": "folders with `random_states_R.pkl`",
    "lightning": "whole files or folders `*.ckpt`",
    "megatron": "what `latest_checkpointed_iteration.txt` names",
    "deepspeed": "what `latest` names",
    "marker": "folders with a file `DONE`, and files with `.done` beside them",
    "client": "what the job tells by `bivouac.committed`",
}
_TRACKERS = {
    layouts.MEGATRON_TRACKER,
    layouts.DEEPSPEED_TRACKER,
    layouts.NANOTRON_TRACKER,
    layouts.PATH_FILE,
    "zero_to_fp32.py",
    "zero_to_torch.py",
}


class _Row(NamedTuple):
    path: Path
    size_bytes: int
    changed: float


class Account(NamedTuple):
    files: int = 0
    size_bytes: int = 0
    newest: str = ""
    newest_at: float = 0.0
    entries: tuple[str, ...] = ()
    why: str = ""
    fits: str = ""


def account(folder: Path, name: str, recogniser: Recogniser, sealed_step: int, cutoff_at: float) -> Account:
    """Return what is unrecognised in `folder`. What has changed after `cutoff_at` (seconds since 1970) is being
    written. Raises `OSError`."""
    all_candidates = list(find.candidates(folder, 0, KINDS[name])) if KINDS[name] else []
    sealed_checkpoints = recogniser.sealed_checkpoints(sealed_step)
    sealed_until = recogniser.sealed_until(sealed_step)
    recognised_paths = {path for checkpoint in sealed_checkpoints for path in checkpoint.tops}
    recognised_paths |= {path for path in _older(sealed_checkpoints) if _written_at([path]) <= sealed_until}
    sealed_series = recogniser.sealed_series(sealed_step)
    unfinished_texts: list[str] = []
    for candidate in all_candidates:
        checkpoint = candidate.checkpoint()
        has_step = candidate.number is not None or candidate.kind == "lightning"
        paths = checkpoint.tops
        is_of_series = candidate.kind == "lightning" or {names.series(path) for path in paths} <= sealed_series
        is_overtaken = checkpoint.step < sealed_step and not candidate.plain
        older = is_overtaken or (checkpoint.step <= sealed_step and is_of_series)
        if has_step and checkpoint.step >= 0 and older and _written_at(paths) <= sealed_until:
            recognised_paths |= set(paths)
        elif not recognised_paths & {checkpoint.root, *checkpoint.files}:
            unfinished_texts.append(f"{entry_text(checkpoint.face, folder)} ({candidate.kind})")
    rows, entries, _ = _unrecognised_rows(folder, recognised_paths, cutoff_at, os.path.realpath(str(folder)))
    if not rows:
        return Account()
    newest = max(rows, key=lambda row: row.changed)
    if len(entries) > _MOST:
        entries = sorted({folder / path.relative_to(folder).parts[0] for path in entries})
    if len(entries) > _MOST:
        entries = [folder]
    has_unsealed_state = sealed_step < 0 and any(layouts.is_state(row.path.name) for row in rows)
    fits = _fitting(folder, name, recognised_paths) or ("client" if has_unsealed_state else "")
    endings = Counter(row.path.suffix or row.path.name for row in rows).most_common(3)
    ending_counts = ", ".join(f"{count} `{_text(ending)}`" for ending, count in endings)
    explanation = f"looked for {_LOOKS_FOR[name]}; other files here: {ending_counts}"
    if unfinished_texts:
        explanation += f"; not finished or not sealed: {', '.join(sorted(unfinished_texts)[:3])}"
    return Account(
        len(rows), sum(row.size_bytes for row in rows), entry_text(newest.path, folder), newest.changed,
        tuple(entry_text(path, folder) for path in entries), explanation, fits,
    )  # fmt: skip


def _written_at(paths: Iterable[Path]) -> float:
    """Return when the newest file of files and folders was written, in seconds since 1970; 0 for what is gone. A
    smaller number alone makes nothing old: a job may count anew, or let a few names take turns."""
    newest_at = 0.0
    for file in (file for path in paths for file in find.files_of(path)):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            newest_at = max(newest_at, file.stat().st_mtime)
    return newest_at


def _older(sealed_checkpoints: Iterable[Finished]) -> Iterator[Path]:
    """Yield what has the name of a sealed checkpoint's part with a smaller number."""
    for checkpoint in sealed_checkpoints:
        for part, pattern in names.families(checkpoint.tops).items():
            number = names.number_in_family(pattern, part.name)
            listing = tree.listing(part.parent)
            for name in listing.files | listing.folders:
                other_number = names.number_in_family(pattern, name)
                if number is not None and other_number is not None and other_number < number:
                    yield part.parent / name


def _unrecognised_rows(
    folder: Path, recognised_paths: set[Path], cutoff_at: float, top: str
) -> tuple[list[_Row], list[Path], bool]:
    """Return the files, the entries that hold them, and whether anything else is recognised: a folder in which nothing
    is counts as one entry. A folder that cannot be read and a link that leads out of `top` count as a file each."""
    rows: list[_Row] = []
    entries: list[Path] = []
    holds_recognised = False
    try:
        listing = tree.listing(folder)
    except PermissionError:
        return [_Row(folder, 0, 0.0)], [folder], False
    for name in sorted(listing.files - _TRACKERS):
        path = folder / name
        marked_path = path.with_name(re.sub(r"\.(done|DONE)$", "", name))
        if tree.is_ours(name) or recognised_paths & {path, marked_path} or later.is_tensorflow_tracker(path):
            holds_recognised = True
            continue
        with contextlib.suppress(FileNotFoundError):
            now = path.stat()
            if now.st_mtime <= cutoff_at:
                rows.append(_Row(path, now.st_size, now.st_mtime))
                entries.append(path)
    for name in sorted(listing.links):
        if not os.path.realpath(str(folder / name)).startswith(f"{top}{os.sep}"):  # nobody has looked there
            rows.append(_Row(folder / name, 0, 0.0))
            entries.append(folder / name)
    for name in sorted(listing.folders):
        path = folder / name
        if path in recognised_paths or tree.is_ours(name):
            holds_recognised = True
            continue
        rows_below, its_entries, its_holds = _unrecognised_rows(path, recognised_paths, cutoff_at, top)
        rows += rows_below
        entries += its_entries if its_holds or not rows_below else [path]
        holds_recognised = holds_recognised or its_holds
    return rows, entries, holds_recognised


def _fitting(folder: Path, name: str, recognised_paths: set[Path]) -> str:
    """Return the explicit format, or `auto`, that knows what another one does not."""
    if name == "auto":
        return ""
    other_candidates = find.candidates(folder, 0, KINDS["auto"] - KINDS[name])
    kinds = [
        candidate.kind
        for candidate in other_candidates
        if not recognised_paths & {candidate.root, *candidate.files} and candidate.ready()
    ]
    return next((kind if kind in KINDS else "auto" for kind in kinds), "")


def entry_text(path: Path, folder: Path) -> str:
    """Return a path below `folder` as text that can be printed and undone: `trainer.contract.entry_path`."""
    return _text(str(path.relative_to(folder)))


def _text(name: str) -> str:
    text = os.fsencode(name).replace(b"\\", rb"\x5c").decode("utf-8", "backslashreplace")
    return "".join(sign if sign.isprintable() else "".join(f"\\x{byte:02x}" for byte in sign.encode()) for sign in text)


class Emitter(Protocol):
    def emit(self, event: str, **fields: object) -> None: ...


class Accounts:
    """The accounts of a job's folder. Node 0 publishes them; a node whose disk is its own saves what lies there."""

    def __init__(
        self, config: Mapping[str, Any], place: Place, tier: Path, job: Emitter, recogniser: Recogniser
    ) -> None:
        checkpoints = config["checkpoints"]
        self._folder, self._format = Path(checkpoints["folder"]), str(checkpoints["format"])
        self._local = checkpoints.get("tier") == "local"
        self._place, self._tier, self._job, self._recogniser = place, tier, job, recogniser
        self._steps_apart = int(config.get("save_every") or 0)
        self.now: Account | None = None
        """The newest account; None before the first."""
        self._next, self._warned = 0.0, False
        self._committed, self._sealed_at, self._interval_s = -1, time.monotonic(), 0.0

    def status(self) -> dict[str, Any]:
        """Return what `/status` says of it."""
        if self.now is None or not self.now.files:
            return {}
        return {"unrecognised": _figures(self.now)}

    def look(self, sealed_step: int, job_ended: bool = False) -> None:
        """Account for the folder if it is time, and tell what has changed."""
        now = time.monotonic()
        if sealed_step != self._committed:
            self._interval_s = max(self._interval_s, now - self._sealed_at) if self._committed >= 0 else 0.0
            self._committed, self._sealed_at, self._warned = sealed_step, now, False
        shared = not self._local and self._place.node_rank != 0
        if shared or not (job_ended or now >= self._next):
            return
        cpu_start_s, previous_account = time.thread_time(), self.now
        two_intervals = 2 * self._interval()
        cutoff_at = float("inf") if job_ended else time.time() - min(two_intervals, now - self._sealed_at) - _TICK_S
        try:
            self.now = account(self._folder, self._format, self._recogniser, sealed_step, cutoff_at)
            if self._place.node_rank == 0 and (job_ended or previous_account != self.now):
                self._publish(job_ended)
            if job_ended and self._local and self.now.files:
                self._save()
        except (OSError, RecursionError) as error:
            explanation = ends.of_error(error, self._tier) if isinstance(error, OSError) else "folders too deep"
            self._job.emit("not_accounted", why=explanation[:500])
        late = job_ended or now - self._sealed_at >= two_intervals
        if late and not self._warned and self.status():
            self._warned = True
            self._job.emit("unrecognised", **self.status()["unrecognised"])
        self._next = now + max(_EVERY_S, 100 * (time.thread_time() - cpu_start_s))

    def _interval(self) -> float:
        """Return the seconds between two saves: those between seals, else those of the plan, else a guess."""
        planned_s = self._steps_apart * self._recogniser.told_steps.seconds_apart
        return max(_SHORTEST_S, self._interval_s or planned_s or _INTERVAL_S)

    def _publish(self, job_ended: bool) -> None:
        assert self.now is not None
        content = {
            "format": 1, **_figures(self.now), "newest_at": self.now.newest_at, "entries": self.now.entries,
            "attempt": self._place.attempt, "at": round(time.time(), 3), "ended": job_ended,
        }  # fmt: skip
        self._tier.mkdir(parents=True, exist_ok=True)
        seal.publish(self._tier / NAME, json.dumps(content).encode())

    def _save(self) -> None:
        """Copy what lies on this node's disk alone to the shared tier."""
        assert self.now is not None
        target = self._tier / OWN / f"node-{self._place.node_rank:04d}"
        for entry in self.now.entries:
            path = re.sub(rb"\\x([0-9a-f]{2})", lambda match: bytes([int(match.group(1), 16)]), entry.encode())
            _copy(self._folder / os.fsdecode(path), target / os.fsdecode(path))


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir() and not source.is_symlink():
        for path in source.iterdir():
            _copy(path, target / path.name)
    elif source.is_symlink() or source.is_file():
        target.unlink(missing_ok=True)
        shutil.copyfile(str(source), str(target), follow_symlinks=False)


def _figures(now: Account) -> dict[str, Any]:
    return {"files": now.files, "bytes": now.size_bytes, "newest": now.newest, "why": now.why, "fits": now.fits}
