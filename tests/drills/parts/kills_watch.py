"""A process inside a rehearsal's site that tells what its campaign's record and its AWS have seen, as it happens."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from infra.record.events import Stage
from infra.rehearsal.site import handle
from tests.campaign.rehearsal import Rehearsal
from tests.root import ROOT

_ASK = """
import json, sys, urllib.request, os, boto3
from infra.spec.names import buckets
from infra.record.store import CampaignStore
names, s3 = buckets("123456789012", "us-east-1"), boto3.client("s3")
store = CampaignStore(s3, names.state, sys.argv[1], "watcher")

def site(route, body=None):
    with urllib.request.urlopen(os.environ["AWS_ENDPOINT_URL"] + "/_site/" + route, data=body) as answer:
        return json.loads(answer.read())

def look(asked):
    changes = site(f"changes?{asked['since']}")
    return {**changes, "events": [e.model_dump(mode="json") for e in store.events()]}

def bodies(bucket, prefix):
    found = s3.list_objects_v2(Bucket=bucket, Prefix=prefix).get("Contents", [])
    return {item["Key"]: s3.get_object(Bucket=bucket, Key=item["Key"])["Body"].read() for item in found}

def state(asked):
    stacks = {k: json.loads(v) for k, v in bodies(names.state, ".pulumi/stacks/").items() if k.endswith(".json")}
    pending = {k: (s["checkpoint"].get("latest") or {}).get("pending_operations") for k, s in stacks.items()}
    held = {**bodies(names.state, f"campaigns/{sys.argv[1]}/leases/driver"), **bodies(names.state, "foundation/leases")}
    archived = s3.list_objects_v2(Bucket=names.archive, Prefix=f"campaigns/{sys.argv[1]}/").get("Contents", [])
    return {
        "locks": list(bodies(names.state, ".pulumi/locks/")),
        "pending": {k: v for k, v in pending.items() if v},
        "leases": [k for k, v in held.items() if not json.loads(v)["released"]],
        "manifests": sum(item["Key"].endswith("/archive-manifest.json") for item in archived),
        "archived": [item["Key"] for item in archived],
    }

for line in sys.stdin:
    asked = json.loads(line)
    try:
        answer = {"look": look, "state": state}.get(asked["what"], lambda a: site(a["what"], a["body"].encode()))(asked)
    except Exception as error:
        answer = {"error": repr(error)}
    print(json.dumps(answer), flush=True)
"""


@dataclass(frozen=True)
class Seen:
    """The record and the journal of changes, at one moment."""

    changes: tuple[dict[str, str], ...] = ()
    events: tuple[dict[str, Any], ...] = ()
    actions: Counter[str] = field(default_factory=Counter)
    """service:action -> how often it was asked for."""

    @property
    def apps(self) -> set[str]:
        return {row["app"] for row in self.changes}

    @property
    def kinds(self) -> set[str]:
        return {event["kind"] for event in self.events}

    @property
    def stages(self) -> list[tuple[str, Stage]]:
        """(started or finished, stage), in order."""
        return [
            (event["kind"].removeprefix("stage."), Stage(event["data"]["stage"]))
            for event in self.events
            if event["kind"] in ("stage.started", "stage.finished")
        ]

    @property
    def running(self) -> str | None:
        last = self.stages[-1:] or [("finished", Stage.CHECK)]
        return str(last[0][1]) if last[0][0] == "started" else None

    def age_s(self, stage: Stage) -> float:
        """Since this stage was last begun; negative when it was not."""
        begun = [e["at"] for e in self.events if e["kind"] == "stage.started" and e["data"]["stage"] == stage]
        return (datetime.now(UTC) - datetime.fromisoformat(begun[-1])).total_seconds() if begun else -1.0

    @property
    def archiving(self) -> bool:
        return any("-archive-" in row["path"] and row["action"] != "CreateBucket" for row in self.changes)

    @property
    def clean(self) -> list[bool]:
        return [event["data"]["clean"] for event in self.events if event["kind"] == "certified"]


class Watcher:
    """Asks from inside the site, by lines; one look takes a few milliseconds."""

    def __init__(self, rehearsal: Rehearsal) -> None:
        site = handle.find(rehearsal.site)
        assert site is not None
        self._process = subprocess.Popen(
            site.entry([sys.executable, "-c", _ASK, rehearsal.name]), env=rehearsal.environment | site.environment,
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        self._seen = Seen()

    def seen(self) -> Seen:
        answer = self._tell({"what": "look", "since": len(self._seen.changes)})
        if "error" not in answer:
            fresh = tuple(answer["changes"])
            counted = self._seen.actions + Counter(f"{row['service']}:{row['action']}" for row in fresh)
            self._seen = Seen((*self._seen.changes, *fresh), tuple(answer["events"]), counted)
        return self._seen

    def state(self) -> dict[str, Any]:
        """Locks, pending operations, leases and archive manifests as they lie in the buckets."""
        return self._tell({"what": "state"})

    def ask(self, route: str, body: dict[str, Any]) -> dict[str, Any]:
        return self._tell({"what": route, "body": json.dumps(body)})

    def end(self) -> None:
        self._process.kill()
        self._process.wait()

    def _tell(self, asked: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        return dict(json.loads(self._process.stdout.readline()))
