"""Drill: whole campaigns on a shortened clock: drawn faults, the real steward, and a stand-in job with real files.

Each draws its faults from the seed, with Poisson gaps: ranks, nodes, checkpoints, S3, Kubernetes, EC2 and the steward
itself. Judged at the end: the campaign ends; the newest sound checkpoint is what the archive gets, and is the state of
a twin that nothing befell; a campaign that is done ends with the twin's last state; every node that was given up stands
in the record; no job, no copy and no node is left.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from infra.record.payloads.attempts import NodeQuarantined
from infra.steward import archiving
from infra.steward.seeing import observe
from tests.drills.parts.campaign_world import Campaign, drawn, twin
from tests.results import conclude, results_of
from tests.unit.steward.steward_story import config, prepared

RESULTS = results_of("drills", "campaigns")
LONGEST_MINUTES, MOST_STEWARDS = 6 * 60.0, 40


def play(seed: int, count_faults: bool = True) -> dict[str, Any]:
    """One campaign to its end; what befell it and what is wrong with its end."""
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="bivouac-campaign-") as folder, pytest.MonkeyPatch.context() as patch:
        story = prepared(patch, Path(folder))
        faults = drawn(chance) if count_faults else []
        campaign = Campaign(story, Path(folder) / "story", config().steps, faults)
        patch.setattr(observe, "_probe", campaign.probe)
        patch.setattr(archiving, "record", campaign.archive)
        begin, is_over, stewards = story.time(), False, 0
        while not is_over and stewards < MOST_STEWARDS and story.time() - begin < 60 * LONGEST_MINUTES:
            stewards += 1
            is_over = campaign.live(LONGEST_MINUTES - (story.time() - begin) / 60)
        campaign.clear()
        return {
            "seed": seed, "faults": campaign.struck, "stewards": stewards, "step": campaign.step,
            "minutes": round((story.time() - begin) / 60), "outcome": story.state().outcome,
            "attempts": len(story.state().attempts), "wrong": wrong_with(campaign, is_over),
        }  # fmt: skip


def wrong_with(campaign: Campaign, is_over: bool) -> list[str]:
    """What must not be, at the end."""
    story, words = campaign.story, list[str]()
    if not is_over:
        return ["it does not end"]
    sound = campaign.sound_steps()
    for step in sound:
        if (campaign.folder / f"step-{step:08d}/state").read_text() != twin(step):
            words.append(f"step {step} is not the twin's")
    if sound and campaign.archived != sound[-1]:
        words.append(f"the archive got step {campaign.archived}, and {sound[-1]} is sound")
    if story.state().outcome == "done" and (not sound or sound[-1] != campaign.steps):
        words.append(f"it is done, and the last sound step is {sound[-1:]} of {campaign.steps}")
    if story.aws.desired or story.cluster.nodes:
        words.append(f"{story.aws.desired} nodes are wanted, {len(story.cluster.nodes)} are there")
    running = [name for name, pod in story.cluster.pods.items() if pod.status and pod.status.phase == "Running"]
    if left := [*running, *story.cluster.copies]:  # a gang's job that is done falls with its cluster
        words.append(f"left: {', '.join(left)}")
    quarantined = {
        event.payload.instance for event in story.store().events() if isinstance(event.payload, NodeQuarantined)
    }
    if unnamed := set(story.aws.ended) - quarantined:
        words.append(f"given back and not in the record: {', '.join(sorted(unnamed))}")
    return words


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=200)
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    begun, rows = time.monotonic(), list[dict[str, Any]]()
    undisturbed = play(0, count_faults=False)
    assert undisturbed["outcome"] == "done" and not undisturbed["wrong"], undisturbed
    for number in range(options.count):
        rows.append(play(1000 * options.seed + number))
        row = rows[-1]
        verdict = "ok" if not row["wrong"] else f"FAILED {'; '.join(row['wrong'])}"
        print(f"{number + 1:3d} {verdict} {json.dumps(row)}", flush=True)
    failed = sum(bool(row["wrong"]) for row in rows)
    outcomes = Counter(str(row["outcome"]) for row in rows)
    faults = Counter(fault for row in rows for fault in row["faults"])
    print(f"outcomes: {dict(outcomes)}; faults: {dict(faults)}; most minutes: {max(row['minutes'] for row in rows)}")
    return conclude(RESULTS, {"seed": options.seed, "rows": rows}, len(rows), failed, begun)


if __name__ == "__main__":
    sys.exit(main())
