"""Drill: the steward of a live rehearsal killed again and again, and relaunches of a held one killed on their way.

Two campaigns. In the first nobody touches the driver: its steward gets SIGKILL when the first attempt is launched, in
the middle of training, and in the middle of the archive. In the second a slip of the key holds the warm cluster, and
each relaunch with the mended spec but the last is killed after a seeded number of changes. Both end as if nothing had
happened: one attempt more than failures, one archive, one clean certificate.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import yaml

from infra.record.events import Stage
from tests.campaign.rehearsal import BIVOUAC, Rehearsal
from tests.drills.kills_live import SHORT, pitched
from tests.drills.parts.kills_watch import Seen, Watcher
from tests.drills.parts.struck import environ_restored, left_over, until
from tests.results import conclude, results_of
from tests.root import ROOT

RESULTS = results_of("drills", "kills_inside")
POINT_S, END_S = 600.0, 1200.0
"""Bounds for a busy machine: each point is seen as soon as it is reached."""
SLIP = {"learning_rate": 3.0e8, "minimum_learning_rate": 1.0e8, "warmup_steps": 20}
MENDED = {"learning_rate": 3.0e-3, "minimum_learning_rate": 3.0e-4, "warmup_steps": 20}
STEWARD = ["-m", "infra.steward"]
MOST_CHANGES = 10
"""A relaunch that changes the spec alone asks for about so many: `test_every_write_of_a_steward.py`."""
Row = dict[str, Any]


class Command:
    """One command with words and a name of its own: AWS sees the name with every call."""

    def __init__(self, rehearsal: Rehearsal, name: str, *arguments: str) -> None:
        self.app, self.log = name, rehearsal.folder / f"{name}.log"
        environment = rehearsal.environment | {"AWS_SDK_UA_APP_ID": name}
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [*BIVOUAC, *arguments], env=environment, cwd=ROOT, stdout=log, stderr=log, start_new_session=True
            )

    def words(self) -> str:
        return self.log.read_text(errors="replace")

    def ended(self) -> bool:
        return self.process.poll() is not None

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


def steward_of(rehearsal: Rehearsal) -> psutil.Process | None:
    """The steward's process, as this machine sees it; none between two of them."""
    for process in psutil.Process(rehearsal.found().outer_pid).children(recursive=True):
        try:
            if process.cmdline()[-2:] == STEWARD and process.status() != psutil.STATUS_ZOMBIE:
                return process
        except psutil.Error:
            continue
    return None


def stewards(rehearsal: Rehearsal, rows: list[Row], count: int) -> list[str]:
    """The first campaign; what is wrong with it in the end."""
    driver = Command(rehearsal, "driver", "run", str(rehearsal.path))
    until(lambda: driver.ended() or pitched(rehearsal), "the site is started", within_s=POINT_S)
    watcher = Watcher(rehearsal)
    slow = {"service": "s3", "action": "PutObject", "path": "*-archive-*", "effect": "delay", "delay_s": 15.0}
    watcher.ask("faults", {"add": [slow]})
    points: list[tuple[str, Callable[[Seen], Any]]] = [
        ("attempt launched", lambda seen: "attempt.launched" in seen.kinds),
        ("in training", lambda _: re.search(r"attempt 1: step (\d{2,})", driver.words())),
        ("in the archive", lambda seen: seen.archiving),
    ]

    def there(reached: Callable[[Seen], Any]) -> Any:
        return driver.ended() or reached(watcher.seen())

    def another(than: int) -> bool:
        steward = steward_of(rehearsal)
        return steward is not None and steward.pid != than

    try:
        for name, reached in points[:count]:
            until(partial(there, reached), name, within_s=POINT_S)
            assert not driver.ended(), f"it ended before {name}: {driver.words()[-600:]}"
            until(lambda: steward_of(rehearsal), "a steward runs", within_s=POINT_S)
            steward = steward_of(rehearsal)
            assert steward is not None
            steward.kill()
            until(partial(another, steward.pid), "another steward", within_s=POINT_S)
            rows.append(told("steward", name))
        until(driver.ended, "the campaign ends", within_s=END_S)
        return wrong_of(watcher, driver, attempts=1)
    finally:
        driver.kill()
        watcher.end()


def relaunches(rehearsal: Rehearsal, rows: list[Row], count: int, dice: random.Random) -> list[str]:
    """The second campaign; what is wrong with it in the end."""
    driver = Command(rehearsal, "driver", "run", str(rehearsal.path))
    until(lambda: driver.ended() or pitched(rehearsal), "the site is started", within_s=POINT_S)
    watcher, going = Watcher(rehearsal), driver

    def come_to(command: Command, at: int) -> bool:
        return command.ended() or changes(watcher, command) >= at

    try:
        until(lambda: driver.ended() or "held" in watcher.seen().kinds, "the cluster is held", within_s=POINT_S)
        assert not driver.ended(), driver.words()[-600:]
        driver.kill()
        mended = rehearsal.folder / "mended.yaml"
        training = rehearsal.spec["training"] | {"optimizer": MENDED}
        mended.write_text(yaml.safe_dump(rehearsal.spec | {"training": training}))
        for number in range(count + 1):
            going = Command(rehearsal, f"relaunch{number}", "relaunch", rehearsal.name, "--spec", str(mended))
            if number == count:
                break
            at = dice.randint(1, MOST_CHANGES)
            until(partial(come_to, going, at), f"change {at}", within_s=POINT_S)
            assert not going.ended(), f"it ended before change {at}: {going.words()[-600:]}"
            going.kill()
            rows.append(told("relaunch", f"at change {at}"))
        until(going.ended, "the campaign ends", within_s=END_S)
        return wrong_of(watcher, going, attempts=2)
    finally:
        for one in (driver, going):
            one.kill()
        watcher.end()


def changes(watcher: Watcher, command: Command) -> int:
    return sum(row["app"] == command.app for row in watcher.seen().changes)


def told(what: str, where: str) -> Row:
    print(f"{what:9} killed {where}", flush=True)
    return {"what": what, "where": where, "failure": None}


def wrong_of(watcher: Watcher, last: Command, attempts: int) -> list[str]:
    """What must not be: told in words."""
    seen, state = watcher.seen(), watcher.state()
    kinds = Counter(event["kind"] for event in seen.events)
    finished = Counter(str(stage) for what, stage in seen.stages if what == "finished")
    wanted: list[tuple[bool, str]] = [
        (last.process.returncode == 0, f"exit code {last.process.returncode}: {last.words()[-600:]}"),
        (kinds["attempt.launched"] == attempts, f"{kinds['attempt.launched']} attempts"),
        (kinds["archive.verified"] == 1 == kinds["training.finished"], f"not once: {dict(kinds)}"),
        (kinds["nodes.at-zero"] == 1, f"at zero {kinds['nodes.at-zero']} times"),
        (state["manifests"] == 1, f"{state['manifests']} archive manifests"),
        (bool(seen.clean) and all(seen.clean), f"certificates: {seen.clean}"),
        (not state["locks"] and not state["pending"] and not state["leases"], f"left: {state}"),
        (set(finished.values()) == {1} and str(Stage.REPORT) in finished, f"finished: {dict(finished)}"),
        (seen.actions["eks:CreateCluster"] == 1, f"{seen.actions['eks:CreateCluster']} clusters"),
    ]
    return [said for holds, said in wanted if not holds]


def one(kind: str, changes: dict[str, Any], rows: list[Row], story: Callable[[Rehearsal], list[str]]) -> None:
    with tempfile.TemporaryDirectory(prefix="kills-") as folder, environ_restored():
        rehearsal, wrong = Rehearsal(Path(folder), changes), list[str]()
        os.environ["BIVOUAC_CACHE"] = str(rehearsal.cache)  # this process looks into the site too
        try:
            wrong = story(rehearsal)
        except Exception as error:
            wrong = [f"{type(error).__name__}: {error} {traceback.format_exc()[-600:]}"[:1500]]
        finally:
            down = rehearsal.run("down", "--all", "--yes")
        wrong += [f"down --all: {down.stdout[-300:]}"] if down.returncode else []
        wrong += [f"processes after down --all: {left}"] if (left := left_over(rehearsal.cache)) else []
        rows.append({"what": kind, "where": "the whole", "failure": "; ".join(wrong) or None})
        print(f"{kind:9} the whole: {'; '.join(wrong) or 'ok'}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=6, help="kills: at most three of stewards, the rest of relaunches")
    options = parser.parse_args()
    begun, rows, dice = time.monotonic(), list[Row](), random.Random(options.seed)
    of_stewards = min(3, options.count)
    one("steward", SHORT | {"campaign": "unled"}, rows, lambda held: stewards(held, rows, of_stewards))
    if options.count > of_stewards:
        training = SHORT["training"] | {"optimizer": SLIP, "steps": 80, "evaluate_every": 80}  # type: ignore[operator]
        slipped = SHORT | {"campaign": "slipped", "training": training, "on_stop": "hold", "hold_for": "40m"}
        left = options.count - of_stewards
        one("relaunch", slipped, rows, lambda held: relaunches(held, rows, left, dice))
    failed = sum(row["failure"] is not None for row in rows)
    return conclude(RESULTS, {"seed": options.seed, "rows": rows}, len(rows), failed, begun)


if __name__ == "__main__":
    sys.exit(main())
