"""A training script with the habits of a plan: `python jobs_script.py PLAN`. It imports nothing of the product.

Outside of its folder it keeps a ledger, durable line by line: what it finished with the digest of its content, what it
removed, and what it found when it resumed. So what it would have restored is known without any code of ours. On two
nodes each rank keeps one, and has a disk of its own.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tests.drills.parts.jobs_frameworks import found, save_of
from tests.drills.parts.jobs_layouts import Move, Operation, Save, Write

PLAN = json.loads(Path(sys.argv[1]).read_text())
FOLDER, ATTEMPT = Path(os.environ["BIVOUAC_CHECKPOINTS"]), int(os.environ["ATTEMPT"])
RESUME, MARKS = os.environ["BIVOUAC_RESUME_FROM"], Path(os.environ["SEALED"])
SUPERVISOR = os.getppid()
ORDERS = PLAN["attempts"][min(ATTEMPT, len(PLAN["attempts"])) - 1]
RANK, RANKS = int(os.environ["NODE_RANK"]), int(PLAN["nodes"])
LEDGER = Path(PLAN["ledgers"][RANK])
BESIDE_LEDGERS = LEDGER.parent
"""What the ranks tell each other."""
BESIDE = (
    "tokenizer-32000/vocab.json", "tensorboard-20251125/events.out.1", "vocab_50257/merges.txt", "hparams_3.yaml",
    "eval-results-5000/x", "logs/20/out.txt", "checkpoint-best-notes/readme", "samples-30/picture",
)  # fmt: skip
"""What the job has in its folder besides; none of it is a checkpoint."""
BORROWED = "vocabulary"
"""A link in a checkpoint to the first of these."""


def entries(root: Path) -> Iterator[str]:
    """Yield a line for each file, link and folder, with what a script would notice of it."""
    if root.name == BORROWED:  # a link to it or a file like it: a script reads the same
        yield hashlib.sha256(root.read_bytes()).hexdigest() if root.is_file() else "nothing"
    elif root.is_symlink():
        yield f"link {os.readlink(root)}"
    elif root.is_file():
        yield f"file {root.stat().st_mode & 0o777:o} {hashlib.sha256(root.read_bytes()).hexdigest()}"
    for path in sorted(root.iterdir()) if root.is_dir() and not root.is_symlink() else ():
        yield f"{path.name}:" if path.is_dir() and not path.is_symlink() else f"{path.name} of {root.name}"
        yield from entries(path)


def digest(roots: Iterable[Path]) -> str:
    """Return the digest of a checkpoint's files and folders, by their names if they are several."""
    paths = list(roots)
    lines = [line for path in paths for line in ([f"{path.name}:"] if len(paths) > 1 else []) + list(entries(path))]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def paths_of(root: str) -> list[Path]:
    """Return what a checkpoint's root names."""
    return [FOLDER / name for name in root.split()]


def step_of(roots: Iterable[Path]) -> int:
    """Return the step that a checkpoint holds, 0 if it holds none."""
    below = (path for root in roots for path in ([root] if root.is_file() else root.rglob("*")))
    files = [path for path in below if path.is_file()]
    steps = [int(match.group(1)) for path in files if (match := re.search(rb"<step=(\d+) ", path.read_bytes()))]
    return max(steps, default=0)


def whole_digest(save: Save, step: int) -> str:
    """Return the digest of a checkpoint as all ranks write it."""
    with tempfile.TemporaryDirectory() as folder:
        for part in [save, *(save_of(PLAN, ATTEMPT, step, rank) for rank in range(RANKS) if rank != RANK)]:
            for name, content in part.contents.items():
                path = Path(folder, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
        return digest(Path(folder, name) for name in save.roots)


def note(**line: Any) -> None:
    with LEDGER.open("a") as ledger:
        ledger.write(json.dumps({"attempt": ATTEMPT, **line}) + "\n")
        ledger.flush()
        os.fsync(ledger.fileno())


def lose_node() -> None:
    note(kind="lost")
    os.kill(SUPERVISOR, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def with_node() -> None:
    """Die if the supervisor has: a node is lost as a whole."""
    if os.getppid() != SUPERVISOR:
        os.kill(os.getpid(), signal.SIGKILL)


def meet(name: str) -> None:
    """Wait for the other rank."""
    if RANKS == 1:
        return
    marks = [BESIDE_LEDGERS / f"{name}-{ATTEMPT}-of-{rank}" for rank in range(RANKS)]
    marks[RANK].touch()
    while not all(map(Path.exists, marks)):
        with_node()
        time.sleep(0.01)


class Saver:
    """Writes checkpoints, and loses the node in one of them if the orders say so."""

    def __init__(self) -> None:
        self.present = 0, Save("", ())
        self.operations = self.last = 0
        """So far in this checkpoint; before the last one the node is lost."""

    def operation(self) -> None:
        self.operations += 1
        if self.operations == self.last:
            self.note_if_whole()
            if ORDERS["look"]:
                time.sleep(1.2)  # the supervisor looks at what is not whole
            lose_node()

    def do(self, operation: Operation) -> None:
        path = FOLDER / operation.path
        self.operation()
        if isinstance(operation, Write):
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb", buffering=0) as file:
                for part in range(3):
                    size = len(operation.content)
                    file.write(operation.content[part * size // 3 : (part + 1) * size // 3])
                    time.sleep(PLAN["slow_s"])
                    self.operation()
        elif isinstance(operation, Move):
            os.replace(path, FOLDER / operation.target)
        else:
            remove(path)

    def __call__(self, step: int, again: bool = False) -> None:
        save = save_of(PLAN, ATTEMPT, step, RANK)
        dies = step == ORDERS["step"] if ORDERS["moment"] == "write" else again and ORDERS["moment"] == "again"
        all_operations = [*save.operations, *save.after]
        most = sum(4 if isinstance(operation, Write) else 1 for operation in all_operations)
        self.operations = 0
        self.last = 1 + ORDERS["operation"] % most if dies and ORDERS["rank"] == RANK else 0
        self.present = step, save
        last_write = max(place for place, operation in enumerate(save.operations) if isinstance(operation, Write))
        for place, operation in enumerate(save.operations):
            if place == last_write:  # what ends a checkpoint comes last
                self.link(FOLDER / save.root)
            self.do(operation)
        if RANKS == 1:
            note(kind="begun", step=step, root=save.root, digest=digest(paths_of(save.root)))
        meet(f"written-{step}-{again}")
        for operation in save.after:
            self.do(operation)
        if PLAN["client"]:
            import bivouac  # type: ignore[import-not-found]

            bivouac.committed(str(FOLDER / save.root), step)
        if RANKS > 1:
            note(kind="part", step=step, root=save.root, digest=whole_digest(save, step))
        meet(f"saved-{step}-{again}")
        content = whole_digest(save, step) if RANKS > 1 else digest(paths_of(save.root))
        note(kind="finished", step=step, root=save.root, digest=content)
        if ORDERS["moment"] == "finished" and step == ORDERS["step"]:
            lose_node()

    def note_if_whole(self) -> None:
        """Note the checkpoint if every byte of it is written: it may count, although its save has not returned."""
        step, save = self.present
        contents = {FOLDER / name: content for name, content in save.contents.items()}
        if all(path.is_file() and path.read_bytes() == content for path, content in contents.items()):
            kind, content = ("begun", digest(paths_of(save.root))) if RANKS == 1 else ("part", whole_digest(save, step))
            note(kind=kind, step=step, root=save.root, digest=content)

    def link(self, place: Path) -> None:
        if PLAN["link"] == "inside" and place.is_dir():
            (place / "newest").unlink(missing_ok=True)
            target = next(path for path in sorted(place.rglob("*")) if path.is_file())
            os.symlink(os.path.relpath(target, place), place / "newest")
        elif PLAN["link"] == "beside" and place.is_dir():
            (place / BORROWED).unlink(missing_ok=True)
            os.symlink(os.path.relpath(FOLDER / BESIDE[0], place), place / BORROWED)


def remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def remove_old(saved: list[str]) -> None:
    """Remove all but the newest checkpoints, as `save_total_limit` and `save_top_k` do."""
    while PLAN["most"] and len(saved) > PLAN["most"]:
        root = saved.pop(0)
        note(kind="removed", root=root)
        for path in paths_of(root):
            remove(path)
            path.with_name(path.name + ".done").unlink(missing_ok=True)


def wait_for_seal(step: int) -> int:
    """Wait until a step is sealed, if it is not 0; return 0."""
    if not step:
        return 0
    until = time.monotonic() + float(os.environ["PATIENCE"])
    while not (MARKS / f"{ATTEMPT}-{step}").exists():
        with_node()
        if time.monotonic() > until:
            note(kind="never sealed", step=step)
            os._exit(33)
        time.sleep(0.01)
    return 0


def say(step: int) -> bool:
    """Tell a step, if the job does so at this one."""
    last, shown = PLAN["steps"], step - PLAN["base"]
    loss = round(4 / (3 + step), 4)
    how = PLAN["printing"]
    if RANK or (step % PLAN["say_every"] and step != last):
        return False
    if how == "json":
        print(json.dumps({"step": shown, "loss": loss}), flush=True)
    elif how == "iter":
        print("INFO " + json.dumps({"iter": shown, "train_loss": loss, "lr": 1e-4}), flush=True)
    elif how == "ranks":
        for rank in range(3):
            print(json.dumps({"step": max(0, shown - rank), "rank": rank, "loss": loss}), flush=True)
    elif how == "colour":
        print(f"\x1b[32mstep: {shown:2}  \x1b[33mloss: {loss:7.4f}  \x1b[36mmemory: 12.1GiB\x1b[0m", flush=True)
    elif how == "coloured-json":
        print("\x1b[36m" + json.dumps({"step": shown, "loss": loss}) + "\x1b[0m", flush=True)
    elif how == "words":
        print(f"iteration {shown:8d}/{last:8d} | lm loss: {loss:.6E} | grad norm: 1.2", flush=True)
    elif how == "bar":
        sys.stdout.write(f"\r {100 * step // last:3d}%|####      | {shown}/{last} [00:01<00:02, 9.1it/s, loss={loss}]")
        sys.stdout.flush()
    elif how == "client":
        import bivouac

        bivouac.beat(step, loss=loss)
    return True


def noise(step: int) -> None:
    """Print what looks like steps and is none."""
    if RANK:
        return
    if PLAN["noise"] and PLAN["printing"] == "bar":
        print(flush=True)  # ends the bar's line
    if PLAN["noise"] == "evaluation":
        for number in range(1, 4):
            print(json.dumps({"step": number, "eval_loss": 0.5}), flush=True)
    elif PLAN["noise"] == "epochs":
        print(json.dumps({"epoch": step // PLAN["every"], "iteration": step // PLAN["every"], "lr": 0.1}), flush=True)


def begin() -> int:
    """Note what is there and what is found; return the step from which the script goes on."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    os.umask(PLAN["umask"])
    has_new_disk = BESIDE_LEDGERS / f"new-disk-{RANK}"
    if ATTEMPT == 1 or has_new_disk.exists():
        has_new_disk.unlink(missing_ok=True)
        for name in BESIDE:
            (FOLDER / name).parent.mkdir(parents=True, exist_ok=True)
            (FOLDER / name).write_text(f"mine: {name}")
    texts = {name: (FOLDER / name).read_text() if (FOLDER / name).is_file() else "" for name in BESIDE}
    beside = [name for name, text in texts.items() if text != f"mine: {name}"]
    root = found(PLAN, RANK, FOLDER, os.path.relpath(RESUME, FOLDER) if RESUME else "")
    begun, content = (step_of(paths_of(root)), digest(paths_of(root))) if root else (0, "")
    roots = {json.loads(line).get("root") for line in LEDGER.read_text().splitlines()} if LEDGER.exists() else set()
    paths = {root: paths_of(root) for root in roots - {None, ""}}
    there = {root: [step_of(tops), digest(tops)] for root, tops in paths.items() if all(map(Path.exists, tops))}
    ignores = bool(begun) and ORDERS["moment"] == "ignores"
    note(kind="resumed", step=begun, digest=content, root=root, missing=beside, there=there, ignores=ignores)
    return 0 if ignores else begun


def main() -> None:
    begun, save = begin(), Saver()
    if PLAN["noise"] == "config":
        print(json.dumps({"iteration": 1_000_000, "model": "llama"}), flush=True)
    saved: list[str] = []
    if begun and PLAN["saves_again"]:
        save(begun, again=True)
    unsealed = 0
    for step in range(begun + 1, PLAN["steps"] + 1):
        with_node()
        time.sleep(PLAN["step_s"])
        lost = step == ORDERS["step"] and ORDERS["moment"] == "between"
        if say(step) or lost:  # a job trains on while it is sealed
            unsealed = wait_for_seal(unsealed)
        if lost:
            lose_node()
        if step % PLAN["every"] == 0 or step == PLAN["steps"]:
            unsealed = wait_for_seal(unsealed)
            save(step)
            root = save_of(PLAN, ATTEMPT, step, RANK).root
            saved = [earlier for earlier in saved if earlier != root] + [root]
            unsealed = step if step in ORDERS["waits"] else 0
            remove_old(saved)
            noise(step)
        if step == ORDERS["fails_at"]:
            raise RuntimeError(f"the loss is not finite at step {step}")
    note(kind="done")


if __name__ == "__main__":
    main()
