"""Sweep takes over where a teardown has ended, not where one was refused for what it would have lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from infra.campaign import teardown
from infra.cli.end.sweep import _refuse_alive
from infra.errors import NotProven
from infra.record.events import Stage
from infra.record.payloads.attempts import AttemptLaunched
from infra.record.payloads.stages import StageFailed, StageStarted
from tests.worlds.campaign_site import camp


@pytest.mark.nightly
def test_a_refused_teardown_opens_no_way_for_sweep_and_one_that_may_abandon_does(
    tmp_path: Path,
) -> None:
    with camp(tmp_path) as held, held.opened() as context:
        context.store.append(AttemptLaunched(attempt=1, jobset="a-1", committed_step=40))
        context.store.append(StageStarted(stage=Stage.TEARDOWN))
        with pytest.raises(NotProven, match="not archived"):
            teardown.run(context)
        context.store.append(StageFailed(stage=Stage.TEARDOWN, error="not archived"))
        with pytest.raises(NotProven, match="not archived"):
            _refuse_alive(context)
        teardown.run(context, abandon=True)
        _refuse_alive(context)
        context.store.append(AttemptLaunched(attempt=2, jobset="a-2", committed_step=40))
        with pytest.raises(NotProven, match="not archived"):
            _refuse_alive(context)
