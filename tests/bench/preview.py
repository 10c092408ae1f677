"""How long `bivouac preview` takes for a whole campaign, warm, for 2 and for 512 nodes; beside a bare `pulumi preview`.

The engine, the plugins and the program are real, AWS is emulated in this process. Pairs are interleaved, so that what
else the machine does falls on both; the ratio is that of the medians.

    .venv/bin/python -m tests.bench.preview [--rounds 3]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import Any

os.environ.setdefault("BIVOUAC_REHEARSAL_PATIENCE", "0.01")

import yaml
from pulumi import automation as auto
from rich.console import Console

from infra.campaign import provision
from infra.campaign.stages import StageStep, run_step
from infra.cli.run.preview import preview_command
from infra.preview.read_only import read_only_context, stacks
from infra.record.events import Stage
from infra.spec.names import PROJECT
from infra.stack.program import program
from tests.bench.parts import preview_scale
from tests.bench.parts.verdict import Verdict, judge, spread
from tests.results import keep, results_of
from tests.worlds.campaign_site import CampaignSite, camp

RESULTS = results_of("bench", "preview")
LIMIT_S = 15.0
LARGE = 512
BARE = "pulumi preview alone, campaign stack"
CPU = list[float]()
"""CPU seconds of each preview, of this process (with the emulated AWS in it) and of the engines that it waited for."""


def spec_file(one: CampaignSite, folder: Path, count: int) -> Path:
    document = one.spec.model_dump(mode="json", exclude_unset=True)
    document["nodes"] |= {"count": count}
    document["training"] |= {"global_batch": 16 * count}
    document["money"] |= {"budget_usd": 1_000_000}
    document["data"] |= {"max_epochs": 1000}  # so many nodes read the small text again and again
    path = folder / f"nodes-{count}.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


def previewed(path: Path) -> tuple[float, int]:
    """Seconds, and resources in both stacks."""
    out = StringIO()
    began, spent = time.monotonic(), sum(os.times()[:4])
    code = preview_command(path, True, Console(file=out, width=300))
    seconds = time.monotonic() - began
    CPU.append(round(sum(os.times()[:4]) - spent, 2))
    told = json.loads(out.getvalue())
    assert code in (0, 2), told["findings"]
    return seconds, sum(max(stack["resources"], len(stack["planned"])) for stack in told["stacks"])


@contextmanager
def bare_stack(one: CampaignSite, folder: Path) -> Iterator[Callable[[], float]]:
    """The peer: `pulumi preview` of the campaign stack alone on an empty local backend, without refresh."""
    context = read_only_context(one.spec, one.plan, Console(file=StringIO()))
    config = stacks(context)[context.names.stack]()
    (folder / "backend").mkdir()
    options = auto.LocalWorkspaceOptions(
        work_dir=str(folder),
        project_settings=auto.ProjectSettings(
            name=PROJECT, runtime="python", backend=auto.ProjectBackend(url=f"file://{folder}/backend")
        ),
        env_vars={"PULUMI_CONFIG_PASSPHRASE": ""},
    )
    stack = auto.create_or_select_stack("bare", project_name=PROJECT, program=program, opts=options)
    stack.set_all_config({key: auto.ConfigValue(value) for key, value in config.items()})

    def run() -> float:
        began = time.monotonic()
        stack.preview(on_output=lambda _: None)
        return time.monotonic() - began

    yield run


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", action="store_true", help="512 nodes beside 2 instead, in seven pairs")
    options = parser.parse_args()
    if options.scale:
        return preview_scale.compare(pairs=7)
    rows: dict[str, list[float]] = {}
    counts: dict[str, int] = {}

    def note(name: str, value: float) -> None:
        rows.setdefault(name, []).append(round(value, 2))
        print(f"  {name:<42} {value:6.2f} s", flush=True)

    with tempfile.TemporaryDirectory(prefix="bivouac-bench-") as text, camp(Path(text) / "camp") as one:
        folder = Path(text)
        os.environ["BIVOUAC_SITE"] = "in-process"
        small, large = spec_file(one, folder, 2), spec_file(one, folder, LARGE)
        (folder / "bare").mkdir()
        with bare_stack(one, folder / "bare") as bare:
            print("warming up", flush=True)
            previewed(small)
            bare()
            for _ in range(options.rounds):
                for name, path in (
                    ("preview, 2 nodes, not begun", small),
                    (f"preview, {LARGE} nodes, not begun", large),
                ):
                    seconds, counts[name] = previewed(path)
                    note(name, seconds)
                note(BARE, bare())
        with one.opened() as context:
            run_step(context, StageStep(Stage.PROVISION, "bench", provision.run))
        (folder / "own.yaml").write_text(yaml.safe_dump(one.spec.model_dump(mode="json", exclude_unset=True)))
        for _ in range(options.rounds):
            seconds, counts["preview, a campaign that stands"] = previewed(folder / "own.yaml")
            note("preview, a campaign that stands", seconds)
    return told(rows, counts)


def told(rows: dict[str, list[float]], counts: dict[str, int]) -> int:
    medians = {name: statistics.median(several) for name, several in rows.items()}
    few, many = "preview, 2 nodes, not begun", f"preview, {LARGE} nodes, not begun"
    print(f"\n{'what':<44} {'median':>8} {'resources':>10}")
    for name, median in medians.items():
        print(f"{name:<44} {median:7.2f} s {counts.get(name, ''):>10}")
    equal = counts[few] == counts[many]
    print(f"CPU seconds of the previews: {CPU}")
    facts: dict[str, Any] = {
        "rows": rows, "cpu_s": CPU, "medians": medians, "resources": counts, "equal": equal, "cores": os.cpu_count(),
        "load": os.getloadavg(),
    }  # fmt: skip
    keep(RESULTS, facts)
    verdicts = [Verdict(name, tuple(each), LIMIT_S) for name, each in rows.items() if name.startswith("preview")]
    verdicts.append(Verdict(many, tuple(rows[many]), preview_scale.MOST, few, tuple(rows[few])))
    print(f"{BARE}: spread {spread(rows[BARE]):.2g} s; no limit against it: it sees one stack, without a refresh")
    print(f"resources of {LARGE} and of 2 nodes {'equal' if equal else 'DIFFER'}")
    return judge(*verdicts) or int(not equal)


if __name__ == "__main__":
    sys.exit(main())
