"""`bivouac addons`: the builds of the add-ons that EKS offers for a Kubernetes version, and the catalogue's pins."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass

from rich.console import Console

from infra.aws.account import Account
from infra.cli.answers import write_json
from infra.console.plain_console import say
from infra.console.tables import Listing
from infra.errors import CHANGED
from infra.plan import catalogue


@dataclass(frozen=True)
class Offered:
    name: str
    pinned: str | None
    default: str | None
    """EKS's default for this Kubernetes; None if it offers none."""
    newest: str | None
    sold: bool
    """The pinned build is still offered; without a pin, any build is."""

    @property
    def line(self) -> str:
        return f'{self.name}: versions: {{"KUBERNETES": {self.default}}}'


def addons_command(kubernetes: str, region: str, json: bool, console: Console) -> int:
    """List add-ons. Exit code 0 when all are pinned to offered builds, 2 when one is not."""
    offers = offers_of(Account(region), kubernetes)
    if json:
        write_json(console, [asdict(offer) for offer in offers])
    else:
        table(offers).show(console)
        for offer in (offer for offer in offers if offer.default and (offer.pinned is None or not offer.sold)):
            say(console, "pin it:  " + offer.line.replace("KUBERNETES", kubernetes))
    return 0 if all(offer.pinned and offer.sold for offer in offers) else CHANGED


def table(offers: Iterable[Offered]) -> Listing:
    rows = Listing("add-on", "pinned", "EKS's default", "newest", "~")
    for offer in offers:
        rows.row(offer.name, offer.pinned or "-", offer.default or "-", offer.newest or "-", _verdict(offer))
    return rows


def offers_of(account: Account, kubernetes: str) -> tuple[Offered, ...]:
    """Return offers in the catalogue's order; reads only."""
    return tuple(_offer(account, addon, kubernetes) for addon in catalogue.addons())


def _offer(account: Account, addon: catalogue.Addon, kubernetes: str) -> Offered:
    pages = account.client("eks").get_paginator("describe_addon_versions")
    pages_of_builds = pages.paginate(kubernetesVersion=kubernetes, addonName=addon.name)
    builds = [build for page in pages_of_builds for info in page["addons"] for build in info["addonVersions"]]
    names = [str(build["addonVersion"]) for build in builds]
    defaults = [
        str(build["addonVersion"])
        for build in builds
        if any(item.get("defaultVersion") and item["clusterVersion"] == kubernetes for item in build["compatibilities"])
    ]
    pin = addon.versions.get(kubernetes)
    return Offered(
        name=addon.name,
        pinned=pin,
        default=next(iter(defaults), None),
        newest=next(iter(names), None),  # EKS lists the newest first.
        sold=pin in names if pin else bool(names),
    )


def _verdict(offer: Offered) -> str:
    if offer.newest is None:
        return "not offered for this Kubernetes"
    if offer.pinned is None:
        return "not pinned: EKS's default is taken"
    return "" if offer.sold else "no longer offered"
