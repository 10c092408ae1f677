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

from infra.record.payloads.attempts import AttemptEnded, AttemptRestartedInPlace
from infra.record.store import LIVE, CampaignStore
from infra.rehearsal.site.campaigns import campaigns_in, note_struck, struck_in
from infra.spec.names import buckets

_INTERVAL_S = 0.5
_OVERCOME = AttemptEnded | AttemptRestartedInPlace


def main(folder: Path, endpoint: str) -> int:
    s3, stores = boto3.client("s3"), dict[str, CampaignStore]()
    while True:
        time.sleep(_INTERVAL_S)
        for note in campaigns_in(folder):
            name, state = note["campaign"], buckets(note["account"], note["region"]).state
            store = stores.setdefault(name, CampaignStore(s3, state, name, "faults"))
            strike(folder, endpoint, note, store)


def strike(folder: Path, endpoint: str, note: dict[str, Any], store: CampaignStore) -> None:
    """Inject what is due; the next round repeats it if the emulated AWS is slow, faulty or restarting."""
    struck = struck_in(folder, note["campaign"])
    for number, fault in enumerate(note["faults"]):
        if number in struck:
            continue
        preceding = [n for n, candidate in enumerate(note["faults"]) if candidate["after_step"] < fault["after_step"]]
        try:
            if not set(preceding) <= set(struck):
                continue
            live = _live(store, max((struck[n] for n in preceding), default=None))
            if live is not None and _inject(endpoint, live, fault):
                note_struck(folder, note["campaign"], number)
        except (BotoCoreError, ClientError, HTTPException, LookupError, OSError, TypeError, ValueError) as error:
            print(f"not injected yet: {type(error).__name__}: {error}", flush=True)


def _live(store: CampaignStore, moment: datetime | None) -> dict[str, Any] | None:
    """Return the campaign's live figures; None if it has none, or none since it overcame what struck at `moment`."""
    live: dict[str, Any] | None = store.get_json(LIVE)
    if live is None or moment is None:
        return live
    overcome = [event.at for event in store.events() if isinstance(event.payload, _OVERCOME) and event.at > moment]
    return live if overcome and datetime.fromisoformat(live["at"]) > min(overcome) else None


def _inject(endpoint: str, live: dict[str, Any], fault: dict[str, Any]) -> bool:
    """Inject the fault if it is due; return True once it is done."""
    if not live["in_flight"] or live["step"] < fault["after_step"]:
        return False
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
