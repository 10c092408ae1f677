"""Events as sentences for people."""

from __future__ import annotations

from typing import Any

from infra.console.visible import visible
from infra.console.words import clock, plural, size
from infra.record.doubts import DOUBTS, unproven_copy
from infra.record.events import Event, Kind
from infra.report.timeline import short


def sentence(event: Event) -> str:
    try:
        return visible(_sentence(event), lines=False)
    except (KeyError, TypeError, ValueError):
        return f"{event.kind}: its data cannot be read"


def _sentence(event: Event) -> str:
    data = event.data
    if event.kind in DOUBTS:
        return DOUBTS[event.kind](data)
    match event.kind:
        case Kind.STAGE_STARTED:
            return f"{data['stage']} begins{_by(data)}"
        case Kind.STAGE_FINISHED:
            return f"{data['stage']} finished in {clock(float(data.get('seconds', 0)))}"
        case Kind.STAGE_FAILED:
            return f"{data['stage']} failed: {data.get('error')}"
        case Kind.DRIVER_TOOK_OVER:
            return f"{data.get('holder')} took over from {data.get('previous')}{_by(data)}"
        case Kind.NODE_VERDICT:
            return f"{short(data['node'])} ({data.get('instance')}) is {'fit' if data.get('fit') else 'unfit'}"
        case Kind.NODE_QUARANTINED:
            return f"{short(data['node'])} ({data.get('instance')}) quarantined: {data.get('reason')}"
        case Kind.ATTEMPT_LAUNCHED:
            begin = max(int(data.get("committed_step", -1)), 0)
            return f"attempt {data['attempt']} launched as {data.get('jobset')} from step {begin}"
        case Kind.ATTEMPT_RUNNING:
            nodes = ", ".join(short(node) for node in data.get("nodes", ()))
            return f"attempt {data['attempt']} trains on {nodes}"
        case Kind.ATTEMPT_ENDED:
            why = f"{data['failure']} failure: " if data.get("failure") else ""
            return f"attempt {data['attempt']} ended at step {data.get('step')}: {why}{data.get('detail')}"
        case Kind.CHECKPOINT_REFUSED:
            where = f"rank {data.get('rank')}, {data.get('file')}"
            return f"checkpoint of step {data.get('step')} refused on the {data.get('tier')} tier: {where}"
        case Kind.CHECKPOINT_RESTORED:
            return f"step {data.get('step')} restored"
        case Kind.CHECKPOINT_COPIED:
            return f"step {data.get('step')} copied to S3, {size(data.get('bytes', 0))} read back: {data.get('place')}"
        case Kind.CHECKPOINT_COPY_FAILED:
            return f"no copy to S3, training goes on and the next interval tries again: {data.get('error')}"
        case Kind.CHECKPOINT_FETCHED:
            refused = f"; refused: {'; '.join(data['refused'])}" if data.get("refused") else ""
            return f"step {data.get('step')} is back from S3, {size(data.get('bytes', 0))}{refused}"
        case Kind.CHECKPOINT_FETCH_FAILED:
            return f"no checkpoint came back from S3: {data.get('error')}"
        case Kind.ATTEMPT_RESTARTED_IN_PLACE | Kind.FILE_SYSTEM_LOST | Kind.FILE_SYSTEM_REPLACED | Kind.WATCH:
            return _trouble(event.kind, data)
        case Kind.DECISION:
            return f"decided: {data.get('action')}, since {data.get('why')}"
        case Kind.OPERATOR_ENTERED:
            where = f"node {data.get('node')} of attempt {data.get('attempt')}"
            return f"{data.get('who')} ran {data.get('program')} on {where}"
        case Kind.HELD:
            return f"held until {data.get('until')} at {data.get('usd_per_hour')} USD/h: {data.get('cause')}"
        case Kind.RELAUNCHED:
            fields = ", ".join(f"{c['field']} {c['old']} -> {c['new']}" for c in data.get("diff", ())) or "code only"
            begin = max(int(data.get("committed_step", -1)), 0)
            return f"relaunched by {data.get('who')} from step {begin}, spec {data.get('version')}: {fields}"
        case Kind.TRAINING_FINISHED:
            return f"training {data.get('outcome')}: {data.get('why')}"
        case Kind.ARCHIVE_VERIFIED:
            read_back = f"{data.get('objects')} objects, {size(data.get('bytes', 0))} read back"
            return f"step {data.get('step')} archived: {read_back}"
        case Kind.ARCHIVE_UNPROVEN:
            return unproven_copy(data)
        case Kind.DATA_BEGUN:
            amount = f"{plural(data.get('files', 0), 'file')}, {size(data.get('bytes', 0))}"
            return f"{plural(data.get('nodes', 1), 'node')} prepare the data in the cluster: {amount}"
        case Kind.DATA_ENDED:
            digest, error = data.get("digest"), data.get("error")
            return f"the data were not prepared: {error}" if error else f"the data are prepared: {str(digest)[:12]}"
        case Kind.PILOT_BEGUN:
            return f"a pilot: {plural(data.get('nodes', 1), 'GPU node')} of {data.get('of')} is asked for first"
        case Kind.PILOT_PROVEN:
            return f"the pilot {data.get('node')} proved itself: the other nodes are asked for"
        case Kind.NODES_COUNTED:
            return f"{plural(data.get('nodes', 0), 'GPU node')} of {data.get('of')} bill"
        case Kind.ARCHIVE_BEGUN:
            nodes, released = plural(data.get("nodes", 1), "node"), data.get("released")
            if released is not None:
                return f"the archive runs on {nodes} of {data.get('group')}: the others are given back"
            return f"the archive asks {data.get('group')} for {nodes}"
        case Kind.NODES_AT_ZERO:
            return f"{data.get('group')} is at zero nodes" + (f": {data['why']}" if data.get("why") else "")
        case Kind.LAUNCH_BUDGET:
            return f"training must run by {data.get('until')}, before {data.get('usd')} USD are spent"
        case Kind.SWEPT:
            return f"removed what the stack did not know: {', '.join(data['things'])}"
        case Kind.ABANDONED:
            return f"what was trained was given up without an archive (--abandon){_by(data)}"
        case Kind.NOTICE_FAILED:
            return f"a notice was not sent by {data.get('way')}: {data.get('error')}"
        case Kind.UNREADABLE:
            return f"1 object of the record cannot be read: {data.get('key')}: {data.get('why')}"
        case Kind.CERTIFIED:
            return "certified: nothing left" if data.get("clean") else f"not certified: {data.get('found')}"
    return ", ".join(f"{key} {value}" for key, value in data.items())


def _trouble(kind: Kind, data: dict[str, Any]) -> str:
    if kind is Kind.WATCH:
        return f"the watch, step {data.get('step')}, {data.get('detector')}: {data.get('text')}; {data.get('did')}"
    if kind is Kind.ATTEMPT_RESTARTED_IN_PLACE:
        who = f"a process on {short(data.get('of_node'))}: {data.get('cause')}"
        return f"attempt {data['attempt']} trains again in its pods after {data.get('seconds')} s, since {who}"
    if kind is Kind.FILE_SYSTEM_REPLACED:
        return "a new file system has taken the lost one's place"
    then = "made again, since" if data.get("repair") else "not made again by itself:"
    return f"the file system {data.get('id')} {data.get('word')}; it is {then} {data.get('why')}"


def _by(data: dict[str, Any]) -> str:
    """Return who did it: the end of an ARN, such as `user/ada` or `assumed-role/team/ada`; older records do not say."""
    return f", by {data['who'].split(':', 5)[-1]}" if data.get("who") else ""
