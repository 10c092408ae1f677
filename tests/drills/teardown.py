"""Drill: provision, fault, destroy, seeded. Whatever happens, nothing is left that the certificate does not name.

Each case provisions a campaign with a fault, tears it down with another, mends both, and tears it down again. The
engine, the plugins and the program are real, AWS is emulated in this process, machines and API server are fakes.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

os.environ.setdefault("BIVOUAC_REHEARSAL_PATIENCE", "0.02")
os.environ.setdefault("BIVOUAC_LEASE_SECONDS", "300")  # this process holds AWS too: a busy machine is no lost lease

from botocore.exceptions import BotoCoreError, ClientError

from infra.aws.account import explained
from infra.bake.foundation import foundation
from infra.campaign import provision, teardown
from infra.campaign.stages import StageStep, run_step
from infra.engine import kubernetes_state
from infra.errors import BivouacError
from infra.inventory import certify, sweep
from infra.record.events import Stage
from infra.record.payloads.stages import StageFinished, StageStarted
from infra.session.context import Context
from tests.drills.parts.teardown_faults import Fault, at_provision, at_teardown
from tests.results import keep, results_of
from tests.worlds.campaign_site import CampaignSite, camp

RESULTS = results_of("drills", "teardown")
PATIENCE_S = 25.0
OF_SERVICES = ("ENI for FSx", "Interface for NAT Gateway", "VPC Endpoint Interface")
SILENCE_S = 6.0
SHARED_BY = 10
"""Campaigns of one account."""


class Account:
    """An emulated account whose foundation stands: its campaigns come one after the other, a fresh one from time to
    time and after each broken promise."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.open = folder, ExitStack()
        self.ground: CampaignSite | None = None
        self.baked: dict[str, Any] = {}
        self.campaigns = 0

    def __enter__(self) -> Account:
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()

    def leave(self) -> None:
        self.open.close()
        self.ground = None

    def campaign(self, number: int) -> CampaignSite:
        """A new one, baked: no image can be baked on the machines here."""
        if self.campaigns % SHARED_BY == 0:
            self.leave()
        self.campaigns += 1
        if self.ground is None:
            self.ground = self.open.enter_context(camp(self.folder / str(number)))
            with self.ground.opened() as context:
                document = foundation(context).model_dump(mode="json")
            self.baked = {
                "image": "base@sha256:0",
                "code": "c",
                "manifest": "none",
                "baked": False,
                "foundation": document,
            }
        one = CampaignSite(self.ground.site, self.ground.folder / "cases" / str(number), {"campaign": f"drill{number}"})
        with one.opened() as context:
            context.store.append(StageStarted(stage=Stage.BAKE))
            context.store.append(StageFinished(stage=Stage.BAKE, seconds=0.0, outputs=self.baked))
        return one


def inventory(camp: CampaignSite) -> set[str]:
    """What really is in the account, read from the emulator itself: ids, with names where those may be told."""
    ec2, iam = camp.world.backend("ec2"), camp.world.backend("iam")
    found = {instance.id for instance in ec2.all_instances() if instance.state != "terminated"}
    found |= {vpc.id for vpc in ec2.vpcs.values() if vpc.is_default != "true"}
    found |= {subnet for zone in ec2.subnets.values() for subnet in zone}
    groups = [group for vpc in ec2.groups.values() for group in vpc.values() if group.name != "default"]
    found |= {f"{one.id} {one.name}" for one in (*groups, *ec2.launch_templates.values())}
    # A service's own interface goes with the service, which is counted by itself.
    found |= {eni.id for eni in ec2.enis.values() if not str(eni.description).startswith(OF_SERVICES)}
    found |= {*ec2.volumes, *camp.world.backend("fsx").file_systems}
    found |= {gateway.id for gateway in ec2.nat_gateways.values() if gateway.state != "deleted"}
    found |= {address.allocation_id for address in ec2.addresses if address.allocation_id}
    found |= {role.name for role in iam.roles.values()} | {*camp.world.clusters}
    return found | {*camp.world.backend("logs").groups, *camp.world.auto_scaling.groups}


def attempt(context: Context, stage: Stage) -> str | None:
    """One stage as the driver runs it; the error's text where it ended in a clear one."""
    run = provision.run if stage is Stage.PROVISION else teardown.run
    try:
        context.guard()
        run_step(context, StageStep(stage, "drill", run))
    except (ClientError, BotoCoreError) as error:
        return str(explained(error))  # as the command line does
    except BivouacError as error:
        if not error.cure:
            raise
        return str(error)
    return None


def certificate(context: Context) -> set[str]:
    found = certify.look_through(context.account, context.names, "", context.spec.account, ())
    assert not found.blind, found.blind
    return set(found.found)


def swept(context: Context) -> None:
    """As `bivouac sweep NAME --yes` does."""
    outcome = sweep.remove(context, [one for one in sweep.look(context).left if one.removable])
    assert not outcome.stuck, outcome.stuck


def unnamed(left: set[str], named: set[str]) -> list[str]:
    """What no line of the certificate tells of, by its id, or by a name that only the kit gives."""

    def told(one: str) -> bool:
        id, _, name = one.partition(" ")
        own = name if name.startswith("bivouac-") else id
        return any(id in text or own in text.split() for text in named)

    return sorted(one for one in left if not told(one))


def one_case(camp: CampaignSite, before: Fault, after: Fault, known: set[str]) -> dict[str, Any]:
    """Raises AssertionError where the promise is broken."""
    row: dict[str, Any] = {"campaign": camp.names.campaign, "provision": before.name, "teardown": after.name}
    mend = before.lay(camp)
    with camp.opened() as context:
        row["provision_error"] = attempt(context, Stage.PROVISION)
        if mend is not None and not before.foreign:
            mend()
        heal = after.lay(camp)
        row["teardown_error"] = attempt(context, Stage.TEARDOWN)
    if heal is not None and not after.foreign:
        heal()
    with camp.opened() as context:
        left = inventory(camp) - known
        row["left"] = sorted(left)
        named = certificate(context)
        # What was mended goes on by itself meanwhile: a lie is what was there before and after the look.
        theirs = unnamed(left & inventory(camp), named) if not (before.foreign or after.foreign) else []
        assert not theirs, f"left and not named by the certificate: {theirs}"
        if row["teardown_error"] is None and not (before.foreign or before.leaks or after.foreign):
            assert not left, f"teardown said that it was done, and this was left: {sorted(left)}"
        for fault, undo in ((before, mend), (after, heal)):
            if fault.foreign and undo is not None:
                swept(context) if fault.swept else undo()
        row["again_error"] = attempt(context, Stage.TEARDOWN)
        left, named = inventory(camp) - known, certificate(context)
    assert not unnamed(left, named), f"left at the end and not named: {unnamed(left, named)}"
    assert before.leaks or row["again_error"] is None, f"after mending: {row['again_error']}"
    assert before.leaks or not left, f"left at the end: {sorted(left)}"
    row["leaked"] = sorted(left)
    return row


def main() -> int:
    # Ended politely, it still clears up; in the background of a shell, SIGINT would be ignored.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    options = _parse()
    chance, begun, rows, failed = random.Random(options.seed), time.monotonic(), [], 0
    teardown.PATIENCE_S, kubernetes_state.PATIENCE_S = PATIENCE_S, SILENCE_S
    cases = _cases(chance, options)
    with tempfile.TemporaryDirectory(prefix="drill-teardown-") as folder, Account(Path(folder)) as account:
        for number, (before, after) in enumerate(cases, 1):
            started = time.monotonic()
            one = account.campaign(number)
            known = inventory(one)
            try:
                row = one_case(one, before, after, known) | {"ok": True}
            except Exception as error:
                failed += 1
                row = {"provision": before.name, "teardown": after.name, "ok": False, "error": repr(error)[:3000]}
                row["said"] = one.said.getvalue()[-3000:]
                account.leave()
            row["seconds"] = round(time.monotonic() - started, 1)
            rows.append(row)
            how = "ok" if row["ok"] else f"FAILED {row['error'][:600]}"
            print(f"{number:>3} {before.name:<32} {after.name:<34} {row['seconds']:>6} s  {how}", flush=True)
            keep(RESULTS, {"seed": options.seed, "rows": rows})
    seconds = time.monotonic() - begun
    print(f"drill teardown: {len(rows)} cases, {failed} failed, {seconds:.0f} s")
    return 1 if failed else 0


def _cases(chance: random.Random, options: argparse.Namespace) -> list[tuple[Fault, Fault]]:
    """Each teardown fault in turn; a fault of provision in every third case."""
    ends = at_teardown()
    chance.shuffle(ends)
    cases = []
    for number in range(options.count):
        begin = chance.choice(at_provision()) if number % 3 == 2 else at_provision()[0]
        end = ends[number % len(ends)]
        cases.append((_before(end) if end.after else begin, end))
    if options.only:
        begins, ends = at_provision(), at_teardown()
        cases = [(_before(end), end) for end in ends if options.only in end.name]
        cases += [(begin, ends[0]) for begin in begins if options.only in begin.name]
    return cases


def _before(end: Fault) -> Fault:
    """The fault of provision that this one of teardown goes with, else none."""
    return next(one for one in at_provision() if one.name == (end.after or "no fault"))


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=12)
    parser.add_argument("--only", default="", help="cases whose fault has this in its name, each once")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
