"""Checkpoints of frameworks that name or divide their files in ways of their own, and how each finds its newest one.

By their sources: flax `training/checkpoints.py` (`_save_commit`, `latest_checkpoint`), Orbax `_src/path/atomicity.py`
and before 0.5 `checkpoint_handler`, Tacotron 2, HiFi-GAN and VITS `train.py` and `utils.py`, TensorFlow
`tensor_bundle.cc` (`MergeBundles`) and `checkpoint_management.py`, kohya's `train_network.py` and `train_util.py`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.drills.parts.jobs_layouts import (
    LAYOUTS,
    Move,
    Operation,
    Plan,
    Remove,
    Save,
    Write,
    in_folder,
    latest_of_deepspeed,
    metadata_of_dcp,
    named,
    of_accelerate,
    one_file,
    safetensors,
    token,
    torch_file,
)

_END_OF_TABLE = (0xDB4775248B80FB57).to_bytes(8, "little")
"""`kTableMagicNumber`, the last bytes of TensorFlow's index."""


def _flax(plan: Plan, step: int) -> Save:
    return Save(f"checkpoint_{step}", one_file(f"checkpoint_{step}", _msgpack(plan, step), "checkpoint_tmp"))


def _msgpack(plan: Plan, step: int) -> bytes:
    """Return a dictionary of a step and its parameters, in the bytes of msgpack."""
    data = token(plan, step)
    return b"\x82\xa4step\xcd" + step.to_bytes(2, "big") + b"\xa6params\xc6" + len(data).to_bytes(4, "big") + data


def _orbax(plan: Plan, step: int) -> Save:
    """`CheckpointManager` has a folder for each item; flax gives the checkpointer no items."""
    item = "" if plan["bare"] else "default/"
    files = {
        "_CHECKPOINT_METADATA": b'{"item_handlers": {}, "init_timestamp_nsecs": 1}', f"{item}_METADATA": b"{}",
        f"{item}_sharding": b"{}", f"{item}d/0a1b2c": token(plan, step), f"{item}manifest.ocdbt": token(plan, step),
    }  # fmt: skip
    return _renamed(plan, named(plan, step), files, ".orbax-checkpoint-tmp")


def _old_orbax(plan: Plan, step: int) -> Save:
    """An aggregated file of msgpack, and a folder of Zarr for each parameter."""
    item = "" if plan["bare"] else "default/"
    files = {
        f"{item}params.w/.zarray": b'{"zarr_format": 2}', f"{item}params.w/0.0": token(plan, step),
        f"{item}checkpoint": _msgpack(plan, step),
    }  # fmt: skip
    return _renamed(plan, named(plan, step), files, ".orbax-checkpoint-tmp-1690000000000000")


def _renamed(plan: Plan, root: str, files: dict[str, bytes], ending: str) -> Save:
    """Orbax removes what has the name only if it is asked to (`force`)."""
    writing, comes_again = root + ending, plan["saves_again"] or plan["attempts"][-1]["moment"] == "ignores"
    forced = [Remove(root)] if comes_again else []
    return Save(root, [Remove(writing), *forced, *in_folder(writing, files), Move(writing, root)])


def _tacotron(plan: Plan, step: int) -> Save:
    return Save(f"checkpoint_{step}", one_file(f"checkpoint_{step}", torch_file(plan, step, iteration=step)))


def _hifigan(plan: Plan, step: int) -> Save:
    content = torch_file(plan, step, steps=step, epoch=step // plan["every"])
    return _files({f"g_{step:08d}": torch_file(plan, step), f"do_{step:08d}": content})


def _vits(plan: Plan, step: int) -> Save:
    """What its files call `iteration` is the epoch."""
    content = torch_file(plan, step, iteration=step // plan["every"], learning_rate=2e-4)
    return _files({f"G_{step}.pth": content, f"D_{step}.pth": content})


def _files(contents: dict[str, bytes], after: Sequence[Operation] = ()) -> Save:
    return Save(" ".join(sorted(contents)), [Write(name, content) for name, content in contents.items()], after)


def _tensorflow(plan: Plan, step: int) -> Save:
    """Each device writes a bundle of its own; then they are merged: the data are renamed, the index is written."""
    stem, index = named(plan, step), b"table" * 9 + _END_OF_TABLE
    places, operations = range(plan["shards"]), list[Operation]()
    parts = [f"{stem}_temp/part-{place:05d}-of-{plan['shards']:05d}" for place in places]
    data = [f"{stem}.data-{place:05d}-of-{plan['shards']:05d}" for place in places]
    for part in parts:
        operations += Write(f"{part}.data-00000-of-00001", token(plan, step)), Write(f"{part}.index", index)
    operations += [Move(f"{part}.data-00000-of-00001", name) for part, name in zip(parts, data, strict=True)]
    operations += Write(f"{stem}.index", index), Remove(f"{stem}_temp")
    tracker = f'model_checkpoint_path: "{stem}"\nall_model_checkpoint_paths: "{stem}"\n'.encode()
    after = one_file("checkpoint", tracker, "checkpoint.tmp4f2a")
    return Save(" ".join([*data, f"{stem}.index"]), operations, after)


def _kohya(plan: Plan, step: int) -> Save:
    """The weights come first; what `accelerate` calls before its own files writes `train_state.json`."""
    stem, epoch = named(plan, step), step // plan["every"]
    metadata = {"ss_steps": str(step), "ss_epoch": str(epoch)}
    state = {"train_state.json": json.dumps({"current_epoch": epoch, "current_step": step}).encode()}
    operations: list[Operation] = [Write(f"{stem}.safetensors", safetensors(plan, step, metadata))]
    operations += in_folder(f"{stem}-state", {**state, **of_accelerate(plan, step)})
    return Save(f"{stem}-state {stem}.safetensors", operations)


# Two nodes, each with a disk of its own.


def _rank_files(plan: Plan, step: int) -> Save:
    names = [_of_rank(plan, rank, step) for rank in range(2)]
    return Save(" ".join(names), one_file(names[plan["rank"]], torch_file(plan, step)))


def _of_rank(plan: Plan, rank: int, step: int) -> str:
    return str(plan["name"]).format(step=step, rank=rank)


def _dcp_of_ranks(plan: Plan, step: int) -> Save:
    root = named(plan, step)
    end = metadata_of_dcp(root, {"of": step}) if plan["rank"] == 0 else []
    return Save(root, [Write(f"{root}/__{plan['rank']}_0.distcp", token(plan, step))], end)


def _deepspeed_of_ranks(plan: Plan, step: int) -> Save:
    root, rank = named(plan, step), plan["rank"]
    model = {"mp_rank_00_model_states.pt": torch_file(plan, step, global_steps=step)}
    own = {f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt": torch_file(plan, step)}
    operations = in_folder(root, {**({} if rank else model), **own})
    return Save(root, operations, [] if rank else [latest_of_deepspeed(root)])


_LAYOUTS = {
    **LAYOUTS,
    "flax": _flax, "orbax": _orbax, "old orbax": _old_orbax, "tacotron": _tacotron, "hifigan": _hifigan, "vits": _vits,
    "tensorflow": _tensorflow, "kohya": _kohya, "rank files": _rank_files, "dcp of ranks": _dcp_of_ranks,
    "deepspeed of ranks": _deepspeed_of_ranks,
}  # fmt: skip


# How a script finds what it goes on from. Paths below the job's folder; empty: it begins anew.


def _newest_of_flax(plan: Plan, folder: Path, offer: str) -> str:
    names = [path.name for path in folder.glob("checkpoint_*") if "tmp" not in path.name]  # of itself, and of Orbax
    return max(names, key=_natural, default="")


def _natural(name: str) -> list[float | str]:
    parts = re.split(r"(\d+(?:\.\d*)?)", name)
    return [float(part) if part[:1].isdigit() else part for part in parts]


def _newest_of_orbax(plan: Plan, folder: Path, offer: str) -> str:
    """The manager takes folders that are a number alone; those of `checkpoint_N` are flax's."""
    if plan["bare"]:
        return _newest_of_flax(plan, folder, offer)
    place = Path(plan["name"]).parent
    steps = [int(path.name) for path in (folder / place).glob("*") if path.is_dir() and path.name.isdecimal()]
    return str(place / str(max(steps))) if steps else ""


def _newest_of_hifigan(plan: Plan, folder: Path, offer: str) -> str:
    newest = [max((path.name for path in folder.glob(prefix + "?" * 8)), default="") for prefix in ("do_", "g_")]
    return " ".join(newest) if all(newest) else ""


def _newest_of_vits(plan: Plan, folder: Path, offer: str) -> str:
    names = [[path.name for path in folder.glob(f"{network}_*.pth")] for network in "DG"]
    return " ".join(max(of_network, key=lambda name: int(name[2:-4])) for of_network in names) if all(names) else ""


def _newest_of_tensorflow(plan: Plan, folder: Path, offer: str) -> str:
    """What the tracker names, if an index of that name is there; Keras loads weights by the name that it was given."""
    tracker = folder / "checkpoint"
    match = re.match(r'model_checkpoint_path: "(.*)"', tracker.read_text()) if tracker.exists() else None
    stem = "cp.ckpt" if plan["name"] == "cp.ckpt" else match.group(1) if match else ""
    if not stem or not (folder / f"{stem}.index").exists():
        return ""
    return " ".join(sorted(path.name for path in folder.glob(f"{stem}.*")))


def _state_of_kohya(plan: Plan, folder: Path, offer: str) -> str:
    """`--resume` is given the folder of a state."""
    return f"{offer} {offer.removesuffix('-state')}.safetensors" if offer else ""


def _newest_of_ranks(plan: Plan, folder: Path, offer: str) -> str:
    """The newest file of its own rank; it has those of all others beside it."""
    pattern = re.compile(re.escape(_of_rank(plan, plan["rank"], 10**9)).replace(str(10**9), r"(\d+)"))
    paths = [str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()]
    steps = [int(match.group(1)) for path in paths if (match := pattern.fullmatch(path))]
    return " ".join(_of_rank(plan, rank, max(steps)) for rank in range(2)) if steps else ""


def _offered(plan: Plan, folder: Path, offer: str) -> str:
    return offer


_FINDS: dict[str, Callable[[Plan, Path, str], str]] = {
    "flax": _newest_of_flax, "orbax": _newest_of_orbax, "old orbax": _newest_of_orbax, "hifigan": _newest_of_hifigan,
    "vits": _newest_of_vits, "tensorflow": _newest_of_tensorflow, "kohya": _state_of_kohya,
    "rank files": _newest_of_ranks,
}  # fmt: skip


def save_of(plan: Plan, attempt: int, step: int, rank: int) -> Save:
    """Return the checkpoint, or a rank's part of it, that an attempt of a job saves at a step."""
    return _LAYOUTS[plan["layout"]]({**plan, "attempt": attempt, "rank": rank}, step)


def found(plan: Plan, rank: int, folder: Path, offer: str) -> str:
    """Return the root (`Save.root`) from which a script goes on. `offer`: the path that it is given."""
    return _FINDS.get(plan["layout"], _offered)({**plan, "rank": rank}, folder, offer)
