"""Looks up the plain facts that check and plan weigh: catalogue and file system; no network by itself."""

from __future__ import annotations

import sysconfig
import threading
from pathlib import Path

from infra import catalogue, target
from infra.facts import DataSource, Facts
from infra.kubernetes_support import kubernetes_support
from infra.offers import catalogue_offers
from infra.spec import Data, MixtureSource, Spec

STANDARD_LIBRARY = "python:stdlib"
_LOOK_S = 5.0


def survey(spec: Spec, account: str | None = None) -> Facts:
    """`account`: of the credentials at hand, where the caller knows it."""
    known = {item.name: item for item in catalogue.instance_types()}
    measured = catalogue.bandwidth(spec.nodes.instance_type)
    return Facts(
        grounds=target.grounds(spec),
        instance=known.get(spec.nodes.instance_type),
        all_reduce_gb_s=None if measured is None else measured.bus_bandwidth_gb_s,
        floor_gb_s=_floor_gb_s(spec),
        instance_names=tuple(known),
        profiles=catalogue.profiles(),
        prices=catalogue.service_prices(),
        offers=catalogue_offers(spec),
        kubernetes=kubernetes_support(),
        data=data_source(spec.data),
        account=account,
    )


def _floor_gb_s(spec: Spec) -> float:
    name = spec.preflight.profile or spec.nodes.instance_type
    return catalogue.expectation(name).bus_bandwidth_gb_s if name in catalogue.profiles() else 0.0


def data_source(data: Data) -> DataSource:
    """The first source that is missing, else the last; a bucket is taken to be there, since nothing here is online."""
    for part in data.parts:
        found = _look_at(part)
        if not (found.folder and found.matches):
            break
    return found


def _look_at(part: MixtureSource) -> DataSource:
    """Looks until the first file that fits, and not longer than a person waits: then it is taken to be there."""
    if part.source.startswith("s3://"):
        return DataSource(location=part.source, folder=True, matches=True)
    folder = source_folder(part.source)
    answer: list[tuple[bool, bool]] = []

    def look() -> None:
        try:
            matches = folder.is_file() or any(path.is_file() for path in folder.glob(part.pattern))
            answer.append((folder.exists(), matches))
        except (ValueError, NotImplementedError, OSError, RuntimeError):  # no pattern, no path, no permission
            answer.append((_is_there(folder), False))

    # On a thread: no walk through a dead network mount can be ended otherwise.
    looking = threading.Thread(target=look, daemon=True)
    looking.start()
    looking.join(_LOOK_S)
    there, matches = answer[0] if answer else (True, True)
    return DataSource(location=str(folder), folder=there, matches=matches)


def source_folder(source: str) -> Path:
    """The folder or file that a source names."""
    if source == STANDARD_LIBRARY:
        return Path(sysconfig.get_path("stdlib"))
    try:
        return Path(source).expanduser()
    except RuntimeError:  # `~nobody`: there is no such user, hence no such folder
        return Path(source)


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):
        return False
