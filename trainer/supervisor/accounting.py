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
from typing import Any, Iterator, Mapping, NamedTuple, Protocol

from trainer.supervisor import ends, seal
from trainer.supervisor.formats import KINDS, Recogniser, find, layouts, names, tree
from trainer.supervisor.place import Place

NAME, OWN = "unrecognised.json", "own"
"""`trainer.contract.UNRECOGNISED_NAME`, `OWN_FOLDER`."""
_EVERY_S, _INTERVAL_S, _SHORTEST_S = 30.0, 300.0, 5.0
"""Between two accounts; a save interval that nothing tells, and the shortest one."""
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


def account(folder: Path, name: str, recogniser: Recogniser, committed: int, since: float) -> Account:
    """Return what is unrecognised in `folder`. `committed`: the newest sealed step; `since`: what has changed later
    (seconds since 1970) is being written. Raises `OSError`."""
    known = list(find.candidates(folder, 0, KINDS[name])) if KINDS[name] else []
    recognised = recogniser.sealed_paths(committed)
    recognised |= set(_older(recognised))
    places = recogniser.sealed_places(committed)
    unfinished: list[str] = []
    for candidate in known:
        found = candidate.finished()
        tells = candidate.number is not None or candidate.kind == "lightning"
        older = found.step < committed or (found.step == committed and found.face.parent in places)
        if tells and found.step >= 0 and older:
            recognised |= set(found.files or (found.root,))
        elif not recognised & {found.root, *found.files}:
            unfinished.append(f"{shown(found.face, folder)} ({candidate.kind})")
    rows, entries, _ = _unrecognised(folder, recognised, since, os.path.realpath(str(folder)))
    if not rows:
        return Account()
    newest = max(rows, key=lambda row: row.changed)
    if len(entries) > _MOST:
        entries = sorted({folder / path.relative_to(folder).parts[0] for path in entries})
    if len(entries) > _MOST:
        entries = [folder]
    lost = committed < 0 and any(layouts.is_state(row.path.name) for row in rows)
    fits = _fitting(folder, name, recognised) or ("client" if lost else "")
    endings = Counter(row.path.suffix or row.path.name for row in rows).most_common(3)
    lies = ", ".join(f"{count} `{_text(ending)}`" for ending, count in endings)
    why = f"looked for {_LOOKS_FOR[name]}; other files here: {lies}"
    if unfinished:
        why += f"; not finished or not sealed: {', '.join(sorted(unfinished)[:3])}"
    return Account(
        len(rows), sum(row.size_bytes for row in rows), shown(newest.path, folder), newest.changed,
        tuple(shown(path, folder) for path in entries), why, fits,
    )  # fmt: skip


def _older(sealed: set[Path]) -> Iterator[Path]:
    """Yield what has the name of a sealed checkpoint with a smaller number."""
    for root in sealed:
        pattern, number = names.family(root.name), names.number_of(root.name)
        if pattern is None or number is None:
            continue
        listing = tree.listing(root.parent)
        for name in listing.files | listing.folders:
            other = names.number_in_family(pattern, name)
            if other is not None and other < number.value:
                yield root.parent / name


def _unrecognised(folder: Path, recognised: set[Path], since: float, top: str) -> tuple[list[_Row], list[Path], bool]:
    """Return the files, the entries that hold them, and whether anything else is recognised: a folder in which nothing
    is counts as one entry. A folder that cannot be read and a link that leads out of `top` count as a file each."""
    rows: list[_Row] = []
    entries: list[Path] = []
    holds = False
    try:
        listing = tree.listing(folder)
    except PermissionError:
        return [_Row(folder, 0, 0.0)], [folder], False
    for name in sorted(listing.files - _TRACKERS):
        path = folder / name
        marked = path.with_name(re.sub(r"\.(done|DONE)$", "", name))
        if tree.is_ours(name) or recognised & {path, marked}:
            holds = True
            continue
        with contextlib.suppress(FileNotFoundError):
            now = path.stat()
            if now.st_mtime <= since:
                rows.append(_Row(path, now.st_size, now.st_mtime))
                entries.append(path)
    for name in sorted(listing.links):
        if not os.path.realpath(str(folder / name)).startswith(f"{top}{os.sep}"):  # nobody has looked there
            rows.append(_Row(folder / name, 0, 0.0))
            entries.append(folder / name)
    for name in sorted(listing.folders):
        path = folder / name
        if path in recognised or tree.is_ours(name):
            holds = True
            continue
        below, its_entries, its_holds = _unrecognised(path, recognised, since, top)
        rows += below
        entries += its_entries if its_holds or not below else [path]
        holds = holds or its_holds
    return rows, entries, holds


def _fitting(folder: Path, name: str, recognised: set[Path]) -> str:
    """Return the explicit format, or `auto`, that knows what another one does not."""
    if name == "auto":
        return ""
    others = find.candidates(folder, 0, KINDS["auto"] - KINDS[name])
    kinds = [one.kind for one in others if not recognised & {one.root, *one.files} and one.ready()]
    return next((kind if kind in KINDS else "auto" for kind in kinds), "")


def shown(path: Path, folder: Path) -> str:
    """Return a path below `folder` as text that can be printed and undone: `trainer.contract.entry_path`."""
    return _text(str(path.relative_to(folder)))


def _text(name: str) -> str:
    text = os.fsencode(name).replace(b"\\", rb"\x5c").decode("utf-8", "backslashreplace")
    return "".join(sign if sign.isprintable() else "".join(f"\\x{byte:02x}" for byte in sign.encode()) for sign in text)


class Job(Protocol):
    def emit(self, event: str, **fields: object) -> None: ...


class Accounts:
    """The accounts of a job's folder. Node 0 publishes them; a node whose disk is its own saves what lies there."""

    def __init__(self, config: Mapping[str, Any], place: Place, tier: Path, job: Job, recogniser: Recogniser) -> None:
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

    def look(self, committed: int, ended: bool = False) -> None:
        """Account for the folder if it is time, and tell what has changed. `committed`: the newest sealed step."""
        now = time.monotonic()
        if committed != self._committed:
            self._interval_s = max(self._interval_s, now - self._sealed_at) if self._committed >= 0 else 0.0
            self._committed, self._sealed_at, self._warned = committed, now, False
        shared = not self._local and self._place.node_rank != 0
        if shared or not (ended or now >= self._next):
            return
        begun, before = time.thread_time(), self.now
        two_intervals = 2 * self._interval()
        since = float("inf") if ended else time.time() - min(two_intervals, now - self._sealed_at)
        try:
            self.now = account(self._folder, self._format, self._recogniser, committed, since)
            if self._place.node_rank == 0 and (ended or before != self.now):
                self._publish(ended)
            if ended and self._local and self.now.files:
                self._save()
        except (OSError, RecursionError) as error:
            why = ends.of_error(error, self._tier) if isinstance(error, OSError) else "folders too deep"
            self._job.emit("not_accounted", why=why[:500])
        late = ended or now - self._sealed_at >= two_intervals
        if late and not self._warned and self.status():
            self._warned = True
            self._job.emit("unrecognised", **self.status()["unrecognised"])
        self._next = now + max(_EVERY_S, 100 * (time.thread_time() - begun))

    def _interval(self) -> float:
        """Return the seconds between two saves: those between seals, else those of the plan, else a guess."""
        planned = self._steps_apart * self._recogniser.step_seconds
        return max(_SHORTEST_S, self._interval_s or planned or _INTERVAL_S)

    def _publish(self, ended: bool) -> None:
        assert self.now is not None
        content = {
            "format": 1, **_figures(self.now), "newest_at": self.now.newest_at, "entries": self.now.entries,
            "attempt": self._place.attempt, "at": round(time.time(), 3), "ended": ended,
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
