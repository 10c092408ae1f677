"""Synthetic records of campaigns, written entry by entry: no recorded data, only what a test wants told."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from infra.plan.plan import Plan
from infra.record.events import Event, Stage
from infra.report.record import Record
from infra.spec.campaign import Spec

BEGUN = datetime(2026, 8, 1, 9, 0, tzinfo=UTC)
NODES = [f"ip-10-42-1-{last}.ec2.internal" for last in (17, 23, 31)]
STEP_S = 0.4


def curve(step: int) -> float:
    return 3.1 + 4.6 * math.exp(-step / 28) + 0.09 * math.sin(step * 1.7) + 0.05 * math.sin(step * 0.61)


class ToldRecord:
    """A record being written: each entry at its second."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.logs: dict[str, list[str]] = {}

    def event(self, at_s: float, kind: str, writer: str = "driver", **data: Any) -> None:
        at = BEGUN + timedelta(seconds=at_s)
        self.events.append(Event(at=at, writer=writer, sequence=len(self.events), kind=kind, data=data))

    def stage(self, stage: Stage, begun_s: float, ended_s: float, **outputs: Any) -> None:
        self.event(begun_s, "stage.started", stage=stage)
        seconds = round(ended_s - begun_s, 2)
        self.event(ended_s, "stage.finished", stage=stage, seconds=seconds, outputs=outputs)

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
                self.line(pod, now, "step", step=step, loss=value, tokens=step * 2048, seconds=STEP_S, norm=1 / step)
            if step % 50 == 0 or step == 110:
                now += 0.9
                pod = f"rehearsal-a{attempt}-gang-0-0-x{attempt}0yz"
                self.line(pod, now, "evaluated", step=step, loss=curve(step) + 0.08, seconds=0.9)
            now += 0.03
        return now

    def record(self, spec: Spec, plan: Plan, at_s: float, **more: Any) -> Record:
        logs = {pod: "\n".join(lines) + "\n" for pod, lines in self.logs.items()}
        ordered = sorted(self.events, key=lambda event: event.at)
        events = tuple(event.model_copy(update={"sequence": number}) for number, event in enumerate(ordered))
        return Record(spec, plan, events, BEGUN + timedelta(seconds=at_s), logs, **more)


def until_training() -> ToldRecord:
    story = ToldRecord()
    story.stage(Stage.PROVISION, 0, 38, data_digest="5b" * 32, unigram_loss=6.213, train_tokens=2_310_400)
    image = f"123456789012.dkr.ecr.us-east-1.amazonaws.com/bivouac/trainer@sha256:{'9f' * 32}"
    story.stage(Stage.BAKE, 38.2, 55, image=image, code="c0" * 32, baked=True, manifest="images/x.json")
    story.event(55.1, "stage.started", stage=Stage.PREFLIGHT)
    for node in NODES[:2]:
        story.event(66, "node.verdict", node=node, instance="i-0a", fit=True, probes=[])
    story.event(67, "stage.finished", stage=Stage.PREFLIGHT, seconds=11.9, outputs={})
    story.event(67.2, "stage.started", stage=Stage.LAUNCH)
    story.event(70, "attempt.launched", "steward", attempt=1, jobset="rehearsal-a1", committed_step=-1)
    story.line("rehearsal-a1-gang-0-0-x10yz", 79, "started_fresh", step=0, parameters=2_098_432)
    story.event(81, "attempt.running", "steward", attempt=1, step=1, nodes=NODES[:2])
    story.event(81.5, "stage.finished", stage=Stage.LAUNCH, seconds=14.3, outputs={"attempts": 1})
    story.event(81.6, "stage.started", stage=Stage.SUPERVISE)
    return story


def with_a_node_lost(loss_again: Callable[[int], float] = curve) -> ToldRecord:
    """Killed after step 46, the newest checkpoint on the shared tier being that of step 40."""
    story = until_training()
    story.steps(1, 1, 46, 80)
    why = f"node {NODES[1]} is dead: silent, and a second witness agrees"
    story.event(106.5, "decision", "steward", action="end-attempt", why=why)
    ended = {"attempt": 1, "failure": "node", "detail": why, "step": 46, "committed_at_end": 40}
    story.event(106.6, "attempt.ended", "steward", **ended)
    story.event(106.8, "node.quarantined", "steward", node=NODES[1], instance="i-0b", reason=why)
    story.event(114, "attempt.launched", "steward", attempt=2, jobset="rehearsal-a2", committed_step=40)
    refused = {"tier": "local", "rank": 1, "file": "zero_pp_rank_1.pt", "step": 40, "wanted": "aa", "seen": "bb"}
    story.event(121, "checkpoint.refused", "steward", attempt=2, **refused)
    story.line("rehearsal-a2-gang-0-0-x20yz", 123, "restored", step=40, of_attempt=1, position=640)
    story.event(125, "attempt.running", "steward", attempt=2, step=41, nodes=[NODES[0], NODES[2]])
    story.steps(2, 41, 110, 124, loss_again)
    return story


def whole(loss_again: Callable[[int], float] = curve) -> ToldRecord:
    story = with_a_node_lost(loss_again)
    story.event(160, "decision", "steward", action="finish", why="every pod of the gang succeeded")
    ended = {"attempt": 2, "failure": None, "detail": "every pod succeeded", "step": 110, "committed_at_end": 110}
    story.event(160.1, "attempt.ended", "steward", **ended)
    story.event(160.2, "training.finished", "steward", outcome="done", why="done", committed_step=110)
    story.event(160.9, "stage.finished", stage=Stage.SUPERVISE, seconds=79.3, outputs={"outcome": "done"})
    story.event(161, "stage.started", stage=Stage.ARCHIVE)
    story.event(163, "archive.begun", "steward", group="bivouac-rehearsal-gpu", nodes=1, of=2, released=1)
    archived = {
        "manifest": "s3://bivouac-archive-123456789012-us-east-1/campaigns/rehearsal/archive-manifest.json",
        "step": 110,
        "recorded_evaluation_loss": curve(110) + 0.08,
        "restored_evaluation_loss": curve(110) + 0.08,
        "objects": 61,
        "bytes": 33_912_044,
        "refused": [],
    }
    story.event(171, "archive.verified", "steward", **archived)
    story.event(171.4, "nodes.at-zero", "steward", group="bivouac-rehearsal-gpu")
    story.event(172, "stage.finished", stage=Stage.ARCHIVE, seconds=11, outputs=archived)
    story.stage(Stage.TEARDOWN, 172.1, 188, resources=84)
    story.event(188.1, "stage.started", stage=Stage.CERTIFY)
    story.event(191, "certified", clean=True, found=[], could_not_look=[], looks=26, kept=[archived["manifest"]])
    story.event(191.1, "stage.finished", stage=Stage.CERTIFY, seconds=3, outputs={})
    story.event(191.2, "stage.started", stage=Stage.REPORT)
    return story


SITE = {"emulated": ["AWS APIs: moto, extended"], "not_rehearsed": ["drivers, EFA installer & <fabric>"]}
LOOK = {"service": "ec2", "kind": "volume", "listed": 2, "found": [], "could_not_look": None}
CERTIFICATE = {"principal": "arn:aws:iam::123456789012:user/operator", "looks": [LOOK], "kept": []}


def held() -> ToldRecord:
    """A user error right after step 20: the steward holds, nothing is archived yet."""
    story = until_training()
    story.steps(1, 1, 20, 80)
    why = "the trainer exited with 64"
    ended = {"attempt": 1, "failure": "user", "detail": why, "step": 20, "committed_at_end": 20}
    story.event(95, "attempt.ended", "steward", **ended)
    story.event(95.1, "training.finished", "steward", outcome="held", why=why, committed_step=20)
    story.event(95.5, "stage.finished", stage=Stage.SUPERVISE, seconds=14, outputs={"outcome": "held"})
    return story


def abandoned() -> ToldRecord:
    """Given up on purpose after the hold: no archive, torn down, certified."""
    story = held()
    story.event(120, "abandoned")
    story.stage(Stage.TEARDOWN, 120, 130, resources=84)
    story.event(130.1, "stage.started", stage=Stage.CERTIFY)
    story.event(131, "certified", clean=True, found=[], could_not_look=[], looks=26, kept=[])
    story.event(131.1, "stage.finished", stage=Stage.CERTIFY, seconds=1, outputs={})
    return story


def failed() -> ToldRecord:
    """Provision failed, and nobody has come since."""
    story = ToldRecord()
    story.event(0, "stage.started", stage=Stage.PROVISION)
    story.event(31, "stage.failed", stage=Stage.PROVISION, error="no capacity for p5.4xlarge in us-east-1a")
    return story
