"""`bivouac report NAME`: the report of a campaign, or of one that is gone, from the record kept here."""

from __future__ import annotations

import webbrowser
from pathlib import Path

from rich.console import Console

from infra.campaign import report
from infra.cli.answers import aside, write_json
from infra.cli.records import record_of
from infra.console.plain_console import say
from infra.errors import UserError
from infra.folders import kept_results, results_folder
from infra.report.record import PACKED
from infra.session.session import stored_spec


def report_command(campaign: str, region: str, show: bool, console: Console, *, as_json: bool = False) -> int:
    """Write the report. Raises `UserError` if neither the account nor the results folder has the campaign."""
    output, console = console, aside(console, as_json)
    try:
        store = record_of(campaign, region)
    except UserError as error:
        results = kept_results(campaign, region)
        if not (results / PACKED).exists():
            raise
        say(console, f"its record cannot be reached: {error}")
        say(console, f"made again from {results / PACKED}")
        page, files = report.write_again(results, console.print)
    else:
        spec = stored_spec(store)
        page, files = report.write(store, results_folder(campaign, spec.account, spec.region), console.print)
    if as_json:
        notices = [{"level": notice.level, "text": notice.text} for notice in page.notices]
        write_json(output, {"campaign": campaign, "verdict": page.verdict, "notices": notices, "written": files})
    say(console, page.verdict)
    for notice in page.notices:
        say(console, f"{notice.level}: {notice.text}")
    say(console, f"report: {files['html']}")
    if show and not webbrowser.open(Path(files["html"]).as_uri()):
        console.print("no browser was found: open that file")
    return 0
