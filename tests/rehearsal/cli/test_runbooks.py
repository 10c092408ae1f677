"""Each command that a runbook names is run, of a campaign in the state in which its alert fires.

In an emulated account: a campaign whose gang of two runs, or one that is held. `down` and `relaunch` are run as far as
their question, which nobody answers here; what follows it has tests of its own.
"""

from __future__ import annotations

import io
import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml

from infra.cli.look import inside
from infra.cli.main import app
from infra.cli.run import relaunch
from infra.cluster.execution import STDOUT, Containers
from infra.cluster.gang import ATTEMPT_LABEL, CAMPAIGN_LABEL, COMPLETION_INDEX
from infra.errors import UserError
from infra.monitoring.alerts import alerts
from infra.record.events import Stage
from infra.record.payloads.attempts import AttemptLaunched, AttemptRunning
from infra.record.payloads.stages import StageFinished, StageStarted
from infra.record.payloads.training import Held
from infra.record.pod_logs import UNTIL, Position, piece
from infra.record.store import LIVE
from infra.spec.names import NAMESPACE, buckets
from tests.rehearsal.fake_kubernetes import FakeKubernetes
from tests.worlds.campaign_site import CampaignSite, camp

FIGURES = {"at": datetime.now(UTC).isoformat(), "attempt": 1, "in_flight": True, "step": 30, "steps": 100, "loss": 2.5,
           "committed_step": 20, "spent_usd": 1.5, "usd_per_hour": 2.0, "why": "training"}  # fmt: skip
ASKS = {"down": "nobody can answer", "relaunch": "nothing was relaunched"}
"""Command -> what it says once nobody has answered its question."""
OF_HELD = ("Held", "AttemptFailed")
"""Alerts whose runbook goes on from a hold; beside all others the gang still runs."""
COMMAND = re.compile(r"`(bivouac [^`]+)`")


def commands_of(name: str) -> list[str]:
    """The commands of a runbook, in its own words."""
    rule = alerts()[name]
    return list(dict.fromkeys([*rule.look, *COMMAND.findall(f"{rule.means} {rule.act} {rule.nothing}")]))


COMMANDS = sorted(
    {(command, name in OF_HELD) for name in alerts() for command in commands_of(name)}, key=lambda row: row[::-1]
)
"""With whether the campaign is held; those come last."""


class FakeExecution:
    """A command in a container, which prints a line and ends well."""

    def write(self, data: bytes) -> None: ...

    def end_input(self) -> None: ...

    def run(self, take: Any) -> int:
        take(STDOUT, b"the command's own line\n")
        return 0


@pytest.fixture(scope="module")
def account(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CampaignSite]:
    folder, api = tmp_path_factory.mktemp("runbooks"), FakeKubernetes(list)

    @contextmanager
    def started(self: Containers, pod: str, container: str, words: Any, *, terminal: bool = False) -> Iterator[Any]:
        assert pod == "drilled-a1-gang-0-0" and not terminal
        yield FakeExecution()

    with camp(folder) as site, pytest.MonkeyPatch.context() as patch:
        patch.setenv("BIVOUAC_SITE", "in-process")
        patch.setattr(inside, "streams_from_outside", lambda *_: httpx2.Client(base_url=api.endpoint, trust_env=False))
        patch.setattr(Containers, "started", started)
        patch.setattr(relaunch.target, "spends", lambda spec: True)
        run_gang(site, api)
        yield site
    api.stop()


def run_gang(site: CampaignSite, api: FakeKubernetes) -> None:
    """Make the record and the pods of a gang of two that trains, with what they and the steward have printed."""
    for index in range(2):
        name = f"drilled-a1-gang-0-{index}"
        labels = {CAMPAIGN_LABEL: "drilled", ATTEMPT_LABEL: "1"}
        note = {COMPLETION_INDEX: str(index)}
        metadata = {"name": name, "namespace": NAMESPACE, "labels": labels, "annotations": note}
        api.objects["v1", "pods", NAMESPACE, name] = {
            "metadata": metadata, "spec": {"containers": [{"name": "trainer"}]}, "status": {"phase": "Running"}
        }  # fmt: skip
    with site.opened() as context:
        store = context.store
        for stage in (Stage.PROVISION, Stage.PREFLIGHT, Stage.LAUNCH):
            store.append(StageStarted(stage=stage))
            store.append(StageFinished(stage=stage, seconds=1.0))
        store.append(StageStarted(stage=Stage.SUPERVISE))
        store.append(AttemptLaunched(attempt=1, jobset="drilled-a1", committed_step=-1))
        store.append(AttemptRunning(attempt=1, nodes=("n0", "n1"), node_ranks=(0, 1)))
        store.put_json(LIVE, FIGURES)
        for pod in ("drilled-a1-gang-0-0", "steward-x"):
            until = {UNTIL: Position(1, 1).stored()}
            assert store.put_if_absent(f"{store.prefix}/{piece(pod, 0)}", b"step 30\n", until)
    site.client("s3").create_bucket(Bucket=buckets(site.spec.account, site.world.region).archive)


@pytest.fixture(scope="module")
def held(account: CampaignSite) -> CampaignSite:
    """The same, after a failure that a person is to mend. It comes last: no event is taken back."""
    with account.opened() as context:
        context.store.append(Held(attempt=1, why="a user's error"))
    return account


@pytest.mark.parametrize(("command", "is_held"), COMMANDS, ids=[f"{command}, {held}" for command, held in COMMANDS])
def test_a_runbook_s_command_runs(
    command: str,
    is_held: bool,
    account: CampaignSite,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if is_held:
        request.getfixturevalue("held")
    spec = tmp_path / "spec.yaml"
    document = account.spec.model_dump(mode="json", exclude_unset=True)
    document["money"]["budget_usd"] = float(account.spec.money.budget_usd) + 1
    spec.write_text(yaml.safe_dump(document))
    places = {"NAME": "drilled", "RANK": "0", "FILE": str(spec)}
    program, *words = [places.get(word, word) for word in shlex.split(command)]
    assert program == "bivouac"
    monkeypatch.setattr("sys.stdin", io.StringIO())
    if words[0] in ASKS:
        with pytest.raises(UserError, match=ASKS[words[0]]):
            app(words, standalone_mode=False)
    else:
        assert not app(words, standalone_mode=False)
