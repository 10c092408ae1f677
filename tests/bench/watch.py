"""How well the watch sees what goes wrong: faults injected into seeded runs of a small model, beside three known rules.

    .venv/bin/python -m tests.bench.watch [--seeds 6] [--first 0]

Peers: LLM-Foundry's KillLossSpike (a loss at least twice the mean of the last 100 in more than 4 steps in a row, or
half of the window above 10 after 200 steps), ZClip (moving mean and variance of the gradient's norm, alpha 0.97,
z > 2.5) and the loss alone (above the mean of the last 100 by 3 standard deviations). All get the same steps. Alarms
within 32 steps of each other count as one, of each rule alike. An alarm is right from the fault's step on, for 100
steps; before the fault and in runs without one it is false. Lead: steps from the alarm to the first step at which the
loss, smoothed over 5, is 2 % above that of the same run without the fault; only faults that ever get there count. Times
of ranks are drawn, not measured: 256 ranks, 2 % of noise. Model, data and faults share no code with the detectors.

A second table has the slow faults of `parts/watch_drifts.py`, for the watch alone: found of injected, with the median
and the longest delay from the onset, and the alarms in healthy runs per 1,000 steps. `--slow` makes it alone.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import sys
import time
from collections import deque
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from tests.bench.parts import watch_drifts
from tests.bench.parts.verdict import Verdict, judge
from tests.bench.parts.watch_faults import STEPS, times, train, wrong_rank
from tests.results import keep, results_of
from trainer.builtin.watch.detectors import Seen
from trainer.builtin.watch.watch import Watch
from trainer.contract import WatchConfig

RESULTS = results_of("bench", "watch")

RIGHT, TOGETHER = 100, 32
TRAINED = ("spike", "learning rate", "bad batch", "not a number", "flipped bit")
DRAWN = ("sick rank", "slow decline", "wrong rank")
FAULTS = (*TRAINED, *DRAWN)
RULES = ("watch", "KillLossSpike", "ZClip", "loss alone")


@dataclass
class Peers:
    """The three rules, each by its own description."""

    losses: deque[float] = field(default_factory=lambda: deque(maxlen=100))
    outliers: int = 0
    steps: int = 0
    mean: float | None = None
    variance: float = 0.0
    norms: list[float] = field(default_factory=list)

    def look(self, loss: float, norm: float) -> dict[str, bool]:
        self.steps += 1
        return {"KillLossSpike": self._kill(loss), "ZClip": self._zclip(norm), "loss alone": self._alone(loss)}

    def _kill(self, loss: float) -> bool:
        full = len(self.losses) == 100
        self.outliers = self.outliers + 1 if full and loss >= 2 * statistics.fmean(self.losses) else 0
        high = self.steps > 200 and sum(loss > 10 for loss in self.losses) >= 50
        return self.outliers > 4 or high

    def _zclip(self, norm: float) -> bool:
        if self.mean is None:
            self.norms.append(norm)
            if len(self.norms) == 25:
                self.mean, self.variance = statistics.fmean(self.norms), statistics.pvariance(self.norms)
            return False
        deviation = math.sqrt(self.variance) + 1e-6
        z = (norm - self.mean) / deviation
        spike = z > 2.5
        kept = self.mean + 2.5**2 / z * deviation if spike else norm
        if math.isfinite(kept):
            self.mean, before = 0.97 * self.mean + 0.03 * kept, self.mean
            self.variance = 0.97 * self.variance + 0.03 * (kept - before) ** 2
        return spike

    def _alone(self, loss: float) -> bool:
        full = len(self.losses) == 100
        over = full and loss > statistics.fmean(self.losses) + 3 * statistics.pstdev(self.losses)
        if math.isfinite(loss):
            self.losses.append(loss)
        return over


@dataclass
class Score:
    faults: int = 0
    found: int = 0
    right: int = 0
    """Alarms."""
    wrong: int = 0
    quiet_steps: int = 0
    delays: list[int] = field(default_factory=list)
    leads: list[int] = field(default_factory=list)


def episodes(alarms: list[int]) -> list[int]:
    steps: list[int] = []
    last = -TOGETHER
    for step in alarms:
        if step - last >= TOGETHER:
            steps.append(step)
        last = step
    return steps


def score(into: Score, alarms: list[int], fault: str | None, onset: int, damage: int | None) -> None:
    quiet = STEPS if fault is None else onset - 1
    into.quiet_steps += quiet
    before, after = (episodes([s for s in alarms if keep(s)]) for keep in (lambda s: s <= quiet, lambda s: s > quiet))
    into.wrong += len(before)
    if fault is None:
        return
    hits = [step for step in after if step < onset + RIGHT]
    into.faults, into.right = into.faults + 1, into.right + bool(hits)
    if hits:
        into.found += 1
        into.delays.append(hits[0] - onset)
        if damage is not None:
            into.leads.append(damage - hits[0])


def damaged(losses: list[float], sound: list[float], onset: int) -> int | None:
    """Return the first step with a loss, smoothed, 2 % above the sound run's."""
    for step in range(onset, len(losses) + 1):
        here, there = (statistics.fmean(row[max(0, step - 5) : step]) for row in (losses, sound))
        if not here <= 1.02 * there:
            return step
    return None


def alarms_of(seed: int, fault: str | None, onset: int) -> tuple[dict[str, list[int]], list[float], list[str]]:
    """Return the steps of each rule's alarms, the losses, and which detectors rang after the fault."""
    watch, peers = Watch(WatchConfig()), Peers()
    found: dict[str, list[int]] = {rule: [] for rule in RULES}
    losses, rang = [], []
    trained = fault is None or fault in TRAINED
    clocks = times(fault, seed, onset)
    steps = train(seed, fault, onset) if trained else iter(Seen(step, 1.0, 1.0) for step in range(1, STEPS + 1))
    for seen in steps:
        if fault is not None and seen.step >= onset + RIGHT:
            break
        losses.append(seen.loss)
        seconds, forward = next(clocks)
        names = [one.alarm.detector for one in watch.judge_times(seen.step, seconds, forward)]
        if not math.isfinite(seen.loss):
            names.append("nan")  # the loop's own test, which comes before all detectors
        elif trained:
            names += [one.alarm.detector for one in watch.judge(seen)]
        if names:
            found["watch"].append(seen.step)
            rang += [f"{name}@{seen.step}" for name in names]
        if trained and seen.norm is not None:
            for rule, over in peers.look(seen.loss, seen.norm).items():
                if over:
                    found[rule].append(seen.step)
    return found, losses, rang


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--verbose", action="store_true", help="each alarm of the watch")
    parser.add_argument("--slow", action="store_true", help="only the slow faults")
    options = parser.parse_args()
    torch.set_num_threads(1)
    slow_rows = slow_faults(range(options.first, options.first + options.seeds), options.verbose)
    if options.slow:
        return _judge_slow(slow_rows)
    began, scores = time.monotonic(), {(rule, fault): Score() for rule in RULES for fault in (*FAULTS, "none")}
    for seed in range(options.first, options.first + options.seeds):
        onset = 160 + random.Random(seed).randrange(50)
        clean, sound, rang = alarms_of(seed, None, onset)
        for rule in RULES:
            score(scores[rule, "none"], clean[rule], None, onset, None)
        print(f"seed {seed}: without a fault {rang if options.verbose else len(rang)}", file=sys.stderr)
        for fault in FAULTS:
            if fault == "wrong rank":
                step = wrong_rank(seed, onset)
                found, losses = {rule: list[int]() for rule in RULES}, sound
                found["watch"] = [step] if step else []
                rang = [f"replay@{step}"]
            else:
                found, losses, rang = alarms_of(seed, fault, onset)
            damage = damaged(losses, sound, onset) if fault in TRAINED else None
            for rule in RULES:
                score(scores[rule, fault], found[rule], fault, onset, damage)
            if options.verbose:
                print(f"  {fault} at {onset}, damage {damage}: {rang} peers {found}", file=sys.stderr)
    return max(_judge_slow(slow_rows), _tell(scores, time.monotonic() - began))


def slow_faults(seeds: range, verbose: bool) -> dict[str, dict[str, Any]]:
    """Print and return, by noise and fault or healthy change, what the watch raised in runs of unseen seeds."""
    noise, rows = watch_drifts.fitted(0), dict[str, dict[str, Any]]()
    print(f"fitted noise: {noise}", file=sys.stderr)
    for kind in ("normal", "student"):
        for change in (*watch_drifts.FAULTS, *watch_drifts.HEALTHY):
            is_fault, delays, early, steps = change in watch_drifts.FAULTS, list[int](), list[int](), 0
            for seed in seeds:
                raised, count = _raised(seed, kind, noise, change, verbose)
                steps += watch_drifts.ONSET if is_fault else count
                early += [step for step in raised if step < watch_drifts.ONSET or not is_fault]
                late = [step - watch_drifts.ONSET for step in raised if step >= watch_drifts.ONSET]
                if is_fault and late:
                    delays.append(late[0])
            rows[f"{kind}: {change}"] = {
                "found": len(delays) if is_fault else None, "faults": len(seeds) if is_fault else None,
                "delays": delays, "false": len(early), "quiet_steps": steps,
            }  # fmt: skip
    table = Table("noise: fault or change", "found", "delay: median, longest", "false / 1,000", "steps", box=None)
    for name, row in rows.items():
        delays = row["delays"]
        shown = f"{statistics.median(delays):.0f}, {max(delays)}" if delays else "-"
        found = f"{row['found']}/{row['faults']}" if row["faults"] else "-"
        table.add_row(name, found, shown, f"{1000 * row['false'] / row['quiet_steps']:.2f}", str(row["quiet_steps"]))
    Console(highlight=False, width=140).print(table)
    path = RESULTS.with_name("watch-slow.json")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"noise": asdict(noise), "rows": rows}, indent=1))
    return rows


def _raised(seed: int, kind: str, noise: watch_drifts.Noise, change: str, verbose: bool) -> tuple[list[int], int]:
    """Return the steps with an alarm of one drawn run, and how many steps there were. Repeated steps count on."""
    watch, raised, count = Watch(WatchConfig()), list[int](), 0
    for seen in watch_drifts.stream(seed, kind, noise, change):
        count += 1
        for finding in watch.judge(seen):
            raised.append(seen.step)
            if verbose:
                print(f"{kind} {change} seed {seed} @{seen.step}: {finding.alarm.text}", file=sys.stderr)
    return raised, count


def _judge_slow(rows: dict[str, dict[str, Any]]) -> int:
    """Return 1 when a fault was missed, or more than one step in 10,000 raised a false alarm."""
    missed = [name for name, row in rows.items() if row["faults"] and row["found"] < row["faults"]]
    false, steps = (sum(row[key] for row in rows.values()) for key in ("false", "quiet_steps"))
    print(
        f"missed: {missed or 'none'}; of {steps} quiet steps. Seeded runs without a peer: nothing spreads but by seed"
    )
    faults = [row for row in rows.values() if row["faults"]]
    share = sum(row["found"] for row in faults) / sum(row["faults"] for row in faults)
    return judge(
        Verdict("slow faults", (share,), 1.0, at_least=True, unit="found of injected"),
        Verdict("false alarms of quiet steps", (1000 * false / steps,), 0.1, unit="per 1,000"),
    )


def _tell(scores: dict[tuple[str, str], Score], seconds: float) -> int:
    console = Console(highlight=False, width=140)
    table = Table("rule", *(f"{fault}" for fault in FAULTS), "precision", "recall", "lead", "false / 1,000", box=None)
    rows: dict[str, dict[str, Any]] = {}
    for rule in RULES:
        mine = {fault: scores[rule, fault] for fault in (*FAULTS, "none")}
        found, faults = sum(one.found for one in mine.values()), sum(one.faults for one in mine.values())
        right, wrong = sum(one.right for one in mine.values()), sum(one.wrong for one in mine.values())
        quiet, leads = sum(one.quiet_steps for one in mine.values()), [x for one in mine.values() for x in one.leads]
        row = {
            "precision": right / (right + wrong) if right + wrong else None,
            "recall": found / faults,
            "lead": statistics.median(leads) if leads else None,
            "false_per_1000": 1000 * wrong / quiet,
            "faults": {fault: [mine[fault].found, mine[fault].faults, mine[fault].delays] for fault in FAULTS},
        }
        rows[rule] = row
        cells = [f"{mine[f].found}/{mine[f].faults}{_after(mine[f].delays)}" for f in FAULTS]
        shown = [_shown(row["precision"], "{:.2f}"), f"{row['recall']:.2f}", _shown(row["lead"], "{:+.0f}")]
        table.add_row(rule, *cells, *shown, f"{row['false_per_1000']:.2f}")
    console.print(table)
    console.print(f"found / injected, in brackets the median of steps after the fault; {seconds:.0f} s")
    keep(RESULTS, rows)
    ours, best = rows["watch"], max(RULES[1:], key=lambda rule: rows[rule]["recall"])
    recall, peer = (rows[rule]["recall"] for rule in ("watch", best))
    verdicts = (
        [Verdict("faults", (recall,), 1.0, best, (peer,), at_least=True, unit="found of injected")] if peer else []
    )
    verdicts.append(Verdict("false alarms", (ours["false_per_1000"],), 1.0, unit="per 1,000"))
    return judge(*verdicts) or int(recall <= peer)


def _after(delays: list[int]) -> str:
    return f" (+{statistics.median(delays):.0f})" if delays else ""


def _shown(value: object, form: str) -> str:
    return "-" if value is None else form.format(value)


if __name__ == "__main__":
    sys.exit(main())
