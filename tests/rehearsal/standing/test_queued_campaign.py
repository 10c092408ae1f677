"""A campaign whose gangs wait in the queue of the real Kueue: `bivouac run` from spec to certificate, preempted once.

The campaign runs once; each test looks at one thing that it must have shown.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from infra.toolchain.ensure import ensure
from tests.campaign.rehearsal import until
from tests.rehearsal.standing.landlords_queue import QUEUE
from tests.worlds.standing.campaign import KILL_AFTER, NODES, STEPS, Tenant, borrowed_nodes

pytestmark = [pytest.mark.nightly]


@dataclass
class Preempted:
    tenant: Tenant
    step: int
    """The newest that the steward had seen when another team took the quota."""
    words: str
    """What the steward said while the other team's gang had the quota."""
    before: str
    """What the landlord's admin sees in its namespaces before the campaign, and after it."""
    after: str


def reason_with(tenant: Tenant, words: str) -> str:
    why = tenant.why()
    return why if words in why else ""


@pytest.fixture(scope="module")
def preempted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Preempted]:
    ensure(("kueue",))
    with borrowed_nodes(tmp_path_factory.mktemp("queue"), NODES, queue=QUEUE) as (tenant, as_admin):
        before = as_admin("lend")
        as_admin("preempt")
        run = tenant.start("run", str(tenant.path), "--json")
        until(lambda: "the gang waits for quota" in tenant.log.read_text() or run.poll() is not None, "it waits")
        assert run.poll() is None, tenant.log.read_text()
        as_admin("release")
        until(lambda: run.poll() is not None or tenant.step() >= KILL_AFTER, "the tenant's gang trains")
        step = tenant.step()
        as_admin("preempt")
        words = until(lambda: run.poll() is not None or reason_with(tenant, "took its quota"), "the steward says why")
        as_admin("release")
        assert run.wait() == 0, tenant.log.read_text()
        yield Preempted(tenant, step, str(words), before, as_admin("look"))


def test_preflight_and_steward_wait_in_the_queue_and_say_who_has_the_quota(preempted: Preempted) -> None:
    assert "health check: the gang waits for quota" in preempted.tenant.log.read_text()
    assert "another gang of its queue took its quota by priority: InClusterQueue" in preempted.words


def test_a_preempted_attempt_commits_first_and_goes_on_as_the_same_attempt(preempted: Preempted) -> None:
    (launched,) = preempted.tenant.of_kind("attempt.launched")
    assert launched["committed_step"] <= 0
    (restored,) = preempted.tenant.of_kind("checkpoint.restored")
    assert restored["step"] >= preempted.step, "what was trained before the preemption was not trained again"
    assert not preempted.tenant.of_kind("attempt.ended") or [
        row["failure"] for row in preempted.tenant.of_kind("attempt.ended")
    ] == [None]


def test_the_losses_equal_those_of_an_undisturbed_twin(preempted: Preempted, tmp_path: Path) -> None:
    twin, points = preempted.tenant.twin(tmp_path / "twin"), preempted.tenant.losses()
    assert set(twin) == set(range(1, STEPS + 1)) and max(row["step"] for row in points) == STEPS
    assert [row for row in points if row["loss"] != twin[row["step"]]] == []


def test_the_certificate_is_clean_and_nothing_of_others_is_changed(preempted: Preempted) -> None:
    (certified,) = preempted.tenant.of_kind("certified")
    assert certified["clean"] and preempted.after == preempted.before
