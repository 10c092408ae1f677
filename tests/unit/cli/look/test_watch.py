"""`bivouac watch`: frames against known records, what is old and what is not known, keys, and its end."""

from __future__ import annotations

import io
import os
import termios
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from rich.text import Text

from infra.cli.look.watch import snapshot, watch
from infra.cli.look.watch.frame import frame, sparkline
from infra.cli.look.watch.grid import MOST_NODES, grid
from infra.cli.look.watch.snapshot import GangFacts, RecordReader, Snapshot, machines_of
from infra.cli.look.watch.watch import Looks, pressed_keys
from infra.console.plain_console import PlainConsole
from infra.record.payloads import payload_of
from infra.report.record import Record
from infra.steward.decide import Observation, Wait
from infra.steward.seeing.lookout import Live
from infra.steward.seeing.views import PodView
from tests.unit.cli.test_unreadable_objects import PLAN, SPEC, Recorded
from tests.worlds.record import MemoryRecord
from tests.worlds.s3 import NOON, refusal
from trainer.contract import Phase
from trainer.contract.culprit import RankSeen

FRAMES = Path(__file__).with_name("frames")
MACHINES = GangFacts(8, "16 x 989 TFLOP/s, dense bfloat16", 0.2)


def pod(index: int, **fields: Any) -> dict[str, Any]:
    base = {"index": index, "name": f"gang-{index}", "node": f"ip-{index}.ec2.internal", "phase": "Running", "step": 50}
    return {**base, "node_rank": index, "trainer_phase": "training", "silent_s": 0, "ranks": {}, **fields}


LIVE: dict[str, Any] = {
    "at": (NOON + timedelta(seconds=100)).isoformat(), "attempt": 2, "in_flight": True, "step": 50, "steps": 110,
    "loss": 3.25, "committed_step": 40, "spent_usd": 1.0, "usd_per_hour": 14.0, "why": "training", "step_seconds": 0.5,
    "nodes": [
        {"name": "ip-0.ec2.internal", "ready": True, "instance_state": "running"},
        {"name": "ip-1.ec2.internal", "ready": None, "instance_state": "impaired"},
    ],
    "pods": [pod(0, ranks={"1": "no sign of life for 9 s"}), pod(1, silent_s=7)],
}  # fmt: skip
PAGE: dict[str, Any] = {
    "made_at": (NOON + timedelta(seconds=60)).isoformat(), "goodput": 0.625,
    "training": {"losses": [
        {"attempt": 1, "steps": 40, "points": [{"step": step, "loss": 7.0 - step / 20} for step in range(1, 41)]},
        {"attempt": 2, "steps": 1, "points": [{"step": 30, "loss": 5.5}]},
    ]},
}  # fmt: skip
LISTED = {"rows": [
    {"tier": tier, "step": step, "committed": committed, "node": ""}
    for tier, step, committed in (("local", 48, True), ("local", 50, False), ("shared", 20, True))
]}  # fmt: skip


class Watched(Recorded):
    """A campaign whose second attempt trains."""

    def __init__(self) -> None:
        super().__init__()
        self.store.put_json("live.json", LIVE)
        self.store.put_json("report.json", PAGE)
        self.store.put_json("checkpoints.json", LISTED)


EVENTS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("stage.started", {"stage": "provision"}),
    ("stage.finished", {"stage": "provision", "seconds": 1.0, "outputs": {}}),
    ("stage.started", {"stage": "preflight"}),
    ("stage.finished", {"stage": "preflight", "seconds": 1.0, "outputs": {}}),
    ("stage.started", {"stage": "supervise"}),
    ("attempt.launched", {"attempt": 1, "jobset": "x-a1", "committed_step": -1}),
    ("attempt.ended", {"attempt": 1, "step": 46, "failure": "node", "detail": "ip-9 is dead", "committed_at_end": 40}),
    ("decision", {"action": "replace", "why": "after attempt 1: ip-9: EC2 calls its instance impaired"}),
    ("attempt.launched", {"attempt": 2, "jobset": "x-a2", "committed_step": 40}),
    ("attempt.restarted-in-place", {"attempt": 2, "step": 44, "cause": "SIGKILL", "of_node": "ip-0", "seconds": 3.0}),
    ("checkpoint.copied", {"step": 20, "bytes": 10, "place": "s3://b/c"}),
    ("alert.fired", {
        "alert": "PodSilent", "severity": "page", "summary": "pod gang-1 has not answered for 7 s",
        "runbook": "docs/runbooks/PodSilent.md", "began": "t", "labels": {"alertname": "PodSilent"},
    }),
)  # fmt: skip


@pytest.fixture
def trains() -> Snapshot:
    """A campaign in its second attempt, read at 12:01:40."""
    record = MemoryRecord()
    for kind, data in EVENTS:
        record.time.go(5)
        record.store().append(payload_of(kind, data))
    return Snapshot(
        Record(SPEC, PLAN, record.store().events(), NOON + timedelta(seconds=100)),
        LIVE,
        snapshot.PageFigures.model_validate(PAGE),
        snapshot.Listing.model_validate(LISTED).rows,
        NOON + timedelta(hours=8),
        {50: 3.25},
    )


def lines(
    shot: Snapshot, width: int, seconds: float = 102, machines: GangFacts = MACHINES, trouble: str = ""
) -> list[str]:
    output = io.StringIO()
    picture = frame(shot, NOON + timedelta(seconds=seconds), width, machines, trouble)
    PlainConsole(file=output, width=width, force_terminal=True, color_system=None).print(picture)
    return [line.rstrip() for line in output.getvalue().splitlines()]


@pytest.mark.parametrize("width", [40, 100])
def test_a_frame_shows_loss_pace_nodes_tiers_money_decisions_and_alerts(trains: Snapshot, width: int) -> None:
    assert lines(trains, width) == (FRAMES / f"trains-{width}.txt").read_text().splitlines()


@pytest.mark.parametrize("width", [40, 80, 100, 120, 200])
def test_no_line_is_wider_than_the_terminal(trains: Snapshot, width: int) -> None:
    assert max(map(len, lines(trains, width))) <= min(width, 120)


def test_a_low_terminal_keeps_alerts_and_loses_the_oldest_events(trains: Snapshot) -> None:
    text = lines(trains, 100)
    assert text[2].startswith("alerts   PodSilent") and text[-1].endswith("ip-9 is dead")


def test_a_frame_says_how_old_it_is_and_why_there_is_no_newer_one(trains: Snapshot) -> None:
    text = "\n".join(lines(trains, 100, seconds=160, trouble="S3 does not answer \x1b[2J"))
    assert "the record as of 1 min 00 s ago" in text
    assert "it cannot be read now: S3 does not answer \\x1b[2J" in text
    assert "the steward's look of 1 min 00 s ago" in text


def test_what_nobody_tells_is_not_known_and_not_zero(trains: Snapshot) -> None:
    bare = Snapshot(trains.record)
    text = "\n".join(lines(bare, 100))
    assert "loss     none is known yet" in text and "goodput  not known" in text
    assert "nothing is known to have trained" in text and "no step is known to be committed" in text
    assert "nodes" not in text
    assert "MFU not known for" in "\n".join(lines(trains, 100, machines=GangFacts()))


def test_an_mfu_above_one_is_not_shown(trains: Snapshot) -> None:
    text = "\n".join(lines(trains, 100, machines=GangFacts(8, "16 x 989 TFLOP/s", 0.6)))
    assert "MFU above 16 x 989 TFLOP/s?" in text and " % of 16" not in text


def test_the_peak_is_the_catalogues_for_a_model_in_bfloat16() -> None:
    training = SPEC.training
    assert training is not None and (training.global_batch, training.model.context) == (256, 256)

    def machines(**fields: Any) -> GangFacts:
        return machines_of(SPEC.model_copy(update={"training": training.model_copy(update=fields)}))

    known, doubled = machines(precision="bfloat16"), machines(precision="bfloat16", global_batch=512)
    assert known.ranks_per_node == 8 and known.peak == "32 x 989 TFLOP/s, dense bfloat16"
    assert known.mfu_seconds is not None and doubled.mfu_seconds == pytest.approx(2 * known.mfu_seconds)
    # 6 FLOP per token and parameter, of which the embedding has 4096 x 192 and the layers a few times as many.
    flop_per_token = known.mfu_seconds * 32 * 989e12 / (256 * 256)
    assert 6 * 4096 * 192 < flop_per_token < 6 * 5 * 4096 * 192
    assert machines(precision="float32") == GangFacts(8)


def test_a_sparkline_has_the_highest_and_the_lowest_mean_and_gaps() -> None:
    assert sparkline({1: 8.0, 2: 1.0}, 60) == "█▁"
    assert sparkline({1: 8.0, 4: 1.0}, 60) == "█  ▁"
    assert sparkline({step: 5.0 for step in range(1, 101)}, 10) == "▁" * 10
    assert sparkline({1: 1.0, 2: 3.0, 3: 9.0, 4: 9.0}, 2) == "▁█"


def texts(live: dict[str, Any], ranks_per_node: int = 4) -> list[str]:
    return [line.plain for line in grid(live, ranks_per_node)]


def test_each_rank_has_a_mark_in_the_order_of_ranks() -> None:
    pods = [
        pod(0, node_rank=1, ranks={"5": "died"}), pod(1, node_rank=0, trainer_phase="saving"), pod(2, phase="Failed"),
        pod(3, phase="Pending"), pod(4, trainer_phase=None, step=0), pod(5, trainer_phase=None), pod(6, phase="odd"),
    ]  # fmt: skip
    shown = texts({"pods": pods})
    assert shown[0] == "wwww ■!■■ xxxx .... ssss ■■■■ ????"
    assert shown[1].startswith("each rank: w saves, ■ trains, ! not well, x failed, . not started, s starts, ? silent")
    assert shown[2:] == ["rank 5 on ip-0: died", "ip-2 failed at step 50"]


def test_a_large_gang_has_a_mark_for_each_node_and_few_troubles() -> None:
    pods = [pod(index, silent_s=9 if index < 6 else 0) for index in range(MOST_NODES + 8)]
    shown = texts({"pods": pods})
    assert shown[0] == "?" * 6 + "■" * (MOST_NODES + 2) and shown[1] == "each node: ? silent, ■ trains"
    assert shown[-1] == "and 2 more, see `bivouac status`" and len(shown) == 7


def test_a_grid_that_is_wider_than_the_terminal_breaks_between_nodes(trains: Snapshot) -> None:
    many = Snapshot(trains.record, LIVE | {"pods": [pod(index) for index in range(10)], "nodes": []})
    start = next(number for number, line in enumerate(lines(many, 40)) if "■" in line and "━" not in line)
    assert [line.split() for line in lines(many, 40)[start : start + 4]] == [["■" * 8] * 3] * 3 + [["■" * 8]]


def test_the_steward_tells_of_ranks_that_are_late_or_have_ended() -> None:
    watched = Recorded()
    live = Live(watched.store, 110)

    def figures(second: int, step: int, *ranks: RankSeen, **fields: Any) -> Any:
        base = {"index": 0, "name": "p", "node": "n", "phase": "Running", "step": step, "ranks": ranks}
        view = Observation(
            now=NOON + timedelta(seconds=second), deadline=NOON + timedelta(hours=4), spent_usd=Decimal(1),
            usd_per_hour=Decimal(14), attempt=1, in_flight=True, pods=(PodView(**{**base, **fields}),),
        )  # fmt: skip
        live.tell(view, Wait(why=str(second)), None)
        stored = watched.store.get_json("live.json")
        return None if stored is None else stored["pods"][0]

    quiet = RankSeen(rank=3, age_s=9.0)
    trains = {"trainer_phase": Phase.TRAINING}
    assert figures(0, 0, quiet, **trains)["ranks"] == {}, "the time of a step is not known"
    figures(60, 5, **trains)
    assert figures(70, 25, RankSeen(rank=2, age_s=6.0), quiet, **trains)["ranks"] == {"3": "no sign of life for 9 s"}
    assert figures(71, 27, quiet, trainer_phase=Phase.SAVING)["ranks"] == {}
    assert figures(72, 27, RankSeen(rank=1, end="died"), **trains)["ranks"] == {"1": "died"}
    silent = figures(73, 27, silent_for=timedelta(seconds=8))
    assert silent["silent_s"] == 8 and figures(74, 27, silent_for=timedelta(seconds=2))["silent_s"] == 0


def test_a_record_is_read_for_what_changes_and_rarely_for_the_rest() -> None:
    watched, seconds = Watched(), [0.0]
    source = RecordReader(watched.store, lambda: seconds[0])
    first = source.read()
    assert first.page is not None and first.page.goodput == 0.625 and first.deadline == NOON + timedelta(hours=8)
    assert first.tiers is not None and len(first.tiers) == 3 and first.losses[30] == 5.5 and first.losses[50] == 3.25
    watched.store.put_json("live.json", LIVE | {"step": 51, "loss": 3.0})
    watched.store.put_json("report.json", PAGE | {"goodput": 0.7})
    watched.event("attempt.launched", attempt=3, jobset="x-a3", committed_step=40)
    second = source.read()
    assert (second.losses[50], second.losses[51]) == (3.25, 3.0) and second.page == first.page
    assert second.state.attempts[-1].number == 3
    seconds[0] = 61.0
    page = source.read().page
    assert page is not None and page.goodput == 0.7


def test_a_report_that_does_not_fit_is_not_known() -> None:
    watched = Watched()
    watched.store.put_json("report.json", {"made_at": "yesterday"})
    assert RecordReader(watched.store).read().page is None


@pytest.mark.parametrize(("once", "terminal"), [(True, True), (False, False)])
def test_one_frame_is_printed_where_nobody_watches(
    trains: Snapshot, monkeypatch: pytest.MonkeyPatch, once: bool, terminal: bool
) -> None:
    monkeypatch.setattr(watch, "source", lambda *_: lambda: trains)
    output = io.StringIO()
    console = PlainConsole(file=output, width=80, force_terminal=terminal, color_system=None)
    assert watch.watch_command("x", "us-east-1", once, console) == 0
    assert output.getvalue().count("campaign ") == 1 and "\x1b[?1049h" not in output.getvalue()


def test_a_campaign_that_is_gone_is_shown_from_the_record_that_was_kept(
    trains: Snapshot, monkeypatch: pytest.MonkeyPatch
) -> None:
    finished = Record(SPEC, PLAN, Recorded().store.events(), NOON + timedelta(hours=1))
    monkeypatch.setattr(snapshot, "record_of", refuse)
    monkeypatch.setattr(snapshot, "kept_record", lambda *_: finished)
    shot = snapshot.source("x", "us-east-1")()
    text = "\n".join(lines(shot, 100))
    assert ": ended" in text and "from the record in the results folder" in text
    assert "done at step 80" in text and "nothing in the archive is proven" in text and "$0.00 an hour now" in text


def refuse(*_: object) -> Any:
    raise snapshot.UserError("there is no such campaign")


def test_q_ends_the_view_and_leaves_the_terminal_as_it_was(trains: Snapshot, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = os.openpty()
    before = termios.tcgetattr(theirs)
    during: list[int] = []
    monkeypatch.setattr(watch, "_STANDARD_INPUT", theirs)

    def drawn(*arguments: Any, **options: Any) -> Text:
        during.append(termios.tcgetattr(theirs)[3] & termios.ICANON)
        if len(during) == 2:
            os.write(ours, b"q")
        return Text("a frame")

    monkeypatch.setattr(watch, "frame", drawn)
    monkeypatch.setattr(watch, "source", lambda *_: lambda: trains)
    output = io.StringIO()
    console = PlainConsole(file=output, width=80, height=24, force_terminal=True)
    assert watch.watch_command("x", "us-east-1", False, console) == 0
    assert during[0] == 0 and termios.tcgetattr(theirs) == before
    assert "\x1b[?1049h" in output.getvalue() and "\x1b[?1049l" in output.getvalue()
    os.close(ours)
    os.close(theirs)


def test_the_view_ends_with_the_campaign(trains: Snapshot, monkeypatch: pytest.MonkeyPatch) -> None:
    over = Snapshot(trains.record, gone=True)
    monkeypatch.setattr(watch, "_REDRAW_S", 0.0)
    monkeypatch.setattr(watch, "_STANDARD_INPUT", -1)
    shots = iter([trains, over])
    monkeypatch.setattr(watch, "source", lambda *_: lambda: next(shots, over))
    output = io.StringIO()
    assert watch.watch_command("x", "us-east-1", False, PlainConsole(file=output, width=80, force_terminal=True)) == 0
    assert ": ended" in output.getvalue()


def test_without_a_terminal_no_key_comes() -> None:
    with pressed_keys(-1) as key:
        assert key(0.0) == ""


@pytest.mark.parametrize("error", [refusal("SlowDown", 503), OSError("gone"), ValueError("no JSON")])
def test_a_record_that_cannot_be_read_leaves_what_was_read_before(trains: Snapshot, error: Exception) -> None:
    def read() -> Snapshot:
        raise error

    looks = Looks(read, trains)
    looks.look()
    assert looks.newest[0] is trains and looks.newest[1]


def test_the_record_is_not_read_more_often_than_every_two_seconds() -> None:
    assert watch.READ_EVERY_S >= 2.0
