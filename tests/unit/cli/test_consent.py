"""The question before something is ended: who may leave it out, and what counts as a yes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from io import StringIO

import pytest
from rich.console import Console

from infra.cli.end.consent import ask
from infra.errors import UserError
from tests.tables import Table

TABLE = Table(__file__)


@TABLE.cases
def test_on_a_terminal_a_person_answers_and_elsewhere_an_option_does(
    monkeypatch: pytest.MonkeyPatch, typed: str | None, yes: bool, flagged: bool, word: str, refused: str | None
) -> None:
    """`typed`: on a terminal; None: standard input is none."""
    ours, theirs = os.openpty()
    os.write(ours, (typed or "").encode())
    said, made = StringIO(), list[str]()

    def lines() -> Iterator[tuple[str, str]]:
        made.append("shown")
        yield "lost", "all of it"

    with os.fdopen(theirs) as terminal:
        monkeypatch.setattr("sys.stdin", StringIO("y\n") if typed is None else terminal)
        console = Console(file=said, width=100)
        if refused is None:
            ask("Tear it down?", lines(), console, consent=yes, flag=flagged, word=word)
        else:
            with pytest.raises(UserError, match=refused) as error:
                ask("Tear it down?", lines(), console, consent=yes, flag=flagged, word=word)
            assert "--yes" in str(error.value.cure)
    os.close(ours)
    asked = typed is not None and not yes
    assert made == (["shown"] if asked else []), "what is shown costs calls, and is made for a person only"
    assert ("Tear it down?" in said.getvalue()) is asked
