"""Data that the cluster prepares, on the real engine in the emulated account. The test is the kubelet; its pods run the
product's program, with the rights of their role and no others."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from infra.campaign import provision, teardown
from infra.data import dataset
from infra.errors import PermanentError, UserError
from infra.inventory import certify
from infra.record.events import Stage
from infra.record.payloads.outputs import BakeOutput, ProvisionOutput
from infra.rehearsal.site import surroundings
from infra.session.context import Context
from infra.spec.campaign import Spec
from infra.spec.names import DATA_POOL, buckets
from tests.rehearsal.aws_account import code_of
from tests.rehearsal.rehearsal.aws.aws_cluster import assume
from tests.worlds.campaign_site import CampaignSite, camp
from trainer.builtin.data.prepare import documents, inputs
from trainer.builtin.data.share import share
from trainer.contract.preparing import Preparing
from trainer.errors import TrainerError

pytestmark = pytest.mark.nightly
NODES = 3
IMAGE = "123456789012.dkr.ecr.us-east-1.amazonaws.com/bivouac/trainer@sha256:" + "a" * 64
JOBS = ("batch/v1", "jobs", "campaign")


def text(folder: Path) -> Path:
    for name in ("a", "b", "deep/c"):
        rows = [{"text": f"document {n} of {name}, {n * n % 97} words " * (1 + n % 5)} for n in range(120)]
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.fixture(scope="module")
def camped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CampaignSite]:
    folder = text(tmp_path_factory.mktemp("text"))
    data = {
        "source": "s3://somebodys-text/web",
        "pattern": "**/*.jsonl*",
        "prepare": {"where": "cluster", "nodes": NODES},
        "rehearsal": {"text": str(folder)},
    }
    model = {"layers": 2, "width": 64, "heads": 4, "context": 64, "vocabulary": 320}
    with camp(tmp_path_factory.mktemp("camp"), data=data) as one:
        document = one.spec.model_dump(mode="json")
        document["training"]["model"] |= model
        one.spec = Spec.model_validate(document)
        surroundings.give_mounts(one.spec)
        yield one


@pytest.fixture(scope="module")
def context(camped: CampaignSite) -> Iterator[Context]:
    with camped.opened() as one:
        one.outputs[Stage.BAKE] = BakeOutput(image=IMAGE)
        yield one


class Kubelets:
    """Run the pods of the Job as Kubernetes and its nodes do; `lost` ones never say a word."""

    def __init__(self, camped: CampaignSite, folder: Path, lost: tuple[int, ...] = ()) -> None:
        self.camped, self.folder, self.lost = camped, folder, lost
        self.jobs, self.threads, self.errors = list[dict[str, Any]](), list[threading.Thread](), list[str]()
        self.seen: dict[str, Any] = {}
        """How the groups were when the Job came."""

    def created(self, document: dict[str, Any]) -> None:
        if document.get("kind") != "Job":
            return
        self.jobs.append(document)
        eks, cluster = self.camped.client("eks"), self.camped.names.cluster
        for name in eks.list_nodegroups(clusterName=cluster)["nodegroups"]:
            group = eks.describe_nodegroup(clusterName=cluster, nodegroupName=name)["nodegroup"]
            self.seen[name] = group["scalingConfig"]["desiredSize"]
        config = self.camped.plane().api.objects["v1", "configmaps", "campaign", document["metadata"]["name"]]
        work = Preparing.model_validate_json(config["data"]["prepare.json"])
        for index in range(document["spec"]["completions"]):
            if index not in self.lost:
                thread = threading.Thread(target=self._pod, args=(document, work, index), daemon=True)
                thread.start()
                self.threads.append(thread)

    def _pod(self, document: dict[str, Any], work: Preparing, index: int) -> None:
        try:
            share(work, index, self.folder / str(index), self.as_role(), cores=1)
        except TrainerError as error:
            self.errors.append(str(error))
            name = f"{document['metadata']['name']}-{index}"
            ended = {"exitCode": int(error.exit_code), "message": str(error), "finishedAt": "2026-11-23T17:00:00Z"}
            one = {"name": "data", "image": "", "imageID": "", "ready": False, "restartCount": 0}
            status = {"phase": "Failed", "containerStatuses": [{**one, "state": {"terminated": ended}}]}
            template = document["spec"]["template"]
            metadata = {"name": name, "namespace": "campaign", "labels": template["metadata"]["labels"]}
            pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"], "status": status}
            objects = self.camped.plane().api.objects
            objects["v1", "pods", "campaign", name] = pod
            failed = {"conditions": [{"type": "Failed", "status": "True"}], "failed": 1}
            document["status"] = failed
            objects[(*JOBS, document["metadata"]["name"])] = document

    def as_role(self) -> Any:
        """S3 as a pod has it that asks the Pod Identity agent."""
        eks, cluster = self.camped.client("eks"), self.camped.names.cluster
        (found,) = eks.list_pod_identity_associations(clusterName=cluster, namespace="campaign", serviceAccount="data")[
            "associations"
        ]
        asked = {"clusterName": cluster, "associationId": found["associationId"]}
        role = eks.describe_pod_identity_association(**asked)["association"]["roleArn"]
        s3: Any = assume(self.camped.site, role, "pod").client("s3", endpoint_url=self.camped.world.endpoint_url)
        return s3


@pytest.fixture
def kubelets(camped: CampaignSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kubelets]:
    made, factory = Kubelets(camped, tmp_path), camped.world.control_plane_factory
    monkeypatch.setattr(documents, "UNIT_BYTES", 4000)
    monkeypatch.setattr(inputs, "_s3", made.as_role)

    def plane(settings: dict[str, Any]) -> Any:
        one: Any = factory(settings)
        one.api.created = made.created
        return one

    camped.world.control_plane_factory = plane
    for one in camped.site.planes:
        one.api.created = made.created  # type: ignore[attr-defined]
    yield made
    camped.world.control_plane_factory = factory
    for thread in made.threads:
        thread.join()


def groups(camped: CampaignSite) -> set[str]:
    return set(camped.client("eks").list_nodegroups(clusterName=camped.names.cluster)["nodegroups"])


def links(camped: CampaignSite) -> list[str]:
    associations = camped.client("fsx").describe_data_repository_associations()["Associations"]
    return [one["DataRepositoryPath"] for one in associations]


def of_kind(context: Context, *kinds: str) -> list[dict[str, Any]]:
    return [event.data for event in context.store.events() if event.kind in kinds]


def test_a_damaged_file_ends_it_with_its_name_and_line_and_its_nodes_go(
    camped: CampaignSite, context: Context, kubelets: Kubelets
) -> None:
    s3, whole = camped.client("s3"), gzip.compress(b'{"text": "one of many lines"}\n' * 4000)
    s3.put_object(Bucket="somebodys-text", Key="web/cut.jsonl.gz", Body=whole[: len(whole) // 2])
    with pytest.raises(UserError, match=r"cut\.jsonl\.gz, line \d+") as told:
        provision.run(context)
    assert "a data file cannot be read" in told.value.what
    group = camped.client("eks").describe_nodegroup(
        clusterName=camped.names.cluster, nodegroupName=camped.names.of("node group", DATA_POOL)
    )["nodegroup"]
    assert group["scalingConfig"]["desiredSize"] == 0 and links(camped) == []
    (begun, ended) = of_kind(context, "data.begun", "data.ended")
    assert begun["nodes"] == NODES and begun["files"] == 4 and Decimal(begun["usd_per_hour"]) > 0
    assert "cut.jsonl.gz" in ended["error"]
    s3.delete_object(Bucket="somebodys-text", Key="web/cut.jsonl.gz")


def test_the_cluster_prepares_the_drivers_bytes_before_a_gpu_node_is_asked_for(
    camped: CampaignSite, context: Context, kubelets: Kubelets
) -> None:
    kubelets.lost = (2,)
    told, names = provision.run(context), camped.names
    context.outputs[Stage.PROVISION] = told
    assert kubelets.errors == [] and len(kubelets.jobs) == 1
    of_data = names.of("node group", DATA_POOL)
    assert kubelets.seen == {names.gpu_group: 0, names.system_group: 1, of_data: NODES}
    assert groups(camped) == {names.gpu_group, names.system_group}, "the data nodes have gone"
    bucket = buckets(camped.spec.account, camped.spec.region).data
    assert links(camped) == [f"s3://{bucket}/datasets/{told.data_digest}/"]
    here = dataset.prepare(camped.spec, lambda words: None)
    assert told.data_digest == here.digest and told.train_tokens == here.manifest.train_tokens
    s3 = camped.client("s3")
    for shard in (*here.manifest.train, *here.manifest.validation):
        for name in (shard.file, shard.index):
            key = f"datasets/{here.digest}/{name}"
            body = s3.get_object(Bucket=bucket, Key=key)["Body"].read()
            assert body == (here.folder / name).read_bytes(), name
    assert ("batch/v1", "jobs", "campaign", kubelets.jobs[0]["metadata"]["name"]) not in camped.plane().api.objects
    assert of_kind(context, "data.ended")[-1] == {"digest": here.digest}
    schedules = [schedule["Name"] for schedule in camped.client("scheduler").list_schedules()["Schedules"]]
    assert names.schedule in schedules and names.of("schedule", "data") not in schedules


def test_a_second_run_finds_the_result_and_asks_for_no_node(
    camped: CampaignSite, context: Context, kubelets: Kubelets
) -> None:
    told = provision.run(context)
    assert told.data_digest == ProvisionOutput.of(context.outputs).data_digest and kubelets.jobs == []
    assert camped.names.of("node group", DATA_POOL) not in groups(camped)


def test_data_that_are_not_whole_are_found_before_anything_else_is_bought(
    camped: CampaignSite, context: Context, kubelets: Kubelets
) -> None:
    digest, bucket = ProvisionOutput.of(context.outputs).data_digest, buckets(camped.spec.account, camped.spec.region)
    s3, key = camped.client("s3"), f"datasets/{digest}/train-00000.bin"
    whole = s3.get_object(Bucket=bucket.data, Key=key)["Body"].read()
    s3.put_object(Bucket=bucket.data, Key=key, Body=b"x" + whole[1:], ChecksumAlgorithm="SHA256")
    with pytest.raises(PermanentError, match=r"not whole.*train-00000\.bin: SHA-256"):
        provision.run(context)
    s3.put_object(Bucket=bucket.data, Key=key, Body=whole, ChecksumAlgorithm="SHA256")


def test_the_pods_may_read_the_source_and_write_nothing_but_what_is_prepared(
    camped: CampaignSite, context: Context, kubelets: Kubelets
) -> None:
    bucket, s3 = buckets(camped.spec.account, camped.spec.region), kubelets.as_role()
    assert s3.get_object(Bucket="somebodys-text", Key="web/a.jsonl")["ContentLength"] > 0
    for refused in (
        lambda: s3.put_object(Bucket="somebodys-text", Key="web/a.jsonl", Body=b""),
        lambda: s3.put_object(Bucket=bucket.state, Key="campaigns/x", Body=b""),
        lambda: s3.get_object(Bucket=bucket.state, Key="campaigns/x"),
        lambda: s3.list_objects_v2(Bucket="somebodys-text", Prefix="private/"),
        lambda: s3.delete_object(Bucket=bucket.data, Key="datasets/x"),
    ):
        assert code_of(refused) == "AccessDenied"


def test_text_of_a_bucket_whose_owner_has_not_opted_in_is_refused_before_all_else(
    camped: CampaignSite, context: Context, kubelets: Kubelets
) -> None:
    admin, pod, where = camped.client("s3"), kubelets.as_role(), {"Bucket": "somebodys-text"}
    reads = lambda: pod.get_object(**where, Key="web/a.jsonl")  # noqa: E731
    for seen, on, tag in (("ABAC is off", False, "bivouac:text"), ("no tag bivouac:text", True, "team")):
        # Tags by PutBucketTagging, which S3 takes only with ABAC off.
        admin.put_bucket_abac(**where, AbacStatus={"Status": "Disabled"})
        admin.put_bucket_tagging(**where, Tagging={"TagSet": [{"Key": tag, "Value": "true"}]})
        admin.put_bucket_abac(**where, AbacStatus={"Status": "Enabled" if on else "Disabled"})
        assert code_of(reads) == "AccessDenied", seen
        with pytest.raises(UserError, match=f"{seen}.*put-bucket-abac --bucket somebodys-text") as refused:
            provision.run(context)
        assert "Key=bivouac:text,Value=true" in str(refused.value.cure) and kubelets.jobs == []
    admin.put_bucket_abac(**where, AbacStatus={"Status": "Disabled"})
    admin.delete_bucket_tagging(**where)
    admin.put_bucket_abac(**where, AbacStatus={"Status": "Enabled"})
    with pytest.raises(UserError, match="it has no tag bivouac:text"):
        provision.run(context)


def test_nothing_of_it_is_left_after_the_teardown(camped: CampaignSite, context: Context) -> None:
    teardown.run(context, abandon=True)
    assert certify.run(context).clean
