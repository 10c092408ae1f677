"""A whole campaign on this machine, driven as a person would: by the command, from several shells."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.folders import cache_root
from infra.rehearsal.site import handle
from infra.rehearsal.site.environment import bare
from tests import waiting
from tests.root import ROOT
from trainer.supervisor import seal

BIVOUAC = [sys.executable, "-m", "infra.cli.main"]


def quick(steps: int, **changes: Any) -> dict[str, Any]:
    """Changes to the rehearsal's spec that make it one of a tiny model, without faults; with further changes."""
    tiny = {
        "data": {"max_files": 60},
        "training": {
            "model": {"layers": 2, "width": 64, "heads": 4, "context": 64, "vocabulary": 1024},
            "steps": steps,
            "evaluate_every": steps,
            "step_seconds_estimate": 0.1,
        },
        "checkpoint": {"every_steps": 20},
        "rehearsal": {"faults": []},
    }
    return _merged(tiny, changes)


def until(seen: Callable[[], Any], what: str) -> Any:
    return waiting.until(seen, what, every_s=1.0)


class Rehearsal:
    """One campaign in a site of its own; nothing of the machine's other sites is touched."""

    def __init__(
        self, folder: Path, changes: dict[str, Any], root: Path = ROOT, base: str = "infra/campaigns/rehearsal.yaml"
    ) -> None:
        """`root`: of the code that runs, and that is baked. `base`: the spec that is changed."""
        self.root, self.folder, self.site = root, folder, f"{changes['campaign']}-{os.getpid()}"
        self.cache = _own_cache(folder / "cache")
        spec = yaml.safe_load((ROOT / base).read_text())
        self.spec = _merged(spec, changes)
        self.name = self.spec["campaign"]
        self.path = folder / "campaign.yaml"
        self.path.write_text(yaml.safe_dump(self.spec))
        self.results = folder / "results" / "123456789012-us-east-1" / self.name
        self.environment = os.environ | {
            "BIVOUAC_CACHE": str(self.cache),
            "BIVOUAC_SITE_NAME": self.site,
            "BIVOUAC_RESULTS": str(folder / "results"),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        }

    def start(self, *arguments: str, keyboard: int | None = None) -> subprocess.Popen[str]:
        """`bivouac run`, or another command, in the background, its output in a file. `keyboard`: its standard
        input."""
        log = (self.folder / "run.log").open("a")
        command = [*BIVOUAC, *(arguments or ("run", str(self.path)))]
        return subprocess.Popen(
            command, env=self.environment, cwd=self.root, stdin=keyboard, stdout=log, stderr=log, text=True,
            start_new_session=True,
        )  # fmt: skip

    def run(self, *arguments: str, timeout: float = waiting.HUNG_S) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*BIVOUAC, *arguments], env=self.environment, cwd=self.root, capture_output=True, text=True, timeout=timeout
        )

    def inside(self, *arguments: str, timeout: float = waiting.HUNG_S) -> subprocess.CompletedProcess[str]:
        """Run something in the site's network with the operator's credentials."""
        site = self.found()
        environment = bare(self.environment) | site.environment
        return subprocess.run(
            site.entry(list(arguments)), env=environment, capture_output=True, text=True, timeout=timeout
        )

    def python(self, code: str) -> str:
        done = self.inside("env", f"PYTHONPATH={ROOT}", sys.executable, "-c", code)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def status(self) -> dict[str, Any]:
        done = self.run("status", self.name, "--json")
        try:
            return dict(json.loads(done.stdout))
        except ValueError:
            return {}

    def step(self) -> int:
        """The last step of the running training; asked of nobody before the stage, for a command takes a processor."""
        if "\nlaunch " not in self.log():
            return 0
        return int(self.status().get("live", {}).get("step", 0))

    def found(self) -> handle.Site:
        site = handle.find(self.site)
        assert site is not None, self.log()
        return site

    def log(self) -> str:
        return (self.folder / "run.log").read_text()

    def report(self) -> dict[str, Any]:
        return dict(json.loads((self.results / "report.json").read_text()))

    def archived(self, name: str) -> Path:
        """In the one archive, whose folder has the campaign's identity."""
        (golden,) = (self.results / "archive").glob("*/golden")
        return golden.parent / name

    def events(self) -> list[dict[str, Any]]:
        """All events of the campaign's record, read from the site's state bucket."""
        return list(json.loads(self.python(_EVENTS.format(name=self.name))))

    def carried(self, alone: list[str], steps: int) -> dict[int, list[str]]:
        """Run a campaign whose job loses a node, and hold its losses against those of the same two ranks, undisturbed
        and on one node: `alone` with the steps. Return attempt -> its nodes."""
        done = self.run("run", str(self.path), "--json")
        assert done.returncode == 0, done.stdout + done.stderr
        assert json.loads(done.stdout)["outcome"] == "done"
        running = (event["data"] for event in self.events() if event["kind"] == "attempt.running")
        nodes = {one["attempt"]: one["nodes"] for one in running}
        assert set(nodes) == {1, 2}, "a node has died, and the second attempt has trained"
        rows = [row for series in self.report()["training"]["losses"] for row in series["points"]]
        twin = subprocess.run([*alone, str(steps), "0"], cwd=self.folder, capture_output=True, text=True)
        assert twin.returncode == 0, twin.stderr
        whole = {one["step"]: one["loss"] for one in map(json.loads, twin.stdout.splitlines())}
        assert {row["step"] for row in rows} == set(whole) == set(range(1, steps + 1))
        assert [row for row in rows if row["loss"] != whole[row["step"]]] == [], "bit for bit"
        return nodes

    def sound_archive(self, step: int) -> Path:
        """Return the archived tier, read back when nothing else of the campaign is left."""
        assert [event["data"]["clean"] for event in self.events() if event["kind"] == "certified"] == [True]
        struck = self.run("down", "--all", "--yes")
        assert struck.returncode == 0, struck.stdout + struck.stderr
        tier = self.folder / self.name
        self.archived("golden").rename(tier)
        assert seal.fault(tier, step, self.name, "") == "", "every byte is that of its manifest"
        return tier

    def kill(self, process: subprocess.Popen[str]) -> None:
        process.send_signal(signal.SIGKILL)
        process.wait()

    def strike(self) -> None:
        handle.remove(self.site)


@contextmanager
def rehearsing(
    folder: Path, changes: dict[str, Any], base: str = "infra/campaigns/rehearsal.yaml"
) -> Iterator[Rehearsal]:
    """A rehearsal whose site this process finds too, and that is removed at the end."""
    rehearsal = Rehearsal(folder, changes, base=base)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BIVOUAC_CACHE", str(rehearsal.cache))
        try:
            yield rehearsal
        finally:
            rehearsal.strike()


def _own_cache(folder: Path) -> Path:
    """A cache whose tools are the machine's own: sites and data of a person are not the test's to touch."""
    folder.mkdir()
    for name in ("bin", "share"):
        (folder / name).symlink_to(cache_root() / name)
    return folder


_EVENTS = """
import boto3, json
from infra.spec.names import buckets
from infra.record.store import CampaignStore
store = CampaignStore(boto3.client("s3"), buckets("123456789012", "us-east-1").state, "{name}", "reader")
print(json.dumps([e.model_dump(mode="json") for e in store.events()]))
"""


def _merged(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in changes.items():
        merged[key] = (
            _merged(base[key], value) if isinstance(value, dict) and isinstance(base.get(key), dict) else value
        )
    return merged
