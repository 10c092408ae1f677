"""A steward of an existing cluster in the test's process: its configuration, and its life to the end."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import yaml
from lightkube import Client

from infra.aws.account import Account
from infra.cluster.kubernetes import followers_of
from infra.cluster.pod_logs import PodLogs
from infra.cluster.steward_config import StewardConfig
from infra.plan.job_config import train_config
from infra.plan.plan import make_plan
from infra.plan.survey import survey
from infra.record.events import Event
from infra.record.store import CampaignStore
from infra.spec.campaign import Spec
from infra.steward.steward import Steward
from tests.root import ROOT
from trainer.contract import COMMITTED_NAME

SPEC: dict[str, Any] = yaml.safe_load((ROOT / "tests/unit/standing/standing.yaml").read_text())
ARCHIVED = '{"manifest": "s3://training/m", "step": 20, "objects": 1, "bytes": 1}'
"""Last word of an archive's pod."""
GANG = 2
"""Pods of the gang."""


def spec_at(endpoint: str, bucket: str) -> Spec:
    """The spec of the tests, for two nodes, with this S3."""
    section = SPEC["cluster"] | {"s3": {"endpoint": endpoint, "bucket": bucket, "secret": "s3-login"}}
    recovery = {"heartbeat_timeout": "10s"}
    return Spec.model_validate(
        SPEC | {"cluster": section, "nodes": SPEC["nodes"] | {"count": GANG}, "recovery": recovery}
    )


def commit(shared: Path, campaign: str) -> None:
    """A committed step on the shared tier, as a gang that trained leaves it."""
    folder = shared / campaign / "step-00000020"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / COMMITTED_NAME).write_text("{}")


def config_of(spec: Spec, bucket: str) -> StewardConfig:
    return StewardConfig.model_validate(
        {
            "spec": spec, "train": train_config(spec, make_plan(spec, survey(spec)), "d" * 64),
            "image": spec.image.base, "code_digest": "c", "image_manifest": "images/c.json", "ranks_per_node": 8,
            "accelerators": 8, "efa_interfaces": 0, "grace_seconds": 1,
            "deadline": datetime.now(UTC) + timedelta(hours=4), "base_usd_per_hour": 1, "node_usd_per_hour": 20,
            "archive": timedelta(seconds=1), "interval_and_archive": timedelta(seconds=2),
            "state_bucket": bucket, "archive_bucket": bucket, "poll": timedelta(milliseconds=20),
        }
    )  # fmt: skip


def run_steward(spec: Spec, bucket: str, s3: Any, client: Client) -> tuple[Event, ...]:
    """One steward to its end, which can ask no service of AWS but S3; the record that it leaves."""
    store = CampaignStore(s3, bucket, spec.campaign, "steward", f"{spec.bucket_root}campaigns/{spec.campaign}")
    lease = store.lease("steward", timedelta(seconds=60))
    lease.acquire()
    account = Account(spec.s3_region)
    account.session = None  # type: ignore[assignment]
    logs = PodLogs(followers_of(client), client.namespace)
    steward = Steward(config_of(spec, bucket), account, client, logs, store, lease)
    try:
        steward.run()
    finally:
        steward.logs._stop.set()
        lease._stop.set()
    return store.events()
