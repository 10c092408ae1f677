"""Drill: provision, fault, destroy, seeded, with faults that `teardown` has not: listings that lag behind what was
changed (by service, and all of them at once), and one API that is denied until somebody allows it.

The promise is the same: nothing is left that the certificate does not name, no teardown says done while something is.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("BIVOUAC_REHEARSAL_PATIENCE", "0.01")

from infra.bake.foundation import foundation
from infra.campaign import teardown
from infra.engine import kubernetes_state
from infra.inventory import certify
from infra.inventory.survey import survey_all
from infra.record.events import Stage
from infra.record.payloads.stages import StageFinished, StageStarted
from infra.session.context import Context
from tests.drills import teardown as drill
from tests.drills.parts.teardown_faults import Fault, Mend, rule
from tests.results import keep, results_of
from tests.worlds.campaign_site import CampaignSite, camp

RESULTS = results_of("drills", "consistency")
LAG_S = 2.0
SERVICES = ("ec2", "eks", "fsx", "iam", "autoscaling", "elasticloadbalancing", "logs", "scheduler", "tagging")
READS = ("Describe*", "List*", "Get*")
DENIED = (
    "DeleteNodegroup", "DeleteCluster", "DeleteFileSystem", "DeleteDataRepositoryAssociation", "DeleteNatGateway",
    "DeleteSubnet", "DeleteSecurityGroup", "DeleteVpc", "DeleteLaunchTemplate", "DeletePlacementGroup",
    "DeleteLogGroup", "DeleteSchedule", "DeleteRolePolicy", "DeleteRole", "DetachInternetGateway", "ReleaseAddress",
    "DeleteAddon", "DeleteBudget", "DescribeNodegroup", "DescribeFileSystems", "DescribeVpcs", "ListNodegroups",
)  # fmt: skip


def lagging(*services: str) -> Any:
    def lay(camp: CampaignSite) -> Mend:
        wanted = [
            {"service": service, "action": action, "effect": "stale", "lag_s": LAG_S, "times": None}
            for service in services
            for action in READS
        ]
        numbers = camp.ask("faults", add=wanted)["added"]
        return lambda: camp.ask("faults", clear=numbers)

    return lay


def faults() -> list[Fault]:
    found = [Fault(f"what {one} lists lags", lagging(one)) for one in SERVICES]
    found.append(Fault("all listings lag", lagging(*SERVICES)))
    found += [
        Fault(f"{one} is denied", rule("faults", action=one, code="AccessDenied", status=403, times=None))
        for one in DENIED
    ]
    return found


def certificate(context: Context) -> set[str]:
    """What a certificate finds, each by its id and by its name: a person who reads either knows what is left."""
    seen, blind = survey_all(context.account)
    assert not blind, blind
    found = certify.knowledge(context.store, context.names).judge(seen)
    return {f"{one.id} {one.name}" for several in found.values() for one, _ in several}


def ground_of(one: CampaignSite) -> dict[str, Any]:
    """The foundation of the account, made once: what a bake tells of it."""
    with one.opened() as context:
        document = foundation(context).model_dump(mode="json")
    return {"image": "base@sha256:0", "code": "c", "manifest": "none", "baked": False, "foundation": document}


def one_case(one: CampaignSite, baked: dict[str, Any], before: Fault, after: Fault) -> dict[str, Any]:
    with one.opened() as context:
        context.store.append(StageStarted(stage=Stage.BAKE))
        context.store.append(StageFinished(stage=Stage.BAKE, seconds=0.0, outputs=baked))
    return drill.one_case(one, before, after, drill.inventory(one)) | {"ok": True}


def main() -> int:
    # Ended politely, it still clears up; in the background of a shell, SIGINT would be ignored.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=len(faults()))
    parser.add_argument("--only", default="", help="cases whose fault has this in its name")
    options = parser.parse_args()
    chance, begun, rows = random.Random(options.seed), time.monotonic(), list[dict[str, Any]]()
    teardown.PATIENCE_S, kubernetes_state.PATIENCE_S = drill.PATIENCE_S, drill.SILENCE_S
    drill.certificate = certificate
    # Looks of a certificate lie further apart than any listing lags here, as on AWS.
    certify.CONFIRM_S = max(certify.CONFIRM_S, LAG_S + 1)
    nothing, ends = Fault("no fault", lambda camp: None), [fault for fault in faults() if options.only in fault.name]
    chance.shuffle(ends)
    begins = [nothing, nothing, Fault("all listings lag", lagging(*SERVICES))]
    with tempfile.TemporaryDirectory(prefix="drill-consistency-") as folder, camp(Path(folder)) as ground:
        baked = ground_of(ground)
        for number, after in enumerate((ends * options.count)[: options.count], 1):
            before, started = begins[number % len(begins)], time.monotonic()
            one = CampaignSite(ground.site, Path(folder) / "cases" / str(number), {"campaign": f"lag{number}"})
            try:
                row = one_case(one, baked, before, after)
            except Exception as error:
                row = {"provision": before.name, "teardown": after.name, "ok": False, "error": repr(error)[:3000]}
                row["said"] = one.said.getvalue()[-3000:]
                one.ask("faults", clear=True)
            row["seconds"] = round(time.monotonic() - started, 1)
            rows.append(row)
            how = "ok" if row["ok"] else f"FAILED {row['error'][:600]}"
            print(f"{number:>3} {before.name:<18} {after.name:<38} {row['seconds']:>6} s  {how}", flush=True)
            keep(RESULTS, {"seed": options.seed, "rows": rows})
    failed = sum(not row["ok"] for row in rows)
    print(f"drill consistency: {len(rows)} cases, {failed} failed, {time.monotonic() - begun:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
