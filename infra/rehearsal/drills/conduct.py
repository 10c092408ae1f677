"""Conducts drills: rehearses the stock campaign with faults, starts a killed driver again, and judges the record."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from infra.errors import PermanentError
from infra.folders import results_folder, results_root, site_dir
from infra.record.payloads.stages import Certified
from infra.rehearsal.drills import page as drills_page
from infra.rehearsal.drills.drill_campaigns import Drill, named_drills, random_drill
from infra.rehearsal.drills.history import NEWEST, append_results
from infra.rehearsal.drills.judge import REFUSED, DrillResult, judge
from infra.rehearsal.drills.moments import Moment, Moments, moments_in, note
from infra.rehearsal.site import campaigns
from infra.report import trainer_log
from infra.report.record import PACKED, Record, unpacked
from infra.spec.drills.scenarios import Scenario, scenarios
from infra.spec.rehearsed import ACCOUNT, REGION

_EVERY_S, _STOPS_WITHIN_S = 0.5, 900.0
_REFUSED_WITHIN_S = 120.0
"""For a second driver to look who drives, and to end."""
_PATIENCE_S = 180.0
"""Time beyond the expected one after which a drill no longer waits for a recovery."""
_MOST_STARTS = 6
"""Times that the drill runs the same command, if the driver gives up again and again."""
_STARTS_WITHIN_S = 3600.0
"""Time from the drill's begin, or the last recovery, to the next strike."""


class Conductor:
    """Runs one drill's campaign in the site of `BIVOUAC_SITE_NAME`."""

    def __init__(self, drill: Drill, say: Callable[[str], None]) -> None:
        self._drill, self._say = drill, say
        self._results = results_folder(drill.campaign, ACCOUNT, REGION)
        self._spec = self._results / "drill.yaml"
        self._site = site_dir(campaigns.SITE)
        self._moments = Moments()
        self._driver: subprocess.Popen[bytes]

    def run(self) -> list[DrillResult]:
        """Rehearse until every fault has struck and is overcome, end the campaign, and return what each has led to.
        Raises `PermanentError` if the record is not there."""
        self._results.mkdir(parents=True, exist_ok=True)
        self._spec.write_text(yaml.safe_dump(self._drill.document(), sort_keys=False))
        self._driver = self._start("run", str(self._spec))
        try:
            self._until_overcome()
        finally:
            # Whatever came, a person's Ctrl-C too: the training has hours to go.
            self._end_campaign()
        return self._results_of(self._record())

    def _end_campaign(self) -> None:
        """End the campaign unless it has ended or does so by itself, and the driver; say what to do if that fails."""
        campaign = self._drill.campaign
        if self._drill.ends_itself and (0, "recovered") in self._moments:
            self._await_end(self._driver)
        if not self._is_certified():
            self._say(f"{campaign}: ending the campaign")
            stopping = Moment(fault=len(self._drill.names) - 1, kind="stopping", at=datetime.now(UTC))
            note(self._site, campaign, stopping)
            given_up = ["--abandon"] if any(scenarios()[name].abandons for name in self._drill.names) else []
            if self._await_end(self._start("down", campaign, "--yes", *given_up)):
                self._say(f"{campaign}: it may still run: bivouac down {campaign} --yes")
        try:
            self._driver.wait(_STOPS_WITHIN_S)
        except subprocess.TimeoutExpired:
            self._driver.send_signal(signal.SIGINT)
            self._driver.wait()

    def _await_end(self, command: subprocess.Popen[bytes]) -> int | None:
        """Wait for a command that ends the campaign, and return its exit code; None if it had to be interrupted.
        Faults of the teardown strike meanwhile."""
        deadline = time.monotonic() + _STOPS_WITHIN_S
        while (code := command.poll()) is None and time.monotonic() < deadline:
            self._look()
            time.sleep(_EVERY_S)
        if code is None:
            command.send_signal(signal.SIGINT)
        return code

    def _is_certified(self) -> bool:
        """Return whether the record says that nothing is left; False if there is none."""
        try:
            return any(isinstance(event.payload, Certified) for event in self._record().events)
        except PermanentError:
            return False

    def _start(self, *arguments: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-P", "-m", "infra.cli.main", *arguments]
        with (self._results / "drill.log").open("ab") as log:
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=os.environ)

    def _until_overcome(self) -> None:
        """Wait until all faults are overcome, or the campaign has ended; the driver may be another then."""
        noticed_at, starts = time.monotonic(), 1
        while True:
            if self._look():
                noticed_at = time.monotonic()
            is_over = all((number, "recovered") in self._moments for number in self._drill.training_numbers)
            if is_over or time.monotonic() - noticed_at > self._patience_s():
                break
            if self._driver.poll() is not None:
                if starts == _MOST_STARTS or not self._note_end_of_driver():
                    break
                self._await_over()
                noticed_at = time.monotonic()
                self._driver, starts = self._start("run", str(self._spec)), starts + 1
            time.sleep(_EVERY_S)

    def _await_over(self) -> None:
        """Wait until no fault strikes any more, as a person mends what a driver's error names before the next start."""
        deadline = time.monotonic() + self._patience_s()
        while self._is_striking() and time.monotonic() < deadline:
            self._look()
            time.sleep(_EVERY_S)

    def _is_striking(self) -> bool:
        numbers = range(len(self._drill.names))
        return any((n, "struck") in self._moments and (n, "over") not in self._moments for n in numbers)

    def _look(self) -> bool:
        """Strike the driver where that is due, and return whether there are new moments."""
        moments = moments_in(self._site, self._drill.campaign)
        fresh = {key: moment for key, moment in moments.items() if key not in self._moments}
        for (number, kind), moment in fresh.items():
            self._say(f"{self._drill.campaign}: {self._drill.names[number]} {kind} at step {moment.step}")
        self._moments = moments
        for number in range(len(self._drill.names)):
            if (number, "due") in moments and (number, "struck") not in moments:
                self._strike_driver(number, moments[number, "due"])
        return bool(fresh)

    def _note_end_of_driver(self) -> bool:
        """Note that the driver gave up in the middle of a campaign; return False if there is nothing to go on with: no
        fault has struck, or the campaign has ended."""
        struck = {number: moment for (number, kind), moment in self._moments.items() if kind == "struck"}
        if not struck or self._is_certified():
            return False
        number = max(struck, key=lambda fault: struck[fault].at)
        moment = struck[number].model_copy(update={"kind": "driver-ended", "at": datetime.now(UTC)})
        note(self._site, self._drill.campaign, moment)
        return True

    def _patience_s(self) -> float:
        """Return how long the drill waits for the next moment."""
        numbers = self._drill.training_numbers
        open_scenarios = [
            scenarios()[self._drill.names[number]]
            for number in numbers
            if (number, "struck") in self._moments and (number, "recovered") not in self._moments
        ]
        if not open_scenarios:
            return _STARTS_WITHIN_S
        expect = open_scenarios[0].expect
        return open_scenarios[0].lasts_s + (expect.committed_within_s or expect.ends_within_s) + _PATIENCE_S

    def _strike_driver(self, number: int, due: Moment) -> None:
        """Kill the driver, as a lost laptop does, and start the same command again; or start it a second time."""
        struck = due.model_copy(update={"kind": "struck", "at": datetime.now(UTC)})
        if scenarios()[self._drill.names[number]].driver == "SECOND":
            struck = struck.model_copy(update={"answer": self._start_second()})
        else:
            self._driver.send_signal(signal.SIGKILL)
            self._driver.wait()
            if scenarios()[self._drill.names[number]].stage == "training":
                self._driver = self._start("run", str(self._spec))  # else `bivouac down` waits, and goes on
        note(self._site, self._drill.campaign, struck)
        campaigns.note_struck(self._site, self._drill.campaign, number)

    def _start_second(self) -> str:
        """Start the same command beside the driver, and return what became of it."""
        second = self._start("run", str(self._spec))
        try:
            code = second.wait(_REFUSED_WITHIN_S)
        except subprocess.TimeoutExpired:
            second.kill()
            second.wait()
            return f"not refused within {_REFUSED_WITHIN_S:.0f} s"
        trouble = "the driver had ended" if self._driver.poll() is not None else ""
        return trouble or (REFUSED if code else "ended as if it had driven the campaign")

    def _record(self) -> Record:
        try:
            return unpacked((self._results / PACKED).read_bytes())
        except (OSError, ValueError, TypeError, KeyError) as error:
            cure = f"see {self._results / 'drill.log'}"
            raise PermanentError("the drill's campaign left no record", seen=error, cure=cure) from error

    def _results_of(self, record: Record) -> list[DrillResult]:
        moments = moments_in(self._site, self._drill.campaign)
        missed_names = [name for n, name in enumerate(self._drill.names) if (n, "struck") not in moments]
        if missed_names:
            self._say(f"{self._drill.campaign}: never struck: {', '.join(missed_names)}")
        rows: list[tuple[int, str, Scenario]] = [
            (number, name, scenarios()[name])
            for number, name in enumerate(self._drill.names)
            if name not in missed_names
        ]
        results = [
            judge(name, number, scenario, self._drill.campaign, record.events, moments)
            for number, name, scenario in rows
        ]
        repeats = trainer_log.repeats(trainer_log.read(record), trainer_log.relaunched_after(record))
        # The steps of several faults overlap: each fault that cost some has the whole campaign's comparison.
        equality = {"compared_steps": repeats.compared, "equal_steps": repeats.equal}
        return [result.model_copy(update=equality) if result.lost_steps else result for result in results]


class DrillReport(NamedTuple):
    """What drills have shown."""

    results: tuple[DrillResult, ...]
    missed: tuple[str, ...]
    """Faults that were asked for and have not struck."""

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Return the results for machines."""
        return [result.model_dump(mode="json") for result in self.results]

    @property
    def is_missed(self) -> bool:
        """Return whether an expectation does not hold, or was not put to the proof."""
        return bool(self.missed) or any(result.problems for result in self.results)

    @property
    def lines(self) -> list[str]:
        """Return the results for people."""
        lines = [line for result in self.results for line in drills_page.lines(result)]
        return [*lines, *(f"{name}: has not struck" for name in self.missed)]


def drill(names: Sequence[str], draws: int, seed: int, page: Path | None, say: Callable[[str], None]) -> DrillReport:
    """Run the drills one after the other in one site, those of these names and one with so many drawn faults; keep
    their results, and write those of all drills to `page`."""
    path, results, prefix = results_root() / NEWEST, list[DrillResult](), f"drill-{datetime.now(UTC):%H%M%S}"
    drills = named_drills(names, seed, prefix)
    drills += [random_drill(draws, seed, prefix)] if draws else []
    for campaign_drill in drills:
        say(f"{campaign_drill.campaign}: {', '.join(campaign_drill.names)}")
        results += Conductor(campaign_drill, say).run()
        remember(path, results)
    if page is not None:
        drills_page.write(page, remember(path, results))
    expected_counts = Counter(name for campaign_drill in drills for name in campaign_drill.names)
    missed_counts = expected_counts - Counter(result.fault for result in results)
    return DrillReport(tuple(results), tuple(missed_counts.elements()))


def remember(path: Path, results: Sequence[DrillResult]) -> list[DrillResult]:
    """Put results into the file of all results, one for each fault, the newest, and behind the history; return the
    newest of all faults."""
    newest_results = [DrillResult.model_validate(row) for row in json.loads(path.read_text())] if path.exists() else []
    fresh = {result.fault: result for result in (*newest_results, *results)}
    all_results = [fresh[name] for name in scenarios() if name in fresh]
    path.parent.mkdir(parents=True, exist_ok=True)
    append_results(path.parent, [*newest_results, *results])  # also those from before there was a history
    path.write_text(json.dumps([result.model_dump(mode="json") for result in all_results], indent=1) + "\n")
    return all_results
