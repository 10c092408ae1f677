"""Seeded leaks after a teardown: each is named by the certificate, or shown to a human; nobody else's thing is.

Rounds of ten on an emulated AWS in this process, with as many decoys. After the sweep, what is provably the campaign's
is gone, and all else is still there.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra.aws.account import Account
from infra.inventory import certify, sweep
from infra.inventory.survey import survey_all
from infra.kinds import Thing, kind_named
from infra.record.events import Stage
from infra.record.payloads.stages import StageFinished, StageStarted
from infra.session.context import Context
from infra.spec.names import CAMPAIGN_TAG, Names
from infra.stack.outputs import CampaignOutputs
from tests.drills.parts.leak_plants import LOG_GROUP, PLANTS, ROLE, Place, Plant, listed
from tests.rehearsal.aws_account import make_user
from tests.results import conclude, results_of
from tests.worlds.campaign_site import CampaignSite, camp

RESULTS = results_of("drills", "leaks")

PER_ROUND = 10
OURS, THEIRS = {CAMPAIGN_TAG: "drilled"}, {CAMPAIGN_TAG: "drilled-2"}
MARKED = {"Name": "scratch", "team": "vision"}
"""Tags that say nothing of whose it is."""
OWNED, SHARED = ({f"kubernetes.io/cluster/{Names('drilled').cluster}": word} for word in ("owned", "shared"))
GONE_S = 10.0
"""How long a removal may go on showing in the listings."""


@dataclass(frozen=True)
class Fate:
    """What the certificate must say of a thing, and whether the sweep must remove it or must leave it."""

    named: bool
    """As found; or as a suspect, where that is enough."""
    suspect: bool
    swept: bool


_OURS, _KIN, _UNCLEAR = Fate(True, False, True), Fate(True, False, False), Fate(True, True, False)
_THEIRS = Fate(False, False, False)
FATES = {
    "tagged": _OURS,
    "late": _OURS,
    "owned": _OURS,
    "remade": _OURS,
    "in our network": _OURS,
    "tied to ours": _KIN,
    "named": _KIN,
    "named alike": _UNCLEAR,
    "speaks of ours": _UNCLEAR,
    "shared": _UNCLEAR,
    "marked": _UNCLEAR,
    "elsewhere": _UNCLEAR,
    "by another": _UNCLEAR,
    "theirs": _THEIRS,
    "older": _THEIRS,
    "older, owned": _THEIRS,
}
BESIDES = frozenset({"theirs", "older", "older, owned", "speaks of ours", "shared", "named", "named alike", "remade"})
"""Planted in every round beside its cases: decoys, and the log group."""


@dataclass
class Leak:
    plant: Plant
    how: str
    """A key of `FATES`."""
    name: str
    id: str = ""

    @property
    def label(self) -> str:
        return self.name if self.plant.kind in _NAMED else self.id


_NAMED = frozenset(
    {"security group", "launch template", "image", "load balancer", "policy", "placement group", "role", "log group"}
)
"""Kinds that the certificate shows by name where they have one, at least among suspects."""


class Environment:
    """The emulated account: the campaign's old place, somebody else's, and two principals."""

    def __init__(self, camped: CampaignSite) -> None:
        self.camped = camped
        everything = {"Effect": "Allow", "Action": "*", "Resource": "*"}
        key, secret = make_user(camped.world, "colleague", everything)
        self.colleague = camped.site.session.__class__(key, secret, region_name=camped.world.region)
        self.elsewhere = self._place("10.9.0.0/16", "elsewhere")
        self.own = self._place("10.42.0.0/16", "own")

    def client(self, service: str) -> Any:
        return self.camped.client(service)

    def by_another(self, service: str) -> Any:
        return self.camped.site.client(service, self.colleague)

    def _place(self, cidr: str, name: str) -> Place:
        ec2, iam = self.client("ec2"), self.client("iam")
        vpc = ec2.create_vpc(CidrBlock=cidr)["Vpc"]["VpcId"]
        block = cidr.replace(".0.0/16", ".1.0/24")
        subnet = ec2.create_subnet(VpcId=vpc, CidrBlock=block, AvailabilityZone="us-east-1a")["Subnet"]["SubnetId"]
        group = ec2.create_security_group(GroupName=f"{name}-lustre", Description=name, VpcId=vpc)["GroupId"]
        rule = {"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": group}]}
        ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=[rule])
        volume = ec2.create_volume(AvailabilityZone="us-east-1a", Size=1)["VolumeId"]
        trust = json.dumps({"Version": "2012-10-17", "Statement": [_TRUST]})
        role = iam.create_role(RoleName=f"old-{name}", AssumeRolePolicyDocument=trust)["Role"]["Arn"]
        return Place(vpc, subnet, group, volume, role)


_TRUST = {"Effect": "Allow", "Principal": {"Service": "scheduler.amazonaws.com"}, "Action": "sts:AssumeRole"}


@contextmanager
def environment(folder: Path) -> Iterator[tuple[Environment, Context]]:
    """A campaign that was provisioned and torn down, as its record tells; its old network stands for the places."""
    with camp(folder) as camped:
        ground = Environment(camped)
        with camped.opened() as context:
            outputs: dict[str, str | bool] = dict.fromkeys(CampaignOutputs.model_fields, "x")
            outputs["network_made"] = True
            own = ground.own
            outputs |= {"vpc_id": own.vpc, "gpu_subnet_id": own.subnet, "system_subnet_id": own.subnet}
            outputs |= {"node_security_group_id": own.group}
            outputs |= {"node_role_arn": own.instance_role, "file_system_id": own.volume}
            for role in ("steward", "trainer", "archive"):
                outputs[f"{role}_role_arn"] = own.instance_role
            context.store.append(StageStarted(stage=Stage.PROVISION))
            context.store.append(StageFinished(stage=Stage.PROVISION, seconds=1.0, outputs={"outputs": outputs}))
            yield ground, context


def round_of(ground: Environment, draw: random.Random, number: int, count: int) -> list[Leak]:
    """Seeded leaks and as many decoys; what is older must be planted before the baseline."""
    leaks = []
    for index in range(count):
        plant = draw.choice(PLANTS)
        ways = ["elsewhere", "by another"]
        ways += ["tagged"] * 2 + ["marked", "owned"] if plant.tagged else []
        ways += ["in our network" if plant.inside else "tied to ours"] * 2 if plant.placed else []
        ways += ["late"] if plant.retag else []
        leaks.append(Leak(plant, draw.choice(ways), f"left-{number}-{index}-{draw.randrange(10**6)}"))
    taggable = [one for one in PLANTS if one.tagged]
    for index in range(count // 2):
        leaks.append(Leak(draw.choice(taggable), "theirs", f"their-{number}-{index}"))
        leaks.append(Leak(draw.choice(PLANTS), "older", f"older-{number}-{index}"))
    for how in ("older, owned", "speaks of ours", "shared"):
        leaks.append(Leak(draw.choice(taggable), how, f"{how.split()[-1]}-{number}"))
    leaks.append(Leak(LOG_GROUP, "named alike", f"{ground.camped.names.prefix}-archive-audit-{number}"))
    leaks.append(Leak(ROLE, "named", ground.camped.names.role("node")))
    leaks.append(Leak(LOG_GROUP, "remade", ground.camped.names.log_group))
    return leaks


def plant_one(ground: Environment, leak: Leak) -> None:
    tags = {
        "tagged": OURS, "theirs": THEIRS, "marked": MARKED, "owned": OWNED, "older, owned": OWNED, "shared": SHARED,
        "speaks of ours": {"note": f"was peer of {ground.own.vpc}"},
    }.get(leak.how, {})  # fmt: skip
    place = ground.own if leak.how in ("in our network", "tied to ours") else ground.elsewhere
    client = ground.by_another if leak.how == "by another" else ground.client
    leak.id = leak.plant.make(client, place, leak.name, tags)


def judge(leak: Leak, certificate: dict[str, Any]) -> str | None:
    """None when the certificate says of it what it should."""
    fate = FATES[leak.how]
    found = any(leak.id in item or leak.name in item for item in certificate["found"])
    suspect = any(leak.id in item or leak.name in item for item in certificate["suspects"])
    if not fate.named:
        return "named, though it is another's" if found or suspect else None
    if fate.suspect:
        return None if found or suspect else "neither named nor shown as a suspect"
    return None if found else "not named"


def after_sweep(leak: Leak, there: set[tuple[str, str]]) -> str | None:
    """None when what is provably ours has gone, and all else has stayed."""
    stays = (leak.plant.kind, leak.id) in there
    if FATES[leak.how].swept:
        return "not swept" if stays else None
    return None if stays else "swept, though it is not provably ours"


def what_is_there(account: Account, going: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """Kind and id of all that is there, once what is going has gone or had its time."""
    until = time.monotonic() + GONE_S
    while True:
        seen, blind = survey_all(account)
        assert not blind, blind
        there = {(kind, thing.id) for kind, things in seen.items() for thing in things if not thing.leaving}
        if not there & going or time.monotonic() > until:
            return there
        time.sleep(0.5)


def run_round(ground: Environment, context: Context, leaks: list[Leak]) -> list[tuple[Leak, str | None]]:
    for leak in leaks:
        if leak.how.startswith("older"):
            plant_one(ground, leak)
    seen, _ = survey_all(context.account)
    context.store.put_json(certify.BASELINE, {kind: [thing.id for thing in things] for kind, things in seen.items()})
    # A thing's age counts from the campaign's beginning, which lies before this round's older things.
    for leak in leaks:
        if not leak.how.startswith("older"):
            plant_one(ground, leak)
    late = [leak for leak in leaks if leak.how == "late"]
    timer = threading.Timer(
        0.8, lambda: [ground.client("ec2").create_tags(Resources=[one.id], Tags=listed(OURS)) for one in late]
    )
    timer.start()
    certificate = certify._certify_until_settled(context, certify.knowledge(context.store, context.names))
    timer.join()
    said = {"found": list(certificate.found), "suspects": list(certificate.suspects)}
    outcomes = [(leak, judge(leak, said)) for leak in leaks]
    swept = sweep.remove(
        context,
        [one for one in sweep.look(context).left if one.removable and one.thing.id not in _place_ids(ground.own)],
    )
    stuck = {one.thing.id: why for one, why in swept.stuck}
    there = what_is_there(context.account, {(leak.plant.kind, leak.id) for leak in leaks if FATES[leak.how].swept})
    outcomes = [
        (leak, why or (f"not swept: {stuck[leak.id]}" if leak.id in stuck else after_sweep(leak, there)))
        for leak, why in outcomes
    ]
    _clear(ground, context.account, leaks)
    return outcomes


def _place_ids(place: Place) -> set[str]:
    """The old place itself is the stage on which leaks are planted, not one of them."""
    return {place.vpc, place.subnet, place.group, place.volume, place.instance_role.rpartition("/")[2]}


def _clear(ground: Environment, account: Account, leaks: list[Leak]) -> None:
    from botocore.exceptions import ClientError

    for leak in leaks:
        try:
            kind_named(leak.plant.kind).remove(account, Thing(leak.id))  # type: ignore[misc]
        except ClientError:
            continue


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=200)
    options = parser.parse_args()
    begun, failed, rows = time.monotonic(), 0, list[dict[str, Any]]()
    draw = random.Random(options.seed)
    certify.SETTLE_S = 2.0
    with tempfile.TemporaryDirectory() as folder, environment(Path(folder)) as (ground, context):
        done = 0
        while done < options.count:
            leaks = round_of(ground, draw, done, min(PER_ROUND, options.count - done))
            for leak, why in run_round(ground, context, leaks):
                beside = leak.how in BESIDES
                done, failed = done + (not beside), failed + (why is not None)
                rows.append({"kind": leak.plant.kind, "how": leak.how, "id": leak.id, "failure": why})
                if not beside or why:
                    print(f"{done:4} {leak.plant.kind:22} {leak.how:14} {why or 'ok'}", flush=True)
    return conclude(RESULTS, rows, options.count, failed, begun)


if __name__ == "__main__":
    sys.exit(main())
