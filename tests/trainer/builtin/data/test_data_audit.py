"""The ledger of what was consumed: kept with every checkpoint, and weighed at the end."""

from __future__ import annotations

import json
import random
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.root import ROOT
from tests.trainer.agents import Attempt, Hold, World, run
from trainer.builtin.data.ledger import DataLedger, from_limbs, to_limbs
from trainer.contract import Manifest
from trainer.contract.ledger import Audit, Consumed, Executed, audit
from trainer.errors import DataError

BATCH = 8


def digest(step: int) -> int:
    return random.Random(step).getrandbits(64)


def campaign(*attempts: tuple[int, int, int]) -> tuple[tuple[Consumed, ...], list[Executed]]:
    """Attempts of (world size, last step, last committed step), each from where the one before had committed."""
    rows: tuple[Consumed, ...] = ()
    executed, begin = [], 0
    for number, (world, last, committed) in enumerate(attempts, 1):
        ledger = DataLedger(number, world, BATCH, 1234, "d" * 64, rows)
        for step in range(begin + 1, last + 1):
            ledger.add(step, (step - 1) * BATCH, digest(step))
            executed.append(Executed(number, step, digest(step)))
            if step == committed:
                rows = ledger.rows
        begin = committed
    return rows, executed


def expected(steps: int) -> dict[int, int]:
    return {step: digest(step) for step in range(1, steps + 1)}


def judged(rows: tuple[Consumed, ...], executed: list[Executed], steps: int = 60) -> Audit:
    return audit(rows, steps * BATCH, executed, expected(steps))


@settings(max_examples=40, deadline=None)
@given(
    ends=st.lists(st.integers(1, 59), min_size=0, max_size=5, unique=True),
    lost=st.integers(0, 9),
    world=st.integers(1, 9),
)
def test_over_all_attempts_and_sizes_every_sample_counts_once(ends: list[int], lost: int, world: int) -> None:
    attempts = [(1 + (world + n) % 9, min(59, end + lost), end) for n, end in enumerate(sorted(ends))]
    rows, executed = campaign(*attempts, (2, 60, 60))
    found = judged(rows, executed)
    assert found.passes and not found.unlooked
    assert (found.consumed, found.checked_by_log, found.checked_by_data) == (480, 60, 60)
    assert found.repeated_steps == len(executed) - 60


def test_a_training_that_ended_early_names_what_is_missing() -> None:
    rows, executed = campaign((2, 45, 40))
    found = judged(rows, executed)
    assert not found.passes and found.consumed == 320
    (finding,) = found.findings
    assert (finding.kind, finding.first_position, finding.end_position) == ("missing", 320, 480)


@pytest.mark.parametrize(
    ("change", "kind", "span"),
    [
        ({"first_position": 328, "first_step": 42}, "missing", (320, 328)),
        ({"first_position": 312, "first_step": 40}, "repeated", (312, 320)),
        ({"last_step": 61}, "beyond", (480, 488)),
        ({"chain": "0" * 64}, "other-samples", (320, 480)),
    ],
)
def test_a_ledger_that_does_not_fit_is_named_by_its_positions(
    change: dict[str, object], kind: str, span: tuple[int, int]
) -> None:
    rows, executed = campaign((2, 45, 40), (2, 60, 60))
    bent = (rows[0], rows[1].model_copy(update=change))
    found = audit(bent, 480, executed, {**expected(60), 61: 0})
    assert not found.passes
    assert (kind, *span) in {(f.kind, f.first_position, f.end_position) for f in found.findings}


def test_other_samples_at_one_step_are_found_by_data_and_by_log() -> None:
    rows, executed = campaign((2, 45, 40), (2, 60, 60))
    wrong = {**expected(60), 50: digest(50) + 1}
    assert [f.kind for f in audit(rows, 480, executed, wrong).findings] == ["other-samples"]
    bent = [line._replace(samples=1) if line[:2] == (2, 50) else line for line in executed]
    assert [f.kind for f in judged(rows, bent).findings] == ["other-samples"]
    again = [line._replace(samples=1) if line[:2] == (1, 43) else line for line in executed]
    assert "step 43 had other samples in attempt 2 than in attempt 1" in judged(rows, again).findings[0].why


def test_what_could_not_be_looked_at_is_said() -> None:
    rows, executed = campaign((2, 60, 60))
    found = audit(rows, 480, executed[:50], None, ["the data set is not at hand"])
    assert found.passes and found.checked_by_data == 0 and found.checked_by_log == 50
    assert len(found.unlooked) == 2


def test_a_step_that_does_not_follow_is_refused() -> None:
    ledger = DataLedger(1, 2, BATCH, 1, "d" * 64)
    ledger.add(1, 0, 5)
    for step, position in ((3, 16), (2, 16), (1, 0)):
        with pytest.raises(DataError, match="does not continue"):
            ledger.add(step, position, 5)


@given(digests=st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=64))
def test_the_sum_over_ranks_is_exact_in_doubles(digests: list[int]) -> None:
    low, high = (sum(column) for column in zip(*map(to_limbs, digests), strict=True))
    assert from_limbs(low, high) == sum(digests) % 2**64


def audited(world: World, *arguments: str) -> tuple[int, dict[str, object]]:
    command = [sys.executable, "-m", "infra.cli.main", "data", "audit", *arguments, "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    return done.returncode, json.loads(done.stdout) if done.returncode in (0, 1) else {"error": done.stderr}


@pytest.mark.nightly
def test_a_real_training_that_was_killed_is_audited_against_its_data(twin: Attempt, world: World) -> None:
    with Attempt(world, 1, hold=Hold(node=1, step=34, committed=30)) as first:
        first.wait_for_step(34)
        first.wait_for_shared(30)
        first.kill(1)
        first.wait()
    world.lose_node(1)
    second = run(world, 2)
    assert [agent.returncode for agent in second.agents] == [0, 0], second.log(0).read_text()
    config = world.root / "train.json"
    config.write_text(world.config.model_dump_json())
    logs = [f"--log={attempt.log(0)}" for attempt in (first, second)]
    place = [str(world.shared), f"--config={config}", f"--data={world.data}"]

    code, found = audited(world, *place, *logs)
    assert code == 0, found
    assert (found["consumed"], found["planned"], found["checked_by_data"]) == (480, 480, 60)
    assert found["repeated_steps"] and found["checked_by_log"] == 60
    rows = found["rows"]
    assert isinstance(rows, list) and [row["attempt"] for row in rows] == [1, 2]

    path = world.shared / "tiny" / "step-00000060" / "manifest.json"
    bent = Manifest.model_validate_json(path.read_bytes())
    row = bent.consumed[1].model_copy(update={"first_step": 32, "first_position": 248})
    path.write_bytes(bent.model_copy(update={"consumed": (bent.consumed[0], row)}).serialize())
    code, found = audited(world, *place)
    assert code == 1
    findings = found["findings"]
    assert isinstance(findings, list)
    assert {(row["kind"], row["first_position"], row["end_position"]) for row in findings} >= {("missing", 240, 248)}


@pytest.mark.nightly
def test_the_twin_and_a_resumed_run_end_on_the_same_step_digests(twin: Attempt) -> None:
    lines = [json.loads(line) for line in twin.log(0).read_text().splitlines() if '"samples"' in line]
    assert len({line["samples"] for line in lines}) == 60
    assert all(line["data_wait"] >= 0 for line in lines)
