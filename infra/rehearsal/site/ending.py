"""Removal of all sites, after what campaigns keep on purpose is exported to the results folder."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from infra.folders import results_folder
from infra.rehearsal.paths import sites_dir
from infra.rehearsal.site import campaigns, handle
from infra.rehearsal.site.environment import bare
from infra.spec.names import buckets

_EXPORT_S = 120.0


def remove_all(say: Callable[[str], None]) -> int:
    """Remove every site, running or left over. Return 1 if an archive could not be exported, else 0."""
    names = sorted(path.name for path in sites_dir().iterdir()) if sites_dir().is_dir() else []
    failed = 0
    for name in names:
        site = handle.find(name)
        if site is not None and _export_all(site, say):
            failed = 1
            say(f"site {name} stays: it holds the only archive; free space or mend the cause, then repeat")
            continue
        handle.remove(name, say)
        say(f"site {name} is removed")
    if not names:
        say("no site is here")
    return failed


def _export_all(site: handle.Site, say: Callable[[str], None]) -> int:
    failed = 0
    for held in campaigns.campaigns_in(Path(site.folder)):
        campaign = str(held["campaign"])
        place = str(held["account"]), str(held["region"])
        out, bucket = results_folder(campaign, *place), buckets(*place).archive
        command = site.entry([sys.executable, "-m", "infra.rehearsal.site.export", bucket, campaign, str(out)])
        say(f"{campaign}: exporting its archive to {out}")
        try:
            done = subprocess.run(
                command, env={**bare(), **site.environment}, capture_output=True, text=True, timeout=_EXPORT_S
            )
        except subprocess.TimeoutExpired:
            failed = 1
            say(f"{campaign}: the export took longer than {_EXPORT_S:.0f} s")
            continue
        if done.returncode != 0:
            failed = 1
            say(f"{campaign}: nothing exported: {done.stderr.strip().splitlines()[-1:]}")
        else:
            say(f"{campaign}: {done.stdout.strip()}")
    return failed
