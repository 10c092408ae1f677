"""`bivouac images`: lists baked images with users and cost, and newer bases; `--remove` removes unused ones."""

from __future__ import annotations

import io
from datetime import timedelta
from decimal import Decimal
from typing import Any

import typer
from rich.console import Console

from infra.aws.account import Account
from infra.aws.given.node_image import base_release, eks_images, release_of
from infra.bake.image_inventory import BakedImage, ImageInventory
from infra.cli.answers import write_json
from infra.console.progress import Progress
from infra.console.tables import Listing
from infra.console.terminal import ask_yes
from infra.errors import UserError
from infra.record.store import CampaignStore
from infra.session.session import foundation_held
from infra.spec import duration
from infra.spec.names import buckets


def clean_command(older_than: str, campaign: str | None, **options: Any) -> int:
    """List or remove images, as `images_command`. `campaign`: its site has been entered."""
    age = duration.parse(older_than)
    if not isinstance(age, timedelta):
        raise typer.BadParameter(f"{older_than} is no duration: write one such as 7d or 12h")
    return images_command(older_than=age, **options)


def images_command(
    region: str, keep: int, older_than: timedelta, remove: bool, consent: bool, json: bool, console: Console
) -> int:
    """List or remove images; exit code 0. Raises `UserError` if the answer is no. A refusal by AWS ends it before
    anything is removed."""
    quiet = Console(file=io.StringIO()) if json else console
    account = Account(region)
    bucket = buckets(account.identity()["Account"], region).state
    store = CampaignStore(account.client("s3"), bucket, "images", "images")
    inventory = ImageInventory(account, store, Progress(quiet))
    removals, newer = list[BakedImage](), _newer_releases(account)
    if not remove:
        images = _look(inventory, keep, older_than)
        _show(images, quiet)
    else:
        # The lease keeps bakes and other removals out.
        with foundation_held(store, account, inventory.progress) as lease:
            account.guard = lease.check
            images = _look(inventory, keep, older_than)
            _show(images, quiet)
            leftovers = [image for image in images if image.removable]
            if leftovers and not consent:
                _ask(leftovers, json, console)
            with inventory.progress.stage("images", f"removing {len(leftovers)}"):
                for image in inventory.remove(leftovers, lease):
                    removals.append(image)
                    inventory.progress.note(f"{image.kind} {image.id} is gone")
            account.guard = None
    pin_text = f"{base_release()} (base.release in images/versions.yaml)"
    quiet.print(f"node images are baked from EKS's release {pin_text}; newer ones: {', '.join(newer) or 'none'}")
    if json:
        write_json(console, [_row(image) | {"removed": image in removals, "newer_releases": newer} for image in images])
    return 0


def _newer_releases(account: Account) -> list[str]:
    """Return the releases of EKS's NVIDIA images that AWS has published since the pinned one, the newest last."""
    releases = dict.fromkeys(map(release_of, eks_images(account, "nvidia")))
    return [release for release in releases if release > base_release()]


def _look(inventory: ImageInventory, keep: int, older_than: timedelta) -> tuple[BakedImage, ...]:
    with inventory.progress.stage("images", f"baked images in {inventory.account.region}"):
        return inventory.images(keep=keep, older_than=older_than)


def _ask(removable: list[BakedImage], json: bool, console: Console) -> None:
    question = f"Remove {len(removable)} images for good, at most {_sum(removable):.2f} USD a month?"
    if json or not ask_yes(question, console):
        raise UserError("nothing was removed", seen="no", cure="answer yes, or give --yes")


def _show(images: tuple[BakedImage, ...], console: Console) -> None:
    if not images:
        console.print("no bake left an image here")
        return
    table = Listing("kind", "image", "made", "base", ">GB", ">USD/month", "~kept for")
    for image in images:
        base = image.base or "no manifest: unfinished, or baked again"
        table.row(image.kind, image.id, f"{image.made_at:%Y-%m-%d}", base, f"{image.gb:.2f}",
                      f"{image.usd_per_month:.2f}",
                      ", ".join(image.kept_for) or "nothing: --remove removes it")  # fmt: skip
    table.show(console)
    idle = [image for image in images if image.removable]
    console.print(
        f"{len(images)} images, at most {_sum(images):.2f} USD a month; {len(idle)} of them are unused, "
        f"{_sum(idle):.2f} USD"
    )


def _sum(images: Any) -> Decimal:
    return sum((image.usd_per_month for image in images), Decimal(0))


def _row(image: BakedImage) -> dict[str, Any]:
    return {
        "kind": image.kind, "id": image.id, "base": image.base, "made_at": image.made_at.isoformat(), "gb": image.gb,
        "usd_per_month_at_most": image.usd_per_month, "snapshots": image.snapshots, "manifest": image.manifest,
        "kept_for": image.kept_for,
    }  # fmt: skip
