"""`python -m trainer.builtin.checkpoint.convert.universal INPUT OUTPUT`: convert a step of N ranks for M ranks.

It uses DeepSpeed's universal format. DeepSpeed's converter and loader unpickle anything; here both read through torch's
restricted unpickler with the allow-list of `deepspeed_engine` and construct nothing else.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import trainer.builtin.checkpoint.deepspeed_engine  # noqa: F401  (names what may be constructed)
from trainer.builtin.checkpoint.frozen_weights import joined
from trainer.errors import StorageError, storage_error

_LISTS = 2
"""Lists of work in `ds_to_universal.main`: shards to extract, then parameters to merge."""
_LOOK_S = 0.1


@contextlib.contextmanager
def only_allowed(use_mmap: bool = False) -> Iterator[None]:
    """Restrict every `torch.load` in the block to the allow-list, whatever its arguments. `use_mmap`: a file's tensors
    are read when they are used, for a caller that keeps none."""
    real = torch.load

    def restrict(file: Any, *args: Any, **kwargs: Any) -> Any:
        # Torch maps only its newer format.
        mmap = use_mmap and isinstance(file, str) and zipfile.is_zipfile(file)
        state = real(file, *args, **{**kwargs, "weights_only": True, "mmap": mmap})
        if not isinstance(file, str | os.PathLike):
            return state
        # DeepSpeed's programs know nothing of frozen weights that lie beside.
        return joined(state, Path(file), lambda frozen: restrict(str(frozen), map_location="cpu"))

    torch.load = restrict  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.load = real


def convert(source: Path, target: Path, part: int = 0, parts: int = 1) -> None:
    """Run DeepSpeed's `ds_to_universal` on one attempt's folder, as one of so many parts that run at the same time.

    Each part extracts some of the old ranks' shards, waits until all are extracted, and merges some of the parameters;
    the first then writes what is left. Raises `StorageError`.
    """
    from trainer.builtin.engine import import_deepspeed

    import_deepspeed()
    from deepspeed.checkpoint import ds_to_universal

    target.mkdir(parents=True, exist_ok=True)
    arguments = argparse.Namespace(
        input_folder=str(source),
        output_folder=str(target),
        # More workers would be processes; spawned ones do not inherit the restriction.
        num_extract_workers=1,
        num_merge_workers=1,
        keep_temp_folder=False,
        strict=parts == 1,  # a part merges too little to tell which patterns nobody uses
        inject_missing_state=True,
    )
    shared = _Shared(target.with_name(f"{target.name}-parts"), part, parts)
    real = ds_to_universal._do_parallel_work
    ds_to_universal._do_parallel_work = shared.work
    try:
        with only_allowed(use_mmap=True):
            ds_to_universal.main(arguments)
    except _PartDone:
        return
    except (OSError, StorageError):
        raise
    except Exception as error:
        detail = f"{source}: {error!r}"[:400]
        message = "a checkpoint could not be converted to the universal format"
        raise storage_error(error, message, detail, "use as many ranks") from error
    finally:
        ds_to_universal._do_parallel_work = real


class _PartDone(BaseException):
    """Ends a part that is done: the first part does the rest. DeepSpeed might handle an `Exception`."""


@dataclass
class _Shared:
    """Does this part's share of the two lists of work in `ds_to_universal.main`; files tell the others."""

    folder: Path
    part: int
    parts: int
    lists: int = 0

    def work(self, do: Callable[[Any], Any], items: Iterable[Any], workers: int) -> list[Any]:
        # Sets come in another order in each process.
        results = [do(item) for item in sorted(items, key=str)[self.part :: self.parts]]
        self.lists += 1
        self.folder.mkdir(exist_ok=True)
        (self.folder / f"{self.lists}-{self.part}").touch()
        if self.lists == _LISTS and self.part:
            raise _PartDone
        while sum(name.startswith(f"{self.lists}-") for name in os.listdir(self.folder)) < self.parts:
            time.sleep(_LOOK_S)
        return results


def load_universal(engine: Any, folder: Path) -> None:
    """Load weights and optimizer, with its step, from a converted folder into an engine of any world size."""
    config, groups = engine._config, engine.optimizer.param_groups
    previous_flag, config.load_universal_checkpoint = config.load_universal_checkpoint, True
    settings = [{name: value for name, value in group.items() if name != "params"} for group in groups]
    try:
        with only_allowed():
            path, _ = engine.load_checkpoint(str(folder.parent), tag=folder.name)
    finally:
        config.load_universal_checkpoint = previous_flag
    _set_apart(engine.optimizer, settings)
    if path is None:
        raise StorageError("DeepSpeed found no state in a universal checkpoint", folder)


def _set_apart(optimizer: Any, settings: list[dict[str, Any]]) -> None:
    """Restore each group's settings and step count. Under ZeRO 3 DeepSpeed 0.19.8 gives all groups those of the first:
    gains would decay like matrices, and each group would increment one common count. DeepSpeed leaves the count in the
    node's memory, and fused AdamW reads it where the parameter lies, in float32."""
    for group, group_settings in zip(optimizer.param_groups, settings, strict=True):
        group.update(group_settings)
    for parameter, state in optimizer.optimizer.state.items():
        if torch.is_tensor(state.get("step")):
            state["step"] = state["step"].to(parameter.device, torch.float32, copy=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m trainer.builtin.checkpoint.convert.universal", description="Convert a step."
    )
    parser.add_argument("input", type=Path, help="an attempt's folder of shards, verified before")
    parser.add_argument("output", type=Path, help="a folder that does not exist yet")
    options = parser.parse_args()
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    convert(options.input, options.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
