"""Whole rehearsed campaigns whose drivers are killed, interrupted or stopped at every stage's boundary and middle.

One campaign carries one kill per point; after each, `bivouac run` is started again and goes on to the next. Campaign
k gives point i the signal (i + k) mod 4, so that four campaigns pair every point with every signal. Afterwards there
was one of each, and a stopped driver that woke up has changed nothing.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra.campaign.stages import STEPS
from infra.engine import leash
from infra.errors import LeaseLost
from infra.record.events import Stage
from infra.rehearsal.aws.faults import Rule
from tests.campaign.rehearsal import BIVOUAC, Rehearsal, quick
from tests.drills.parts.kills_watch import Seen, Watcher
from tests.drills.parts.struck import environ_restored, left_over, until
from tests.results import conclude, results_of
from tests.root import ROOT

RESULTS = results_of("drills", "kills_live")

LEASE_S = 8.0
SIGNALS = (signal.SIGKILL, signal.SIGINT, signal.SIGTERM, signal.SIGSTOP)
STAGES = tuple(step.stage for step in STEPS)
POINT_WITHIN_S, WAKES_WITHIN_S, ENDS_WITHIN_S = 600.0, 180.0, 180.0
"""Bounds for a busy machine: whatever is waited for is seen as soon as it is there."""
INTERRUPTED = 130
MORE = 4
"""Campaigns for the points that a driver had left behind before its signal came; what is still missing has failed."""
ONCE = {"ec2:CreateVpc": 2, "eks:CreateCluster": 1}
"""Asked for in the whole campaign: the foundation's build network, and its own."""
SHORT = quick(240, data={"max_files": 40})


@dataclass(frozen=True)
class Point:
    """Where a driver is struck: as soon as `reached` holds for the world and the driver's own words."""

    name: str
    stage: Stage
    reached: Callable[[Seen, str], bool]


def boundary(stage: Stage, before: Stage | None) -> Callable[[Seen, str], bool]:
    """The end of the stage before, or the begin of this one, whichever is seen first."""
    return lambda seen, _: ("finished", before) in seen.stages or ("started", stage) in seen.stages


def calls(*actions: str) -> Callable[[Seen, str], bool]:
    return lambda seen, _: any(action in seen.actions for action in actions)


def says(pattern: str) -> Callable[[Seen, str], bool]:
    return lambda _, words: re.search(pattern, words) is not None


MIDDLES: dict[Stage, Callable[[Seen, str], bool]] = {
    Stage.PROVISION: calls("eks:CreateCluster"),
    Stage.BAKE: calls("ec2:RunInstances"),
    Stage.PREFLIGHT: says("health check: "),
    Stage.LAUNCH: lambda seen, _: "attempt.launched" in seen.kinds,
    Stage.SUPERVISE: says(r"attempt 1: step"),
    Stage.ARCHIVE: lambda seen, _: ("started", Stage.ARCHIVE) in seen.stages and seen.archiving,
    Stage.TEARDOWN: calls("eks:DeleteNodegroup", "eks:DeleteCluster"),
    Stage.CERTIFY: lambda seen, _: seen.age_s(Stage.CERTIFY) > 1.0,
}


def points() -> list[Point]:
    found, before = [], None
    for stage in STAGES:
        found.append(Point(f"{stage} begins", stage, boundary(stage, before)))
        if stage in MIDDLES:
            found.append(Point(f"in {stage}", stage, MIDDLES[stage]))
        before = stage
    return found


POINTS = points()


class Driver:
    """`bivouac run` with words and a name of its own: AWS sees the name with every call that it or its engine makes."""

    def __init__(self, rehearsal: Rehearsal, number: int) -> None:
        self.app, self.log = f"driver{number}", rehearsal.folder / f"driver-{number}.log"
        environment = rehearsal.environment | {
            "AWS_SDK_UA_APP_ID": self.app,
            "BIVOUAC_LEASE_SECONDS": str(LEASE_S),
        }
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [*BIVOUAC, "run", str(rehearsal.path)], env=environment, cwd=ROOT, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip

    def words(self) -> str:
        return self.log.read_text(errors="replace")

    def ended(self) -> bool:
        return self.process.poll() is not None


class Campaign:
    """One rehearsal with its drivers, one after the other; `rows` tells of each kill."""

    def __init__(self, folder: Path, number: int, chosen: list[tuple[Point, signal.Signals]]) -> None:
        self.rehearsal = Rehearsal(folder, SHORT | {"campaign": f"killed{number}"})
        self.chosen, self.rows = chosen, list[dict[str, Any]]()
        self.drivers: list[Driver] = []
        self.stopped: Driver | None = None
        self.watcher: Watcher | None = None

    def run(self) -> list[str]:
        """Every kill, then to the end; what is wrong with the whole."""
        first = self._drive()
        until(lambda: first.ended() or pitched(self.rehearsal), "the site is started", within_s=POINT_WITHIN_S)
        assert not first.ended(), f"no site: {first.words()[-800:]}"
        self.watcher = Watcher(self.rehearsal)
        self._slow_archive()
        for point, number in self.chosen:
            row: dict[str, Any] = {"point": point.name, "signal": number.name, "failure": None}
            self.rows.append(row)
            begun = time.monotonic()
            try:
                row["late"] = self._strike(point, number)
            except AssertionError as error:
                row["failure"] = " ".join(str(error).split())[:800]
            row["seconds"] = round(time.monotonic() - begun, 1)
            said = row["failure"] or (f"not struck: {row['late']}" if row.get("late") else "ok")
            print(f"{self.rehearsal.name} {point.name:18} {number.name:8} {row['seconds']:6.1f} s  {said}", flush=True)
            if self.drivers[-1].ended():
                self._drive()
        last = self.drivers[-1]
        until(last.ended, f"the last driver has finished: {last.words()[-500:]}", within_s=2 * POINT_WITHIN_S)
        return self._wrong(last)

    def _slow_archive(self) -> None:
        """So that a kill can come in its middle."""
        rule = Rule(service="s3", action="PutObject", path="*-archive-*", effect="delay", delay_s=15.0)
        assert self.watcher is not None
        self.watcher.ask("faults", {"add": [rule.model_dump()]})

    def _drive(self) -> Driver:
        self.drivers.append(Driver(self.rehearsal, len(self.drivers)))
        return self.drivers[-1]

    def _seen(self) -> Seen:
        assert self.watcher is not None
        return self.watcher.seen()

    def _strike(self, point: Point, number: signal.Signals) -> str | None:
        """One kill; returns where the driver was when it was too late for the point."""
        driver = self.drivers[-1]
        until(
            lambda: driver.ended() or self._reached(point, driver),
            f"{point.name} is reached: {driver.words()[-300:]}",
            within_s=POINT_WITHIN_S,
        )
        assert not driver.ended(), f"the driver ended by itself, {driver.process.returncode}: {driver.words()[-600:]}"
        running, engine = self._seen().running, self._engines()
        driver.process.send_signal(number)
        if number is signal.SIGSTOP:
            return self._take_over(driver, engine) or self._late(point, running)
        code = driver.process.wait(ENDS_WITHIN_S)
        if number is not signal.SIGKILL:
            assert code == INTERRUPTED, f"exit code {code}: {driver.words()[-600:]}"
            # awscrt says itself what it makes of an exception that comes while it calls into Python.
            words = driver.words()
            assert "Traceback" not in words or "Treating Python exception" in words, words[-1500:]
        self._drive()
        return self._late(point, running)

    def _engines(self) -> set[int]:
        """Processes of this campaign's engines: others may be at work on this machine."""
        return {pid for pid, mark in leash.marked_processes().items() if mark.startswith(f"{self.rehearsal.name}/")}

    def _reached(self, point: Point, driver: Driver) -> bool:
        seen = self._seen()
        # Its own predecessor may have been beyond the point: it must first have taken over itself.
        late = ("finished", point.stage) in seen.stages
        return driver.app in seen.apps and (late or point.reached(seen, driver.words()))

    def _late(self, point: Point, running: str | None) -> str | None:
        return None if running in (None, point.stage) else f"already in {running}"

    def _take_over(self, stopped: Driver, engine: set[int]) -> str | None:
        """Once the lease has run out another driver goes on; then the stopped one wakes up, and must do nothing.

        Its `engine` was not stopped: the leash ends it, gently, so that it saves its state first. Returns where it was
        when nothing was left for it to lose.
        """
        over = ("finished", Stage.REPORT) in self._seen().stages
        driver = self._drive()
        while driver.app not in self._seen().apps:
            time.sleep(0.2)
            if driver.ended():
                words = driver.words()
                assert "already has a driver" in words, words[-600:]
                driver = self._drive()
        until(
            lambda: not engine & self._engines(),
            "the stopped driver's engine ends",
            within_s=LEASE_S + leash.BOUND_S + 15,
        )
        before = self._seen()
        stopped.process.send_signal(signal.SIGCONT)
        code = stopped.process.wait(WAKES_WITHIN_S)
        after = self._seen()
        rows = [row for row in after.changes[len(before.changes) :] if row["app"] == stopped.app]
        assert not rows, f"the woken driver asked for {rows}"
        if over and code == 0:
            return "already at its end"
        assert code == LeaseLost.exit_code and " is lost; seen: " in stopped.words(), (
            f"{code}: {stopped.words()[-600:]}"
        )
        return None

    def _wrong(self, last: Driver) -> list[str]:
        """What the whole campaign must not show."""
        seen, wrong = self._seen(), list[str]()
        state = dict(self.watcher.state() if self.watcher else {})

        def expect(holds: bool, said: str) -> None:
            if not holds:
                wrong.append(said)

        expect(last.process.returncode == 0, f"the last driver: {last.process.returncode}, {last.words()[-800:]}")
        for action, times in ONCE.items():
            expect(seen.actions.get(action) == times, f"{action}: {seen.actions.get(action)} times")
        finished = [str(stage) for what, stage in seen.stages if what == "finished"]
        twice = {stage: finished.count(stage) for stage in map(str, STAGES) if finished.count(stage) != 1}
        expect(not twice, f"finished other than once: {twice}")
        expect(bool(seen.clean) and all(seen.clean), f"certificates: {seen.clean}")
        expect(state["manifests"] == 1, f"archive manifests: {state['manifests']}")
        expect(not state["locks"], f"locks: {state['locks']}")
        expect(not state["pending"], f"pending: {state['pending']}")
        expect(not state["leases"], f"leases not given back: {state['leases']}")
        return wrong

    def end(self) -> list[str]:
        """`bivouac down --all` of this very cache; what is left of the campaign's processes."""
        for driver in self.drivers:
            if not driver.ended():
                driver.process.kill()
                driver.process.wait()
        if self.watcher is not None:
            self.watcher.end()
        begun = time.monotonic()
        down = self.rehearsal.run("down", "--all", "--yes")
        seconds = time.monotonic() - begun
        wrong = [] if down.returncode == 0 else [f"down --all: {down.stdout[-300:]} {down.stderr[-300:]}"]
        if left := left_over(self.rehearsal.cache):
            wrong.append(f"processes after down --all: {left}")
        print(f"{self.rehearsal.name} down --all {seconds:.1f} s", flush=True)
        return wrong


def pitched(rehearsal: Rehearsal) -> bool:
    return (rehearsal.cache / "sites" / rehearsal.site / "site.json").exists()


def one_campaign(number: int, chosen: list[tuple[Point, signal.Signals]], keep: Path | None) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory(prefix="kills-") as folder, environ_restored():
        campaign, wrong = Campaign(Path(folder), number, chosen), list[str]()
        os.environ["BIVOUAC_CACHE"] = str(campaign.rehearsal.cache)  # this process looks into the site too
        try:
            wrong += campaign.run()
        except Exception as error:
            wrong.append(f"{type(error).__name__}: {error} {traceback.format_exc()[-600:]}"[:1500])
        finally:
            wrong += campaign.end()
        print(f"{campaign.rehearsal.name} the whole: {'; '.join(wrong) or 'ok'}", flush=True)
        if keep is not None:
            keep.mkdir(parents=True, exist_ok=True)
            for driver in campaign.drivers:
                (keep / f"{number}-{driver.log.name}").write_text(driver.words())
        if wrong:
            campaign.rows.append({"point": "the whole", "signal": "", "failure": "; ".join(wrong)})
        missed = chosen[len([row for row in campaign.rows if row["point"] != "the whole"]) :]
        campaign.rows += [{"point": p.name, "signal": n.name, "failure": "never reached"} for p, n in missed]
        return campaign.rows


def not_struck(rows: list[dict[str, Any]]) -> list[tuple[Point, signal.Signals]]:
    """Pairs whose driver was beyond the point whenever they were tried: one of each point, for another campaign."""
    struck = {(row["point"], row["signal"]) for row in rows if not row.get("late")}
    late = {row["point"]: row["signal"] for row in rows if (row["point"], row["signal"]) not in struck}
    return [(point, signal.Signals[late[point.name]]) for point in POINTS if point.name in late]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="of the first campaign's first signal")
    parser.add_argument("--count", type=int, default=4 * len(POINTS), help="kills in all")
    parser.add_argument("--logs", type=Path, help="keep the drivers' words here")
    options = parser.parse_args()
    begun, rows = time.monotonic(), list[dict[str, Any]]()
    for number in range(math.ceil(options.count / len(POINTS))):
        mine = POINTS[: options.count - number * len(POINTS)]
        chosen = [(point, SIGNALS[(at + number + options.seed - 1) % 4]) for at, point in enumerate(mine)]
        rows += one_campaign(number, chosen, options.logs)
    for number in range(MORE):
        if not (again := not_struck(rows)):
            break
        rows += one_campaign(math.ceil(options.count / len(POINTS)) + number, again, options.logs)
    for point, number in not_struck(rows):
        rows.append({"point": point.name, "signal": number.name, "failure": "never struck"})
    failed = sum(row["failure"] is not None for row in rows)
    return conclude(RESULTS, rows, options.count, failed, begun)


if __name__ == "__main__":
    sys.exit(main())
