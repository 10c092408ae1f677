"""The report, from a synthetic record: a rehearsal with one node lost, and parts of such a record."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from infra.campaign import report as report_stage
from infra.record.events import Stage
from infra.record.pod_logs import piece
from infra.record.store import CampaignStore
from infra.report.build import build
from infra.report.causes import TimeCause
from infra.report.ledger import Span, overlay
from infra.report.model import Report
from infra.report.record import Record
from infra.report.trainer_log import pods_to_read
from tests.unit.report.campaign_story import (
    NODES,
    STEP_S,
    ToldRecord,
    curve,
    until_training,
    whole,
    with_a_node_lost,
)

Make = Callable[..., Report]


def seconds(report: Report, cause: TimeCause) -> float:
    return sum(row.seconds for row in report.shares if row.cause is cause)


def test_every_paid_second_has_exactly_one_cause(report: Make) -> None:
    found = report()
    assert found.paid_s == pytest.approx(188)
    assert sum(row.seconds for row in found.shares) == pytest.approx(found.paid_s, abs=0.01)
    assert sum(row.time_share for row in found.shares) == pytest.approx(1)
    assert sum(row.money_share for row in found.shares) == pytest.approx(1)


def test_goodput_counts_each_step_once(report: Make) -> None:
    found = report()
    assert seconds(found, TimeCause.USEFUL) == pytest.approx(110 * STEP_S, abs=0.1)
    assert seconds(found, TimeCause.REDO) == pytest.approx(6 * STEP_S, abs=0.1)
    assert found.goodput == pytest.approx(110 * STEP_S / 188, rel=0.01)


def test_gpu_nodes_bill_from_preflight_until_the_group_is_at_zero(report: Make) -> None:
    gpu = next(row for row in report().money.items if row.name == "GPU nodes")
    assert gpu.seconds is not None
    assert gpu.seconds == pytest.approx((163 - 55.1) + (171.4 - 163) / 2), "one of two while the archive runs"
    assert report().gpu_up == ((55.1, 171.4),)
    assert gpu.usd == pytest.approx(Decimal("13.76") * Decimal(gpu.seconds) / 3600, abs=Decimal("0.0001"))


def test_while_a_pilot_proves_itself_alone_one_node_bills(report: Make) -> None:
    story = whole()
    story.event(56, "pilot.begun", nodes=1, of=2)
    story.event(62, "pilot.proven", node=NODES[0], instance="i-0a", digest="d")
    found = report(story)
    gpu = next(row for row in found.money.items if row.name == "GPU nodes")
    assert gpu.seconds == pytest.approx((163 - 55.1) + (171.4 - 163) / 2 - (62 - 56) / 2)
    assert found.gpu_up == ((55.1, 171.4),)
    assert f"the pilot {NODES[0]} proved itself" in " ".join(row.text for row in found.happened)


def test_an_interruption_has_its_cause_its_answer_its_seconds_and_its_price(report: Make) -> None:
    (found,) = report().interruptions
    assert found.cause == "node failure" and found.attempt == 1 and "second witness" in found.what
    assert any("quarantined" in row for row in found.answer)
    assert any("step 40" in row and "ip-10-42-1-31" in row for row in found.answer)
    assert (found.resumed_from, found.steps_lost, found.steps_repeated) == (40, 6, 6)
    assert (found.number, found.action) == (1, "replaced")
    assert any("zero_pp_rank_1.pt" in row for row in found.evidence)
    assert found.detected_s == pytest.approx(106.6 - (80 + 46 * (STEP_S + 0.03) - 0.03), abs=0.01)
    assert found.again_s == pytest.approx(124 - (80 + 46 * (STEP_S + 0.03) - 0.03), abs=0.01)
    assert [row.cause for row in found.losses] == [TimeCause.REPLACE, TimeCause.STARTUP, TimeCause.REDO]
    assert found.seconds == pytest.approx(sum(row.seconds for row in found.losses), abs=0.01)
    assert found.usd is not None and found.usd > 0


def test_a_report_counts_the_bases_packages_only_where_they_were_listed(report: Make) -> None:
    def told(base: dict[str, str]) -> str:
        image = {"base": "b:1", "base_digest": "sha256:0", "base_packages": base, "layer_packages": {"bivouac": "1.0"}}
        groups = {group.name: group.facts for group in report(image=image).facts}
        return next(fact.value for fact in groups["Code and image"] if fact.name == "versions")

    assert told({"torch": "2.13.0"}) == "torch 2.13.0, bivouac 1.0; 2 packages in all"
    assert told({}).startswith("bivouac 1.0; 1 packages in the layer") and "not listed" in told({})


def test_repeated_steps_are_compared_bit_by_bit(report: Make) -> None:
    repeats = report().training.repeats
    assert (repeats.first_step, repeats.last_step, repeats.steps) == (41, 46, 6)
    assert repeats.bitwise_equal
    one_bit = report(whole(lambda step: math.nextafter(curve(step), 9) if step == 43 else curve(step)))
    assert not one_bit.training.repeats.bitwise_equal
    assert one_bit.training.repeats.equal == 5 and one_bit.training.repeats.greatest_difference > 0


def test_an_attempt_that_failed_first_on_one_node_names_it_and_why_the_node_was_replaced(report: Make) -> None:
    story, why = until_training(), "attempts 1 and 2 failed first on it, without a newer checkpoint"
    story.steps(1, 1, 46, 80)
    ended = {"attempt": 1, "failure": "process", "detail": "ECC", "step": 46, "committed_at_end": 40}
    told = {"first_failed": NODES[1], "instances": {NODES[1]: "i-0b"}}
    story.event(106.6, "attempt.ended", "steward", **ended, **told)
    story.event(106.8, "node.quarantined", "steward", node=NODES[1], instance="i-0b", reason=why)
    found = report(story, at_s=150.0, certificate=None)
    (row,) = found.interruptions
    node = NODES[1].partition(".")[0]
    assert f"failed first: {node}" in row.evidence and f"{node}: {why}" in row.evidence and row.action == "replaced"
    assert f"node replaced: {node}" in [mark.label for mark in found.marks]


def test_a_report_of_a_running_campaign_stops_at_now(report: Make) -> None:
    found = report(with_a_node_lost(), at_s=150.0, certificate=None)
    assert found.status == "under way: supervise" and found.golden is None and found.certificate is None
    assert found.attempts[-1].running
    assert sum(row.seconds for row in found.shares) == pytest.approx(found.paid_s, abs=0.01)


def test_logs_cut_in_the_middle_of_a_line_are_read_up_to_there(record: Callable[..., Record]) -> None:
    cut = record(whole())
    pods = {pod: text[: len(text) // 2] for pod, text in cut.logs.items()}
    found = build(Record(cut.spec, cut.plan, cut.events, cut.at, pods))
    assert 0 < found.training.steps_done < 110


def test_a_stage_whose_driver_went_away_is_cut_off_and_counted(report: Make) -> None:
    story = ToldRecord()
    story.event(0, "stage.started", stage=Stage.PROVISION)
    story.event(20, "driver.took-over", holder="ann@two", previous="ann@one")
    story.stage(Stage.PROVISION, 21, 40)
    story.event(41, "stage.started", stage=Stage.BAKE)
    found = report(story, at_s=50.0, certificate=None)
    assert [(row.stage, row.ending) for row in found.stages] == [
        ("provision", "cut off"),
        ("provision", "finished"),
        ("bake", "running"),
    ]
    assert seconds(found, TimeCause.PROVISION) == pytest.approx(39) and seconds(found, TimeCause.IDLE) == pytest.approx(
        2
    )
    assert found.interruptions[0].cause == "driver gone"


def test_the_json_reads_back_as_the_same_report(report: Make) -> None:
    found = report()
    assert Report.model_validate_json(found.model_dump_json()) == found


def test_logs_are_read_of_the_first_two_pods_of_each_attempt() -> None:
    names = [f"big-a{attempt}-gang-0-{index}-abcde" for attempt in (1, 2) for index in range(12)]
    assert pods_to_read([*reversed(names), "steward-6d", "archive-x"]) == [
        "big-a2-gang-0-0-abcde",
        "big-a2-gang-0-1-abcde",
        "big-a1-gang-0-0-abcde",
        "big-a1-gang-0-1-abcde",
    ]
    mimic = "big-a1-gang-0-0"  # a campaign may be called so
    named = [f"{mimic}-a{attempt}-gang-0-{index}-abcde" for attempt in (1, 2) for index in (0, 1)]
    assert pods_to_read(named) == named


def test_an_overlay_fills_only_what_is_free() -> None:
    top = [Span(1, 2, TimeCause.USEFUL), Span(4, 5, TimeCause.USEFUL)]
    found = overlay(top, [Span(0, 3, TimeCause.STARTUP), Span(3, 6, TimeCause.SAVING)])
    assert [(s.begun_s, s.ended_s, s.cause.value) for s in found] == [
        (0, 1, "startup"),
        (1, 2, "useful"),
        (2, 3, "startup"),
        (3, 4, "saving"),
        (4, 5, "useful"),
        (5, 6, "saving"),
    ]


def test_the_report_is_written_here_and_beside_the_record(
    record: Callable[..., Record], tmp_path: Path, state_s3: Any
) -> None:
    wanted = record(whole())
    store = CampaignStore(state_s3, "state", "rehearsal", "reader")
    store.claim_spec(wanted.spec.model_dump_json())
    store.put_json("plan.json", wanted.plan.model_dump(mode="json"))
    for event in wanted.events:
        store.put_json(f"events/{event.writer}/{event.sequence:06d}.json", event.model_dump(mode="json"))
    for pod, text in wanted.logs.items():
        for number, part in enumerate((text[:7], text[7:])):
            store.put(f"{store.prefix}/{piece(pod, number)}", part.encode())
    _, written = report_stage.write(store, tmp_path / "results")
    assert store.get(f"{store.prefix}/report.html") == Path(written["html"]).read_bytes()
    assert store.get(f"{store.prefix}/report.json") == Path(written["json"]).read_bytes()
    found = Report.model_validate_json(Path(written["json"]).read_text())
    # What the buckets of this test do not hold is said, and hinders nothing.
    assert sum("Could not be read" in row.text for row in found.notices) == 3
    again, _ = report_stage.write_again(tmp_path / "results")
    assert again == found
    assert found.training == build(wanted).training and found.interruptions == build(wanted).interruptions
