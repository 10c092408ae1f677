"""Look-up of the facts for check and plan from catalogue and file system; it makes no network requests."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from infra.plan import catalogue, source_files
from infra.plan.facts import DataSource, Environment, Facts
from infra.plan.kubernetes_support import kubernetes_support
from infra.plan.offers import catalogue_offers
from infra.spec.campaign import MixtureSource, Spec, Workload
from infra.spec.recipe import folder_of, source_folder
from infra.spec.workload.workload import GIB
from trainer.contract import DATA_MANIFEST_NAME, DataManifest
from trainer.contract.recipe import FOREIGN

BYTES_PER_TOKEN = 3.0
"""Measured: 3.02 with a standard library and a vocabulary of 2,048. A larger vocabulary has more, so epochs are
underestimated."""
_LOOK_S, _WEIGH_S = 5.0, 1.0
_PACKED = frozenset({".gz", ".zst", ".xz", ".bz2", ".parquet"})
"""Suffixes of compressed files, whose size does not tell the amount of text."""


def survey(spec: Spec, account: str | None = None, *, whole: bool = True) -> Facts:
    """Return the facts; `account` is that of the present credentials, if known.

    If the spec is not `whole`, facts that depend on a missing field are missing too.
    """
    known = {item.name: item for item in catalogue.instance_types()}
    looks: dict[str, Callable[[], object]] = {
        "environment": lambda: environment(spec),
        "instance": lambda: known.get(spec.nodes.instance_type),
        "all_reduce_gb_s": lambda: _measured_gb_s(spec),
        "floor_gb_s": lambda: _floor_gb_s(spec),
        "instance_names": lambda: tuple(known),
        "profiles": catalogue.profiles,
        "regions": catalogue.regions,
        "prices": catalogue.service_prices,
        "offers": lambda: catalogue_offers(spec),
        "kubernetes": kubernetes_support,
        "data": lambda: data_source(spec),
        "folders": lambda: _folders(spec),
        "programs": lambda: _programs(spec.workload),
        "source": lambda: source_files.look(spec.workload),
        "account": lambda: account,
    }
    if whole:
        return Facts.model_validate({name: look() for name, look in looks.items()})
    found: dict[str, Any] = {}
    for name, look in looks.items():
        with suppress(AttributeError, ValueError):
            found[name] = look()
    facts = Facts.model_construct(**found)
    for name in set(looks) - set(found):
        facts.__dict__.pop(name, None)  # model_construct puts the default there
    return facts


def environment(spec: Spec) -> Environment:
    """Return the environment; a rehearsal's nodes share one machine and network with the driver and have all images."""
    real = spec.target == "aws"
    return Environment(hardware=real, claims=real, public_registries=real, driver_outside=real, inputs=real)


def _measured_gb_s(spec: Spec) -> float | None:
    measured = catalogue.bandwidth(spec.nodes.instance_type)
    return None if measured is None else measured.bus_bandwidth_gb_s


def _floor_gb_s(spec: Spec) -> float:
    name = spec.profile
    return catalogue.expectation(name).bus_bandwidth_gb_s if name in catalogue.profiles() else 0.0


def data_source(spec: Spec) -> DataSource:
    """Return the first missing source, else the last with the tokens of all. A bucket is assumed to exist."""
    if spec.data is None:
        return _job_source(spec.workload)
    tokens: int | None = 0
    for part in spec.data.parts:
        found, size = _look_at(part, spec.data.max_files)
        if not (found.folder and found.matches):
            return found
        tokens = None if tokens is None or size is None else tokens + int(size / BYTES_PER_TOKEN)
    prepared, gib = _prepared_tokens(spec), spec.data.prepare.text_gib
    sized = {} if gib is None else {"text_bytes": int(gib * GIB), "tokens": int(gib * GIB / BYTES_PER_TOKEN)}
    measured = {"tokens": prepared or tokens or sized.get("tokens"), "prepared": prepared is not None}
    return found.model_copy(update={**sized, **measured})


def _job_source(workload: Workload | None) -> DataSource:
    """Return whether a workload's folder and the script or module in it exist."""
    source, script = (workload.source, workload.script) if workload else (None, None)
    folder = Path(source or ".").expanduser()
    there = script is None or (folder / script).is_file()
    if workload is not None and workload.module is not None:
        there = _has_module(folder, workload.module.split("."))
    return DataSource(location=source or "", folder=folder.is_dir(), matches=there)


def _has_module(folder: Path, names: list[str]) -> bool:
    """Return whether `python -m` finds the module in the folder. A package that is not there may be in the image."""
    path = folder.joinpath(*names)
    here = (folder / names[0]).is_dir() or (folder / f"{names[0]}.py").is_file()
    return not here or path.with_name(f"{names[-1]}.py").is_file() or (path / "__main__.py").is_file()


def _folders(spec: Spec) -> tuple[str, ...]:
    given: list[str | None] = [] if spec.data is None else [*spec.data.rehearsal.values()]
    if spec.training is not None:
        given.append(spec.training.init_from)
    if (workload := spec.workload) is not None:
        given += [*workload.rehearsal.mounts.values(), workload.init_from, workload.rehearsal.init_from]
    return tuple(one for one in given if one is not None and source_folder(one).is_dir())


def _programs(workload: Workload | None) -> tuple[str, ...]:
    root = Path((workload.source if workload else None) or ".").expanduser()
    return tuple(name for _, name in workload.named_programs if (root / name).is_file()) if workload else ()


def _prepared_tokens(spec: Spec) -> int | None:
    try:
        manifest = DataManifest.model_validate_json((folder_of(spec) / DATA_MANIFEST_NAME).read_bytes())
    except (OSError, ValueError):
        return None
    return sum(shard.tokens for shard in manifest.train)


def _look_at(part: MixtureSource, max_files: int | None) -> tuple[DataSource, int | None]:
    """Return the source, and the bytes of its text if a few seconds suffice to sum them.

    If not even one matching file is found in that time, one is assumed to exist.
    """
    if part.source.startswith("s3://"):
        return DataSource(location=part.source, folder=True, matches=True), None
    folder = source_folder(part.source)
    sizes: list[int] = []
    answer: list[tuple[bool, bool, bool]] = []
    late = time.monotonic() + _WEIGH_S

    def look() -> None:
        try:
            for path in _fitting(folder, part.pattern):
                if path.is_file() and FOREIGN.isdisjoint(path.relative_to(folder).parts):
                    sizes.append(-1 if path.suffix in _PACKED else path.stat().st_size)
                    if time.monotonic() > late:
                        answer.append((True, True, False))
                        return
            answer.append((folder.exists(), bool(sizes), min(sizes, default=0) >= 0))
        except (ValueError, NotImplementedError, OSError, RuntimeError):  # no pattern, no path, no permission
            answer.append((_is_there(folder), False, False))

    # In a thread, since a walk through a dead network mount cannot be ended otherwise.
    looking = threading.Thread(target=look, daemon=True)
    looking.start()
    looking.join(_LOOK_S)
    there, matches, weighed = answer[0] if answer else (True, True, False)
    share = min(1.0, max_files / len(sizes)) if max_files and sizes else 1.0
    seen = DataSource(location=str(folder), folder=there, matches=matches)
    return seen, int(sum(sizes) * share) if weighed else None


def _fitting(folder: Path, pattern: str) -> Iterator[Path]:
    """Yield the pattern's matches, but skip foreign folders at the top: installed packages have many files."""
    if folder.is_file():
        yield folder
    elif pattern.startswith("**/"):
        yield from folder.glob(pattern.removeprefix("**/"))
        for below in folder.iterdir():
            if below.is_dir() and not below.is_symlink() and below.name not in FOREIGN:
                yield from below.glob(pattern)
    else:
        yield from folder.glob(pattern)


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):
        return False
