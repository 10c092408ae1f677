"""This process with the rights of one of the policies under infra/ci, and no others."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from tests.rehearsal.aws_account import make_user
from tests.root import ROOT
from tests.worlds.campaign_site import CampaignSite

CI = ROOT / "infra/ci"
OPERATOR = ("operator/look", "operator/network", "operator/cluster", "operator/rights")
FOUNDER = (*OPERATOR, "founder")
VIEWER = ("viewer",)
BUYER = ("block-buyer-role",)
_numbers = count(1)


def policy(name: str) -> dict[str, Any]:
    return dict(json.loads((CI / f"{name}.json").read_text()))


@contextmanager
def acting(camp: CampaignSite, *names: str, without: str = "") -> Iterator[None]:
    """`without`: a statement to leave out, by its Sid."""
    statements = [one for name in names for one in policy(name)["Statement"] if one["Sid"] != without]
    key, secret = make_user(camp.world, f"{Path(names[0]).name}-{next(_numbers)}", *statements)
    before = {name: os.environ[name] for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")}
    os.environ |= {"AWS_ACCESS_KEY_ID": key, "AWS_SECRET_ACCESS_KEY": secret}
    try:
        yield
    finally:
        os.environ |= before


def as_reader(camp: CampaignSite) -> AbstractContextManager[None]:
    """The role of the pull request's preview."""
    return acting(camp, "preview-role")
