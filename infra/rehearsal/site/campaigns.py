"""The campaigns of a site and the faults they ask for, as files that the target switch writes."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from infra.folders import sites_dir
from infra.rehearsal.site import handle

if TYPE_CHECKING:
    from infra.spec.campaign import Spec

SITE = os.environ.get("BIVOUAC_SITE_NAME", "default")
"""One site holds one cluster; a second site needs another name."""
_FOLDER = "campaigns"
_STRUCK = ".struck"


def remember(spec: Spec, folder: Path) -> None:
    """Record the campaign and its faults in the site; the first campaign decides how strict the site's AWS is."""
    from infra.rehearsal.aws.strict import settings

    (folder / _FOLDER).mkdir(exist_ok=True)
    wishes = spec.rehearsal
    strictness = settings.Strictness()
    if wishes is not None:
        strictness = settings.Strictness(level=wishes.aws, seed=wishes.seed, time_scale=wishes.time_scale)
    settings.write(folder, strictness)
    faults = [fault.model_dump(mode="json") for fault in (spec.rehearsal.faults if spec.rehearsal else ())]
    body = {"campaign": spec.campaign, "account": spec.account, "region": spec.region, "faults": faults}
    path = folder / _FOLDER / f"{spec.campaign}.json"
    if not path.exists():
        # Renamed into place: the fault injector reads the file twice a second.
        fresh = path.with_suffix(".new")
        fresh.write_text(json.dumps(body))
        fresh.replace(path)


def note_struck(folder: Path, campaign: str, number: int) -> None:
    """Record that the fault of this number has struck the campaign: each does so once."""
    with (folder / _FOLDER / f"{campaign}{_STRUCK}").open("a") as file:
        file.write(f"{number} {datetime.now(UTC).isoformat()}\n")


def struck_in(folder: Path, campaign: str) -> dict[int, datetime]:
    """Return number of the fault -> when it struck."""
    path = folder / _FOLDER / f"{campaign}{_STRUCK}"
    rows = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
    return {int(number): datetime.fromisoformat(moment) for number, moment in rows}


def campaigns_in(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted((folder / _FOLDER).glob("*.json"))]


def forget(folder: Path, campaign: str) -> None:
    for name in (f"{campaign}.json", f"{campaign}{_STRUCK}", f"{campaign}.moments"):
        (folder / _FOLDER / name).unlink(missing_ok=True)


def everywhere() -> list[str]:
    """Return the names of all campaigns of this machine's sites."""
    return sorted({path.stem for path in sites_dir().glob(f"*/{_FOLDER}/*.json")})


def site_of(campaign: str) -> handle.Site | None:
    return next((site for name in _holding(campaign) if (site := handle.find(name)) is not None), None)


def lost_sites_of(campaign: str) -> list[str]:
    """Return the sites that hold a campaign and do not run: their start was killed, or the machine stopped."""
    return [name for name in _holding(campaign) if handle.find(name) is None]


def _holding(campaign: str) -> list[str]:
    folders = sorted(sites_dir().iterdir()) if sites_dir().is_dir() else []
    return [folder.name for folder in folders if (folder / _FOLDER / f"{campaign}.json").exists()]
