"""`bivouac down` of rehearsal sites: of all, and of a campaign that needs no teardown any more."""

from __future__ import annotations

import typer
from rich.console import Console

from infra import target
from infra.cli.answers import aside, write_json
from infra.cli.end.consent import ask
from infra.cli.look.list import rehearsal
from infra.cli.records import NO_RECORD


def end_command(
    campaign: str | None, all_sites: bool, abandon: bool, consent: bool, region: str, as_json: bool, console: Console
) -> int:
    """Remove every site, or that of a rehearsal which needs no teardown, or tear a campaign down; return the exit code
    of what was done."""
    if all_sites:
        return _remove_all(consent, console, as_json)
    if campaign is None:
        raise typer.BadParameter("give the name of a campaign, or --all")
    if not target.in_site() and (code := site_command(campaign, consent, abandon, console, as_json)) is not None:
        return code
    target.enter_where(campaign)
    from infra.cli.end.down import down_command

    return down_command(campaign, region, abandon, console, consent=consent, as_json=as_json)


def _remove_all(consent: bool, console: Console, as_json: bool) -> int:
    """Remove all sites; exit code 0, or 1 when an archive could not be exported and its site stays."""
    people = aside(console, as_json)
    if campaigns := target.rehearsals():
        lines = ((name, str(rehearsal(name, runs)["stage"])) for name, runs in campaigns.items())
        question = "Remove every rehearsal site of this machine, with all that these have not archived?"
        ask(question, lines, people, consent=consent, flag=True)
    code = target.remove_all(people.print)
    if as_json:
        write_json(console, {"ok": code == 0})
    return code


def site_command(campaign: str, consent: bool, flag: bool, console: Console, as_json: bool) -> int | None:
    """Remove the site of a rehearsal that has ended, never began, or does not run; exit code as `all_command`'s. None
    for a campaign that is to be torn down first, or that is not rehearsed here."""
    people, runs = aside(console, as_json), target.rehearsals().get(campaign)
    facts = {} if runs is None else rehearsal(campaign, runs)
    if runs is None or (runs and facts["stage"] not in ("ended", NO_RECORD)):
        return None
    loss = "its site, with logs and record; archive and report stay in the results folder"
    if not runs:
        loss = "the files of its machines and file systems, which nothing reads any more"
    lines = ((campaign, str(facts["stage"])), ("lost", loss))
    ask(f"Remove the site of {campaign}?", lines, people, consent=consent, flag=flag)
    code = target.remove_site_of(campaign, people.print)
    if as_json:
        end = {"outcome": facts.get("outcome"), "certificate": facts.get("certificate")}
        write_json(console, {"campaign": campaign, **end, "site": "removed" if runs else "did not run"})
    return code
