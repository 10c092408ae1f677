"""Looks up the plain facts that check and plan weigh: catalogue and file system; no network by itself."""

from __future__ import annotations

import sysconfig
from pathlib import Path

from infra import catalogue
from infra.facts import DataSource, Facts
from infra.kubernetes_support import kubernetes_support
from infra.offers import OfferSource, catalogue_offers
from infra.spec import Data, Spec

STANDARD_LIBRARY = "python:stdlib"


def survey(spec: Spec, account: str | None = None, offers: OfferSource = catalogue_offers) -> Facts:
    """`account`: of the credentials at hand, where the caller knows it."""
    known = {item.name: item for item in catalogue.instance_types()}
    return Facts(
        instance=known.get(spec.nodes.instance_type),
        instance_names=tuple(known),
        profiles=catalogue.profiles(),
        prices=catalogue.service_prices(),
        offers=offers(spec),
        kubernetes=kubernetes_support(),
        data=data_source(spec.data),
        account=account,
    )


def data_source(data: Data) -> DataSource:
    """Looks until the first file that fits: a large folder costs no more than a small one."""
    folder = source_folder(data)
    try:
        matches = folder.is_dir() and any(path.is_file() for path in folder.glob(data.pattern))
    except (ValueError, NotImplementedError):  # an empty or an absolute pattern fits no file
        matches = False
    return DataSource(location=str(folder), folder=folder.is_dir(), matches=matches)


def source_folder(data: Data) -> Path:
    """The folder that `data.source` names."""
    if str(data.source) == STANDARD_LIBRARY:
        return Path(sysconfig.get_path("stdlib"))
    return data.source.expanduser()
