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
    found = offered(Account(region), kubernetes)
    if json:
        write_json(console, [asdict(one) for one in found])
    else:
        table(found).show(console)
        for one in (one for one in found if one.default and (one.pinned is None or not one.sold)):
            say(console, "pin it:  " + one.line.replace("KUBERNETES", kubernetes))
    return 0 if all(one.pinned and one.sold for one in found) else CHANGED


def table(found: Iterable[Offered]) -> Listing:
    rows = Listing("add-on", "pinned", "EKS's default", "newest", "~")
    for one in found:
        rows.row(one.name, one.pinned or "-", one.default or "-", one.newest or "-", _verdict(one))
    return rows


def offered(account: Account, kubernetes: str) -> tuple[Offered, ...]:
    """Return offers in the catalogue's order; reads only."""
    return tuple(_offer(account, addon, kubernetes) for addon in catalogue.addons())


def _offer(account: Account, addon: catalogue.Addon, kubernetes: str) -> Offered:
    pages = account.client("eks").get_paginator("describe_addon_versions")
    asked = pages.paginate(kubernetesVersion=kubernetes, addonName=addon.name)
    builds = [build for page in asked for info in page["addons"] for build in info["addonVersions"]]
    names = [str(build["addonVersion"]) for build in builds]
    defaults = [
        str(build["addonVersion"])
        for build in builds
        if any(one.get("defaultVersion") and one["clusterVersion"] == kubernetes for one in build["compatibilities"])
    ]
    pinned = addon.versions.get(kubernetes)
    return Offered(
        name=addon.name,
        pinned=pinned,
        default=next(iter(defaults), None),
        newest=next(iter(names), None),  # EKS lists the newest first.
        sold=pinned in names if pinned else bool(names),
    )


def _verdict(one: Offered) -> str:
    if one.newest is None:
        return "not offered for this Kubernetes"
    if one.pinned is None:
        return "not pinned: EKS's default is taken"
    return "" if one.sold else "no longer offered"
