"""When a source that is away is asked again, and what is said of its outage."""

from __future__ import annotations

import logging
from datetime import timedelta

import httpx2
import pytest
from botocore.exceptions import EndpointConnectionError

from infra.steward.seeing.sources import Away, Sources
from tests.fake_cluster import answer
from tests.worlds.s3 import Time

FAR = EndpointConnectionError(endpoint_url="https://ec2")


class Asked:
    def __init__(self) -> None:
        self.time, self.looks = Time(), 0
        self.sources = Sources(self.time)
        self.error: Exception | None = FAR

    def look(self) -> str:
        self.looks += 1
        if self.error is not None:
            raise self.error
        return "seen"

    def ask(self) -> str:
        return self.sources.ask("AWS", self.look)


def test_an_absent_source_is_asked_again_after_pauses_that_double_up_to_half_a_minute() -> None:
    asked, at = Asked(), list[float]()
    for tick in range(130):
        before = asked.looks
        with pytest.raises(Away):
            asked.ask()
        if asked.looks > before:
            at.append(tick)
        asked.time.go(1)
    assert at == [0, 1, 3, 7, 15, 31, 61, 91, 121]


def test_an_outage_lasts_until_it_is_answered_and_tells_its_newest_words() -> None:
    asked = Asked()
    with pytest.raises(Away):
        asked.ask()
    asked.time.go(90)
    asked.error = TimeoutError("x" * 400)
    with pytest.raises(Away) as told:
        asked.ask()
    assert told.value.__cause__ is asked.error
    (outage,) = asked.sources.unseen()
    assert (outage.source, outage.lasts, outage.why) == (
        "AWS", timedelta(seconds=90), f"TimeoutError: {'x' * 286}",
    )  # fmt: skip
    assert asked.sources.away("AWS") and not asked.sources.due("AWS") and not asked.sources.away("record")
    asked.time.go(2)
    asked.error = None
    assert asked.ask() == "seen" and asked.sources.unseen() == () and asked.sources.due("AWS")
    asked.sources.note_failure("AWS", FAR)
    assert asked.sources.unseen()[0].lasts == timedelta()
    asked.time.go(1)
    assert asked.sources.due("AWS"), "the pauses begin anew"


@pytest.mark.parametrize("error", [FAR, answer(503, "no"), httpx2.ReadTimeout("slow"), OSError("broken pipe")])
def test_what_is_weather(error: Exception) -> None:
    asked = Asked()
    asked.error = error
    with pytest.raises(Away):
        asked.ask()


def test_a_mistake_of_ours_is_no_weather() -> None:
    asked = Asked()
    asked.error = KeyError("mine")
    with pytest.raises(KeyError):
        asked.ask()
    assert asked.sources.unseen() == ()


def test_an_outage_is_said_at_once_in_new_words_every_five_minutes_and_at_its_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "steward")
    asked = Asked()

    def said(error: Exception, after_s: float) -> list[str]:
        caplog.clear()
        asked.time.go(after_s)
        asked.sources.note_failure("AWS", error)
        return [record.getMessage() for record in caplog.records]

    assert said(OSError("request 17 failed"), 0) == ["AWS does not answer: OSError: request 17 failed"]
    assert said(OSError("request 18 failed"), 60) == [], "only its number is another"
    assert said(OSError("no route"), 60) == ["AWS has not answered for 120 s: OSError: no route"]
    assert said(OSError("no route"), 299) == []
    assert said(OSError("no route"), 1) == ["AWS has not answered for 420 s: OSError: no route"]
    assert said(OSError("no route"), 299) == []
    caplog.clear()
    asked.sources.note_answer("AWS")
    asked.sources.note_answer("AWS")
    assert [record.getMessage() for record in caplog.records] == ["AWS answers again, after 719 s"]
