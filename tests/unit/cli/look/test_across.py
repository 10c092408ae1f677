"""`bivouac dashboard` without a name: what is kept of all campaigns, moved to one begin, asked of a real Prometheus."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from infra.aws.account import NoCredentials
from infra.cli.look import series
from infra.cli.look.panels import series_of_panel
from infra.cli.look.series import all_campaigns, from_second_zero
from infra.errors import UserError
from infra.folders import tools_dir
from infra.monitoring.dashboards import ACROSS, dashboards
from infra.record.series import JOINED, piece
from infra.record.store import CampaignStore
from tests.worlds.s3 import FakeS3, Time

BEGINS = {"spring": 1_764_187_200, "summer": 1_780_000_000}


def text(campaign: str, begin: int, minutes: int = 30) -> str:
    """A campaign that spends 4 USD an hour in `spring`, twice that in `summer`, and trains half of its time."""
    rate, lines = (4 if campaign == "spring" else 8) / 3600, ["# TYPE bivouac_spent_usd gauge\n"]
    for at in range(0, 60 * minutes + 1, 15):
        lines.append(f'bivouac_spent_usd{{campaign="{campaign}",job="steward"}} {rate * at} {begin + at}.000\n')
    for cause in ("useful", "replace"):
        lines.append("# TYPE bivouac_cause_seconds counter\n")
        name = f'bivouac_cause_seconds_total{{campaign="{campaign}",cause="{cause}"}}'
        lines += [f"{name} {at / 2} {begin + at}.000\n" for at in range(0, 60 * minutes + 1, 15)]
    return "".join(lines)


def kept(folder: Path, campaign: str, content: bytes) -> None:
    place = folder / "123456789012-us-east-1" / campaign
    place.mkdir(parents=True)
    (place / JOINED).write_bytes(content)


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BIVOUAC_RESULTS", str(tmp_path))

    def refuse(region: str) -> Any:
        raise NoCredentials("there are none")

    monkeypatch.setattr(series, "Account", refuse)
    return tmp_path


def answers(panel: str, source: Any) -> dict[str, list[list[float]]]:
    (chosen,) = (row for row in dashboards()[ACROSS].panels if row.title.startswith(panel))
    return {row["legend"]: row["points"] for row in series_of_panel(source, chosen, 0)["series"]}


def test_campaigns_of_the_results_folder_begin_together(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for campaign, begin in BEGINS.items():
        kept(results, campaign, gzip.compress(text(campaign, begin).encode()))
    kept(results, "torn", gzip.compress(text("torn", 1_764_000_000).encode())[:-20])
    notes: list[str] = []
    monkeypatch.setattr(series, "_programs", lambda: {name: tools_dir() / name for name in ("prometheus", "promtool")})
    with all_campaigns("us-east-1", notes.append).opened() as source:
        assert (source.begin, source.end, source.origin) == (0.0, 1800.0, "what is kept of 2 campaigns")
        spent = answers("Spent", source)
        goodput = answers("Goodput", source)
    assert {name: points[-1] for name, points in spent.items()} == {"spring": [1800.0, 2.0], "summer": [1800.0, 4.0]}
    assert all(points[0][0] == 0.0 for points in spent.values())
    assert [round(points[-1][1], 3) for points in goodput.values()] == [0.5, 0.5]
    assert len(notes) == 2 and "no credentials" in notes[0] and "the series of torn cannot be read" in notes[1]


def test_records_of_the_account_are_among_them(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    s3 = FakeS3(Time())

    class Signed:
        def __init__(self, region: str) -> None:
            pass

        def identity(self) -> dict[str, str]:
            return {"Account": "123456789012"}

        def client(self, name: str) -> Any:
            return s3

    monkeypatch.setattr(series, "Account", Signed)
    monkeypatch.setattr(series, "campaigns", lambda account, bucket: ["spring", "without"])
    bucket = series.buckets("123456789012", "us-east-1").state
    store = CampaignStore(s3, bucket, "spring", "")
    begin = BEGINS["spring"]
    store.put(f"{store.prefix}/{piece(begin, begin + 900)}", gzip.compress(text("spring", begin, 15).encode()))
    source = all_campaigns("us-east-1", pytest.fail)
    assert source.end == 900.0
    rows = source.ask("bivouac_spent_usd", 0.0, 900.0, 15.0)
    assert [(row.labels["campaign"], row.points[-1]) for row in rows] == [("spring", (900.0, 1.0))]


def test_where_nothing_is_kept_it_says_what_keeps_series(results: Path) -> None:
    with pytest.raises(UserError, match=r"no campaign here.*addons.prometheus"):
        all_campaigns("us-east-1", lambda text: None)


@pytest.mark.parametrize("lines", [["no sample\n"], ["# TYPE x gauge\n"], []])
def test_what_has_no_sample_is_no_campaign(lines: list[str]) -> None:
    texts: dict[str, Callable[[], Iterator[str]]] = {"empty": lambda: iter(lines)}
    texts["spring"] = lambda: iter(text("spring", BEGINS["spring"]).splitlines(keepends=True))
    assert from_second_zero(texts, lambda note: None).origin == "what is kept of 1 campaign"
