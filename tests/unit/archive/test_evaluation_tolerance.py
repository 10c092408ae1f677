"""What the archiver says of a loss that is near the reference: archived, and told as such."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from infra.archive.manifest import EvaluationProof
from infra.errors import PermanentError
from tests.unit.archive.archive_story import archiver, commit, site_at


@pytest.fixture
def site(tmp_path: Path) -> Any:
    return site_at(tmp_path)


@pytest.mark.parametrize("recorded", [None, 2.5])
def test_a_loss_within_the_stated_tolerance_is_archived_and_told_as_such(
    site: Any, recorded: float | None, capsys: pytest.CaptureFixture[str]
) -> None:
    commit(site, 30, loss=recorded)
    with pytest.raises(PermanentError, match=r"2\.502 restored, 2\.5 .*, tolerance 0\.0005.*evaluation_tolerance"):
        archiver(site, restored=2.502, here=2.5, tolerance=0.0005).run()
    manifest = archiver(site, restored=2.502, here=2.5, tolerance=0.001).run()
    near = EvaluationProof.NEAR_EVALUATED if recorded is None else EvaluationProof.NEAR_RECORDED
    assert (manifest.proof, manifest.tolerance) == (near, 0.001) and near.endswith("within the stated tolerance")
    assert (manifest.reference_evaluation_loss, manifest.restored_evaluation_loss) == (2.5, 2.502)
    (told,) = [json.loads(line) for line in capsys.readouterr().out.splitlines() if '"evaluated"' in line][-1:]
    assert (told["proof"], told["tolerance"], told["loss"], told["reference"]) == (near, 0.001, 2.502, 2.5)


def test_an_equal_loss_needs_no_tolerance_and_claims_none(site: Any) -> None:
    commit(site, 30, loss=2.5)
    manifest = archiver(site, restored=2.5, tolerance=0.01).run()
    assert (manifest.proof, manifest.tolerance) == (EvaluationProof.RECORDED, None)
