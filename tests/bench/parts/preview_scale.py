"""`--scale` of the previews' benchmark: 512 nodes against 2, on the real engine.

Resources and time must not grow with the nodes. Pairs in turn on the same machine; the figure is the ratio of the
medians, with the bound of the project's numbers.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from io import StringIO
from pathlib import Path

from rich.console import Console

from infra.engine.drift import look
from infra.plan.plan import make_plan
from infra.plan.survey import survey
from infra.preview.read_only import read_only_context, stacks
from infra.spec.campaign import Spec
from tests.bench.parts.verdict import Verdict, judge
from tests.results import results_of
from tests.worlds.campaign_site import CampaignSite, camp

RESULTS = results_of("bench", "preview_scale")
SMALL, LARGE = 2, 512
MOST = 1.2
"""Of the large preview's time over the small one's."""


def sized(one: CampaignSite, count: int) -> Spec:
    """The camp's campaign with so many nodes of eight GPUs."""
    document = one.spec.model_dump(mode="json")
    document |= {"campaign": f"nodes-{count}", "money": {"budget_usd": "1000000", "deadline": "7d"}}
    document["nodes"] |= {"count": count, "ranks_per_node": None, "instance_type": "p5.48xlarge"}
    document["training"] |= {"global_batch": count * 8 * document["training"]["micro_batch"]}
    return Spec.model_validate(document)


def preview(spec: Spec, aside: Console) -> tuple[int, float]:
    """(resources to create, seconds) of one preview of both stacks."""
    context = read_only_context(spec, make_plan(spec, survey(spec)), aside)
    begun = time.perf_counter()
    looks = [look(context, name, settings()) for name, settings in stacks(context).items()]
    return sum(len(one.planned) for one in looks), time.perf_counter() - begun


def compare(pairs: int) -> int:
    seconds: dict[int, list[float]] = {SMALL: [], LARGE: []}
    resources: dict[int, set[int]] = {SMALL: set(), LARGE: set()}
    with tempfile.TemporaryDirectory(prefix="bivouac-bench-") as folder, camp(Path(folder)) as one:
        os.environ["BIVOUAC_SITE"] = "in-process"
        aside = Console(file=StringIO())
        one.client("s3").create_bucket(Bucket=f"bivouac-state-{one.spec.account}-{one.spec.region}")
        specs = {count: sized(one, count) for count in (SMALL, LARGE)}
        preview(specs[SMALL], aside)  # the engine and the plugins come from the disk once
        for pair in range(pairs):
            for count in (SMALL, LARGE) if pair % 2 else (LARGE, SMALL):
                made, took = preview(specs[count], aside)
                resources[count].add(made)
                seconds[count].append(took)
                print(f"pair {pair}  {count:4d} nodes  {made} resources  {took:6.2f} s", flush=True)
    medians = {count: statistics.median(times) for count, times in seconds.items()}
    ratio = medians[LARGE] / medians[SMALL]
    same = resources[SMALL] == resources[LARGE] and len(resources[SMALL]) == 1
    print(f"{'nodes':>6} {'resources':>10} {'median s':>9} {'least':>7} {'most':>7}")
    for count, times in seconds.items():
        shown = "/".join(map(str, sorted(resources[count])))
        print(f"{count:6d} {shown:>10} {medians[count]:9.2f} {min(times):7.2f} {max(times):7.2f}")
    print(f"resources {'equal' if same else 'DIFFER'}")
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps({
        "seconds": seconds, "resources": {count: sorted(made) for count, made in resources.items()},
        "ratio_of_medians": ratio, "bound": MOST, "same": same,
    }, indent=1))  # fmt: skip
    large, small = (tuple(seconds[count]) for count in (LARGE, SMALL))
    return judge(Verdict(f"{LARGE} nodes", large, MOST, f"{SMALL} nodes", small)) or int(not same)
