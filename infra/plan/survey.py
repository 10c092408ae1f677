"""Look-up of the facts for check and plan from catalogue and file system; it makes no network requests."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import date
from pathlib import Path
from typing import Any

from infra.plan import catalogue, git_source, source_files
from infra.plan.facts import DataSource, Environment, Facts, KubernetesSupport, Offer
from infra.spec.campaign import Capacity, MixtureSource, Spec, Workload
from infra.spec.recipe import folder_of, source_folder
from infra.spec.workload.built_in import BuiltIn
from infra.spec.workload.workload import GIB
from trainer.contract import DATA_MANIFEST_NAME, DataManifest
from trainer.contract.model.tokenizer import first_token
from trainer.contract.recipe import FOREIGN

ENVIRONMENTS = {
    "aws": Environment(hardware=True, claims=True, public_registries=True, driver_outside=True, inputs=True),
    # Its nodes share one machine and network with the driver and have all images.
    "rehearsal": Environment(hardware=False, claims=False, public_registries=False, driver_outside=False, inputs=False),
    "kubernetes": Environment(
        hardware=True,
        claims=False,
        public_registries=True,
        driver_outside=True,
        inputs=True,
        makes_cluster=False,
        ender="then nobody tears down and certifies until the same `bivouac run` does, with this spec on any machine",
    ),
}
"""Target -> what it offers: the seam between targets, see docs/decisions/0046-standing-cluster.md."""
BYTES_PER_TOKEN = 3.0
"""Measured: 3.02 with a standard library and a vocabulary of 2,048. A larger vocabulary has more, so epochs are
underestimated."""
_LOOK_S, _WEIGH_S = 5.0, 1.0
_PACKED = frozenset({".gz", ".zst", ".xz", ".bz2", ".parquet"})
"""Suffixes of compressed files, whose size does not tell the amount of text."""


def survey(spec: Spec, account: str | None = None, *, complete: bool = True) -> Facts:
    """Return the facts; `account` is that of the present credentials, if known.

    If the spec is not `complete`, facts that depend on a missing field are missing too.
    """
    types = {item.name: item for item in catalogue.instance_types()}
    looks: dict[str, Callable[[], object]] = {
        "environment": lambda: environment(spec),
        "instance": lambda: types.get(spec.nodes.instance_type),
        "all_reduce_gb_s": lambda: _measured_gb_s(spec),
        "floor_gb_s": lambda: _floor_gb_s(spec),
        "instance_names": lambda: tuple(types),
        "profiles": catalogue.profiles,
        "regions": catalogue.regions,
        "prices": catalogue.service_prices,
        "offers": lambda: catalogue_offers(spec),
        "kubernetes": kubernetes_support,
        "data": lambda: data_source(spec),
        "folders": lambda: _folders(spec),
        "programs": lambda: _programs(git_source.local(spec.file_runtime)),
        "first_token": lambda: _first_token(spec),
        "source": lambda: source_files.look(git_source.local(spec.file_runtime)),
        "account": lambda: account,
    }
    if complete:
        return Facts.model_validate({name: look() for name, look in looks.items()})
    facts_by_name: dict[str, Any] = {}
    for name, look in looks.items():
        with suppress(AttributeError, ValueError):
            facts_by_name[name] = look()
    facts = Facts.model_construct(**facts_by_name)
    for name in set(looks) - set(facts_by_name):
        facts.__dict__.pop(name, None)  # model_construct puts the default there
    return facts


def environment(spec: Spec) -> Environment:
    """Return what the spec's target offers."""
    return ENVIRONMENTS[spec.target]


def _measured_gb_s(spec: Spec) -> float | None:
    bandwidth = catalogue.bandwidth(spec.nodes.instance_type)
    return None if bandwidth is None else bandwidth.bus_bandwidth_gb_s


def _floor_gb_s(spec: Spec) -> float:
    name = spec.profile
    return catalogue.expectation(name).bus_bandwidth_gb_s if name in catalogue.profiles() else 0.0


def data_source(spec: Spec) -> DataSource:
    """Return the first missing source, else the last with the tokens of all. A bucket is assumed to exist."""
    if spec.data is None:
        return _job_source(git_source.local(spec.file_runtime))
    tokens: int | None = 0
    for part in spec.data.parts:
        source, size = _look_at(part, spec.data.max_files)
        if not (source.folder and source.matches):
            return source
        tokens = None if tokens is None or size is None else tokens + int(size / BYTES_PER_TOKEN)
    prepared_tokens, gib = _prepared_tokens(spec), spec.data.prepare.text_gib
    size_facts = {} if gib is None else {"text_bytes": int(gib * GIB), "tokens": int(gib * GIB / BYTES_PER_TOKEN)}
    tokens_fact = {
        "tokens": prepared_tokens or tokens or size_facts.get("tokens"),
        "prepared": prepared_tokens is not None,
    }
    return source.model_copy(update={**size_facts, **tokens_fact})


def _job_source(job: Workload | BuiltIn) -> DataSource:
    """Return whether a workload's folder and the script or module in it exist."""
    source = str(job.source or "")
    folder = Path(source or ".").expanduser()
    has_entry = job.script is None or (folder / job.script).is_file()
    if job.module is not None:
        has_entry = _has_module(folder, job.module.split("."))
    return DataSource(location=source, folder=folder.is_dir(), matches=has_entry)


def _has_module(folder: Path, names: list[str]) -> bool:
    """Return whether `python -m` finds the module in the folder. A package that is not there may be in the image."""
    path = folder.joinpath(*names)
    has_top_level = (folder / names[0]).is_dir() or (folder / f"{names[0]}.py").is_file()
    return not has_top_level or path.with_name(f"{names[-1]}.py").is_file() or (path / "__main__.py").is_file()


def _folders(spec: Spec) -> tuple[str, ...]:
    folders: list[str | None] = [] if spec.data is None else [*spec.data.rehearsal.values()]
    if spec.training is not None:
        folders.append(spec.training.init_from)
    job = spec.file_runtime
    folders += [*job.rehearsal.mounts.values(), job.init_from, job.rehearsal.init_from]
    return tuple(folder for folder in folders if folder is not None and source_folder(folder).is_dir())


def _programs(job: Workload | BuiltIn) -> tuple[str, ...]:
    root = Path(str(job.source or ".")).expanduser()
    return tuple(name for _, name in job.named_programs if (root / name).is_file())


def _first_token(spec: Spec) -> str | None:
    try:
        path = None if spec.data is None else spec.data.tokenizer
        return None if path is None else first_token(path.expanduser().read_bytes())
    except (OSError, ValueError, LookupError, TypeError, AttributeError):  # the preparation says what is wrong with it
        return None


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
    depth, late = len(folder.parts), time.monotonic() + _WEIGH_S

    def look() -> None:
        try:
            for path in _fitting(folder, part.pattern):
                if path.is_file() and FOREIGN.isdisjoint(path.parts[depth:]):
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
    exists, matches, is_weighed = answer[0] if answer else (True, True, False)
    share = min(1.0, max_files / len(sizes)) if max_files and sizes else 1.0
    location = part.source if part.source.startswith("hf:") else str(folder)
    source = DataSource(location=location, folder=exists, matches=matches)
    return source, int(sum(sizes) * share) if is_weighed else None


def _fitting(folder: Path, pattern: str) -> Iterator[Path]:
    """Yield the pattern's matches, but skip foreign folders at the top: installed packages have many files."""
    if folder.is_file():
        yield folder
    elif pattern.startswith("**/"):
        yield from folder.glob(pattern.removeprefix("**/"))
        for subfolder in folder.iterdir():
            if subfolder.is_dir() and not subfolder.is_symlink() and subfolder.name not in FOREIGN:
                yield from subfolder.glob(pattern)
    else:
        yield from folder.glob(pattern)


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def kubernetes_support() -> KubernetesSupport:
    """Return the dates: 1.36's is from DescribeClusterVersions in September 2026, quoted in the compatibility matrix of
    awslabs/awsome-distributed-ai; the others are from the user guide."""
    return KubernetesSupport(
        as_of=date(2026, 9, 18),
        source="https://docs.aws.amazon.com/eks/latest/userguide/kubernetes-versions.html",
        standard_until={
            "1.33": date(2026, 7, 29),
            "1.34": date(2026, 12, 2),
            "1.35": date(2027, 3, 27),
            "1.36": date(2027, 8, 2),
        },
    )


def catalogue_offers(spec: Spec) -> tuple[Offer, ...]:
    """Return an offer at the spec's own price, else at the catalogue's on-demand price.

    A reservation bills the on-demand rate; for spot that rate is an upper bound. A capacity block is quoted per
    offering and paid upfront, and borrowed nodes are not AWS's: they have no price here unless the spec has one.
    """
    types = {item.name: item for item in catalogue.instance_types()}
    item = types.get(spec.nodes.instance_type)
    if item is None:
        return ()
    has_price = environment(spec).makes_cluster and spec.nodes.capacity is not Capacity.CAPACITY_BLOCK
    price = item.price_usd_per_hour if has_price else None
    return (
        Offer(
            instance_type=item.name,
            zone=spec.zone,
            capacity=spec.nodes.capacity,
            usd_per_hour=price if spec.nodes.usd_per_hour is None else spec.nodes.usd_per_hour,
            quota_vcpus=None,
            as_of=item.price.as_of,
            source=item.price.source if spec.nodes.usd_per_hour is None else "the spec",
        ),
    )
