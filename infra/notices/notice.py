"""A change as a notice: what happened, what it costs now, and the command to type next. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from infra.console.visible import visible
from infra.console.words import moment, plural
from infra.notices.changes import Told
from infra.record.events import Event
from infra.record.payloads.attempts import AttemptRunning, NodeAnnounced, NodeQuarantined, NodesAtZero
from infra.record.payloads.outputs import TeardownOutput
from infra.record.payloads.stages import Certified, StageFailed, StageFinished
from infra.record.payloads.training import ArchiveFailed, ArchiveVerified, FileSystemLost, Held, TrainingFinished
from infra.spec.notify import Change

SUBJECT = 99
"""Characters of a subject. SNS wants fewer than 100, in ASCII and without line breaks.
https://docs.aws.amazon.com/sns/latest/api/API_Publish.html"""
_LONGEST = 2000
"""Characters of what happened: an error may quote a whole answer."""


@dataclass(frozen=True)
class Notice:
    subject: str
    text: str
    is_urgent: bool = False
    """Somebody must act now: an alert of severity `page`."""


class NotSent(Exception):
    """A notice did not get through; the text says why, for the record."""


def notice(change: Told, campaign: str, region: str, cost: str) -> Notice:
    """`cost`: a sentence that says what bills now."""
    event_text = visible(_event_text(change))
    lines = [
        f"{event_text[:_LONGEST]}.",
        f"Cost: {cost}.",
        f"Next: {_next(change, campaign)}",
        f"Campaign {campaign} in {region}, {moment(change.event.at)}.",
    ]
    plain = re.sub(r"[^\x20-\x7e]+", " ", f"bivouac {campaign}: {event_text}")
    is_urgent = getattr(change.event.payload, "severity", "") == "page"
    return Notice(plain if len(plain) <= SUBJECT else f"{plain[: SUBJECT - 3]}...", "\n".join(lines), is_urgent)


def _event_text(news: Told) -> str:
    if news.change is Change.BILLING:
        assert news.since is not None, "a reminder knows since when"
        return f"still billing, and waiting for somebody since {moment(news.since)}: {_waits(news.event)}"
    if news.change is Change.ALERT and news.since is not None:
        text = f"nobody has answered since {moment(news.since)}: {news.event.payload.sentence()}"
        other_pages = f"{plural(len(news.others), 'other page')} without an answer: {', '.join(news.others)}"
        return f"{text}; {other_pages}" if news.others else text
    match news.event.payload:
        case AttemptRunning(attempt=attempt, nodes=nodes):
            return f"training has begun: attempt {attempt} on {plural(len(nodes), 'node')}"
        case NodeQuarantined(node=node, instance=instance, reason=reason, others=others):
            tail = f"; by the same decision {plural(len(others), 'other node')}: {', '.join(others)}" if others else ""
            return f"node {node} ({instance}) is replaced: {reason}{tail}"
        case NodeAnnounced():
            return news.event.payload.sentence()
        case Held(until=until, cause=cause):
            return f"held until {until} for you to judge: {cause}"
        case TrainingFinished(outcome=outcome, why=why):
            return f"training is over ({outcome}): {why}"
        case ArchiveVerified(step=step, objects=objects):
            return f"step {step} is in the archive, {objects} objects read back"
        case StageFinished(outputs=TeardownOutput(resources=count)):
            return f"torn down, {plural(count, 'resource')} destroyed"
    return _failure_text(news.event)


def _failure_text(event: Event) -> str:
    match event.payload:
        case StageFailed(stage=stage, error=error):
            return f"{stage} has failed: {error}"
        case FileSystemLost(id=id, word=word, repair=repair, why=why):
            consequence = "a new one is made" if repair else "training stands still, and each hour of it bills"
            return f"file system {id} {word}; {consequence}: {why}"
        case NodesAtZero(why=why):
            return f"the closer gave the GPU nodes back: {why}"
        case Certified(found=found):
            return f"not certified: {', '.join(map(str, found)) or 'something could not be looked at'}"
        case ArchiveFailed(error=error):
            return f"the archive has failed: {error}"
    return event.payload.sentence()


def _waits(event: Event) -> str:
    match event.payload:
        case Held(until=until):
            return f"the cluster is held until {until}"
        case NodesAtZero():
            return "no GPU node is left, but nobody has torn down the rest"
    return _failure_text(event)


def _next(news: Told, campaign: str) -> str:
    down = f"`bivouac down {campaign}` ends it"
    if isinstance(loss := news.event.payload, FileSystemLost):
        if loss.repair:
            return f"nothing; `bivouac status {campaign}` shows it"
        if loss.copied < 0:
            return f"{down}: S3 has no copy to go on from"
        return f"`bivouac repair {campaign}` makes a new one and goes on from step {loss.copied}; {down}"
    match news.change:
        case Change.TRAINING | Change.NODE:
            return f"nothing; `bivouac status {campaign}` shows it"
        case Change.CHECKPOINTS | Change.WATCH:
            look = f"`bivouac status {campaign}` shows it"
            return f"{look}; `bivouac relaunch {campaign} --spec FILE` goes on with a mended spec; {down}"
        case Change.ALERT if news.since is not None:
            return f"`bivouac alerts {campaign} --ack` says that you have it, and ends these messages; then its runbook"
        case Change.ALERT:
            return f"its runbook says what to do; `bivouac status {campaign}` shows the campaign"
        case Change.HELD:
            return f"`bivouac relaunch {campaign} --spec FILE` goes on with a mended spec; {down}"
        case Change.FINISHED:
            return f"nothing: the archive follows; `bivouac status {campaign}` shows it"
        case Change.TORN_DOWN:
            return f"nothing: the certificate follows; `bivouac sweep {campaign}` looks again at any time"
        case Change.ARCHIVED:
            return f"nothing if a driver is there, as `bivouac status {campaign}` says; else {down}"
        case Change.FAILED | Change.BILLING:
            return f"`bivouac status {campaign}` shows it; {down}"
