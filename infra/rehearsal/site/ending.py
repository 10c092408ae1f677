"""Removal of sites, after what campaigns keep on purpose is exported to the results folder."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from infra.folders import results_folder, sites_dir
from infra.rehearsal.site import campaigns, handle
from infra.rehearsal.site.environment import bare
from infra.spec.names import buckets

_EXPORT_S = 120.0


def remove_all(say: Callable[[str], None]) -> int:
    """Remove every site, running or left over. Return 1 if an archive could not be exported, else 0."""
    names = sorted(path.name for path in sites_dir().iterdir()) if sites_dir().is_dir() else []
    failures = 0
    for name in names:
        site = handle.find(name)
        if site is not None and _export(site, say):
            failures = 1
            continue
        handle.remove(name, say)
        say(f"site {name} is removed")
    if not names:
        say("no site is here")
    return failures


def remove_site_of(campaign: str, say: Callable[[str], None]) -> int:
    """Remove a campaign that needs no teardown from its site, and the site with its last campaign; or what is left of
    a site that does not run. Return 1 if an archive could not be exported, else 0."""
    if (site := campaigns.site_of(campaign)) is None:
        for name in campaigns.lost_sites_of(campaign):
            handle.remove(name, say)
            say(f"site {name} of {campaign} did not run: its leftovers are removed")
        return 0
    if _export(site, say, chosen_campaign=campaign):
        return 1
    campaigns.forget(Path(site.folder), campaign)
    if names := [str(note["campaign"]) for note in campaigns.campaigns_in(Path(site.folder))]:
        say(f"{campaign} is removed; site {site.name} stays for {', '.join(names)}")
        return 0
    handle.remove(site.name, say)
    say(f"site {site.name} is removed")
    return 0


def _export(site: handle.Site, say: Callable[[str], None], chosen_campaign: str = "") -> int:
    """Export the archives of a site's campaigns, or of one; return 1 if one could not be exported, else 0."""
    failures = 0
    for note in campaigns.campaigns_in(Path(site.folder)):
        campaign = str(note["campaign"])
        if chosen_campaign and campaign != chosen_campaign:
            continue
        place = str(note["account"]), str(note["region"])
        results, bucket = results_folder(campaign, *place), buckets(*place).archive
        command = site.entry(
            [sys.executable, "-P", "-m", "infra.rehearsal.site.export", bucket, campaign, str(results)]
        )
        say(f"{campaign}: exporting its archive to {results}")
        try:
            process = subprocess.run(
                command, env={**bare(), **site.environment}, capture_output=True, text=True, timeout=_EXPORT_S
            )
        except subprocess.TimeoutExpired:
            failures = 1
            say(f"{campaign}: the export took longer than {_EXPORT_S:.0f} s")
            continue
        if process.returncode != 0:
            failures = 1
            say(f"{campaign}: nothing exported: {process.stderr.strip().splitlines()[-1:]}")
        else:
            say(f"{campaign}: {process.stdout.strip()}")
    if failures:
        say(f"site {site.name} stays: it holds the only archive; free space or mend the cause, then repeat")
    return failures
