"""The report, from a synthetic record: a rehearsal with one node lost, and parts of such a record."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto import mock_aws

from infra.events import Event, Kind, Stage
from infra.lifecycle import report as report_stage
from infra.plan import Plan, make_plan
from infra.reporting import Cause, Record, Report, build, pods_to_read, render
from infra.reporting.ledger import Span, overlay
from infra.spec import Spec, SpecFile
from infra.store import CampaignStore
from infra.survey import survey

BEGUN = datetime(2026, 8, 1, 9, 0, tzinfo=UTC)
NODES = [f"ip-10-42-1-{last}.ec2.internal" for last in (17, 23, 31)]
STEP_S = 0.4


def curve(step: int) -> float:
    return 3.1 + 4.6 * math.exp(-step / 28) + 0.09 * math.sin(step * 1.7) + 0.05 * math.sin(step * 0.61)


class Story:
    """A record being written: each entry at its second."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.logs: dict[str, list[str]] = {}

    def event(self, at_s: float, kind: Kind, writer: str = "driver", **data: Any) -> None:
        at = BEGUN + timedelta(seconds=at_s)
        self.events.append(Event(at=at, writer=writer, sequence=len(self.events), kind=kind, data=data))

    def stage(self, stage: Stage, begun_s: float, ended_s: float, **outputs: Any) -> None:
        self.event(begun_s, Kind.STAGE_STARTED, stage=stage)
        seconds = round(ended_s - begun_s, 2)
        self.event(ended_s, Kind.STAGE_FINISHED, stage=stage, seconds=seconds, outputs=outputs)

    def line(self, pod: str, at_s: float, event: str, **fields: Any) -> None:
        line = {"event": event, **fields, "time": round(BEGUN.timestamp() + at_s, 3)}
        self.logs.setdefault(pod, []).append(json.dumps(line))

    def steps(self, attempt: int, first: int, last: int, begun_s: float, loss: Callable[[int], float] = curve) -> float:
        """Steps one after the other, told by both pods; returns when the last one ended."""
        now = begun_s
        for step in range(first, last + 1):
            now += STEP_S
            for index in (0, 1):
                pod = f"rehearsal-a{attempt}-gang-0-{index}-x{attempt}{index}yz"
                value = loss(step)
                self.line(pod, now, "step", step=step, loss=value, tokens=step * 2048, seconds=STEP_S)
            if step % 50 == 0 or step == 110:
                now += 0.9
                pod = f"rehearsal-a{attempt}-gang-0-0-x{attempt}0yz"
                self.line(pod, now, "evaluated", step=step, loss=curve(step) + 0.08, seconds=0.9)
            now += 0.03
        return now

    def record(self, spec: Spec, plan: Plan, at_s: float, **more: Any) -> Record:
        logs = {pod: "\n".join(lines) + "\n" for pod, lines in self.logs.items()}
        return Record(spec, plan, tuple(self.events), BEGUN + timedelta(seconds=at_s), logs, **more)


def until_training() -> Story:
    story = Story()
    story.stage(Stage.PROVISION, 0, 38, data_digest="5b" * 32, unigram_loss=6.213, train_tokens=2_310_400)
    image = f"123456789012.dkr.ecr.us-east-1.amazonaws.com/bivouac/trainer@sha256:{'9f' * 32}"
    story.stage(Stage.BAKE, 38.2, 55, image=image, code="c0" * 32, baked=True, manifest="images/x.json")
    story.event(55.1, Kind.STAGE_STARTED, stage=Stage.PREFLIGHT)
    for node in NODES[:2]:
        story.event(66, Kind.NODE_VERDICT, node=node, instance="i-0a", fit=True, probes=[])
    story.event(67, Kind.STAGE_FINISHED, stage=Stage.PREFLIGHT, seconds=11.9, outputs={})
    story.event(67.2, Kind.STAGE_STARTED, stage=Stage.LAUNCH)
    story.event(70, Kind.ATTEMPT_LAUNCHED, "steward", attempt=1, jobset="rehearsal-a1", committed_step=-1)
    story.line("rehearsal-a1-gang-0-0-x10yz", 79, "started_fresh", step=0, parameters=2_098_432)
    story.event(81, Kind.ATTEMPT_RUNNING, "steward", attempt=1, step=1, nodes=NODES[:2])
    story.event(81.5, Kind.STAGE_FINISHED, stage=Stage.LAUNCH, seconds=14.3, outputs={"attempts": 1})
    story.event(81.6, Kind.STAGE_STARTED, stage=Stage.SUPERVISE)
    return story


def with_a_node_lost(loss_again: Callable[[int], float] = curve) -> Story:
    """Killed after step 46, the newest checkpoint on the shared tier being that of step 40."""
    story = until_training()
    story.steps(1, 1, 46, 80)
    why = f"node {NODES[1]} is dead: silent, and a second witness agrees"
    story.event(106.5, Kind.DECISION, "steward", action="end-attempt", why=why)
    ended = {"attempt": 1, "failure": "node", "detail": why, "step": 46, "committed_at_end": 40}
    story.event(106.6, Kind.ATTEMPT_ENDED, "steward", **ended)
    story.event(106.8, Kind.NODE_QUARANTINED, "steward", node=NODES[1], instance="i-0b", reason=why)
    story.event(114, Kind.ATTEMPT_LAUNCHED, "steward", attempt=2, jobset="rehearsal-a2", committed_step=40)
    refused = {"tier": "local", "rank": 1, "file": "zero_pp_rank_1.pt", "step": 40, "wanted": "aa", "seen": "bb"}
    story.event(121, Kind.CHECKPOINT_REFUSED, "steward", attempt=2, **refused)
    story.line("rehearsal-a2-gang-0-0-x20yz", 123, "restored", step=40, of_attempt=1, position=640)
    story.event(125, Kind.ATTEMPT_RUNNING, "steward", attempt=2, step=41, nodes=[NODES[0], NODES[2]])
    story.steps(2, 41, 110, 124, loss_again)
    return story


def whole(loss_again: Callable[[int], float] = curve) -> Story:
    story = with_a_node_lost(loss_again)
    story.event(160, Kind.DECISION, "steward", action="finish", why="every pod of the gang succeeded")
    ended = {"attempt": 2, "failure": None, "detail": "every pod succeeded", "step": 110, "committed_at_end": 110}
    story.event(160.1, Kind.ATTEMPT_ENDED, "steward", **ended)
    story.event(160.2, Kind.TRAINING_FINISHED, "steward", outcome="done", why="done", committed_step=110)
    story.event(160.9, Kind.STAGE_FINISHED, stage=Stage.SUPERVISE, seconds=79.3, outputs={"outcome": "done"})
    story.event(161, Kind.STAGE_STARTED, stage=Stage.ARCHIVE)
    archived = {
        "manifest": "s3://bivouac-archive-123456789012-us-east-1/campaigns/rehearsal/archive-manifest.json",
        "step": 110,
        "recorded_evaluation_loss": curve(110) + 0.08,
        "restored_evaluation_loss": curve(110) + 0.08,
        "objects": 61,
        "bytes": 33_912_044,
        "refused": [],
    }
    story.event(171, Kind.ARCHIVE_VERIFIED, "steward", **archived)
    story.event(171.4, Kind.NODES_AT_ZERO, "steward", group="bivouac-rehearsal-gpu")
    story.event(172, Kind.STAGE_FINISHED, stage=Stage.ARCHIVE, seconds=11, outputs=archived)
    story.stage(Stage.TEARDOWN, 172.1, 188, resources=84)
    story.event(188.1, Kind.STAGE_STARTED, stage=Stage.CERTIFY)
    story.event(191, Kind.CERTIFIED, clean=True, found=[], could_not_look=[], looks=26, kept=[archived["manifest"]])
    story.event(191.1, Kind.STAGE_FINISHED, stage=Stage.CERTIFY, seconds=3, outputs={})
    story.event(191.2, Kind.STAGE_STARTED, stage=Stage.REPORT)
    return story


SITE = {"emulated": ["AWS APIs: moto, extended"], "not_rehearsed": ["drivers, EFA installer & <fabric>"]}
LOOK = {"service": "ec2", "kind": "volume", "listed": 2, "found": [], "could_not_look": None}
CERTIFICATE = {"principal": "arn:aws:iam::123456789012:user/operator", "looks": [LOOK], "kept": []}

Make = Callable[..., Report]


@pytest.fixture
def record(spec_file: Callable[..., SpecFile]) -> Callable[..., Record]:
    spec = spec_file().spec
    plan = make_plan(spec, survey(spec))

    def make(story: Story, at_s: float = 192.0, **more: Any) -> Record:
        return story.record(spec, plan, at_s, **more)

    return make


@pytest.fixture
def report(record: Callable[..., Record]) -> Make:
    def make(story: Story | None = None, at_s: float = 192.0, **more: Any) -> Report:
        return build(record(story or whole(), at_s, **{"site": SITE, "certificate": CERTIFICATE} | more))

    return make


def seconds(report: Report, cause: Cause) -> float:
    return sum(row.seconds for row in report.shares if row.cause is cause)


def test_every_paid_second_has_exactly_one_cause(report: Make) -> None:
    found = report()
    assert found.paid_s == pytest.approx(188)
    assert sum(row.seconds for row in found.shares) == pytest.approx(found.paid_s, abs=0.01)
    assert sum(row.time_share for row in found.shares) == pytest.approx(1)
    assert sum(row.money_share for row in found.shares) == pytest.approx(1)


def test_goodput_counts_each_step_once(report: Make) -> None:
    found = report()
    assert seconds(found, Cause.USEFUL) == pytest.approx(110 * STEP_S, abs=0.1)
    assert seconds(found, Cause.REDO) == pytest.approx(6 * STEP_S, abs=0.1)
    assert found.goodput == pytest.approx(110 * STEP_S / 188, rel=0.01)


def test_the_parts_of_the_bill_add_up_to_the_bill(report: Make) -> None:
    money = report().money
    assert sum(row.usd for row in money.rates) == pytest.approx(money.by_time_usd, abs=Decimal("0.05"))
    assert money.by_time_usd + money.by_size_usd == pytest.approx(money.total_usd, abs=Decimal("0.01"))


def test_gpu_nodes_bill_from_preflight_until_the_group_is_at_zero(report: Make) -> None:
    gpu = next(row for row in report().money.rates if row.name == "GPU nodes")
    assert gpu.seconds == pytest.approx(171.4 - 55.1)
    assert gpu.usd == pytest.approx(gpu.usd_per_hour * Decimal(gpu.seconds) / 3600, abs=Decimal("0.01"))


def test_an_interruption_has_its_cause_its_answer_its_seconds_and_its_price(report: Make) -> None:
    (found,) = report().interruptions
    assert found.cause == "node failure" and found.attempt == 1 and "second witness" in found.what
    assert any("quarantined" in row for row in found.answer)
    assert any("step 40" in row and "ip-10-42-1-31" in row for row in found.answer)
    assert (found.resumed_from, found.steps_repeated) == (40, 6)
    assert [row.cause for row in found.losses] == [Cause.REPLACE, Cause.STARTUP, Cause.REDO]
    assert found.seconds == pytest.approx(sum(row.seconds for row in found.losses), abs=0.01)
    assert found.usd is not None and found.usd > 0


def test_repeated_steps_are_compared_bit_by_bit(report: Make) -> None:
    repeats = report().training.repeats
    assert (repeats.first_step, repeats.last_step, repeats.steps) == (41, 46, 6)
    assert repeats.bitwise_equal
    one_bit = report(whole(lambda step: math.nextafter(curve(step), 9) if step == 43 else curve(step)))
    assert not one_bit.training.repeats.bitwise_equal
    assert one_bit.training.repeats.equal == 5 and one_bit.training.repeats.greatest_difference > 0


def test_a_report_of_a_running_campaign_stops_at_now(report: Make) -> None:
    found = report(with_a_node_lost(), at_s=150.0, certificate=None)
    assert found.status == "under way: supervise" and found.golden is None and found.certificate is None
    assert found.attempts[-1].running
    assert sum(row.seconds for row in found.shares) == pytest.approx(found.paid_s, abs=0.01)


@pytest.mark.parametrize("kept", range(0, 46, 3))
def test_any_beginning_of_a_record_makes_a_page(record: Callable[..., Record], kept: int) -> None:
    story = whole()
    story.events.sort(key=lambda event: event.at)
    story.events = story.events[:kept]
    found = build(record(story, at_s=192.0))
    assert sum(row.seconds for row in found.shares) == pytest.approx(found.paid_s, abs=0.01)
    well_formed(render(found))


def test_logs_cut_in_the_middle_of_a_line_are_read_up_to_there(record: Callable[..., Record]) -> None:
    cut = record(whole())
    pods = {pod: text[: len(text) // 2] for pod, text in cut.logs.items()}
    found = build(Record(cut.spec, cut.plan, cut.events, cut.at, pods))
    assert 0 < found.training.steps_done < 110


def test_a_stage_whose_driver_went_away_is_cut_off_and_counted(report: Make) -> None:
    story = Story()
    story.event(0, Kind.STAGE_STARTED, stage=Stage.PROVISION)
    story.event(20, Kind.DRIVER_TOOK_OVER, holder="ann@two", previous="ann@one")
    story.stage(Stage.PROVISION, 21, 40)
    story.event(41, Kind.STAGE_STARTED, stage=Stage.BAKE)
    found = report(story, at_s=50.0, certificate=None)
    assert [(row.stage, row.ending) for row in found.stages] == [
        ("provision", "cut off"),
        ("provision", "finished"),
        ("bake", "running"),
    ]
    assert seconds(found, Cause.PROVISION) == pytest.approx(39) and seconds(found, Cause.IDLE) == pytest.approx(2)
    assert found.interruptions[0].cause == "driver gone"


def test_a_certificate_that_is_not_clean_is_said_at_the_head(report: Make) -> None:
    story = whole()
    story.events = [e for e in story.events if e.kind is not Kind.CERTIFIED]
    denied = ["log group: AccessDenied: logs:DescribeLogGroups"]
    story.event(191, Kind.CERTIFIED, clean=False, found=["volume vol-1"], could_not_look=denied, looks=26, kept=[])
    found = report(story)
    assert (found.status, found.level) == ("ended, not certified", "bad")
    page = render(found)
    assert "volume vol-1" in page and "AccessDenied" in page


def test_the_json_reads_back_as_the_same_report(report: Make) -> None:
    found = report()
    assert Report.model_validate_json(found.model_dump_json()) == found


def test_the_page_needs_nothing_but_itself(report: Make) -> None:
    page = render(report())
    tags = well_formed(page)
    assert not {"script", "link", "iframe", "img", "object"} & set(tags)
    without_namespace = page.replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?://|@import|url\((?!#)", without_namespace)
    assert "prefers-color-scheme: dark" in page and "@media print" in page


def test_the_page_says_what_was_emulated_and_escapes_what_it_shows(report: Make) -> None:
    page = render(report())
    assert "moto, extended" in page and "EFA installer &amp; &lt;fabric&gt;" in page
    assert "would have cost on AWS" in page
    assert "would have cost on AWS" not in render(report(site=None))


def test_logs_are_read_of_the_first_two_pods_of_each_attempt() -> None:
    names = [f"big-a{attempt}-gang-0-{index}-abcde" for attempt in (1, 2) for index in range(12)]
    assert pods_to_read([*reversed(names), "steward-6d", "archive-x"]) == [
        "big-a2-gang-0-0-abcde",
        "big-a2-gang-0-1-abcde",
        "big-a1-gang-0-0-abcde",
        "big-a1-gang-0-1-abcde",
    ]


def test_an_overlay_fills_only_what_is_free() -> None:
    top = [Span(1, 2, Cause.USEFUL), Span(4, 5, Cause.USEFUL)]
    found = overlay(top, [Span(0, 3, Cause.STARTUP), Span(3, 6, Cause.SAVING)])
    assert [(s.begun_s, s.ended_s, s.cause.value) for s in found] == [
        (0, 1, "startup"),
        (1, 2, "useful"),
        (2, 3, "startup"),
        (3, 4, "saving"),
        (4, 5, "useful"),
        (5, 6, "saving"),
    ]


def test_the_report_is_written_here_and_beside_the_record(
    record: Callable[..., Record], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    wanted = record(whole())
    with mock_aws():
        s3 = boto3.client("s3", region_name="us-east-1")
        s3.create_bucket(Bucket="state")
        store = CampaignStore(s3, "state", "rehearsal", "reader")
        store.claim_spec(wanted.spec.model_dump_json())
        store.put_json("plan.json", wanted.plan.model_dump(mode="json"))
        for event in wanted.events:
            store.put_json(f"events/{event.writer}/{event.sequence:06d}.json", event.model_dump(mode="json"))
        for pod, text in wanted.logs.items():
            store.put(f"{store.prefix}/logs/{pod}.log", text.encode())
        written = report_stage.write(store, tmp_path / "results")
        assert store.get(f"{store.prefix}/report.html") == Path(written["html"]).read_bytes()
        assert store.get(f"{store.prefix}/report.json") == Path(written["json"]).read_bytes()
    found = Report.model_validate_json(Path(written["json"]).read_text())
    assert found.training == build(wanted).training and found.interruptions == build(wanted).interruptions


class _Tags(HTMLParser):
    EMPTY = frozenset({"meta", "br", "hr", "input"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag, f"</{tag}> closes nothing"


def well_formed(page: str) -> list[str]:
    """The page's tags; asserts that each is closed in its place and that no number is missing from a drawing."""
    parser = _Tags()
    parser.feed(page)
    assert not parser.open
    assert "nan" not in re.findall(r'[xy\d]="([^"]*)"', page) and "None" not in re.findall(r">(None)<", page)
    return parser.seen
