"""A limit that stops a conversion or a start from weights: neither the files nor their storage are at fault."""

from __future__ import annotations

import errno
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors import SafetensorError

from trainer.builtin.checkpoint.convert import initial, universal
from trainer.errors import ConfigError, OutOfFiles, OutOfMemory, StorageError, TrainerError


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (SafetensorError("Error while opening: Too many open files (os error 24)"), OutOfFiles),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), OutOfMemory),
        (SafetensorError("Error while deserializing header: incomplete metadata"), StorageError),
    ],
)
def test_weights_that_cannot_be_taken_are_the_storages_unless_a_limit_refused_them(
    error: Exception, kind: type[TrainerError], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **how: Any) -> None:
        raise error

    weight = torch.nn.Parameter(torch.zeros(2))
    model: Any = SimpleNamespace(
        named_parameters=lambda: [(f"{initial.PREFIX}w", weight)], network=SimpleNamespace(all_tied_weights_keys=())
    )
    monkeypatch.setattr(initial, "_refuse_another_meaning", lambda model, folder: None)
    (tmp_path / initial.INDEX).write_text('{"weight_map": {"w": "a.safetensors"}}')
    monkeypatch.setattr(initial, "safe_open", refuse)
    with pytest.raises(kind):
        initial.take_weights(model, tmp_path)


@pytest.mark.parametrize(
    ("number", "kind"),
    [(errno.ENOENT, ConfigError), (errno.EIO, StorageError), (errno.EMFILE, OutOfFiles)],
)
def test_weights_whose_configuration_cannot_be_read_have_one(
    number: int, kind: type[TrainerError], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> bytes:
        raise OSError(number, "refused", str(path))

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(kind, match=r"config\.json"):
        initial._refuse_another_meaning(None, tmp_path)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (RuntimeError("unable to mmap 8 bytes from file: Cannot allocate memory (12)"), OutOfMemory),
        (MemoryError(), OutOfMemory),
        (RuntimeError("a pattern matches nothing"), StorageError),
    ],
)
def test_a_conversion_that_memory_stops_is_no_fault_of_the_checkpoint(
    error: Exception, kind: type[TrainerError], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from trainer.builtin.engine import import_deepspeed

    import_deepspeed()
    from deepspeed.checkpoint import ds_to_universal

    def fail(arguments: Any) -> None:
        raise error

    monkeypatch.setattr(ds_to_universal, "main", fail)
    with pytest.raises(kind):
        universal.convert(tmp_path, tmp_path / "universal")
