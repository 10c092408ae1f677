"""A separate process of the site that injects the faults a rehearsal asks for.

It reads the campaign's record in the state bucket, as anyone may, so product code needs no hook. A fault after a later
step waits until the campaign has overcome the earlier ones: otherwise a quick training would meet both at once.
"""

from __future__ import annotations

import sys
import time
import urllib.parse
import urllib.request
from datetime import datetime
from http.client import HTTPException
from pathlib import Path
from typing import Any

import boto3
from botocore.exceptions import BotoCoreError, ClientError

from infra.record.events import Stage
from infra.record.payloads.attempts import AttemptEnded, AttemptRestartedInPlace
from infra.record.payloads.stages import StageStarted
from infra.record.store import LIVE, CampaignStore
from infra.rehearsal.drills.injection import Injection
from infra.rehearsal.drills.moments import Moments, moments_in, note
from infra.rehearsal.site.campaigns import campaigns_in, note_struck, struck_in
from infra.spec.drills.scenarios import scenarios
from infra.spec.names import buckets

_INTERVAL_S = 0.5
_OVERCOME = AttemptEnded | AttemptRestartedInPlace


def main(folder: Path, endpoint: str) -> int:
    s3, stores = boto3.client("s3"), dict[str, CampaignStore]()
    while True:
        time.sleep(_INTERVAL_S)
        for campaign in campaigns_in(folder):
            name, state = campaign["campaign"], buckets(campaign["account"], campaign["region"]).state
            store = stores.setdefault(name, CampaignStore(s3, state, name, "faults"))
            strike(folder, endpoint, campaign, store)


def strike(folder: Path, endpoint: str, campaign: dict[str, Any], store: CampaignStore) -> None:
    """Inject what is due; the next round repeats it if the emulated AWS is slow, faulty or restarting."""
    struck, moments = struck_in(folder, campaign["campaign"]), moments_in(folder, campaign["campaign"])
    for number, fault in enumerate(campaign["faults"]):
        try:
            if fault.get("fault"):
                _advance(folder, endpoint, campaign, number, store, moments)
                continue
            live = None if number in struck else _ready(campaign["faults"], number, store, struck, moments)
            if live is not None and _is_due(live, fault, store) and _inject(endpoint, live, fault):
                note_struck(folder, campaign["campaign"], number)
        except (BotoCoreError, ClientError, HTTPException, LookupError, OSError, TypeError, ValueError) as error:
            print(f"not injected yet: {type(error).__name__}: {error}", flush=True)


def _advance(
    folder: Path, endpoint: str, campaign: dict[str, Any], number: int, store: CampaignStore, moments: Moments
) -> None:
    """Do and note what is due for a fault by name."""
    name, faults = campaign["campaign"], campaign["faults"]
    scenario = scenarios()[faults[number]["fault"]]
    injection = Injection(endpoint, name, store.events)
    struck, moment = moments.get((number, "struck")), None
    if struck is None:
        is_late = scenario.stage == "teardown"  # which waits for no other fault
        live = _live(store, None) if is_late else _ready(faults, number, store, struck_in(folder, name), moments)
        is_due = _is_torn_down if is_late else _is_due
        if (number, "due") not in moments and live is not None and is_due(live, faults[number], store):
            moment = injection.strike(number, scenario, live)
    elif (number, "over") not in moments:
        moment = injection.undo(number, scenario, struck)
    elif (number, "recovered") not in moments and (live := store.get_json(LIVE)) is not None:
        moment = injection.progress(number, scenario, live, moments)
    if moment is not None:
        print(f"{faults[number]['fault']}: {moment.model_dump_json()}", flush=True)
        note(folder, name, moment)
        if moment.kind == "struck":
            note_struck(folder, name, number)


def _ready(
    faults: list[dict[str, Any]], number: int, store: CampaignStore, struck: dict[int, datetime], moments: Moments
) -> dict[str, Any] | None:
    """Return the campaign's live figures once the faults after earlier steps have struck and are overcome."""
    preceding = [
        n
        for n, fault in enumerate(faults)
        if fault["after_step"] < faults[number]["after_step"] and not _is_of_teardown(fault)
    ]
    if not set(preceding) <= set(struck):
        return None
    names = {n for n in preceding if faults[n].get("fault")}
    if any((n, "recovered") not in moments for n in names):
        return None
    return _live(store, max((struck[n] for n in preceding if n not in names), default=None))


def _is_of_teardown(fault: dict[str, Any]) -> bool:
    name = fault.get("fault")
    return name is not None and scenarios()[name].stage == "teardown"


def _live(store: CampaignStore, moment: datetime | None) -> dict[str, Any] | None:
    """Return the campaign's live figures; None if it has none, or none since it overcame what struck at `moment`."""
    live: dict[str, Any] | None = store.get_json(LIVE)
    if live is None or moment is None:
        return live
    overcome = [event.at for event in store.events() if isinstance(event.payload, _OVERCOME) and event.at > moment]
    return live if overcome and datetime.fromisoformat(live["at"]) > min(overcome) else None


def _is_due(live: dict[str, Any], fault: dict[str, Any], store: CampaignStore) -> bool:
    if not live["in_flight"] or int(live["step"]) < int(fault["after_step"]):
        return False
    kind = scenarios()[fault["fault"]].after_event if fault.get("fault") else ""
    return not kind or any(event.kind == kind for event in store.events())


def _is_torn_down(live: dict[str, Any], fault: dict[str, Any], store: CampaignStore) -> bool:
    """Return whether the record says that the teardown has begun."""
    payloads = [event.payload for event in store.events()]
    return any(isinstance(payload, StageStarted) and payload.stage is Stage.TEARDOWN for payload in payloads)


def _inject(endpoint: str, live: dict[str, Any], fault: dict[str, Any]) -> bool:
    """Inject the fault; return True once it is done."""
    hand, index = ("kill", fault["kill_node"]) if fault["kill_rank"] is None else ("kill-rank", fault["kill_rank"])
    node = next((pod["node"] for pod in live["pods"] if pod["index"] == index), None)
    instance = next((n["instance"] for n in live["nodes"] if n["name"] == node), None)
    if instance is None:
        return False
    print(f"step {live['step']}: {hand} on {node} ({instance})", flush=True)
    query = urllib.parse.urlencode({"instance": instance})
    with urllib.request.urlopen(urllib.request.Request(f"{endpoint}/_site/{hand}?{query}", method="POST")) as answer:
        return bool(answer.status == 200)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2]))
