"""A separate process of the site that injects the faults a rehearsal asks for.

It reads the campaign's live figures from the state bucket, as anyone may, so product code needs no hook.
"""

from __future__ import annotations

import json
import sys
import time
import urllib.parse
import urllib.request
from http.client import HTTPException
from pathlib import Path
from typing import Any

import boto3
from botocore.exceptions import BotoCoreError, ClientError

from infra.rehearsal.site.campaigns import campaigns_in
from infra.spec.names import buckets

_INTERVAL_S = 0.5


def main(folder: Path, endpoint: str) -> int:
    s3, done = boto3.client("s3"), set[tuple[str, int]]()
    while True:
        time.sleep(_INTERVAL_S)
        for held in campaigns_in(folder):
            for number, fault in enumerate(held["faults"]):  # type: ignore[arg-type,var-annotated]
                key = (str(held["campaign"]), number)
                if key not in done and _tried(s3, endpoint, held, fault):
                    done.add(key)


def _tried(s3: Any, endpoint: str, held: dict[str, Any], fault: dict[str, Any]) -> bool:
    """Try to inject a fault; the next round repeats it if the emulated AWS is slow, faulty or restarting."""
    try:
        return _inject(s3, endpoint, held, fault)
    except (BotoCoreError, HTTPException, LookupError, OSError, TypeError, ValueError) as error:
        print(f"not injected yet: {type(error).__name__}: {error}", flush=True)
        return False


def _inject(s3: Any, endpoint: str, held: dict[str, Any], fault: dict[str, Any]) -> bool:
    """Inject the fault if it is due; return True once it is done. Each fault happens once per campaign."""
    live = _live(s3, held)
    if live is None or not live["in_flight"] or live["step"] < fault["after_step"]:
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


def _live(s3: Any, held: dict[str, Any]) -> dict[str, Any] | None:
    bucket = buckets(held["account"], held["region"]).state
    try:
        body = s3.get_object(Bucket=bucket, Key=f"campaigns/{held['campaign']}/live.json")["Body"].read()
    except ClientError:
        return None
    return dict(json.loads(body))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2]))
