"""A whole rehearsal by an installed wheel, without a clone: its code is in the images and in the nodes."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.campaign.rehearsal import quick, rehearsing
from tests.root import ROOT
from tests.waiting import HUNG_S
from tests.wheel import Installed

pytestmark = pytest.mark.nightly
STEPS = 40


def test_an_installed_wheel_rehearses_without_a_clone(tmp_path: Path) -> None:
    installed = Installed(tmp_path, alone=True)
    with rehearsing(tmp_path, quick(STEPS, campaign="wheel")) as rehearsal:
        environment = rehearsal.environment | {"PATH": installed.environment["PATH"]}
        environment.pop("PYTHONPATH", None)
        command = [str(installed.bivouac), "run", str(rehearsal.path)]
        done = subprocess.run(
            command, env=environment, cwd=installed.folder, capture_output=True, text=True, timeout=HUNG_S
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert str(ROOT) not in done.stdout + done.stderr
        assert [one["data"]["clean"] for one in rehearsal.events() if one["kind"] == "certified"] == [True]
        assert rehearsal.report()["training"]["steps_done"] == STEPS
