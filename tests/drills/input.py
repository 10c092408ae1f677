"""Drill: broken specs, troubled data, broken caches and left sites, by seed.

`python -m tests.drills.input --seed 1 --count 500`: each case is one of four kinds and has one right end.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from infra.cli.prepare.check import check_command
from infra.cli.prepare.plan import plan_command
from infra.rehearsal.site import handle
from infra.toolchain.origin import in_cache
from infra.toolchain.table import TOOLS
from tests.mutations import broken_spec
from tests.results import conclude, results_of
from tests.root import ROOT
from tests.trainer.data_sets import open_data
from trainer.contract import DATA_MANIFEST_NAME

RESULTS = results_of("drills", "input")

ANSWER_WITHIN_S = 30.0
PREPARE = [sys.executable, "-m", "infra.cli.main", "data", "prepare"]


def spec(dice: random.Random, folder: Path) -> str | None:
    """`check` and `plan` answer 0 or 64, with a cure for every error."""
    path = folder / "campaign.yaml"
    path.write_bytes(broken_spec(dice))
    for command in (check_command, plan_command):
        out, begun = io.StringIO(), time.monotonic()
        code = command(path, True, Console(file=out, width=100))
        if time.monotonic() - begun > ANSWER_WITHIN_S:
            return "took too long"
        answer = json.loads(out.getvalue())
        if code not in (0, 64) or (code == 64 and not all(row["cure"] for row in answer["findings"])):
            return f"exit code {code}: {out.getvalue()[:200]}"
    return None


def data(dice: random.Random, folder: Path) -> str | None:
    """However a preparation is killed and its files change, what has a manifest is whole; a second one ends well."""
    source, out = folder / "text", folder / "out"
    source.mkdir()
    for index in range(dice.randint(2, 30)):
        words = " ".join(dice.choice(("camp", "node", "lease", "rank", "ümlaut")) + str(n % 97) for n in range(3000))
        (source / f"{index}.txt").write_bytes(words.encode() if dice.random() < 0.9 else dice.randbytes(500))
    process = subprocess.Popen(
        [*PREPARE, str(source), str(out), "--vocabulary=300"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    time.sleep(dice.uniform(0.1, 2.0))
    if dice.random() < 0.5:
        process.send_signal(dice.choice((signal.SIGKILL, signal.SIGINT, signal.SIGTERM)))
    else:
        (source / "0.txt").write_text("changed " * 4000)
    _, words = process.communicate(timeout=60)
    if "Traceback" in words:
        return words[-300:]
    if (out / DATA_MANIFEST_NAME).exists():
        open_data(out, "", 300, 16, 1)
    # Of words that do not repeat: whatever of the rest was binary, a vocabulary of 300 tokens can be learnt.
    (source / "more.txt").write_text(" ".join(f"{dice.getrandbits(64):x}" for _ in range(1000)))
    (source / "again.txt").write_text("and another one " * 500)
    done = subprocess.run([*PREPARE, str(source), str(out), "--vocabulary=300"], cwd=ROOT, capture_output=True)
    if done.returncode:
        return f"a second preparation ends with {done.returncode}: {done.stderr[-200:]!r}"
    open_data(out, "", 300, 16, 1)
    return None


def cache(dice: random.Random, folder: Path) -> str | None:
    """A tool that is truncated, of another version, or not executable is never taken."""
    tool = next(tool for tool in TOOLS if tool.name == "etcd")
    path = folder / "bin" / tool.name
    path.parent.mkdir()
    good = dice.random() < 0.3
    text = "#!/bin/sh\necho etcd Version: 3.6.7\n"
    bad = (text[: dice.randrange(len(text) - 9)], text.replace("3.6", "2.0"), text + "exit 3\n")
    path.write_text(text if good else dice.choice(bad))
    path.chmod(0o755)
    (folder / "stamps").mkdir()
    stamp = dice.choice(("", "[]", "{}", '{"version": "3.6.7", "origin": "built", "identity": [1, 2]}'))
    (folder / "stamps" / "etcd.json").write_text(stamp)
    found = in_cache(tool, folder / "bin")
    return None if (found is not None) == good else f"good: {good}, found: {found}"


def site(dice: random.Random, folder: Path) -> str | None:
    """A left site is cleaned with all that is its own; the process that has its number now lives."""
    os.environ["BIVOUAC_CACHE"] = str(folder)
    place = handle.site_dir("left")
    place.mkdir(parents=True)
    wait = [sys.executable, "-c", "import time; time.sleep(60)"]
    stranger = subprocess.Popen(wait)
    own = subprocess.Popen([*wait, "-m", handle.SUPERVISOR, str(place)], start_new_session=True)
    try:
        while own.pid not in handle.supervisors(place):
            time.sleep(0.01)
        written = {
            "name": "left",
            "folder": str(place),
            "outer_pid": stranger.pid,
            "outer_start": dice.randrange(10**6),
        }
        written |= {"inner_pid": stranger.pid, "user_namespace": False, "environment": {}, "boot": "earlier"}
        text = json.dumps(written)
        (place / "site.json").write_text(text[: dice.randrange(len(text) + 1)] if dice.random() < 0.5 else text)
        handle.remove("left")
        if stranger.poll() is not None:
            return "a stranger was ended"
        return None if own.wait(timeout=5) == -9 and not place.exists() else "something is left"
    finally:
        for process in (stranger, own):
            process.kill()
            process.wait()


KINDS: tuple[Callable[[random.Random, Path], str | None], ...] = (spec, spec, spec, data, cache, site)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=60)
    options = parser.parse_args()
    rows, begun = [], time.monotonic()
    for number in range(options.count):
        dice, kind = random.Random(f"{options.seed}:{number}"), KINDS[number % len(KINDS)]
        folder = Path(tempfile.mkdtemp(prefix="bivouac-drill-"))
        try:
            wrong = kind(dice, folder)
        except Exception as error:
            wrong = f"{type(error).__name__}: {error}"
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        rows.append({"case": number, "kind": kind.__name__, "failed": wrong})
        print(f"{number:5} {kind.__name__:6} {wrong or 'ok'}", flush=True)
    failed = sum(row["failed"] is not None for row in rows)
    return conclude(RESULTS, {"seed": options.seed, "rows": rows}, len(rows), failed, begun)


if __name__ == "__main__":
    sys.exit(main())
