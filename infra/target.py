"""The one place that picks the target: AWS as the environment names it, or this machine."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from infra.errors import UserError
from infra.folders import cache_root

if TYPE_CHECKING:
    from infra.console.tables import Listing
    from infra.spec.campaign import Spec

_INSIDE = "BIVOUAC_SITE"


def enter_for(spec: Spec, progress: Callable[[str], None]) -> None:
    """Be where the spec's target is. For a rehearsal that replaces this process by itself inside the site."""
    if _INSIDE in os.environ:
        return
    _refuse_name_in_use(spec)
    if spec.target == "aws":
        _have_engine()
        return
    from infra.rehearsal.site import campaigns, handle

    def note(folder: Path) -> None:
        campaigns.remember(spec, folder)

    site = handle.ensure(campaigns.SITE, progress, note)
    note(Path(site.folder))
    handle.enter(site, again())


def _refuse_name_in_use(spec: Spec) -> None:
    """A name stands for one campaign on this machine: `bivouac down NAME` must not have to guess which."""
    if not (cache_root() / "sites").is_dir():
        return
    from infra.rehearsal.site import campaigns

    site = campaigns.site_of(spec.campaign)
    if site is not None and (spec.target == "aws" or site.name != campaigns.SITE):
        raise UserError(
            "the campaign's name is in use by a rehearsal",
            seen=f"{spec.campaign} in site {site.name}",
            cure="give this campaign another name, or remove the rehearsals: bivouac down --all",
        )


def enter_where(campaign: str) -> None:
    """Be where a campaign of this name runs: the rehearsal site that holds it, else AWS."""
    if _INSIDE in os.environ or not (cache_root() / "sites").is_dir():
        return
    from infra.rehearsal.site import campaigns, handle

    site = campaigns.site_of(campaign)
    if site is not None:
        handle.enter(site, again())


def rehearsed() -> dict[str, bool]:
    """Return the names of the campaigns that are rehearsed on this machine, and whether their sites run."""
    if not (cache_root() / "sites").is_dir():
        return {}
    from infra.rehearsal.site import campaigns

    return {name: campaigns.site_of(name) is not None for name in campaigns.everywhere()}


def remove_lost(campaign: str, say: Callable[[str], None]) -> bool:
    """End what is left of rehearsal sites that held this campaign and do not run; whether there was one."""
    if _INSIDE in os.environ or not (cache_root() / "sites").is_dir():
        return False
    from infra.rehearsal.site import campaigns, handle

    lost = campaigns.lost_sites_of(campaign)
    for name in lost:
        handle.remove(name, say)
        say(f"site {name}, where {campaign} had been rehearsed or was about to be, did not run: what was left is gone")
    return bool(lost)


def _have_engine() -> None:
    """On AWS only the Pulumi engine is needed besides the Python packages."""
    from infra.rehearsal.paths import tools_dir
    from infra.rehearsal.toolchain.ensure import ensure

    ensure(["pulumi"])
    os.environ["PATH"] = os.pathsep.join([str(tools_dir()), str(Path(sys.executable).parent), os.environ["PATH"]])


def hands() -> list[str]:
    """Folders of the PATH on which `pulumi` typed by hand finds engine, language host and Python."""
    from infra.rehearsal.paths import tools_dir
    from infra.rehearsal.toolchain.ensure import ensure

    ensure(["pulumi", "pulumi-language-python"])
    return [str(tools_dir()), str(Path(sys.executable).parent)]


def spends(spec: Spec) -> bool:
    """Whether this target bills: what a rehearsal costs is only what the same clock would have cost."""
    return spec.target == "aws"


def diagnose() -> tuple[Listing, list[dict[str, Any]]]:
    """Return what a rehearsal needs of this machine, as a table and for machines: `ok` of each says if it is here."""
    from infra.rehearsal import doctor

    rows = doctor.diagnose()
    return doctor.render(rows), [asdict(row) for row in rows]


def about() -> dict[str, Any] | None:
    """On a rehearsal: what is emulated and what is not rehearsed. None on AWS."""
    if _INSIDE not in os.environ:
        return None
    from infra.rehearsal.site import honesty

    return honesty.statement()


def again() -> list[str]:
    """The command line of this very process."""
    return [sys.executable, "-m", "infra.cli.main", *sys.argv[1:]]


def remove_all(say: Callable[[str], None]) -> int:
    """End every rehearsal site of this machine; what its campaigns keep on purpose is exported first."""
    if not (cache_root() / "sites").is_dir():
        say("no site is here")
        return 0
    from infra.rehearsal.site import ending

    return ending.remove_all(say)
