"""Whose the objects are that have a name which a campaign takes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from lightkube.core.exceptions import ApiError

from infra.standing.tenancy import held_names
from tests.unit.standing.conftest import Standing

LABEL = "bivouac.dev/campaign"


def refusal(code: int) -> ApiError:
    status = {"code": code, "message": "no", "reason": "no", "status": "Failure"}
    return ApiError(response=SimpleNamespace(json=lambda: status, status_code=code))  # type: ignore[arg-type]


class Namespace:
    """A client of a namespace with these objects, by kind and name; each has its labels. `broken`: a kind that the
    server cannot serve."""

    def __init__(self, objects: dict[tuple[str, str], dict[str, str] | None], broken: str = "") -> None:
        self.objects, self.broken = objects, broken

    def get(self, kind: Any, name: str) -> Any:
        key = kind.__name__, name
        if kind.__name__ == self.broken:
            raise refusal(500)
        if key not in self.objects:
            raise refusal(404)
        return SimpleNamespace(metadata=SimpleNamespace(name=name, labels=self.objects[key]))


def held(standing: Standing, client: Namespace, **changes: Any) -> set[tuple[str, str, str]]:
    spec = standing(changes).spec
    assert spec.cluster is not None
    names = held_names(client, spec, spec.cluster)  # type: ignore[arg-type]
    return {(row.kind, row.name, row.campaign) for row in names}


def test_an_empty_namespace_and_the_campaigns_own_objects_hold_nothing(standing: Standing) -> None:
    assert held(standing, Namespace({})) == set()
    own = {LABEL: standing().spec.campaign}
    assert held(standing, Namespace({("Deployment", "steward"): own, ("ConfigMap", "steward-holder"): own})) == set()


def test_each_name_that_a_campaign_writes_over_is_looked_up(standing: Standing) -> None:
    """The list is written out: a name that a stage takes from now on belongs into it."""
    names = {
        ("Deployment", "steward"), ("ConfigMap", "steward"), ("ConfigMap", "steward-holder"),
        ("ConfigMap", "preflight"), ("ConfigMap", "judge"), ("ConfigMap", "archive"), ("Job", "archive"),
    }  # fmt: skip
    foreign: dict[tuple[str, str], dict[str, str] | None] = {name: {LABEL: "other"} for name in names}
    foreign |= {("ConfigMap", "settings"): None, ("Job", "nightly"): {"app": "nightly"}}
    assert held(standing, Namespace(foreign)) == {(*name, "other") for name in names}


def test_an_object_without_labels_is_nobodys_campaign(standing: Standing) -> None:
    assert held(standing, Namespace({("Job", "archive"): None})) == {("Job", "archive", "")}


def test_the_claim_counts_only_where_the_campaign_makes_it(standing: Standing) -> None:
    made = {"claim": None, "storage_class": "lustre", "capacity_gib": 102400, "write_mb_s": 20000}
    claim = "PersistentVolumeClaim", f"bivouac-{standing().spec.campaign}"
    client = Namespace({claim: {}, ("PersistentVolumeClaim", "scratch"): {}})
    assert held(standing, client) == set()
    assert held(standing, client, **{"cluster.shared": made}) == {(*claim, "")}


def test_a_kind_that_could_not_be_seen_is_no_free_name(standing: Standing) -> None:
    with pytest.raises(ApiError):
        held(standing, Namespace({}, broken="Job"))
