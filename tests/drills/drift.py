"""Drill: changes by hand behind the engine's back, seeded, several at a time; each is seen, told and set right.

One campaign in process carries all cases: the engine, the plugins and the program are real, AWS is emulated.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

os.environ.setdefault("BIVOUAC_LEASE_SECONDS", "300")  # this process holds AWS too: a busy machine is no lost lease

import yaml
from rich.console import Console

from infra.campaign import provision
from infra.campaign.stages import StageStep, run_step
from infra.cli.run.preview import preview_command
from infra.cli.run.repair import repair_command
from infra.engine.drift import look
from infra.engine.engine import Engine
from infra.engine.refusal import refusals, standing
from infra.errors import UserError
from infra.preview.preview import preview
from infra.preview.read_only import read_only_context, stacks
from infra.record.events import Stage
from infra.record.payloads.checkpoints import CheckpointCopied
from infra.session.context import Context
from tests.rehearsal.acting import as_reader
from tests.rehearsal.engine.changes_by_hand import HANDS, Hand, desired, lose_file_system, mutations
from tests.results import conclude, results_of
from tests.worlds.campaign_site import CampaignSite, camp

RESULTS = results_of("drills", "drift")
EXCLUDE = {"schedule deleted": "schedule disabled", "schedule disabled": "schedule deleted"}


def one_case(camp: CampaignSite, context: Context, hands: list[Hand], size: int) -> dict[str, Any]:
    """Raises AssertionError where the promise is broken."""
    for hand in hands:
        hand.act(camp)
    desired(camp, size)  # the steward's own doing, between the hands
    told, engine = list[str](), Engine(context, context.results / "pulumi")
    for name, settings in stacks(context).items():
        with mutations(camp) as heard:
            seen = look(context, name, settings())
        assert not [one for one in heard if "leases/driver" not in one[2]], f"the look mutated: {heard}"
        told += [f"{row.title} {row.verb}" for row in seen.drifted]
        assert not refusals(seen, standing(context), context.spec.campaign)
        if not seen.drifted:
            continue
        stack = engine.stack(name, settings())
        engine.refresh(stack)
        engine.up(stack)
        again = look(context, name, settings())
        assert not again.drifted and not again.planned, f"not set right: {again.drifted or again.planned}"
    for hand in hands:
        assert any(one.startswith(hand.title) and one.endswith(hand.verb) for one in told), f"{hand.name}: {told}"
    assert len(told) == len(hands), f"told of more than was done: {told}"
    return {"hands": [hand.name for hand in hands], "size": size, "told": told}


def mended(context: Context) -> None:
    """After a broken promise: the next case begins with stacks that are whole."""
    engine = Engine(context, context.results / "pulumi")
    for name, settings in stacks(context).items():
        stack = engine.stack(name, settings())
        engine.refresh(stack)
        engine.up(stack)


def repaired_case(camp: CampaignSite) -> dict[str, Any]:
    """The command itself, after every hand at once."""
    hands = [hand for hand in HANDS if hand.name != "schedule disabled"]
    for hand in hands:
        hand.act(camp)
    out = StringIO()
    code = repair_command("drilled", camp.spec.region, True, Console(file=out, width=300))
    lines = out.getvalue().splitlines()
    assert code == 0 and lines[-1].endswith("resources, no drift") and camp.names.stack in lines[-1], lines[-6:]
    assert camp.client("scheduler").get_schedule(Name=camp.names.schedule)["State"] == "ENABLED"
    key = {"clusterName": camp.names.cluster, "nodegroupName": camp.names.gpu_group}
    scaling = camp.client("eks").describe_nodegroup(**key)["nodegroup"]["scalingConfig"]
    assert scaling["maxSize"] == camp.spec.nodes.count + 1, scaling
    return {"hands": [hand.name for hand in hands], "repaired": lines[-1]}


def read_only_case(camp: CampaignSite) -> dict[str, Any]:
    """The pull request's role, without access to the cluster, sees no difference where there is none."""
    with as_reader(camp), mutations(camp) as heard:
        seen = preview(read_only_context(camp.spec, camp.plan, Console(file=StringIO())), look_inside=False)
    assert seen.exit_code == 0 and not seen.differs, [row.title for one in seen.looks for row in one.planned]
    assert not heard and any("were not looked at" in note for one in seen.looks for note in one.notes)
    return {"hands": ["read-only role"]}


def refused_preview(camp: CampaignSite, folder: Path) -> dict[str, Any]:
    """Another spec for a campaign whose file system is gone: all that is wrong is told at once."""
    document = camp.spec.model_dump(mode="json", exclude_unset=True)
    document["money"] |= {"budget_usd": 77}
    (folder / "other.yaml").write_text(yaml.safe_dump(document))
    out = StringIO()
    with mutations(camp) as heard:
        code = preview_command(folder / "other.yaml", True, Console(file=out, width=300))
    facts = json.loads(out.getvalue())
    findings = {finding["rule"]: finding for finding in facts["findings"] if finding["level"] == "error"}
    assert code == 64 and [one["resource"] for one in facts["refused"]] == ["LustreFileSystem shared"], facts["refused"]
    assert set(findings) == {"campaign_that_has_begun", "spec_of_a_campaign_that_has_begun"}, findings
    assert not [one for one in heard if "leases/driver" not in one[2]], heard
    return {"hands": ["preview of another spec"]}


def refused_repair(camp: CampaignSite) -> dict[str, Any]:
    """Of a campaign whose file system is gone: nothing is touched."""
    with mutations(camp) as heard:
        try:
            repair_command("drilled", camp.spec.region, True, Console(file=StringIO(), width=300))
            raise AssertionError("it was repaired")
        except UserError as refused:
            assert "deleted by hand" in str(refused) and "bivouac down drilled" in (refused.cure or ""), refused
    assert not [one for one in heard if one[0] != "s3"], heard
    return {"hands": ["repair of a lost file system"]}


def new_file_system_case(camp: CampaignSite) -> dict[str, Any]:
    """With a copy of a checkpoint in S3 a lost file system is made anew, and nothing else is replaced."""
    with camp.opened() as context:
        copy = {"step": 20, "place": "", "objects": 1, "bytes": 1, "seconds": 1, "removed": [], "locked": 0}
        context.store.append(CheckpointCopied(**copy))
    clusters = camp.client("eks").list_clusters()["clusters"]
    with mutations(camp) as heard:
        assert repair_command("drilled", camp.spec.region, True, Console(file=StringIO(), width=300)) == 0
    made = sorted({str(one[1]) for one in heard if str(one[1]).startswith(("Create", "Delete"))} - {"DeleteObject"})
    assert made == ["CreateDataRepositoryAssociation", "CreateFileSystem"], made
    assert camp.client("eks").list_clusters()["clusters"] == clusters
    (system,) = camp.client("fsx").describe_file_systems()["FileSystems"]
    volume = camp.plane().api.objects["v1", "persistentvolumes", "", "bivouac-drilled-shared"]
    assert volume["spec"]["csi"]["volumeHandle"] == system["FileSystemId"], volume
    return {"hands": ["a new file system"]}


def refused_case(camp: CampaignSite, context: Context) -> dict[str, Any]:
    lose_file_system(camp)
    name = context.names.stack
    seen = look(context, name, stacks(context)[name]())
    refused = [str(refusal) for refusal in refusals(seen, standing(context), context.spec.campaign)]
    assert len(refused) == 1 and refused[0].startswith("LustreFileSystem shared: it was deleted"), refused
    return {"hands": ["file system deleted"], "refused": refused}


def told(rows: list[dict[str, Any]], number: int, case: Callable[[], dict[str, Any]]) -> int:
    """1 where the promise is broken."""
    started, row, verdict = time.monotonic(), dict[str, Any](), "ok"
    try:
        row = case()
    except Exception as error:  # whatever it is, the other cases are still worth running
        verdict = f"FAILED {type(error).__name__}: {str(error)[:400]}"
    row |= {"case": number, "verdict": verdict, "seconds": round(time.monotonic() - started, 1)}
    rows.append(row)
    print(f"{number:3d} {row['seconds']:5.1f} s  {verdict:4s} {', '.join(row.get('hands', ()))}", flush=True)
    return int(verdict != "ok")


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=40)
    options = parser.parse_args()
    chance, begun, rows, failed = random.Random(options.seed), time.monotonic(), list[dict[str, Any]](), 0
    with tempfile.TemporaryDirectory(prefix="bivouac-drift-") as folder, camp(Path(folder)) as one:
        os.environ["BIVOUAC_SITE"] = "in-process"
        with one.opened() as context:
            run_step(context, StageStep(Stage.PROVISION, "drill", provision.run))
        failed += told(rows, -1, lambda: repaired_case(one))
        failed += told(rows, -2, partial(read_only_case, one))
        with one.opened() as context:
            for number in range(options.count):
                hands = chance.sample(HANDS, chance.randint(1, 5))
                names = {hand.name for hand in hands}
                hands = [hand for hand in hands if EXCLUDE.get(hand.name) not in names or "deleted" in hand.name]
                size, last = chance.randint(0, 2), number == options.count - 1
                act = partial(refused_case, one, context) if last else partial(one_case, one, context, hands, size)
                if told(rows, number, act):
                    failed += 1
                    if not last:
                        mended(context)
        failed += told(rows, options.count, partial(refused_preview, one, Path(folder)))
        failed += told(
            rows, options.count + 1, lambda: refused_repair(one) or {"hands": ["repair of a lost file system"]}
        )
        failed += told(rows, options.count + 2, partial(new_file_system_case, one))
    return conclude(RESULTS, rows, len(rows), failed, begun)


if __name__ == "__main__":
    sys.exit(main())
