"""A steward killed between recording and acting: its successor finishes what was begun, once.

Each test leaves record and world as the kill would have, in an emulated account with a node group of two, and looks at
what `reconcile` makes of them.
"""

from __future__ import annotations

import itertools
import json
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
from botocore.exceptions import ClientError
from lightkube import Client, KubeConfig
from lightkube.config.models import Cluster, User

from infra.cluster import attempts
from infra.cluster.gang import ATTEMPT_LABEL, CAMPAIGN_LABEL
from infra.cluster.kubernetes import JobSet
from infra.cluster.nodes import GpuNodes
from infra.record.payloads.attempts import AttemptEnded, AttemptLaunched, NodeQuarantined
from infra.record.store import CampaignStore
from infra.spec.names import NAMESPACE, Names
from infra.steward import returns as returns_module
from infra.steward.reconcile import reconcile
from infra.steward.returns import Returns
from tests.rehearsal.fake_kubernetes import FakeKubernetes
from tests.worlds.account_site import AccountSite, FakeMachine, fake_site, pitch_gang, until
from tests.worlds.campaign_site import node_of

numbers = itertools.count(1)
NAMES = Names("killed")


@dataclass
class Gang:
    """One campaign's node group and record, and the API server that its steward sees."""

    site: AccountSite
    api: FakeKubernetes
    store: CampaignStore
    client: Client
    nodes: GpuNodes
    campaign: str

    def machines(self) -> list[FakeMachine]:
        group = self.nodes.names.gpu_group
        return [one for one in self.site.alive() if one.settings["tags"].get("eks:nodegroup-name") == group]

    def instances(self) -> set[str]:
        return {str(machine.settings["instance_id"]) for machine in self.machines()}

    def take_over(self, committed: int = 20) -> Returns:
        returns = Returns(self.nodes.replace)
        reconcile(self.client, self.store, self.nodes, returns, JobSet, self.campaign, committed)
        return returns

    def jobset(self, attempt: int) -> str:
        name, labels = f"{self.campaign}-a{attempt}", {CAMPAIGN_LABEL: self.campaign, ATTEMPT_LABEL: str(attempt)}
        self.client.create(
            JobSet.from_dict({"metadata": {"name": name, "namespace": NAMESPACE, "labels": labels}, "spec": {}})
        )
        return name

    def kinds(self) -> list[str]:
        return [str(event.kind) for event in self.store.events()]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AccountSite]:
    with fake_site(tmp_path_factory.mktemp("killed")) as made:
        made.client("s3").create_bucket(Bucket="state")
        pitch_gang(made, NAMES)
        yield made


@pytest.fixture
def gang(site: AccountSite) -> Iterator[Gang]:
    """A record of its own for each test; the two nodes are the same until one is given back."""
    campaign = f"killed{next(numbers)}"
    api = FakeKubernetes(lambda: [node_of(machine) for machine in site.alive()])
    config = KubeConfig.from_one(
        cluster=Cluster(server=api.endpoint, insecure=True), user=User(), context_name="killed"
    )
    client = Client(config=config, namespace=NAMESPACE, field_manager="steward", trust_env=False)
    store = CampaignStore(site.client("s3"), "state", campaign, "first")
    made = Gang(site, api, store, client, GpuNodes(site, client, NAMES, lambda: None), campaign)  # type: ignore[arg-type]
    until(lambda: len(made.machines()) == 2 and all(machine.joined for machine in made.machines()))
    try:
        yield made
    finally:
        api.stop()


def test_a_node_recorded_as_quarantined_is_given_back_and_replaced(gang: Gang) -> None:
    """Killed right after the record: Kubernetes knows nothing, the instance runs and bills."""
    bad = gang.nodes.facts()[0]
    gang.store.append(NodeQuarantined(node=bad.name, instance=bad.instance, reason="died"))
    gang.take_over()
    until(lambda: bad.instance not in gang.instances() and len(gang.instances()) == 2)
    assert gang.nodes.desired() == 2


def test_a_node_quarantined_in_kubernetes_is_given_back_and_replaced(gang: Gang) -> None:
    """Killed between the label and the give-back."""
    bad = gang.nodes.facts()[1]
    gang.nodes.quarantine(bad.name, "dead")
    gang.take_over()
    until(lambda: bad.instance not in gang.instances() and len(gang.instances()) == 2)


def test_giving_back_twice_costs_one_node(gang: Gang) -> None:
    bad, good = gang.nodes.facts()
    gang.store.append(NodeQuarantined(node=bad.name, instance=bad.instance, reason="died"))
    gang.take_over()
    gang.take_over()
    until(lambda: bad.instance not in gang.instances() and len(gang.instances()) == 2)
    gang.take_over()
    assert good.instance in gang.instances() and len(gang.instances()) == 2


def test_an_attempt_launched_but_not_recorded_is_recorded_not_launched_again(gang: Gang) -> None:
    name = gang.jobset(1)
    gang.take_over(committed=-1)
    gang.take_over(committed=-1)
    (attempt,) = gang.store.state().attempts
    assert attempt.launched.jobset == name and attempt.launched.committed_step == -1
    assert attempts.jobs(gang.client, JobSet, gang.campaign) == {1: name}


def test_an_attempt_recorded_as_ended_holds_no_node(gang: Gang) -> None:
    """Killed between the record of an end and the removal of the job and its pods."""
    name = gang.jobset(1)
    labels = {CAMPAIGN_LABEL: gang.campaign, ATTEMPT_LABEL: "1"}
    pod = {"metadata": {"name": f"{name}-0", "namespace": NAMESPACE, "labels": labels}}
    gang.api.handle("POST", f"/api/v1/namespaces/{NAMESPACE}/pods", pod)
    gang.store.append(AttemptLaunched(attempt=1, jobset=name, committed_step=-1))
    gang.store.append(AttemptEnded(attempt=1, failure="node", detail="died", committed_at_end=20))
    gang.take_over()
    assert not attempts.jobs(gang.client, JobSet, gang.campaign)
    assert not attempts.pods(gang.client, labels)


def test_what_is_whole_is_left_alone(gang: Gang) -> None:
    name = gang.jobset(1)
    gang.store.append(AttemptLaunched(attempt=1, jobset=name, committed_step=-1))
    before, events = gang.instances(), gang.kinds()
    gang.take_over()
    assert gang.instances() == before and gang.kinds() == events
    assert attempts.jobs(gang.client, JobSet, gang.campaign) == {1: name}


@pytest.fixture
def refusing(site: AccountSite, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Has AWS refuse the next calls of an action, each once: what botocore repeats by itself is not in question."""
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    faults = f"{site.world.endpoint_url}/_site/faults"

    def refuse(action: str, code: str, message: str, times: int) -> None:
        rule = {"action": action, "code": code, "message": message, "status": 400, "times": times}
        urllib.request.urlopen(faults, data=json.dumps({"add": [rule]}).encode()).close()

    yield refuse
    urllib.request.urlopen(faults, data=b'{"clear": true}').close()


@pytest.mark.parametrize(
    "code", ["Throttling", "ResourceContention", "ScalingActivityInProgress", "AccessDenied", "ExpiredToken"]
)
def test_a_node_that_aws_does_not_take_back_is_told_and_given_back_as_soon_as_it_does(
    gang: Gang, refusing: Callable[..., None], monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    """The operation's own name holds "Terminate": every refusal was taken for an instance on its way out."""
    monkeypatch.setattr(returns_module, "AGAIN_S", 0.0)
    refusing("TerminateInstanceInAutoScalingGroup", code, "not now", 2)
    bad = gang.nodes.facts()[0]
    gang.store.append(NodeQuarantined(node=bad.name, instance=bad.instance, reason="died"))
    returns = gang.take_over()
    (told,) = returns.refusals()
    assert bad.instance in told and code in told and bad.instance in gang.instances()
    returns.retry()
    assert returns.refusals() and bad.instance in gang.instances(), "refused once more"
    returns.retry()
    assert not returns.refusals()
    until(lambda: bad.instance not in gang.instances() and len(gang.instances()) == 2)


@pytest.mark.parametrize(
    ("message", "gone"),
    [
        ("Instance Id not found - No managed instance found for instance ID: i-1", True),
        ("Instance i-1 is already in Terminating state", True),
        ("Currently, desiredSize equals minSize (1). Terminating instance without replacement will violate", False),
    ],
)
def test_only_an_instance_that_its_group_no_longer_holds_is_as_good_as_given_back(
    gang: Gang, refusing: Callable[..., None], message: str, gone: bool
) -> None:
    refusing("TerminateInstanceInAutoScalingGroup", "ValidationError", message, 1)
    if gone:
        assert gang.nodes.replace("i-1") is False
    else:
        with pytest.raises(ClientError, match="violate"):
            gang.nodes.replace("i-1")
