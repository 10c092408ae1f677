"""A campaign in a cluster of somebody's: `bivouac run` with a tenant's rights alone, real ranks, and a node killed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.rehearsal.site.layout import AWS_ENDPOINT
from tests.campaign.rehearsal import BIVOUAC, Rehearsal, quick, rehearsing, until
from tests.root import ROOT
from tests.worlds.landlord import BUCKET, LABEL, SPACE

pytestmark = [pytest.mark.nightly]
NODES, SPARE, STEPS, KILL_AFTER, BATCH = 2, 1, 400, 60, 8
KUBECONFIG, TENANT = "racks.yaml", "on-racks.yaml"


def tenant_spec(landlord: dict[str, Any]) -> dict[str, Any]:
    """The spec of the page, with the landlord's small job and machine."""
    cluster = {
        "context": "racks",
        "namespace": SPACE,
        "nodes": {"labels": {"gpu": LABEL}, "devices": {"nvidia.com/gpu": 1}},
        "shared": {"claim": "scratch", "capacity_gib": 1200, "write_mb_s": 600},
        "s3": {"endpoint": AWS_ENDPOINT, "bucket": BUCKET, "secret": "s3-login"},
    }
    sections = {name: landlord[name] for name in ("data", "checkpoint", "recovery", "preflight")}
    sections["training"] = landlord["training"] | {"global_batch": BATCH * NODES}
    return {
        "campaign": "on-racks", "owner": "ada", "purpose": "a first campaign on our racks", "target": "kubernetes",
        "money": {"budget_usd": 60, "deadline": "4h"},
        "nodes": {"count": NODES, "instance_type": landlord["nodes"]["instance_type"], "usd_per_hour": 2},
        "cluster": cluster, **sections,
    }  # fmt: skip


class Tenant:
    """Who runs `bivouac` beside the landlord's site, with a kubeconfig and no AWS credentials."""

    def __init__(self, rehearsal: Rehearsal) -> None:
        self.rehearsal, self.folder = rehearsal, rehearsal.folder
        self.path = self.folder / TENANT
        self.path.write_text(yaml.safe_dump(tenant_spec(rehearsal.spec)))
        self.log = self.folder / "tenant.log"

    def entry(self, *words: str) -> list[str]:
        """A command in the site's network, without what the site's operator has for AWS."""
        bare = [
            "env",
            "-u",
            "AWS_ACCESS_KEY_ID",
            "-u",
            "AWS_SECRET_ACCESS_KEY",
            "-u",
            "AWS_PROFILE",
            "-u",
            "BIVOUAC_SITE",
        ]
        place = [f"KUBECONFIG={self.folder / KUBECONFIG}", f"BIVOUAC_RESULTS={self.folder / 'results'}"]
        return self.rehearsal.found().entry([*bare, *place, *words])

    def start(self, *words: str) -> subprocess.Popen[str]:
        environment = self.rehearsal.environment | self.rehearsal.found().environment
        log = self.log.open("a")
        return subprocess.Popen(
            self.entry(*BIVOUAC, *words), env=environment, cwd=ROOT, stdout=log, stderr=log, text=True
        )

    def record(self) -> list[dict[str, Any]]:
        """The tenant's events, read by the landlord's operator, who may read every bucket."""
        return list(json.loads(self.rehearsal.python(_EVENTS)))

    def kinds(self) -> list[str]:
        return [event["kind"] for event in self.record()]


_EVENTS = f"""
import boto3, json
from infra.record.store import CampaignStore
store = CampaignStore(boto3.client("s3"), "{BUCKET}", "on-racks", "reader", "bivouac/campaigns/on-racks")
print(json.dumps([e.model_dump(mode="json") for e in store.events()]))
"""
_KILL = """
import boto3, json, urllib.request
from infra.record.store import CampaignStore, LIVE
store = CampaignStore(boto3.client("s3"), "{bucket}", "on-racks", "reader", "bivouac/campaigns/on-racks")
live = store.get_json(LIVE) or {{}}
if not live.get("in_flight") or int(live["step"]) < {step}:
    print("")
else:
    node = next(pod["node"] for pod in live["pods"] if pod["index"] == 1)
    pages = boto3.client("ec2").get_paginator("describe_instances").paginate()
    machines = [item for page in pages for row in page["Reservations"] for item in row["Instances"]]
    (instance,) = [item["InstanceId"] for item in machines if item.get("PrivateDnsName", "").startswith(node)]
    urllib.request.urlopen(urllib.request.Request("{endpoint}/_site/kill?instance=" + instance, method="POST"))
    print(node)
"""


def test_a_campaign_on_borrowed_nodes_survives_one_of_them(tmp_path: Path) -> None:
    count = NODES + SPARE
    changes = quick(STEPS, campaign="landlord", nodes={"count": count}, training={"global_batch": BATCH * count})
    with rehearsing(tmp_path, changes) as landlord:
        baked = landlord.run("bake", str(landlord.path))
        assert baked.returncode == 0, baked.stdout + baked.stderr
        tenant = Tenant(landlord)
        words = (str(landlord.path), str(tenant.path), str(tmp_path / KUBECONFIG), str(NODES + SPARE))
        stands = landlord.inside("env", f"PYTHONPATH={ROOT}", sys.executable, "-m", "tests.worlds.landlord", *words)
        assert stands.returncode == 0, stands.stdout + stands.stderr
        run = tenant.start("run", str(tenant.path), "--json")
        kill = _KILL.format(bucket=BUCKET, step=KILL_AFTER, endpoint=AWS_ENDPOINT)
        node = until(lambda: run.poll() is not None or landlord.python(kill), "the tenant's gang trains")
        assert run.wait() == 0, tenant.log.read_text()
        kinds = tenant.kinds()
        assert kinds.count("attempt.running") == 2 and "archive.verified" in kinds
        (given_up,) = [event["data"]["node"] for event in tenant.record() if event["kind"] == "node.quarantined"]
        assert given_up == node
