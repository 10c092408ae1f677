"""A secret is hidden in each form in which a program prints it, and what is no secret is passed on as it is."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from urllib.parse import quote

import pytest

from trainer.supervisor import redact
from trainer.supervisor.redact import REDACTED, Redactor, SafeLine, take_secrets

SECRET = 'p"ä ss\\w/ord\t1'


@pytest.mark.parametrize(
    "printed",
    [
        SECRET, json.dumps(SECRET)[1:-1], json.dumps(SECRET, ensure_ascii=False)[1:-1], repr(SECRET)[1:-1],
        quote(SECRET, safe=""),
    ],
    ids=["as it is", "in JSON", "in JSON with its letters", "as Python shows it", "in an address"],
)  # fmt: skip
def test_a_secret_is_hidden_in_each_form_that_a_program_gives_it(printed: str) -> None:
    assert Redactor([SECRET]).text(f"<{printed}>") == f"<{REDACTED}>"


def test_of_a_secret_with_several_lines_each_that_tells_something_is_hidden_by_itself() -> None:
    redactor = Redactor(["-----BEGIN-----\n  eight888  \nseven77\n"])
    assert redactor.text("eight888, seven77, BEGIN") == f"{REDACTED}, seven77, BEGIN"
    assert redactor.text("-----BEGIN-----") == REDACTED
    assert redactor.text("-----BEGIN-----\n  eight888  \nseven77") == REDACTED, "without the last line's end"


def test_one_secret_may_begin_another_and_nothing_is_hidden_for_an_empty_one() -> None:
    assert Redactor(["hunter", "hunter22"]).text("hunter22 hunter2") == f"{REDACTED} {REDACTED}2"
    assert Redactor(["", " ", "\n"]).text("a b\nc") == "a b\nc"
    assert Redactor(["  padded  "]).text("padded") == REDACTED


def test_all_texts_of_a_value_are_replaced_and_its_form_stays() -> None:
    value = {"hunter": "hunter", "of": ["hunter", ("x hunter", 1, None, True)], "number": 1.5}
    assert Redactor(["hunter"]).redact(value) == {
        "hunter": REDACTED, "of": [REDACTED, [f"x {REDACTED}", 1, None, True]], "number": 1.5
    }  # fmt: skip


class Pipe(io.BytesIO):
    """A stream whose writer flushes after each of these."""

    def __init__(self, *writes: bytes) -> None:
        super().__init__()
        self._writes = list(writes)

    def read1(self, size: int | None = -1) -> bytes:
        return self._writes.pop(0) if self._writes else b""


def lines(*writes: bytes, secrets: tuple[str, ...] = ("hunter22",)) -> list[SafeLine]:
    return list(Redactor(secrets).lines(Pipe(*writes)))


def test_lines_come_whole_however_they_were_written() -> None:
    assert lines(b"a hun", b"ter22\r", b"\nb\n\n", b"c") == [
        SafeLine("a hunter22", f"a {REDACTED}", False), SafeLine("b", "b", False), SafeLine("", "", False),
        SafeLine("c", "c", False),
    ]  # fmt: skip
    assert lines(b"1%\r", b"2%\r3%", b"\r") == [SafeLine("1%", "1%", True), SafeLine("2%", "2%", True),
                                               SafeLine("3%", "3%", False)]  # fmt: skip
    assert lines(b"caf\xc3", b"\xa9 \xff\n") == [SafeLine("café \ufffd", "café \ufffd", False)]
    assert lines() == []


@pytest.mark.parametrize("length", [15, 16, 17, 32, 33])
@pytest.mark.parametrize("end", [b"\n", b""])
@pytest.mark.parametrize("at_once", [True, False])
def test_a_line_that_is_too_long_comes_in_pieces_that_are_not_read_and_split_no_secret(
    monkeypatch: pytest.MonkeyPatch, length: int, end: bytes, at_once: bool
) -> None:
    monkeypatch.setattr(redact, "_LONGEST", 16)
    content = (b"." * (length - 8)) + b"hunter22" + end
    writes = [content] if at_once else [content[index : index + 1] for index in range(len(content))]
    rows = lines(*writes, b"next\n") if end else lines(*writes)
    rest = rows.pop() if end else None
    assert rest is None or rest == SafeLine("next", "next", False)
    assert "".join(row.safe for row in rows) == "." * (length - 8) + REDACTED
    assert {row.text for row in rows} == ({""} if length >= 16 else {content.decode().rstrip()})
    assert not any(row.written_over for row in rows)


def test_a_line_is_read_again_after_one_that_was_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redact, "_LONGEST", 16)
    rows = lines(b"x" * 40 + b"\nread\n", secrets=())
    assert [row.text for row in rows] == ["", "", "", "read"] and "".join(row.safe for row in rows) == "x" * 40 + "read"


def test_a_line_of_one_byte_less_than_the_longest_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redact, "_LONGEST", 16)
    assert [row.text for row in lines(b"x" * 15 + b"\n")] == ["x" * 15]


def test_secrets_of_the_pod_are_in_the_environment_and_one_that_is_missing_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("BIVOUAC_SECRETS", str(tmp_path / "values.json"))
    take_secrets([])  # no file is needed
    (tmp_path / "values.json").write_text(json.dumps({"TOKEN": "a", "KEY": "b", "OTHER": "c"}))
    monkeypatch.setenv("TOKEN", "of the image")
    monkeypatch.delenv("OTHER", raising=False)
    monkeypatch.setenv("KEY", "")
    take_secrets(["TOKEN", "KEY"])
    assert (os.environ["TOKEN"], os.environ["KEY"], os.environ.get("OTHER")) == ("a", "b", None)
    with pytest.raises(ValueError, match=r"no secret FIRST, SECOND$"):
        take_secrets(["FIRST", "TOKEN", "SECOND"])
