"""However a spec is broken, `check` and `plan` answer: soon, with field, value and cure, without an exception."""

from __future__ import annotations

import io
import json
import os
import random
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.console import Console

from infra.cli.prepare.check import check_command
from infra.cli.prepare.plan import plan_command
from infra.errors import UserError
from infra.spec.campaign import SpecError, load
from tests.built_in import training_of
from tests.mutations import broken_spec
from tests.root import ROOT
from tests.tables import Table

TABLE = Table(__file__)

BASE = (ROOT / "infra/campaigns/rehearsal.yaml").read_text()


def _answered(path: Path) -> None:
    for command in (check_command, plan_command):
        out = io.StringIO()
        code = command(path, True, Console(file=out, width=100))
        answer = json.loads(out.getvalue())
        assert code in (0, 64)
        if code == 64:
            rows = [row for row in answer["findings"] if row["level"] == "error"]
            assert rows and all(row["field"] and row["message"] and row["seen"] and row["cure"] for row in rows), rows
            assert all(len(row["seen"]) <= 500 for row in rows)


def _is_answered_soon(folder: Path, seed: int) -> None:
    path = folder / "campaign.yaml"
    path.write_bytes(broken_spec(random.Random(seed)))
    begun = time.process_time()  # a busy machine does not stretch it
    _answered(path)
    assert time.process_time() - begun < 8


SHARED = [HealthCheck.function_scoped_fixture]


@settings(max_examples=60, suppress_health_check=SHARED)
@given(seed=st.integers(0, 2**40))
def test_every_broken_spec_gets_an_answer(tmp_path: Path, seed: int) -> None:
    _is_answered_soon(tmp_path, seed)


@pytest.mark.nightly
@settings(max_examples=1000, suppress_health_check=SHARED)
@given(seed=st.integers(0, 2**40))
def test_each_of_a_thousand_broken_specs_gets_an_answer(tmp_path: Path, seed: int) -> None:
    _is_answered_soon(tmp_path, seed)


@TABLE.cases
def test_yaml_surprises_are_told_as_written(tmp_path: Path, old: str, new: str, field: str, told: str) -> None:
    assert old in BASE
    path = tmp_path / "campaign.yaml"
    path.write_text(BASE.replace(old, new))
    with pytest.raises(SpecError) as caught:
        load(path)
    assert [p.field for p in caught.value.problems] == [field] and told in str(caught.value)


def test_words_and_leading_zeros_stay_what_they_are(tmp_path: Path) -> None:
    path = tmp_path / "campaign.yaml"
    path.write_text("\ufeff" + BASE.replace("owner: newcomer", "owner: off").replace("steps: 110", "steps: 0110"))
    spec = load(path).spec
    assert spec.owner == "off" and training_of(spec).steps == 110


def test_a_bomb_of_aliases_is_refused_at_once(tmp_path: Path) -> None:
    path = tmp_path / "campaign.yaml"
    rows = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    rows += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 30)]
    path.write_text("\n".join(rows))
    begun = time.process_time()
    with pytest.raises(SpecError, match="too large a document"):
        load(path)
    assert time.process_time() - begun < 5


def test_what_is_no_file_is_told_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, told in ((tmp_path / "pipe", "no regular file"), (tmp_path, "a folder"), (Path("/dev/zero"), "no reg")):
        with pytest.raises(UserError, match=told):
            load(path)
    with (tmp_path / "huge.yaml").open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(SpecError, match="larger than 64 KiB"):
        load(tmp_path / "huge.yaml")
    (tmp_path / "loop").symlink_to("loop")
    for path in (Path("x" * 5000), Path("a\0b"), tmp_path / "loop"):
        with pytest.raises(UserError):
            load(path)
