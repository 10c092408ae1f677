"""An account, an API server and the agents of a gang of many light nodes, for a steward in another process.

    python -m tests.bench.steward.fleet NODES FOLDER

Prints one line of JSON once the nodes have joined: the API server's address, and what the steward's environment needs.
Each node has one pod with eight ranks: it answers /status as a training supervisor does, and prints a line per step.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from infra.cluster.gang import COMPLETION_INDEX
from infra.cluster.steward_config import StewardConfig
from infra.spec.campaign import Spec
from infra.spec.names import NAMESPACE, Names, buckets
from tests.rehearsal.fake_kubernetes import FakeKubernetes
from tests.root import ROOT
from tests.worlds.account_site import FakeControlPlane, fake_site, pitch_gang, until
from tests.worlds.campaign_site import node_of
from tests.worlds.steward_site import StewardSite
from trainer.contract import AGENT_PORT, Status

STEP_S = 1.0
RANKS = 8


def spec_of(nodes: int) -> Spec:
    document = yaml.safe_load((ROOT / "infra/campaigns/rehearsal.yaml").read_text())
    document["nodes"]["count"], document["training"]["global_batch"] = nodes, 8 * nodes
    # Prometheus and Alertmanager are processes of their own, and none runs here.
    return Spec.model_validate(document | {"rehearsal": {"faults": []}, "addons": {"prometheus": False}})


def address_of(index: int) -> str:
    return f"127.9.{index // 250}.{index % 250 + 1}"


class Gang:
    """The pods' side: every answer is of one training that steps once in `STEP_S`."""

    def __init__(self, campaign: str) -> None:
        self._campaign, self._start, self.asked = campaign, time.monotonic(), 0

    def step(self) -> int:
        return 1 + int((time.monotonic() - self._start) / STEP_S)

    def status(self, index: int) -> bytes:
        step = self.step()
        ranks = [{"rank": index * RANKS + n, "alive": True, "step": step, "heartbeat_age_s": 0.3} for n in range(RANKS)]
        return Status.model_validate(
            {
                "campaign": self._campaign, "attempt": 1, "node": f"node-{index}", "phase": "training", "step": step,
                "steps": 10**6, "committed_step": step // 20 * 20, "tokens": step * 4096, "loss": 3.0,
                "step_seconds": STEP_S, "ranks": ranks,
            }
        ).model_dump_json().encode()  # fmt: skip

    async def answer_status(self, index: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.asked += 1
        await reader.readuntil(b"\r\n\r\n")
        body = self.status(index)
        writer.write(b"HTTP/1.0 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        await writer.drain()
        writer.close()

    async def stream_log(self, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n")
        told = 0
        while not writer.is_closing():
            if (step := self.step()) != told:
                told, now = step, datetime.now(UTC)
                line = {"event": "step", "time": now.timestamp(), "step": step, "loss": 3.0, "seconds": STEP_S}
                text = f"{now:%Y-%m-%dT%H:%M:%S.%f}Z {json.dumps(line)}\n".encode()
                writer.write(b"%x\r\n%s\r\n" % (len(text), text))
                await writer.drain()
            await asyncio.sleep(0.25)


def front_of(api: FakeKubernetes, gang: Gang) -> Any:
    """Return a handler of connections to the API server: logs are streams, all else is `api`'s own word."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                verb, url, _ = head.split(" ", 2)
                lengths = [
                    line.split(":")[1] for line in head.split("\r\n") if line.lower().startswith("content-length")
                ]
                body = json.loads(await reader.readexactly(int(lengths[0])) or b"{}") if lengths else {}
                if "/log?" in url:
                    return await gang.stream_log(writer)
                status, document = api.handle(verb, url, body)
                text = json.dumps(document).encode()
                writer.write(b"HTTP/1.1 %d OK\r\nContent-Type: application/json\r\n" % status)
                writer.write(b"Content-Length: %d\r\n\r\n" % len(text) + text)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    return answer


def pods_of(api: FakeKubernetes, hosts: list[str], document: dict[str, Any]) -> None:
    """What the controllers make of a JobSet: its pods, running, one on each node."""
    metadata = document["metadata"]
    if document.get("kind") != "JobSet":
        return
    for index, host in enumerate(hosts):
        container = {"name": "trainer", "image": "", "imageID": "", "ready": True, "restartCount": 0,
                     "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}}  # fmt: skip
        name = f"{metadata['name']}-gang-0-{index}"
        api.objects["v1", "pods", NAMESPACE, name] = {
            "metadata": {
                "name": name, "namespace": NAMESPACE, "uid": name, "labels": metadata.get("labels") or {},
                "annotations": {COMPLETION_INDEX: str(index)},
            },
            "spec": {"containers": [], "nodeName": host},
            "status": {"phase": "Running", "podIP": address_of(index), "containerStatuses": [container]},
        }  # fmt: skip


async def serve(api: FakeKubernetes, gang: Gang, nodes: int, facts: dict[str, Any]) -> None:
    front = await asyncio.start_server(front_of(api, gang), "127.0.0.1", 0)
    for index in range(nodes):
        handler = lambda reader, writer, index=index: gang.answer_status(index, reader, writer)  # noqa: E731
        await asyncio.start_server(handler, address_of(index), AGENT_PORT)
    endpoint = f"http://127.0.0.1:{front.sockets[0].getsockname()[1]}"
    print(json.dumps(facts | {"api": endpoint}), flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        assert line == "asked\n"
        print(gang.asked, flush=True)


def main(nodes: int, folder: Path) -> None:
    spec = spec_of(nodes)
    folder.mkdir(parents=True, exist_ok=True)
    with fake_site(folder) as site:
        machines: list[Any] = []
        api = FakeKubernetes(lambda: [node_of(machine) for machine in machines])
        plane = lambda settings: FakeControlPlane(settings, ca_pem="", endpoint=api.endpoint)  # noqa: E731
        site.world.control_plane_factory = plane
        site.client("s3").create_bucket(Bucket=buckets(spec.account, spec.region).state)
        names = Names(spec.campaign)
        pitch_gang(site, names, bits=20)
        group = {"clusterName": names.cluster, "nodegroupName": names.gpu_group}
        eks = site.client("eks")
        until(lambda: eks.describe_nodegroup(**group)["nodegroup"]["status"] == "ACTIVE")
        scaling = {"minSize": 0, "maxSize": nodes, "desiredSize": nodes}
        eks.update_nodegroup_config(**group, scalingConfig=scaling)
        until(lambda: len([one for one in site.alive() if one.joined]) == nodes)
        machines += site.alive()
        gang = Gang(spec.campaign)
        api.created = lambda document: pods_of(api, [machine.settings["hostname"] for machine in machines], document)
        key, secret = site.world.operator_key
        config = folder / "config.json"
        story = StewardSite(site, api, folder, spec)
        config.write_text(story.config(poll=StewardConfig.model_fields["poll"].default).model_dump_json())
        facts = {
            "AWS_ENDPOINT_URL": site.world.endpoint_url, "AWS_ACCESS_KEY_ID": key, "AWS_SECRET_ACCESS_KEY": secret,
        }  # fmt: skip
        asyncio.run(serve(api, gang, nodes, {"environment": facts, "config": str(config)}))
        api.stop()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else Path(tempfile.mkdtemp()))
