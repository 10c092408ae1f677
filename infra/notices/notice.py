"""A change as a notice: what happened, what it costs now, and the command to type next. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from infra.console.visible import visible
from infra.console.words import moment, plural
from infra.notices.changes import Told
from infra.record.doubts import DOUBTS, unproven_copy
from infra.record.events import Event, Kind
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


def notice(told: Told, campaign: str, region: str, cost: str) -> Notice:
    """`cost`: a sentence that says what bills now."""
    try:
        happened = visible(_happened(told))
    except (KeyError, TypeError, ValueError, AttributeError):
        happened = f"{told.event.kind}: its data cannot be read"
    lines = [
        f"{happened[:_LONGEST]}.",
        f"Cost: {cost}.",
        f"Next: {_next(told, campaign)}",
        f"Campaign {campaign} in {region}, {moment(told.event.at)}.",
    ]
    plain = re.sub(r"[^\x20-\x7e]+", " ", f"bivouac {campaign}: {happened}")
    return Notice(plain if len(plain) <= SUBJECT else f"{plain[: SUBJECT - 3]}...", "\n".join(lines))


def _happened(told: Told) -> str:
    event, data = told.event, told.event.data
    match told.change:
        case Change.TRAINING:
            return f"training has begun: attempt {data['attempt']} on {plural(len(data.get('nodes', ())), 'node')}"
        case Change.NODE:
            return f"node {data['node']} ({data.get('instance')}) is replaced: {data.get('reason')}"
        case Change.CHECKPOINTS:
            return DOUBTS[event.kind](data)
        case Change.HELD:
            return f"held until {data.get('until')} for you to judge: {data.get('cause')}"
        case Change.FINISHED:
            return f"training is over ({data.get('outcome')}): {data.get('why')}"
        case Change.ARCHIVED if event.kind is Kind.ARCHIVE_UNPROVEN:
            return unproven_copy(data)
        case Change.ARCHIVED:
            return f"step {data.get('step')} is in the archive, {data.get('objects')} objects read back"
        case Change.TORN_DOWN:
            return f"torn down, {plural(data.get('outputs', {}).get('resources', 0), 'resource')} destroyed"
        case Change.BILLING:
            assert told.since is not None, "a reminder knows since when"
            return f"still billing, and waiting for somebody since {moment(told.since)}: {_waits(event)}"
        case Change.FAILED:
            return _failed(event)


def _failed(event: Event) -> str:
    if event.kind is Kind.STAGE_FAILED:
        return f"{event.data['stage']} has failed: {event.data.get('error')}"
    if event.kind is Kind.FILE_SYSTEM_LOST:
        then = "a new one is made" if event.data["repair"] else "training stands still, and each hour of it bills"
        return f"file system {event.data['id']} {event.data['word']}; {then}: {event.data['why']}"
    if event.kind is Kind.NODES_AT_ZERO:
        return f"the closer gave the GPU nodes back: {event.data['why']}"
    if event.kind is Kind.CERTIFIED:
        return f"not certified: {_listed(event.data.get('found')) or 'something could not be looked at'}"
    return f"the archive has failed: {event.data.get('error')}"


def _waits(event: Event) -> str:
    if event.kind is Kind.HELD:
        return f"the cluster is held until {event.data.get('until')}"
    if event.kind is Kind.NODES_AT_ZERO:
        return "no GPU node is left, but nobody has torn down the rest"
    return _failed(event)


def _listed(found: Any) -> str:
    return ", ".join(map(str, found)) if isinstance(found, list | tuple) else str(found or "")


def _next(told: Told, campaign: str) -> str:
    down = f"`bivouac down {campaign}` ends it"
    if told.event.kind is Kind.FILE_SYSTEM_LOST:
        if told.event.data["repair"]:
            return f"nothing; `bivouac status {campaign}` shows it"
        if told.event.data["copied"] < 0:
            return f"{down}: S3 has no copy to go on from"
        return f"`bivouac repair {campaign}` makes a new one and goes on from step {told.event.data['copied']}; {down}"
    match told.change:
        case Change.TRAINING | Change.NODE:
            return f"nothing; `bivouac status {campaign}` shows it"
        case Change.CHECKPOINTS:
            look = f"`bivouac status {campaign}` shows it"
            return f"{look}; `bivouac relaunch {campaign} --spec FILE` goes on with a mended spec; {down}"
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
