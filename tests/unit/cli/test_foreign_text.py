"""Foreign text on a terminal is text: it moves no cursor, changes no colour or title, and turns no line round."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from rich.console import Console
from rich.table import Table
from rich.text import Text

from infra.campaign import report
from infra.cli import options
from infra.cli.look import logs as logs_module
from infra.cli.look import status
from infra.cli.look.logs import logs_command
from infra.cli.look.status import facts_of
from infra.cli.refusals import tell
from infra.console.plain_console import PlainConsole
from infra.console.progress import Progress
from infra.console.visible import visible
from infra.errors import UserError
from infra.notices.history import history
from infra.record.payloads.stages import StageFailed
from infra.record.pod_logs import piece
from tests.unit.cli.test_unreadable_objects import SPEC, Recorded

EVIL = "a\x1b[2J\x1b]0;title\x07b\rc\x9b31m\u202ed\x00\x7f[red]e[/red]"
SHOWN = r"a\x1b[2J\x1b]0;title\x07b\rc\x9b31m\u202ed\x00\x7f[red]e[/red]"
OWN_STYLE = re.compile(r"\x1b\[[0-9;]*m|\x1b\[\?25[lh]|\x1b\[2K|\x1b\[1A|\r")
"""What rich itself writes for styles and a live line."""
DANGEROUS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def terminal() -> PlainConsole:
    return PlainConsole(file=io.StringIO(), force_terminal=True, color_system="truecolor", width=400, highlight=False)


def output(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, änd \u4e2d \U0001f469\u200d\U0001f680\u00a0x", "plain, änd \u4e2d \U0001f469\u200d\U0001f680\u00a0x"),
        ("tab\tand\nline", "tab\tand\nline"),
        ("\x1b[31m", r"\x1b[31m"),
        ("\x9b31m\x85\x80", r"\x9b31m\x85\x80"),
        ("\u2066\u2069\u200f\u061c\ufeff\u2028", r"\u2066\u2069\u200f\u061c\ufeff\u2028"),
        ("\udcff", r"\udcff"),
        (EVIL, SHOWN),
    ],
)  # fmt: skip
def test_controls_are_shown_and_writing_stays(text: str, shown: str) -> None:
    assert visible(text) == shown


def test_an_end_of_a_line_is_shown_where_there_is_one_line() -> None:
    assert visible("a\tb\nc", lines=False) == r"a\tb\nc"


def test_nothing_foreign_passes_a_console_however_it_is_printed() -> None:
    console = terminal()
    console.print(EVIL, markup=False)
    console.print("[bold]ours[/]", Text(EVIL, "red"), EVIL.replace("[red]", "").replace("[/red]", ""))
    table = Table(EVIL.partition("[red]")[0])
    table.add_row(Text(EVIL))
    console.print(table)
    progress = Progress(console)
    with progress.stage("stage", EVIL):
        progress.step(EVIL)
        progress.note(EVIL)
    text = output(console)
    assert "\x1b[1mours\x1b[0m" in text, "our own styles do pass"
    assert DANGEROUS.search(OWN_STYLE.sub("", text)) is None
    assert text.count(r"\x1b[2J\x1b]0;title") >= 8 and text.count("[red]e[/red]") >= 4, "no markup either"


def test_the_commands_consoles_are_of_this_kind() -> None:
    assert isinstance(options.console, PlainConsole) and isinstance(options.stderr, PlainConsole)


def recorded() -> Recorded:
    made = Recorded()
    alarm = {"step": 1, "detector": EVIL, "text": EVIL, "did": EVIL}
    made.event("watch", pod="p", **alarm)
    made.event("checkpoint.not-sealed", pod="p", step=1, why=EVIL)
    made.event("node.quarantined", node=EVIL, instance="i-1", reason=EVIL)
    made.event("held", attempt=1, failure="user", cause=EVIL, log=[EVIL], until=EVIL, usd_per_hour=1.0)
    made.event("stage.failed", stage="archive", error=EVIL)
    made.put("live.json", b"\x1b[2J")
    return made


def test_a_status_shows_what_jobs_nodes_and_errors_said() -> None:
    made, console = recorded(), terminal()
    facts, state = facts_of(made.again())
    facts["notices"] = history(made.again(), SPEC, made.time.wall())
    status._show(facts, state, False, console)
    text = output(console)
    assert DANGEROUS.search(OWN_STYLE.sub("", text)) is None
    assert f"alarm    step 1, {SHOWN}: {SHOWN}; {SHOWN}" in text and f"           {SHOWN}" in text


def test_a_report_and_its_page_show_them_too(tmp_path: Path) -> None:
    made, written = report.write(recorded().again(), tmp_path, lambda _: None)
    page = Path(written["html"]).read_text()
    assert SHOWN in [event.text.partition("failed: ")[2] for event in made.happened]
    happened = page[page.index("stage.failed") - 2000 :]
    assert r"\x1b[2J" in happened
    hostile = "<script>alert(1)</script>"
    story = recorded()
    story.event("stage.failed", stage="archive", error=hostile)
    story.event("watch", step=2, detector=hostile, text=hostile, did=hostile)
    _, written = report.write(story.again(), tmp_path, lambda _: None)
    assert hostile not in Path(written["html"]).read_text()


def test_logs_show_a_jobs_escapes_and_not_the_mark_of_its_supervisor(monkeypatch: pytest.MonkeyPatch) -> None:
    made, console = Recorded(), terminal()
    lines = [f'{chr(0x1E)}{{"event": "agent"}}', EVIL, "\x1b[32mgreen\x1b[0m", "a\u2028b", "x\x85y"]
    made.put(piece("job-a1-gang-0-0-x", 0), "".join(f"{line}\n" for line in lines).encode())
    monkeypatch.setattr(logs_module, "record_of", lambda *_: made.again())
    assert logs_command(SPEC.campaign, "us-east-1", console, notes=console) == 0
    said = [line.removeprefix("node 0 | ") for line in output(console).splitlines()]
    shown = ["agent", SHOWN, r"\x1b[32mgreen\x1b[0m", r"a\u2028b", r"x\x85y"]
    assert said == shown


def test_an_error_shows_what_it_saw(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["bivouac"])
    tell(UserError("no", seen=EVIL, cure=EVIL))
    errors = capsys.readouterr().err
    assert errors.count(SHOWN) == 2 and DANGEROUS.search(OWN_STYLE.sub("", errors)) is None


def test_a_sentence_is_one_line() -> None:
    event = Recorded().store.append(StageFailed(stage="archive", error="a\nb\x1b[1m"))
    assert event.sentence() == r"archive failed: a\nb\x1b[1m"
