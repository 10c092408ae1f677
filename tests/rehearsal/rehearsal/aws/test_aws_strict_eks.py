"""EKS takes its time with an update, takes no second one meanwhile, and lists in pages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from infra.aws.account import every
from infra.rehearsal.aws.strict.settings import SOFT, STRICT
from infra.spec.names import Names
from tests.rehearsal.aws_account import code_of
from tests.worlds.account_site import AccountSite, fake_site, pitch_gang, until

pytestmark = pytest.mark.usefixtures("answers_as_modelled")

NAMES = Names("updated")
CLUSTER, GROUP = NAMES.cluster, NAMES.gpu_group


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AccountSite]:
    """Strict once the cluster stands: what making it meets is tested elsewhere."""
    with fake_site(tmp_path_factory.mktemp("strict-eks")) as made:
        pitch_gang(made, NAMES)
        made.client("eks").get_waiter("nodegroup_active").wait(
            clusterName=CLUSTER, nodegroupName=GROUP, WaiterConfig={"Delay": 0, "MaxAttempts": 400}
        )
        made.world.strictness = STRICT
        yield made


@pytest.fixture
def held(site: AccountSite, monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], None]]:
    """What would happen later, by hand."""
    functions = list[Callable[[], None]]()
    monkeypatch.setattr(site.world, "schedule_once", lambda delay_s, function: functions.append(function))
    return functions


def test_a_clusters_update_takes_a_while_and_admits_no_second(
    site: AccountSite, held: list[Callable[[], None]]
) -> None:
    eks = site.client("eks")

    def status() -> str:
        return str(eks.describe_cluster(name=CLUSTER)["cluster"]["status"])

    made = eks.update_cluster_config(name=CLUSTER, deletionProtection=True)["update"]
    assert (made["status"], status()) == ("InProgress", "UPDATING")
    assert not eks.describe_cluster(name=CLUSTER)["cluster"]["deletionProtection"], "not yet"
    again = {"name": CLUSTER, "deletionProtection": False}
    assert code_of(lambda: eks.update_cluster_config(**again)) == "ResourceInUseException"
    held.pop()()
    update = eks.describe_update(name=CLUSTER, updateId=made["id"])["update"]
    assert (update["status"], status()) == ("Successful", "ACTIVE")
    assert eks.describe_cluster(name=CLUSTER)["cluster"]["deletionProtection"]
    eks.update_cluster_config(**again)
    held.pop()()


def test_a_node_groups_update_is_in_progress_until_it_is_active_again(site: AccountSite) -> None:
    eks, key = site.client("eks"), {"clusterName": CLUSTER, "nodegroupName": GROUP}
    made = eks.update_nodegroup_config(**key, labels={"addOrUpdateLabels": {"a": "b"}})["update"]
    assert made["status"] == "InProgress"

    def state() -> tuple[Any, Any]:
        update = eks.describe_update(name=CLUSTER, nodegroupName=GROUP, updateId=made["id"])["update"]["status"]
        return update, eks.describe_nodegroup(**key)["nodegroup"]["status"]

    until(lambda: state() == ("Successful", "ACTIVE"))


def test_an_add_on_takes_one_update_at_a_time(site: AccountSite) -> None:
    eks, key = site.client("eks"), {"clusterName": CLUSTER, "addonName": "kube-proxy"}
    status: Callable[[], Any] = lambda: eks.describe_addon(**key)["addon"]["status"]  # noqa: E731
    eks.create_addon(**key)
    until(lambda: status() == "ACTIVE")
    change = {**key, "configurationValues": '{"a": 1}'}
    update = eks.update_addon(**change)["update"]
    assert update["status"] == "InProgress"
    done = {"name": CLUSTER, "addonName": "kube-proxy", "updateId": update["id"]}
    until(lambda: eks.describe_update(**done)["update"]["status"] == "Successful")
    document = site.world.clusters[CLUSTER].addons["kube-proxy"]
    # Seen by the service alone: nothing settles what is DELETING.
    document["status"] = "DELETING"
    assert code_of(lambda: eks.update_addon(**change)) == "ResourceInUseException"
    document["status"] = "ACTIVE"


def test_clusters_and_what_stands_on_them_are_listed_in_pages(site: AccountSite) -> None:
    eks, roles = site.client("eks"), site.client("iam")
    trust = (
        '{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Principal":{"AWS":"*"},"Action":"sts:AssumeRole"}]}'
    )
    for number in range(3):
        site.world.strictness = SOFT
        role = roles.create_role(RoleName=f"listed-{number}", AssumeRolePolicyDocument=trust)["Role"]["Arn"]
        eks.create_access_entry(clusterName=CLUSTER, principalArn=role)
    site.world.strictness = STRICT
    found = list(every(eks, "list_access_entries", "accessEntries", clusterName=CLUSTER))
    assert len(eks.list_access_entries(clusterName=CLUSTER)["accessEntries"]) < len(found) == len(set(found))
    assert {f"listed-{number}" for number in range(3)} <= {one.rpartition("/")[2] for one in found}
