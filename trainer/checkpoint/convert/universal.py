"""`python -m trainer.checkpoint.convert.universal INPUT OUTPUT`: convert a step of N ranks for M ranks.

It uses DeepSpeed's universal format. DeepSpeed's converter and loader unpickle anything; here both read through torch's
restricted unpickler with the allow-list of `deepspeed_engine` and construct nothing else.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

import trainer.checkpoint.deepspeed_engine  # noqa: F401  (names what may be constructed)
from trainer.errors import StorageError
from trainer.parent import end_with_parent


@contextlib.contextmanager
def only_allowed() -> Iterator[None]:
    """Restrict every `torch.load` in the block to the allow-list, whatever its arguments."""
    real = torch.load

    def restricted(file: Any, *rest: Any, **named: Any) -> Any:
        return real(file, *rest, **{**named, "weights_only": True})

    torch.load = restricted  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.load = real


def convert(source: Path, target: Path) -> None:
    """Run DeepSpeed's `ds_to_universal` on one attempt's folder."""
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    from trainer.engine import import_deepspeed

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
        strict=True,
        inject_missing_state=True,
    )
    with only_allowed():
        ds_to_universal.main(arguments)


def convert_apart(source: Path, target: Path) -> None:
    """Run `convert` in a process of its own. Raises `StorageError` with the end of its output."""
    command = [sys.executable, "-m", "trainer.checkpoint.convert.universal", str(source), str(target)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TORCHELASTIC")}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        seen = f"{source}: {(done.stderr or done.stdout).strip()[-400:]}"
        raise StorageError("a checkpoint could not be converted to the universal format", seen, "use as many ranks")


def load_universal(engine: Any, folder: Path) -> None:
    """Load weights and optimizer, with its step, from a converted folder into an engine of any world size."""
    config, groups = engine._config, engine.optimizer.param_groups
    before, config.load_universal_checkpoint = config.load_universal_checkpoint, True
    settings = [{name: value for name, value in group.items() if name != "params"} for group in groups]
    try:
        with only_allowed():
            path, _ = engine.load_checkpoint(str(folder.parent), tag=folder.name)
    finally:
        config.load_universal_checkpoint = before
    _set_apart(engine.optimizer, settings)
    if path is None:
        raise StorageError("DeepSpeed found no state in a universal checkpoint", folder)


def _set_apart(optimizer: Any, settings: list[dict[str, Any]]) -> None:
    """Restore each group's settings and step count. Under ZeRO 3 DeepSpeed 0.19.8 gives all groups those of the first:
    gains would decay like matrices, and each group would increment one common count."""
    for group, own in zip(optimizer.param_groups, settings, strict=True):
        group.update(own)
    for state in optimizer.optimizer.state.values():
        if torch.is_tensor(state.get("step")):
            state["step"] = state["step"].clone()


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m trainer.checkpoint.convert.universal", description="Convert a step."
    )
    parser.add_argument("input", type=Path, help="an attempt's folder of shards, verified before")
    parser.add_argument("output", type=Path, help="a folder that does not exist yet")
    options = parser.parse_args()
    # It must not write on beside the ranks that are started again after the death of the one that started it.
    end_with_parent()
    convert(options.input, options.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
