"""A steward in the test's process: emulated AWS, an API server whose gangs end as told, and a fuse that kills it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import cached_property
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml
from lightkube import Client, KubeConfig
from lightkube.config.models import Cluster, User

from infra.aws.account import Account
from infra.cluster.kubernetes import followers_of
from infra.cluster.pod_logs import PodLogs
from infra.cluster.steward_config import STEWARD_LEASE, StewardConfig
from infra.plan.job_config import train_config
from infra.plan.plan import Plan, make_plan
from infra.plan.survey import survey
from infra.record.events import CampaignState, Event
from infra.record.payloads import Payload
from infra.record.store import CampaignStore
from infra.rehearsal.kubernetes.pki import Authority
from infra.spec.campaign import Spec
from infra.spec.names import NAMESPACE, Names, buckets
from infra.steward.seeing import committed
from infra.steward.steward import Steward
from tests.rehearsal.aws_account import signed_in
from tests.rehearsal.fake_kubernetes import FakeKubernetes
from tests.root import ROOT
from tests.worlds.account_site import AccountSite, FakeControlPlane, fake_site, pitch_gang, until
from tests.worlds.campaign_site import node_of
from trainer.contract import COMMITTED_NAME

ARCHIVED = {"manifest": "s3://archive/m", "step": 20, "objects": 1, "bytes": 1}
GANG_OF = 2


class Killed(BaseException):
    """SIGKILL, as the process itself would not see it: nothing may catch it."""


@dataclass
class Fuse:
    """Burns with every write; once it is through, nothing is written any more."""

    left: int | None = None
    writes: list[str] = field(default_factory=list)

    def burn(self, what: str) -> None:
        if self.left is not None and len(self.writes) >= self.left:
            raise Killed(what)
        self.writes.append(what)


class FusedTransport(httpx2.HTTPTransport):
    def __init__(self, fuse: Fuse) -> None:
        super().__init__(verify=False, trust_env=False)  # the fake API server speaks plain HTTP
        self._fuse = fuse

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        if request.method != "GET":
            self._fuse.burn(f"{request.method} {request.url.path}")
        return super().handle_request(request)


class FusedStore(CampaignStore):
    """The figures for onlookers are no step of the steward's: their number depends on time."""

    fuse = Fuse()

    def append(self, payload: Payload) -> Event:
        self.fuse.burn(f"record {payload.kind}")
        return super().append(payload)


@dataclass
class StewardSite:
    """One campaign whose gangs end with the exit codes of `ends`, one for each attempt, the last for all later ones."""

    site: AccountSite
    api: FakeKubernetes
    shared: Path
    spec: Spec
    ends: tuple[int, ...] = (0,)
    stewards: int = 0

    @cached_property
    def plan(self) -> Plan:
        return make_plan(self.spec, survey(self.spec))

    @cached_property
    def s3(self) -> Any:
        """One for all records of a story: making a client takes as long as all that a story asks of it."""
        return self.site.client("s3")

    def config(self, **changes: Any) -> StewardConfig:
        plan, held = self.plan, buckets(self.spec.account, self.spec.region)
        return StewardConfig.model_validate(
            {
                "spec": self.spec, "train": train_config(self.spec, plan, "d" * 64), "image": "i@sha256:0",
                "code_digest": "c", "image_manifest": "images/c.json", "ranks_per_node": 1, "accelerators": 0,
                "efa_interfaces": 0, "grace_seconds": 1, "deadline": datetime.now(UTC) + timedelta(hours=4),
                "base_usd_per_hour": Decimal(1), "node_usd_per_hour": Decimal(1), "archive": timedelta(seconds=1),
                "interval_and_archive": timedelta(seconds=2), "state_bucket": held.state,
                "archive_bucket": held.archive, "poll": timedelta(milliseconds=20), **changes,
            }
        )  # fmt: skip

    def store(self, writer: str = "test") -> FusedStore:
        held = buckets(self.spec.account, self.spec.region)
        return FusedStore(self.s3, held.state, self.spec.campaign, writer)

    def state(self) -> CampaignState:
        return self.store().state()

    def kinds(self) -> list[str]:
        return [str(event.kind) for event in self.store().events()]

    def client(self, fuse: Fuse) -> Client:
        config = KubeConfig.from_one(
            cluster=Cluster(server=self.api.endpoint, insecure=True), user=User(), context_name="camp"
        )
        return Client(config=config, namespace=NAMESPACE, field_manager="steward", transport=FusedTransport(fuse))

    def steward(self, fuse: Fuse, **changes: Any) -> bool:
        """One steward to its end, or to the end of its fuse; whether it lived."""
        self.stewards += 1
        store = self.store(f"steward-{self.stewards}")
        store.fuse = fuse
        account = Account(self.spec.region)
        # S3 is the record and its figures; what the steward asks of AWS beside it is nodes.
        account.client("eks").meta.events.register("before-send.eks.UpdateNodegroupConfig", _burning(fuse, "desired"))
        account.client("autoscaling").meta.events.register(
            "before-send.auto-scaling.TerminateInstanceInAutoScalingGroup", _burning(fuse, "give back")
        )
        lease = store.lease(STEWARD_LEASE, timedelta(seconds=60))
        lease.acquire()
        try:
            client = self.client(fuse)
            steward = Steward(self.config(**changes), account, client, PodLogs(followers_of(client)), store, lease)
            try:
                steward.run()
            finally:
                steward.logs._stop.set()
        except Killed:
            return False
        finally:
            lease._stop.set()
        return True

    def created(self, document: dict[str, Any]) -> None:
        """What the controllers make of a new object, at once."""
        metadata, labels = document["metadata"], document["metadata"].get("labels") or {}
        if document.get("kind") == "Job":
            self.pod("archive-0", labels, 0, 0, json.dumps(ARCHIVED))
            document["status"] = {"succeeded": 1}
        if document.get("kind") == "JobSet":
            attempt = int(labels["bivouac.dev/attempt"])
            code = self.ends[min(attempt, len(self.ends)) - 1]
            folder = self.shared / self.spec.campaign / "step-00000020"
            folder.mkdir(parents=True, exist_ok=True)
            (folder / COMMITTED_NAME).write_text("{}")
            for index, machine in enumerate(self.site.alive()[:GANG_OF]):
                self.pod(f"{metadata['name']}-{index}", labels, index, code, "", machine.settings["hostname"])

    def pod(
        self, name: str, labels: dict[str, str], index: int, code: int, message: str, node: str | None = None
    ) -> None:
        """One that has ended so, on this node."""
        ended = {"name": "trainer", "image": "", "imageID": "", "ready": False, "restartCount": 0,
                 "state": {"terminated": {"exitCode": code, "message": message}}}  # fmt: skip
        note = {"batch.kubernetes.io/job-completion-index": str(index)}
        self.api.objects["v1", "pods", NAMESPACE, name] = {
            "metadata": {"name": name, "namespace": NAMESPACE, "labels": labels, "annotations": note},
            "spec": {"containers": [], **({"nodeName": node} if node else {})},
            "status": {"phase": "Succeeded" if code == 0 else "Failed", "containerStatuses": [ended]},
        }

    def group_of(self, count: int) -> None:
        """As preflight left it: so many nodes, all joined."""
        from infra.cluster.nodes import GpuNodes
        from infra.spec.names import Names

        nodes = GpuNodes(Account(self.spec.region), self.client(Fuse()), Names(self.spec.campaign), lambda: None)
        nodes.set_desired(count)
        until(lambda: len([one for one in self.site.alive() if one.joined]) == count)

    def forget(self) -> None:
        """A record, an API server and nodes as they are before the first attempt."""
        store = self.store()
        for key in store.keys(""):
            store.s3.delete_object(Bucket=store.bucket, Key=key)
        self.api.objects.clear()
        self.group_of(GANG_OF)


def _burning(fuse: Fuse, what: str) -> Callable[..., None]:
    return lambda **_: fuse.burn(what)


@contextmanager
def lone_camp(folders: pytest.TempPathFactory, **changes: Any) -> Iterator[StewardSite]:
    """In an account of its own, this process signed in there."""
    shared = folders.mktemp("shared")
    with fake_site(folders.mktemp("site")) as site, pytest.MonkeyPatch.context() as patch:
        signed_in(patch, site.world)
        patch.setattr(committed, "SHARED_CHECKPOINTS", str(shared))
        with _steward_camp(site, shared, **changes) as camp:
            yield camp


@contextmanager
def _steward_camp(site: AccountSite, shared: Path, **changes: Any) -> Iterator[StewardSite]:
    api = FakeKubernetes(lambda: [node_of(machine) for machine in site.alive()])
    document = yaml.safe_load((ROOT / "infra/campaigns/rehearsal.yaml").read_text())
    spec = Spec.model_validate(document | {"rehearsal": {"faults": []}} | changes)
    site.client("s3").create_bucket(Bucket=buckets(spec.account, spec.region).state)
    steward_site = StewardSite(site, api, shared, spec)
    api.created = steward_site.created
    pem = Authority(shared / "pki", spec.campaign).pem
    site.world.control_plane_factory = lambda settings: FakeControlPlane(settings, ca_pem=pem, endpoint=api.endpoint)
    pitch_gang(site, Names(spec.campaign))
    try:
        yield steward_site
    finally:
        api.stop()


def gpu_nodes(made: StewardSite) -> list[Any]:
    return [one for one in made.site.alive() if "eks:nodegroup-name" in one.settings["tags"]]
