"""Drivers killed, interrupted or stopped at seeded AWS calls of provision and teardown; then another one finishes.

Each case has an emulated account in this process, the real engine, and drivers as processes of their own. Afterwards
there was one of each, no lock, nothing pending, a clean certificate, and a woken driver has touched nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "rehearsal")]

from campaign_world import Camp, camp  # noqa: E402

from infra.errors import LeaseLost  # noqa: E402
from infra.events import Kind, Stage  # noqa: E402
from infra.lifecycle import certify, leash, provision, teardown  # noqa: E402
from infra.lifecycle.engine import Engine  # noqa: E402
from infra.names import PROJECT  # noqa: E402
from infra.rehearsal.aws.world import Call  # noqa: E402

LEASE_S, ENDS_S = 6.0, 180.0
SIGNALS = (signal.SIGKILL, signal.SIGINT, signal.SIGTERM, signal.SIGSTOP)
READS = ("Get", "List", "Describe", "Head", "AssumeRole")
CALLS = {"provision": 130, "teardown": 90}
"""Calls that change something in a whole provision, and in a whole teardown: the kill comes at one of them."""


class Changes:
    """Counts the calls that change something, and remembers them."""

    def __init__(self, held: Camp) -> None:
        self.seen: list[str] = []
        held.world.faults.append(self.hook)

    def hook(self, call: Call) -> None:
        if not call.action.startswith(READS) and call.service != "sts" and "/leases/" not in call.path:
            self.seen.append(f"{call.service}:{call.action} {call.path}")


def until(seen: Callable[[], Any], within_s: float, what: str) -> None:
    deadline = time.monotonic() + within_s
    while not seen():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {within_s:.0f} s: {what}")
        time.sleep(0.02)


def drive(held: Camp, *arguments: str) -> subprocess.Popen[str]:
    log = (held.folder / "driver.log").open("a")
    return subprocess.Popen(
        [sys.executable, "-m", "infra.cli", *arguments], cwd=ROOT, env=os.environ, stdout=log, stderr=log, text=True,
        start_new_session=True, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip


def engines(held: Camp) -> list[int]:
    return [pid for pid, mark in leash.marked().items() if mark.startswith(f"{held.spec.campaign}/")]


def strike(held: Camp, changes: Changes, number: signal.Signals, at: int, *arguments: str) -> subprocess.Popen[str]:
    """A driver that gets the signal when it, or its engine, has made so many changes, or has gone on to waiting."""
    begun = len(changes.seen)
    driver = drive(held, *arguments)
    until(
        lambda: len(changes.seen) - begun >= at or driver.poll() is not None or _idle(held), 3 * ENDS_S, f"{at} changes"
    )
    driver.send_signal(number)
    if number is not signal.SIGSTOP:
        driver.wait(ENDS_S)
    until(lambda: not engines(held), LEASE_S + leash.BOUND_S + 15, "no engine outlives its driver's lease")
    if number is signal.SIGSTOP:
        # One that may wake keeps its lease until then; S3 dates by whole seconds, and an age is never overstated.
        time.sleep(LEASE_S + 2.0)
    return driver


def _idle(held: Camp) -> bool:
    """The provision is over: the driver waits for health checks that never run here."""
    log = (held.folder / "driver.log").read_text()
    return "GPU nodes up" in log


def one_case(folder: Path, where: str, number: signal.Signals, at: int) -> None:
    with camp(folder, campaign=f"killed-{os.getpid()}") as held:  # engines are told by it, all over this machine
        os.environ |= {"BIVOUAC_SITE": "in-process", "BIVOUAC_LEASE_SECONDS": str(LEASE_S)}
        spec = folder / "campaign.json"
        spec.write_text(held.spec.model_dump_json())
        changes = Changes(held)
        driver = None
        try:
            if where == "provision":
                _baked_before(held)
                driver = strike(held, changes, number, at, "run", str(spec))
            with held.opened() as context:
                context.outputs[Stage.PROVISION] = provision.run(context)
                _one_of_each(held)
            if where == "teardown":
                driver = strike(held, changes, number, at, "down", held.spec.campaign, "--abandon")
            with held.opened() as context:
                teardown.run(context, abandon=True)
                certify.run(context)
                _nothing_left_behind(held, context)
            if number is signal.SIGSTOP and driver is not None and driver.poll() is None:
                _wakes_and_touches_nothing(held, driver, changes)
        finally:
            if driver is not None and driver.poll() is None:
                driver.kill()
                driver.wait()


def _baked_before(held: Camp) -> None:
    """No image can be baked on the machines here: the record says that it was."""
    outputs = {"image": "base@sha256:0", "code": "c", "manifest": "none", "baked": False}
    with held.opened() as context:
        context.store.append(Kind.STAGE_STARTED, stage=Stage.BAKE)
        context.store.append(Kind.STAGE_FINISHED, stage=Stage.BAKE, seconds=0.0, outputs=outputs)


def _one_of_each(held: Camp) -> None:
    by_tag = [{"Name": "tag:bivouac:campaign", "Values": [held.spec.campaign]}]
    vpcs = held.client("ec2").describe_vpcs(Filters=by_tag)["Vpcs"]
    clusters = held.client("eks").list_clusters()["clusters"]
    assert len(vpcs) == 1 and clusters == [held.names.cluster], f"{len(vpcs)} networks, clusters {clusters}"


def _nothing_left_behind(held: Camp, context: Any) -> None:
    bucket = context.buckets.state
    prefix = f".pulumi/locks/organization/{PROJECT}/"
    locks = held.client("s3").list_objects_v2(Bucket=bucket, Prefix=prefix).get("Contents", [])
    assert not locks, f"locks: {[item['Key'] for item in locks]}"
    stack = Engine(context, held.folder / "look").stack("foundation", {})
    assert not (stack.export_stack().deployment or {}).get("pending_operations")


def _wakes_and_touches_nothing(held: Camp, driver: subprocess.Popen[str], changes: Changes) -> None:
    before = len(changes.seen)
    driver.send_signal(signal.SIGCONT)
    code = driver.wait(ENDS_S)
    assert changes.seen[before:] == [], f"the woken driver did {changes.seen[before:]}"
    assert code == LeaseLost.exit_code, f"exit code {code}: {(held.folder / 'driver.log').read_text()[-500:]}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=52)
    asked = parser.parse_args()
    begun, failed, rows = time.monotonic(), 0, list[dict[str, Any]]()
    draw, before = random.Random(asked.seed), dict(os.environ)
    for case in range(asked.count):
        where, number = ("provision", "teardown")[case // 4 % 2], SIGNALS[case % 4]
        at = draw.randrange(1, CALLS[where])
        why = None
        with tempfile.TemporaryDirectory() as folder:
            try:
                one_case(Path(folder), where, number, at)
            except Exception as error:
                why = f"{type(error).__name__}: {error}"[:600]
        os.environ.clear()
        os.environ.update(before)
        failed += why is not None
        rows.append({"where": where, "signal": number.name, "at": at, "failure": why})
        print(f"{case + 1:4} {where:10} {number.name:8} at change {at:4} {why or 'ok'}", flush=True)
    out = ROOT / "results" / "drills"
    out.mkdir(parents=True, exist_ok=True)
    (out / "kills.json").write_text(json.dumps(rows, indent=1))
    print(f"drill kills: {asked.count} cases, {failed} failed, {time.monotonic() - begun:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
