"""Drivers killed on a live rehearsal, at every boundary of stages and in the middle of each; the next one goes on.

One campaign carries all points, each with one of four signals in turn: SIGKILL, SIGINT, SIGTERM, and SIGSTOP past its
lease, continued when another driver has been at work. Afterwards there was never a second network or cluster, each
stage has finished once, the archive and the certificate are whole, no lock and nothing pending is left, and a driver
that woke up has written nothing. Four campaigns meet every pair of point and signal.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "campaign")]

from rehearsal import BIVOUAC, Rehearsal, until  # noqa: E402

from infra.errors import LeaseLost  # noqa: E402
from infra.events import Stage  # noqa: E402
from infra.lifecycle import leash  # noqa: E402

LEASE_S = 6.0
SIGNALS = (signal.SIGKILL, signal.SIGINT, signal.SIGTERM, signal.SIGSTOP)
STAGE_S = {"provision": 24, "bake": 16, "preflight": 4, "launch": 3, "supervise": 14, "archive": 4, "teardown": 10}
"""About how long each takes: a kill in the middle comes somewhere in it."""
POINTS = (
    *((stage, where) for stage in STAGE_S for where in ("middle", "end")),
    ("certify", "middle"),
    ("certify", "end"),
)
SPEC = {
    "data": {"max_files": 60},
    "training": {
        "model": {"layers": 2, "width": 64, "heads": 4, "context": 64, "vocabulary": 1024},
        "steps": 90,
        "evaluate_every": 45,
        "step_seconds_estimate": 0.3,
    },
    "checkpoint": {"every_steps": 15},
    "rehearsal": {"faults": []},
}


@dataclass
class Campaign:
    held: Rehearsal
    dice: random.Random
    sleepers: list[subprocess.Popen[str]] = field(default_factory=list)
    """Drivers that were stopped."""
    begun_at: int = 0
    """Where in the log the newest driver began."""

    def start(self) -> subprocess.Popen[str]:
        log = self.held.folder / "run.log"
        self.begun_at = log.stat().st_size if log.exists() else 0
        return subprocess.Popen(
            [*BIVOUAC, "run", str(self.held.path)], env=self.held.environment, cwd=ROOT, stdout=log.open("a"),
            stderr=subprocess.STDOUT, text=True, start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )  # fmt: skip

    def said(self) -> str:
        return (self.held.folder / "run.log").read_text(errors="replace")[self.begun_at :]

    def reached(self, stage: str, where: str) -> bool:
        said = self.said()
        begun = re.search(rf"^{stage} ", said, re.MULTILINE)
        if begun is None:
            return False
        return where == "middle" or re.search(r"^ +done in ", said[begun.end() :], re.MULTILINE) is not None

    def strike(self, stage: str, where: str, number: signal.Signals) -> None:
        """One driver until that point, then its signal; Raises `AssertionError` where anything outlives it."""
        driver = self.start()
        try:
            until(lambda: driver.poll() is not None or self.reached(stage, where), f"{where} of {stage}", 400)
            if where == "middle":
                time.sleep(self.dice.uniform(0.0, STAGE_S.get(stage, 1)))
            assert driver.poll() is None, f"the driver ended by itself: {self.said()[-600:]}"
            driver.send_signal(number)
            if number is signal.SIGSTOP:
                self.sleepers.append(driver)
            else:
                driver.wait(90)
            until(lambda: not self.engines(), "no engine outlives its driver's lease", LEASE_S + leash.BOUND_S + 15)
            time.sleep(LEASE_S if number is signal.SIGSTOP else 0)  # the lease of one that may wake runs out
        except BaseException:
            if driver.poll() is None:
                driver.kill()
            raise
        assert "Traceback" not in self.said(), self.said()[-1500:]
        self.one_of_each()

    def engines(self) -> list[int]:
        return [pid for pid, mark in leash.marked().items() if mark.startswith(f"{self.held.name}/")]

    def one_of_each(self) -> None:
        networks, clusters = json.loads(self.held.python(_INVENTORY.format(name=self.held.name)))
        assert networks <= 1 and clusters <= 1, f"{networks} networks, {clusters} clusters"

    def wake(self) -> None:
        """Those who slept while another driver took over, one by one: they find their lease lost and write nothing."""
        for sleeper in self.sleepers:
            before = self._written()
            sleeper.send_signal(signal.SIGCONT)
            code = sleeper.wait(90)
            assert code == LeaseLost.exit_code, f"the woken driver ended with {code}: {self.said()[-600:]}"
            assert self._written() == before, "the woken driver wrote events"
        self.sleepers.clear()

    def _written(self) -> int:
        """Events of all drivers: no other one lives while a sleeper wakes, and the steward goes on."""
        return sum(event["writer"].startswith("driver-") for event in self.held.events())

    def finish(self) -> None:
        driver = self.start()
        until(lambda: driver.poll() is not None, "the last driver ends", 500)
        assert driver.returncode == 0, f"the last driver ended with {driver.returncode}: {self.said()[-900:]}"
        self.wake()
        events = self.held.events()
        finished = [event["data"]["stage"] for event in events if event["kind"] == "stage.finished"]
        assert sorted(finished) == sorted(map(str, STAGES)), f"stages finished: {finished}"
        archives = [event["data"]["manifest"] for event in events if event["kind"] == "archive.verified"]
        assert len(set(archives)) == 1, f"archives: {archives}"
        verdicts = [event["data"]["clean"] for event in events if event["kind"] == "certified"]
        assert verdicts and all(verdicts), f"certificates: {verdicts}"
        left = json.loads(self.held.python(_LOCKS))
        assert left == {"locks": [], "pending": []}, f"left in the state: {left}"
        assert not self.engines()


STAGES = tuple(Stage(name) for name in (*STAGE_S, "certify", "report"))
_INVENTORY = """
import boto3, json
tagged = [dict(Name="tag:bivouac:campaign", Values=["{name}"])]
print(json.dumps([len(boto3.client("ec2").describe_vpcs(Filters=tagged)["Vpcs"]),
                  len(boto3.client("eks").list_clusters()["clusters"])]))
"""
_LOCKS = """
import boto3, json
from infra.names import buckets
s3, bucket = boto3.client("s3"), buckets("123456789012", "us-east-1").state
keys = [o["Key"] for page in s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=".pulumi/")
        for o in page.get("Contents", ())]
states = [k for k in keys if k.startswith(".pulumi/stacks/") and k.endswith(".json")]
read = lambda key: json.loads(s3.get_object(Bucket=bucket, Key=key)["Body"].read())
pending = [k for k in states if (read(k).get("checkpoint", {}).get("latest") or {}).get("pending_operations")]
print(json.dumps({"locks": [k for k in keys if k.startswith(".pulumi/locks/")], "pending": pending}))
"""


def one_campaign(number: int, dice: random.Random, points: list[tuple[str, str]], rows: list[dict[str, Any]]) -> None:
    """All points, one after the other; the first that fails ends the campaign, the rest of its points with it."""
    mine = os.environ.get("BIVOUAC_CACHE")
    with tempfile.TemporaryDirectory() as folder:
        held = Rehearsal(Path(folder), {"campaign": f"kills{number}", **SPEC})
        held.environment |= {"BIVOUAC_LEASE_SECONDS": str(LEASE_S)}
        os.environ["BIVOUAC_CACHE"] = str(held.cache)  # this process looks into the site too
        running = Campaign(held, dice)
        why: str | None = None
        try:
            for index, (stage, where) in enumerate(points):
                sent = SIGNALS[(index + number) % len(SIGNALS)]
                missed = why is not None
                if why is None:
                    why = _tried(lambda: running.strike(stage, where, sent))  # noqa: B023
                    if why is None and sent is not signal.SIGSTOP:
                        why = _tried(running.wake)
                rows.append({"stage": stage, "where": where, "signal": sent.name, "failure": why})
                end = "not reached" if missed else why or "ok"
                print(f"{len(rows):4} {sent.name:8} at the {where:6} of {stage:10} {end}", flush=True)
            why = why or _tried(running.finish)
            if why is not None and rows[-1]["failure"] is None:
                rows[-1]["failure"] = why
                print(f"     at its end: {why}", flush=True)
            verdict = "failed" if why else "one cluster, one archive, one clean certificate"
            print(f"     campaign {number}: {verdict}", flush=True)
        finally:
            for sleeper in running.sleepers:
                sleeper.kill()
            held.strike()
            os.environ.pop("BIVOUAC_CACHE")
            os.environ |= {"BIVOUAC_CACHE": mine} if mine is not None else {}


def _tried(step: Any) -> str | None:
    try:
        step()
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:1500]
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=len(POINTS) * len(SIGNALS))
    asked = parser.parse_args()
    begun, dice, rows = time.monotonic(), random.Random(asked.seed), list[dict[str, Any]]()
    os.environ.setdefault("COLUMNS", "200")
    number = asked.seed - 1
    while len(rows) < asked.count:
        one_campaign(number, dice, list(POINTS[: asked.count - len(rows)]), rows)
        number += 1
    failed = sum(row["failure"] is not None for row in rows)
    out = ROOT / "results" / "drills"
    out.mkdir(parents=True, exist_ok=True)
    (out / "kills_live.json").write_text(json.dumps(rows, indent=1))
    print(f"drill kills_live: {len(rows)} cases, {failed} failed, {time.monotonic() - begun:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
