"""An account, an API server and the agents of a small gang, which fail when they are told to.

    python -m tests.bench.detection.fleet FOLDER

Prints one line of JSON once the nodes have joined, as `tests.bench.steward.fleet` does. A line `FAULT` on its input
strikes: `process` (a pod ends with a rank's exit code), `node` (its agent falls silent, and EC2 calls its instance
gone), `hang` (no step is finished any more), `notice` (the agent tells a spot interruption). The answer is one line of
JSON: seconds from the fault until the steward's decision was in the record, and until the gang was asked to end. The
next fault waits until a new gang trains.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import yaml

from infra.cluster.steward_config import StewardConfig
from infra.record.payloads.stages import Decision
from infra.spec.campaign import Spec
from infra.spec.names import Names, buckets
from tests.bench.steward import fleet
from tests.rehearsal.fake_kubernetes import FakeKubernetes
from tests.root import ROOT
from tests.worlds.account_site import AccountSite, FakeControlPlane, FakeMachine, fake_site, pitch_gang, until
from tests.worlds.campaign_site import node_of
from tests.worlds.steward_site import StewardSite
from trainer.contract import AGENT_PORT

NODES, STEP_S, VICTIM = 2, 1.0, 1
HANG_S, HEARTBEAT_S = 5, 5
"""The spec's timeouts here: a hang's is three steps and two seconds."""
WITHIN_S = 300.0
LOOK_S = 0.1
"""Between two looks at the record, which this process serves too."""


def spec_of() -> Spec:
    document = yaml.safe_load((ROOT / "infra/campaigns/rehearsal.yaml").read_text())
    limits = ("attempts_without_progress", "process_restarts", "node_replacements", "repairs_per_hour")
    recovery = {"hang_timeout": f"{HANG_S}s", "heartbeat_timeout": f"{HEARTBEAT_S}s", **dict.fromkeys(limits, 100)}
    more = {"rehearsal": {"faults": []}, "addons": {"prometheus": False}, "recovery": recovery}
    return Spec.model_validate(document | more)


class Gang(fleet.Gang):
    """Its agents' answers, and what is wrong with them."""

    def __init__(self, campaign: str) -> None:
        super().__init__(campaign)
        self.silent = self.hangs = False
        self.notice: dict[str, Any] | None = None
        self._held = 0

    def begin(self) -> None:
        """A new attempt: everything is well again."""
        self.silent = self.hangs = False
        self.notice = None
        self._start = time.monotonic()

    def step(self) -> int:
        if not self.hangs:
            self._held = super().step()
        return self._held

    def status(self, index: int) -> bytes:
        content = json.loads(super().status(index))
        return json.dumps({**content, "notice": self.notice} if index == VICTIM and self.notice else content).encode()

    async def answer_status(self, index: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.silent and index == VICTIM:
            writer.close()
            return
        await super().answer_status(index, reader, writer)


class Faults:
    """Strikes, and reads from the record and the API server what the steward does then."""

    def __init__(self, site: AccountSite, api: FakeKubernetes, gang: Gang, story: StewardSite) -> None:
        self._site, self._api, self._gang, self._store = site, api, gang, story.store()

    def strike(self, name: str) -> dict[str, float]:
        """Strike and return the seconds to the decision and to the gang's end. Raises `TimeoutError`."""
        self._await(lambda: self._pods() and self._trains())
        known = len(self._decisions())
        struck = time.monotonic()
        getattr(self, f"_{name}")()
        decided = self._await(lambda: len(self._decisions()) > known)
        gone = self._await(lambda: not self._jobs())
        for key in self._pods():
            self._api.objects.pop(key, None)  # as the controllers do
        return {"decided_s": round(decided - struck, 3), "ended_s": round(gone - struck, 3)}

    def _process(self) -> None:
        rank = {"rank": fleet.RANKS * VICTIM, "step": self._gang.step(), "end": "died", "detail": "SIGKILL"}
        told = {"reason": "signal", "detail": "a rank died of SIGKILL", "rank": rank["rank"], "ranks": [rank]}
        end = {"exitCode": 70, "message": json.dumps(told)}
        status = self._api.objects[self._pods()[VICTIM]]["status"]
        status["containerStatuses"][0] |= {"ready": False, "state": {"terminated": end}}
        status["phase"] = "Failed"

    def _node(self) -> None:
        host = self._api.objects[self._pods()[VICTIM]]["spec"]["nodeName"]
        (machine,) = [machine for machine in self._site.alive() if machine.settings["hostname"] == host]
        self._gang.silent = True
        self._site.client("ec2").terminate_instances(InstanceIds=[machine.settings["instance_id"]])

    def _hang(self) -> None:
        self._gang.hangs = True

    def _notice(self) -> None:
        due = (datetime.now(UTC) + timedelta(seconds=120)).isoformat(timespec="seconds")
        self._gang.notice = {"action": "terminate", "due": due}

    def _trains(self) -> bool:
        """The steward has seen the newest attempt step."""
        events = self._store.events()
        kinds = [str(event.kind) for event in events if str(event.kind) in ("attempt.launched", "attempt.running")]
        return kinds[-1:] == ["attempt.running"]

    def _decisions(self) -> list[Decision]:
        payloads = [event.payload for event in self._store.events()]
        return [row for row in payloads if isinstance(row, Decision) and row.action == "end-attempt"]

    def _pods(self) -> list[Any]:
        return sorted(key for key in self._api.objects if key[1] == "pods")

    def _jobs(self) -> list[Any]:
        return [key for key in self._api.objects if key[1] == "jobsets"]

    @staticmethod
    def _await(condition: Any) -> float:
        end = time.monotonic() + WITHIN_S
        while not condition():
            if time.monotonic() > end:
                raise TimeoutError("the steward does not do it")
            time.sleep(LOOK_S)
        return time.monotonic()


async def serve(api: FakeKubernetes, gang: Gang, faults: Faults, facts: dict[str, Any]) -> None:
    front = await asyncio.start_server(fleet.front_of(api, gang), "127.0.0.1", 0)
    for index in range(NODES):
        handler = lambda reader, writer, index=index: gang.answer_status(index, reader, writer)  # noqa: E731
        await asyncio.start_server(handler, fleet.address_of(index), AGENT_PORT)
    print(json.dumps(facts | {"api": f"http://127.0.0.1:{front.sockets[0].getsockname()[1]}"}), flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        print(json.dumps(await asyncio.to_thread(faults.strike, line.strip())), flush=True)


def main(folder: Path) -> None:
    spec = spec_of()
    folder.mkdir(parents=True, exist_ok=True)
    with fake_site(folder) as site:
        names, gang = Names(spec.campaign), Gang(spec.campaign)

        def gpu_machines() -> list[FakeMachine]:
            return [machine for machine in site.alive() if machine.joined]

        api = FakeKubernetes(lambda: [node_of(machine) for machine in gpu_machines()])
        plane = lambda settings: FakeControlPlane(settings, ca_pem="", endpoint=api.endpoint)  # noqa: E731
        site.world.control_plane_factory = plane
        site.client("s3").create_bucket(Bucket=buckets(spec.account, spec.region).state)
        pitch_gang(site, names, bits=24)
        group = {"clusterName": names.cluster, "nodegroupName": names.gpu_group}
        eks = site.client("eks")
        until(lambda: eks.describe_nodegroup(**group)["nodegroup"]["status"] == "ACTIVE")
        eks.update_nodegroup_config(**group, scalingConfig={"minSize": 0, "maxSize": NODES + 2, "desiredSize": NODES})
        until(lambda: len(gpu_machines()) == NODES)

        def created(document: dict[str, Any]) -> None:
            if document.get("kind") == "JobSet":
                gang.begin()
                hosts = [str(machine.settings["hostname"]) for machine in gpu_machines()][:NODES]
                fleet.pods_of(api, hosts, document)

        api.created = created
        key, secret = site.world.operator_key
        config, story = folder / "config.json", StewardSite(site, api, folder, spec)
        poll = StewardConfig.model_fields["poll"].default
        config.write_text(story.config(poll=poll).model_dump_json())
        facts = {
            "AWS_ENDPOINT_URL": site.world.endpoint_url, "AWS_ACCESS_KEY_ID": key, "AWS_SECRET_ACCESS_KEY": secret,
        }  # fmt: skip
        faults = Faults(site, api, gang, story)
        asyncio.run(serve(api, gang, faults, {"environment": facts, "config": str(config)}))
        api.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
