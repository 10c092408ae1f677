"""A training script with the habits of a plan: `python jobs_script.py PLAN`. It imports nothing of this project.

Outside of its folder it keeps a ledger, durable line by line: what it finished with the digest of its content, what it
removed, and what it found when it resumed. So what it would have restored is known without any code of ours.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import pickle
import re
import shutil
import signal
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

PLAN = json.loads(Path(sys.argv[1]).read_text())
FOLDER, ATTEMPT = Path(os.environ["BIVOUAC_CHECKPOINTS"]), int(os.environ["ATTEMPT"])
RESUME, MARKS = os.environ["BIVOUAC_RESUME_FROM"], Path(os.environ["SEALED"])
SUPERVISOR = os.getppid()
ORDERS = PLAN["attempts"][min(ATTEMPT, len(PLAN["attempts"])) - 1]
BESIDE = (
    "tokenizer-32000/vocab.json", "tensorboard-20251125/events.out.1", "vocab_50257/merges.txt", "hparams_3.yaml",
    "eval-results-5000/x", "logs/20/out.txt", "checkpoint-best-notes/readme", "samples-30/picture",
)  # fmt: skip
"""What the job has in its folder besides; none of it is a checkpoint."""


class Save(NamedTuple):
    """How a format lays one checkpoint."""

    root: str
    """Below the job's folder: file or folder."""
    files: dict[str, bytes]
    """Below root, in the order of writing; the empty name is root itself."""
    after: dict[str, bytes]
    """Below the job's folder, written last: markers beside it, trackers."""
    moved: bool = False
    """It is written under another name and moved."""


def token(step: int) -> bytes:
    return b"<step=%d attempt=%d>" % (step, ATTEMPT) + hashlib.sha256(b"%d" % step).digest() * PLAN["bulk"]


def torch_file(number: int, /, **more: Any) -> bytes:
    """Return what `torch.save` writes: a stored zip whose pickle tells the figures."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_STORED) as file:
        file.writestr("archive/data.pkl", pickle.dumps({"state_dict": {"weight": 1.0}, **more}, protocol=2))
        file.writestr("archive/byteorder", b"little")
        file.writestr("archive/data/0", token(number))
        file.writestr("archive/version", b"3\n")
    return content.getvalue()


def safetensors(step: int) -> bytes:
    data = token(step)
    head = json.dumps({"w": {"dtype": "U8", "shape": [len(data)], "data_offsets": [0, len(data)]}}).encode()
    head += b" " * (-len(head) % 8)
    return len(head).to_bytes(8, "little") + head + data


def named(step: int) -> str:
    return str(PLAN["name"]).format(step=step, epoch=step // PLAN["every"], part=1 / step)


def _marker(step: int) -> Save:
    return Save(named(step), {"state": token(step), "args.json": b"{}", "DONE": b""}, {})


def _file_and_marker(step: int) -> Save:
    return Save(named(step), {"": torch_file(step)}, {named(step) + ".done": b""})


def _file(step: int) -> Save:
    figures = {"iter_num": step, "epoch": step // PLAN["every"], "best_val_loss": 0.5}
    return Save(named(step), {"": torch_file(step, **figures)}, {}, moved=PLAN["moved"])


def _raw(step: int) -> Save:
    return Save(named(step), {"": token(step)}, {})


def _huggingface(step: int) -> Save:
    whole = {
        "config.json": b"{}", "model.safetensors": safetensors(step), "optimizer.pt": torch_file(step),
        "scheduler.pt": torch_file(step), "rng_state.pth": torch_file(step),
        "trainer_state.json": json.dumps({"global_step": step, "epoch": 0.5, "log_history": []}).encode(),
    }  # fmt: skip
    return Save(f"checkpoint-{step}", whole, {})


def _weights(step: int) -> Save:
    return Save(named(step), {"config.json": b"{}", "model.safetensors": safetensors(step)}, {})


def _accelerate(step: int) -> Save:
    whole = {
        "model.safetensors": safetensors(step), "optimizer.bin": torch_file(step), "scheduler.bin": torch_file(step),
        "sampler.bin": torch_file(step), "random_states_0.pkl": torch_file(step, step=0),
    }  # fmt: skip
    return Save(named(step), whole, {})


def _lightning(step: int) -> Save:
    figures = {"epoch": step // PLAN["every"], "global_step": step, "pytorch-lightning_version": "2.6.6"}
    last = {"last.ckpt": torch_file(step, **figures)} if PLAN["last"] else {}
    return Save(named(step), {"": torch_file(step, **figures)}, last)


def _dcp(step: int) -> Save:
    parts = ("model", "optim") if PLAN["nested"] else ("",)
    files: dict[str, bytes] = {}
    for part in parts:
        files[os.path.join(part, "__0_0.distcp")] = token(step)
        files[os.path.join(part, ".metadata")] = pickle.dumps({"part": part, "of": step})
    return Save(named(step), files, {})


def _deepspeed(step: int) -> Save:
    name = named(step)
    files = {
        "mp_rank_00_model_states.pt": torch_file(step, global_steps=step, global_samples=8 * step),
        "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt": torch_file(step),
    }
    return Save(name, files, {os.path.join(os.path.dirname(name), "latest"): os.path.basename(name).encode()})


def _megatron(step: int) -> Save:
    files = {"mp_rank_00/model_optim_rng.pt": torch_file(step, iteration=step)}
    return Save(f"iter_{step:07d}", files, {"latest_checkpointed_iteration.txt": str(step).encode()})


def _litgpt(step: int) -> Save:
    files = {"lit_model.pth": torch_file(step, step_count=step, iter_num=step * 4), "hyperparameters.yaml": b"a: 1"}
    return Save(named(step), files, {})


LAYOUTS: dict[str, Callable[[int], Save]] = {
    "marker": _marker, "file-and-marker": _file_and_marker, "file": _file, "raw": _raw, "huggingface": _huggingface,
    "weights": _weights, "accelerate": _accelerate, "lightning": _lightning, "dcp": _dcp, "deepspeed": _deepspeed,
    "megatron": _megatron, "litgpt": _litgpt,
}  # fmt: skip


def entries(root: Path) -> Iterator[str]:
    """Yield a line for each file, link and folder, with what a script would notice of it."""
    if root.is_symlink():
        yield f"link {os.readlink(root)}"
    elif root.is_file():
        yield f"file {root.stat().st_mode & 0o777:o} {hashlib.sha256(root.read_bytes()).hexdigest()}"
    for path in sorted(root.iterdir()) if root.is_dir() and not root.is_symlink() else ():
        yield f"{path.name}:" if path.is_dir() and not path.is_symlink() else f"{path.name} of {root.name}"
        yield from entries(path)


def digest(root: Path) -> str:
    return hashlib.sha256("\n".join(entries(root)).encode()).hexdigest()


def step_of(root: Path) -> int:
    """Return the step that a checkpoint holds, 0 if it holds none."""
    files = [root] if root.is_file() else sorted(path for path in root.rglob("*") if path.is_file())
    steps = [int(match.group(1)) for path in files if (match := re.search(rb"<step=(\d+) ", path.read_bytes()))]
    return max(steps, default=0)


def note(**line: Any) -> None:
    with open(PLAN["ledger"], "a") as ledger:
        ledger.write(json.dumps({"attempt": ATTEMPT, **line}) + "\n")
        ledger.flush()
        os.fsync(ledger.fileno())


def lose_node() -> None:
    note(kind="lost")
    os.kill(os.getppid(), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def with_node() -> None:
    """Die if the supervisor has: a node is lost as a whole."""
    if os.getppid() != SUPERVISOR:
        os.kill(os.getpid(), signal.SIGKILL)


class Saver:
    """Writes checkpoints, and loses the node in one of them if the orders say so."""

    def __init__(self) -> None:
        self.present = 0, Save("", {}, {}), FOLDER
        self.operations = self.last = 0
        """So far in this checkpoint; before the last one the node is lost."""

    def operation(self) -> None:
        self.operations += 1
        if self.operations == self.last:
            self.note_if_whole()
            if ORDERS["look"]:
                time.sleep(1.2)  # the supervisor looks at what is not whole
            lose_node()

    def write(self, path: Path, content: bytes) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.operation()
        with path.open("wb", buffering=0) as file:
            for part in range(3):
                file.write(content[part * len(content) // 3 : (part + 1) * len(content) // 3])
                time.sleep(PLAN["slow_s"])
                self.operation()

    def __call__(self, step: int, again: bool = False) -> None:
        save = LAYOUTS[PLAN["layout"]](step)
        root = FOLDER / save.root
        dies = step == ORDERS["step"] if ORDERS["moment"] == "write" else again and ORDERS["moment"] == "again"
        self.operations = 0
        self.last = 1 + ORDERS["operation"] % (4 * len([*save.files, *save.after])) if dies else 0
        place = root.with_name(root.name + ".tmp") if save.moved else root
        self.present = step, save, place
        for number, (name, content) in enumerate(save.files.items(), 1):
            if number == len(save.files):  # what ends a checkpoint comes last
                self.link(place, step)
            self.write(place / name if name else place, content)
        if save.moved:
            os.replace(place, root)
        note(kind="begun", step=step, root=save.root, digest=digest(root))
        for name, content in save.after.items():
            self.write(FOLDER / name, content)
        if PLAN["client"]:
            import bivouac  # type: ignore[import-not-found]

            bivouac.committed(str(root), step)
        note(kind="finished", step=step, root=save.root, digest=digest(root))
        if ORDERS["moment"] == "finished" and step == ORDERS["step"]:
            lose_node()

    def note_if_whole(self) -> None:
        """Note the checkpoint if every byte of it is written: it may count, although its save has not returned."""
        step, save, place = self.present
        paths = {place / name if name else place: content for name, content in save.files.items()}
        if not save.moved and all(path.is_file() and path.read_bytes() == content for path, content in paths.items()):
            note(kind="begun", step=step, root=save.root, digest=digest(place))

    def link(self, place: Path, step: int) -> None:
        if PLAN["link"] == "inside" and place.is_dir():
            (place / "newest").unlink(missing_ok=True)
            target = next(path for path in sorted(place.rglob("*")) if path.is_file())
            os.symlink(os.path.relpath(target, place), place / "newest")
        elif PLAN["link"] == "beside" and place.is_dir():
            (place / "vocabulary").unlink(missing_ok=True)
            os.symlink(os.path.relpath(FOLDER / BESIDE[0], place), place / "vocabulary")


def remove_old(saved: list[str]) -> None:
    """Remove all but the newest checkpoints, as `save_total_limit` and `save_top_k` do."""
    while PLAN["most"] and len(saved) > PLAN["most"]:
        root = FOLDER / saved.pop(0)
        note(kind="removed", root=str(root.relative_to(FOLDER)))
        shutil.rmtree(root) if root.is_dir() else root.unlink(missing_ok=True)
        root.with_name(root.name + ".done").unlink(missing_ok=True)


def wait_for_seal(step: int) -> None:
    until = time.monotonic() + float(os.environ["PATIENCE"])
    while not (MARKS / f"{ATTEMPT}-{step}").exists():
        with_node()
        if time.monotonic() > until:
            note(kind="never sealed", step=step)
            os._exit(33)
        time.sleep(0.01)


def say(step: int) -> None:
    last, shown = PLAN["steps"], step - PLAN["base"]
    loss = round(4 / (3 + step), 4)
    how = PLAN["printing"]
    if step % PLAN["say_every"] and step != last:
        return
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


def noise(step: int) -> None:
    """Print what looks like steps and is none."""
    if PLAN["noise"] and PLAN["printing"] == "bar":
        print(flush=True)  # ends the bar's line
    if PLAN["noise"] == "evaluation":
        for number in range(1, 4):
            print(json.dumps({"step": number, "eval_loss": 0.5}), flush=True)
    elif PLAN["noise"] == "epochs":
        print(json.dumps({"epoch": step // PLAN["every"], "iteration": step // PLAN["every"], "lr": 0.1}), flush=True)


def begin() -> int:
    """Note what is there and what is offered; return the step from which the script goes on."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    os.umask(PLAN["umask"])
    if ATTEMPT == 1:
        for name in BESIDE:
            (FOLDER / name).parent.mkdir(parents=True, exist_ok=True)
            (FOLDER / name).write_text(f"mine: {name}")
    texts = {name: (FOLDER / name).read_text() if (FOLDER / name).is_file() else "" for name in BESIDE}
    beside = [name for name, text in texts.items() if text != f"mine: {name}"]
    root = Path(RESUME) if RESUME else None
    begun, content = (step_of(root), digest(root)) if root is not None else (0, "")
    below = str(root.relative_to(FOLDER)) if root is not None else ""
    saved = Path(PLAN["ledger"])
    roots = {json.loads(line).get("root") for line in saved.read_text().splitlines()} if saved.exists() else set()
    found = [FOLDER / name for name in roots - {None, ""} if (FOLDER / name).exists()]
    there = {str(path.relative_to(FOLDER)): [step_of(path), digest(path)] for path in found}
    ignores = bool(begun) and ORDERS["moment"] == "ignores"
    note(kind="resumed", step=begun, digest=content, root=below, missing=beside, there=there, ignores=ignores)
    return 0 if ignores else begun


def main() -> None:
    begun, save = begin(), Saver()
    if PLAN["noise"] == "config":
        print(json.dumps({"iteration": 1_000_000, "model": "llama"}), flush=True)
    saved: list[str] = []
    if begun and PLAN["saves_again"]:
        save(begun, again=True)
    for step in range(begun + 1, PLAN["steps"] + 1):
        with_node()
        say(step)
        if step == ORDERS["step"] and ORDERS["moment"] == "between":
            lose_node()
        if step % PLAN["every"] == 0 or step == PLAN["steps"]:
            save(step)
            name = LAYOUTS[PLAN["layout"]](step).root
            saved = [one for one in saved if one != name] + [name]
            if step in ORDERS["waits"]:
                wait_for_seal(step)
            remove_old(saved)
            noise(step)
        if step == ORDERS["fails_at"]:
            raise RuntimeError(f"the loss is not finite at step {step}")
    note(kind="done")


if __name__ == "__main__":
    main()
