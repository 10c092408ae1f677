"""Campaigns in existing clusters, as this machine remembers them: their record lies in the S3 of their spec, which no
account and region name."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from infra.errors import UserError
from infra.folders import cache_root
from infra.spec.campaign import Spec


def refuse_elsewhere(spec: Spec) -> None:
    """Raise `UserError` if a campaign of this name was opened here in another place: its record would be out of
    reach."""
    previous_campaign = recall(spec.campaign)
    if previous_campaign is not None and _place(previous_campaign) != _place(spec):
        raise UserError(
            "a campaign of this name is in another place",
            seen=f"{spec.campaign} in {', '.join(_place(previous_campaign))}, the spec says {', '.join(_place(spec))}",
            cure="give this campaign another name, or set the place back",
        )


def _place(spec: Spec) -> tuple[str, ...]:
    cluster = spec.cluster
    assert cluster is not None, "only campaigns in existing clusters are remembered"
    return cluster.context, cluster.namespace, cluster.s3.endpoint or "AWS", cluster.s3.bucket


def remember(spec: Spec) -> None:
    """Keep the spec of a campaign whose record exists."""
    path = _path(spec.campaign)
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".fresh")  # of a driver that is killed here, the old one stays
    fresh.write_text(spec.model_dump_json())
    fresh.replace(path)


def recall(campaign: str) -> Spec | None:
    """Return the spec of a campaign in an existing cluster; None if none of this name was opened here. Raises
    `UserError` for one that cannot be read."""
    path = _path(campaign)
    try:
        return Spec.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        cure = "remove the file, and run `bivouac run SPEC` again: it goes on where the campaign is"
        raise UserError("what this machine knows of the campaign cannot be read", seen=path, cure=cure) from error


def remembered() -> list[str]:
    """Return the names of all campaigns in existing clusters that were opened here, sorted."""
    return sorted(path.stem for path in _path("").parent.glob("*.json"))


def _path(campaign: str) -> Path:
    return cache_root() / "borrowing" / f"{campaign}.json"
