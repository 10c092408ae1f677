"""The way to an existing cluster, and what `check --online` makes of its answers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import TypeAdapter
from typer.testing import CliRunner

from infra.cli.main import app
from infra.cluster.standing.connection import connect, s3_client
from infra.errors import UserError
from infra.plan.checks import Finding
from infra.plan.facts import Facts
from infra.plan.standing_facts import DryRun, HeldName, SeenCluster, SeenNode
from infra.spec.standing import StandingCluster
from tests.unit.standing.conftest import SPEC, bent

Found = Callable[..., dict[str, Finding]]
CLUSTER: dict[str, Any] = yaml.safe_load(SPEC.read_text())["cluster"]
FIT = tuple(SeenNode(name=f"rack-{number}", obstacle="") for number in range(4))
WELL = SeenCluster(user="ada", nodes=FIT, dry_runs=(DryRun(what="the steward", refusal=""),))
LOGIN = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}


def cluster(**changes: Any) -> StandingCluster:
    return StandingCluster.model_validate(bent(CLUSTER, changes))


def seen(**changes: Any) -> Callable[[Facts], Facts]:
    return lambda facts: facts.model_copy(update={"cluster": WELL.model_copy(update=changes)})


def test_a_cluster_that_has_all_is_no_finding(found: Found) -> None:
    assert found(facts=seen()) == {}


@pytest.mark.parametrize(
    ("changes", "finding", "detail", "cure"),
    [
        ({"missing_rights": ("get secrets s3-login in namespace team-a",)}, "granted-rights cluster.namespace",
         "get secrets", "bivouac grant"),
        ({"nodes": (*FIT[:3], SeenNode(name="rack-9", obstacle="cordoned"))}, "fit-nodes cluster.nodes",
         "3 of 4; rack-9: cordoned", "fewer nodes"),
        ({"nodes": ()}, "fit-nodes cluster.nodes", "0 of 4, and no other has the labels", "labels"),
        ({"held_names": (HeldName(kind="Deployment", name="steward", campaign="other"),)},
         "free-names cluster.namespace", "Deployment steward of campaign other", "end campaign other first"),
        ({"held_names": (HeldName(kind="Job", name="archive", campaign=""),)},
         "free-names cluster.namespace", "Job archive, which has no campaign's label", "rename it"),
        ({"volume": "scratch is ReadWriteOnce and not ReadWriteMany"}, "shared-volume cluster.shared",
         "ReadWriteOnce", "ReadWriteMany"),
        ({"bucket": "Secret s3-login: not found"}, "readable-bucket cluster.s3", "not found", "Secret"),
        ({"claim": 'deviceclasses.resource.k8s.io "rdma" not found'}, "fabric-claim cluster.fabric",
         '"rdma" not found', "kubectl get deviceclasses"),
        ({"dry_runs": (DryRun(what="the gang", refusal="exceeded quota"),)}, "accepted-objects cluster",
         "exceeded quota", "JobSet"),
        ({"policy_gap": "a pod of account trainer with hostPID"}, "guarded-namespace cluster.fabric.ipc_lock",
         "with hostPID", "policy and binding"),
    ],
)  # fmt: skip
def test_an_answer_becomes_a_finding(
    changes: dict[str, Any], finding: str, detail: str, cure: str, found: Found
) -> None:
    (error,) = found(facts=seen(**changes)).items()
    assert error[0] == finding and detail in error[1].seen and cure in error[1].cure


def test_nodes_that_were_not_looked_up_are_no_finding(found: Found) -> None:
    """Unknown is not none: without the rights nothing was asked."""
    assert list(found(facts=seen(nodes=None, missing_rights=("list nodes in the cluster",)))) == [
        "granted-rights cluster.namespace"
    ]


def kubeconfig(path: Path, context: str, server: str = "https://127.0.0.1:1") -> Path:
    document = {
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [{"name": context, "context": {"cluster": "c", "user": "u", "namespace": "somewhere"}}],
    }
    path.write_text(yaml.safe_dump(document))
    return path


def test_the_context_is_found_in_any_file_of_kubeconfig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [tmp_path / "missing", kubeconfig(tmp_path / "a", "other"), kubeconfig(tmp_path / "b", "racks")]
    monkeypatch.setenv("KUBECONFIG", ":".join(map(str, files)))
    assert connect(cluster()).namespace == "team-a"
    with pytest.raises(UserError, match=r"nowhere; in .*: other, racks"):
        connect(cluster(context="nowhere"))


def test_a_kubeconfig_that_is_none_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken").write_text("contexts: {")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "broken"))
    with pytest.raises(UserError, match=r"cannot be read.*broken"):
        connect(cluster())


def test_a_cluster_that_does_not_answer_is_a_refusal_and_no_empty_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig(tmp_path / "a", "racks")))
    refused = CliRunner().invoke(app, ["check", str(SPEC), "--online"])
    assert isinstance(refused.exception, UserError) and "does not answer" in str(refused.exception)


def test_requests_to_s3_go_to_the_specs_own_service() -> None:
    client = s3_client(cluster().s3, LOGIN)
    assert client.meta.endpoint_url == "https://minio.example.org"
    url = client.generate_presigned_url("get_object", Params={"Bucket": "training", "Key": "k"})
    assert url.startswith("https://minio.example.org/training/k?")
    virtual = s3_client(cluster(**{"s3.path_style": False}).s3, LOGIN)
    assert virtual.generate_presigned_url("get_object", Params={"Bucket": "training", "Key": "k"}).startswith(
        "https://training.minio.example.org/k?"
    )


def test_a_ca_that_is_not_there_is_refused() -> None:
    with pytest.raises(UserError, match=r"no file cluster\.s3\.ca"):
        s3_client(cluster(**{"s3.ca": "/no/such.pem"}).s3, LOGIN)


@pytest.mark.parametrize("name", ["team_a", "Team", "-a", "a-", "a" * 64, ""])
def test_a_namespace_is_a_dns_label(name: str) -> None:
    with pytest.raises(ValueError, match="namespace"):
        TypeAdapter(StandingCluster).validate_python(bent(CLUSTER, {"namespace": name}))
