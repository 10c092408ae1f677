"""Looks up the plain facts that check and plan weigh: catalogue and file system; no network by itself."""

from __future__ import annotations

import sysconfig
import threading
from pathlib import Path

from infra import catalogue
from infra.facts import DataSource, Facts
from infra.kubernetes_support import kubernetes_support
from infra.offers import OfferSource, catalogue_offers
from infra.spec import Data, Spec

STANDARD_LIBRARY = "python:stdlib"
_LOOK_S = 5.0


def survey(spec: Spec, account: str | None = None, offers: OfferSource = catalogue_offers) -> Facts:
    """`account`: of the credentials at hand, where the caller knows it."""
    known = {item.name: item for item in catalogue.instance_types()}
    measured = catalogue.bandwidth(spec.nodes.instance_type)
    return Facts(
        instance=known.get(spec.nodes.instance_type),
        all_reduce_gb_s=None if measured is None else measured.bus_bandwidth_gb_s,
        instance_names=tuple(known),
        profiles=catalogue.profiles(),
        prices=catalogue.service_prices(),
        offers=offers(spec),
        kubernetes=kubernetes_support(),
        data=data_source(spec.data),
        account=account,
    )


def data_source(data: Data) -> DataSource:
    """Looks until the first file that fits, and not longer than a person waits: then it is taken to be there."""
    folder = source_folder(data)
    answer: list[tuple[bool, bool]] = []

    def look() -> None:
        try:
            answer.append((folder.is_dir(), any(path.is_file() for path in folder.glob(data.pattern))))
        except (ValueError, NotImplementedError, OSError, RuntimeError):  # no pattern, no path, no permission
            answer.append((_is_folder(folder), False))

    # On a thread: no walk through a dead network mount can be ended otherwise.
    looking = threading.Thread(target=look, daemon=True)
    looking.start()
    looking.join(_LOOK_S)
    there, matches = answer[0] if answer else (True, True)
    return DataSource(location=str(folder), folder=there, matches=matches)


def source_folder(data: Data) -> Path:
    """The folder that `data.source` names."""
    if str(data.source) == STANDARD_LIBRARY:
        return Path(sysconfig.get_path("stdlib"))
    try:
        return data.source.expanduser()
    except RuntimeError:  # `~nobody`: there is no such user, hence no such folder
        return data.source


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False
