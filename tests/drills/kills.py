"""Drivers killed, interrupted or stopped at seeded AWS calls of provision and teardown; then another one finishes.

A campaign has an emulated account in this process, the real engine, and drivers as processes of their own. It carries
every signal once in its provision and once in its teardown: each driver goes on from what the one before it left, and
is struck in turn. Afterwards there was one of each, no lock, nothing pending, a clean certificate, and the drivers
that were stopped have touched nothing when they wake.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra.campaign import provision, teardown
from infra.engine import leash
from infra.engine.engine import Engine
from infra.errors import LeaseLost
from infra.inventory import certify
from infra.record.events import Stage
from infra.record.payloads.stages import StageFinished, StageStarted
from infra.rehearsal.aws.world import Call
from infra.spec.names import PROJECT
from tests.drills.parts.struck import environ_restored, until
from tests.results import conclude, results_of
from tests.root import ROOT
from tests.worlds.campaign_site import CampaignSite, camp

RESULTS = results_of("drills", "kills")

LEASE_S, ENDS_S = 8.0, 180.0
SIGNALS = (signal.SIGKILL, signal.SIGINT, signal.SIGTERM, signal.SIGSTOP)
READS = ("Get", "List", "Describe", "Head", "AssumeRole")
CALLS = {"provision": 120, "teardown": 80}
"""Calls that change something in a provision, and in a teardown: somewhat less than all of them."""
PHASES = tuple(CALLS)
INTERRUPTED = 130


@dataclass
class Kill:
    """One driver's signal, sent when it and its engine have made `at` changes."""

    where: str
    signal: signal.Signals
    at: int
    late: bool = False
    """The driver had ended before."""
    seconds: float = 0.0
    failure: str | None = None


class Changes:
    """Counts the calls that change something, and remembers them."""

    def __init__(self, held: CampaignSite) -> None:
        self.seen: list[str] = []
        held.world.faults.append(self.hook)

    def hook(self, call: Call) -> None:
        if not call.action.startswith(READS) and call.service != "sts" and "/leases/" not in call.path:
            self.seen.append(f"{call.service}:{call.action} {call.path}")


def drive(held: CampaignSite, *arguments: str) -> subprocess.Popen[str]:
    log = (held.folder / "driver.log").open("a")
    return subprocess.Popen(
        [sys.executable, "-m", "infra.cli.main", *arguments], cwd=ROOT, env=os.environ, stdout=log, stderr=log,
        text=True, start_new_session=True, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip


def engines(held: CampaignSite) -> list[int]:
    return [pid for pid, mark in leash.marked_processes().items() if mark.startswith(f"{held.spec.campaign}/")]


def strike(held: CampaignSite, changes: Changes, kill: Kill, driver: subprocess.Popen[str], said: int) -> None:
    """The driver gets the signal when it, or its engine, has made so many changes, or has gone on to waiting.

    Its words begin `said` characters after the beginning of the log.
    """
    begun, log = len(changes.seen), held.folder / "driver.log"
    until(
        lambda: len(changes.seen) - begun >= kill.at or driver.poll() is not None or _idle(log, said),
        f"{kill.at} changes",
        within_s=3 * ENDS_S,
    )
    kill.late = driver.poll() is not None
    driver.send_signal(kill.signal)
    if kill.signal is not signal.SIGSTOP:
        code = driver.wait(ENDS_S)
        words = log.read_text()[said:]
        assert kill.late or code == (-kill.signal if kill.signal is signal.SIGKILL else INTERRUPTED), (
            f"exit code {code}: {words[-800:]}"
        )
        assert "Traceback" not in words, words[-1500:]
    until(lambda: not engines(held), "no engine outlives its driver's lease", within_s=LEASE_S + leash.BOUND_S + 15)
    if kill.signal is signal.SIGSTOP:
        # One that may wake keeps its lease until then; S3 dates by whole seconds, and an age is never overstated.
        time.sleep(LEASE_S + 2.0)


def _idle(log: Path, since: int) -> bool:
    """The provision is over: the driver waits for health checks that never run here."""
    return "GPU nodes up" in log.read_text()[since:]


def one_campaign(folder: Path, kills: list[Kill]) -> None:
    with camp(folder, campaign=f"killed-{os.getpid()}") as held:  # engines are told by it, all over this machine
        os.environ |= {"BIVOUAC_SITE": "in-process", "BIVOUAC_LEASE_SECONDS": str(LEASE_S)}
        spec = folder / "campaign.json"
        spec.write_text(held.spec.model_dump_json())
        changes = Changes(held)
        _baked_before(held)
        first, then = ([kill for kill in kills if kill.where == where] for where in PHASES)
        with struck(held, changes, first, "run", str(spec)), held.opened() as context:
            context.outputs[Stage.PROVISION] = provision.run(context)
            _one_of_each(held)
            _nothing_pending(held, context, held.names.stack)
        with struck(held, changes, then, "down", held.spec.campaign, "--abandon", "--yes"), held.opened() as context:
            teardown.run(context, abandon=True)
            certify.run(context)
            _nothing_left_behind(held, context)


@contextmanager
def struck(held: CampaignSite, changes: Changes, kills: list[Kill], *arguments: str) -> Iterator[None]:
    """Drivers struck one after the other; the block is the last one, which finishes. Then the stopped ones wake."""
    drivers: list[tuple[Kill, subprocess.Popen[str]]] = []
    log = held.folder / "driver.log"
    try:
        for kill in kills:
            said = len(log.read_text()) if log.exists() else 0
            drivers.append((kill, drive(held, *arguments)))
            with told(kill):
                strike(held, changes, kill, drivers[-1][1], said)
        yield
        for kill, driver in drivers:
            if driver.poll() is None:
                with told(kill):
                    _wakes_and_touches_nothing(held, driver, changes)
    finally:
        for _, driver in drivers:
            if driver.poll() is None:
                driver.kill()
                driver.wait()


@contextmanager
def told(kill: Kill) -> Iterator[None]:
    """What goes wrong with this one kill is written down with it, and the campaign goes on."""
    begun = time.monotonic()
    try:
        yield
    except AssertionError as error:
        kill.failure = " ".join(str(error).split())[:800]
    kill.seconds += time.monotonic() - begun


def _baked_before(held: CampaignSite) -> None:
    """No image can be baked on the machines here: the record says that it was."""
    outputs = {"image": "base@sha256:0", "code": "c", "manifest": "none", "baked": False}
    with held.opened() as context:
        context.store.append(StageStarted(stage=Stage.BAKE))
        context.store.append(StageFinished(stage=Stage.BAKE, seconds=0.0, outputs=outputs))


def _one_of_each(held: CampaignSite) -> None:
    by_tag = [{"Name": "tag:bivouac:campaign", "Values": [held.spec.campaign]}]
    vpcs = held.client("ec2").describe_vpcs(Filters=by_tag)["Vpcs"]
    clusters = held.client("eks").list_clusters()["clusters"]
    assert len(vpcs) == 1 and clusters == [held.names.cluster], f"{len(vpcs)} networks, clusters {clusters}"


def _nothing_left_behind(held: CampaignSite, context: Any) -> None:
    bucket = context.buckets.state
    prefix = f".pulumi/locks/organization/{PROJECT}/"
    locks = held.client("s3").list_objects_v2(Bucket=bucket, Prefix=prefix).get("Contents", [])
    assert not locks, f"locks: {[item['Key'] for item in locks]}"
    _nothing_pending(held, context, "foundation")


def _nothing_pending(held: CampaignSite, context: Any, name: str) -> None:
    stack = Engine(context, held.folder / "look").stack(name, {})
    pending = (stack.export_stack().deployment or {}).get("pending_operations")
    assert not pending, f"pending in {name}: {pending}"


def _wakes_and_touches_nothing(held: CampaignSite, driver: subprocess.Popen[str], changes: Changes) -> None:
    before = len(changes.seen)
    driver.send_signal(signal.SIGCONT)
    code = driver.wait(ENDS_S)
    assert changes.seen[before:] == [], f"the woken driver did {changes.seen[before:]}"
    assert code == LeaseLost.exit_code, f"exit code {code}: {(held.folder / 'driver.log').read_text()[-500:]}"


def drawn(seed: int) -> Iterator[list[Kill]]:
    """The kills of each campaign: every signal in each phase, their order turned by one from campaign to campaign."""
    draw = random.Random(seed)
    for campaign in itertools.count():
        turn, kills = campaign % len(SIGNALS), list[Kill]()
        for where in PHASES:
            # Anywhere in the phase; a driver goes on from where the one before it was struck.
            moments = [0, *sorted(draw.sample(range(1, CALLS[where]), len(SIGNALS)))]
            gaps = [later - earlier for earlier, later in itertools.pairwise(moments)]
            kills += map(Kill, [where] * len(gaps), SIGNALS[turn:] + SIGNALS[:turn], gaps)
        yield kills


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=52)
    options = parser.parse_args()
    begun, rows = time.monotonic(), list[dict[str, Any]]()
    for number, kills in enumerate(drawn(options.seed)):
        # One that came after its driver's end proves nothing, and does not count.
        if (missing := options.count - sum(not row["late"] for row in rows)) <= 0:
            break
        kills, whole, at = kills[:missing], None, time.monotonic()
        with tempfile.TemporaryDirectory() as folder, environ_restored():
            try:
                one_campaign(Path(folder), kills)
            except Exception as error:
                whole = f"{type(error).__name__}: {error} {traceback.format_exc()[-600:]}"[:1500]
        for kill in kills:
            row = vars(kill) | {"campaign": number, "signal": kill.signal.name, "failure": kill.failure or whole}
            rows.append(row)
            ends = "not struck: its driver had ended" if kill.late else "ok"
            print(
                f"{number:3} {kill.where:10} {kill.signal.name:8} at change {kill.at:3} {kill.seconds:6.1f} s  "
                f"{row['failure'] or ends}"
            )
        print(f"{number:3} the whole: {whole or 'ok'}, {time.monotonic() - at:.0f} s", flush=True)
    failed = sum(row["failure"] is not None for row in rows)
    return conclude(RESULTS, rows, sum(not row["late"] for row in rows), failed, begun)


if __name__ == "__main__":
    sys.exit(main())
