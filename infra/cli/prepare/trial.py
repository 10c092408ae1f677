"""A few steps of a job on this machine, under the supervisor that a pod has: its step's time, its checkpoint's size."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2

from infra.data.requirements import image_python
from infra.data.source import pack
from infra.errors import UserError
from infra.folders import own_module
from infra.plan.job_config import workload_config
from infra.plan.plan import Plan
from infra.record.trainer_lines import MARK
from infra.spec.campaign import Spec
from infra.spec.workload.workload import GIB
from trainer.contract import AGENT_PORT, Env, Status, Termination
from trainer.contract.workload import WORKSPACE, requirements_name, source_name

_ENOUGH = 10
"""Steps after the first, which is slower."""
_GRACE_S = 10.0
_CUDA = re.compile(
    r".*(NVIDIA driver|not compiled with CUDA|No CUDA GPUs|CUDA (driver|error)|no GPUs found|libcuda).*", re.IGNORECASE
)


@dataclass(frozen=True)
class Measured:
    steps: int
    """Newest step."""
    whole: bool
    """The job ended by itself, and well."""
    step_seconds: float | None
    checkpoint_gib: float | None
    """Size of a sealed checkpoint; None: none was finished."""
    unsealed: int
    """Files in its folder while none was."""


def measure(spec: Spec, plan: Plan, seconds: float, say: Callable[[str], None]) -> Measured:
    """Run one rank of a spec's workload until enough is known or the time is over; a copy of the source runs.

    Raises `UserError` with the job's own words if it fails, and a cure for one that insists on CUDA.
    """
    assert spec.workload is not None, "only a job is tried"
    job = spec.workload.on(spec.target)
    python = image_python(job, lambda: ".".join(map(str, sys.version_info[:2]))) if job.requirements else None
    package = pack(job, python, say)
    with tempfile.TemporaryDirectory(prefix="bivouac-trial-") as scratch:
        root = Path(scratch)
        pod, folder = (workload_config(spec, plan, package.digest, package.sha256, "trial"), root / "shared/trial/own")
        changes: dict[str, Any] = {
            "launcher": "torchrun" if pod.launcher == "torchrun" else "none", "folder": str(root / "workspace"),
            "source": str(package.folder / source_name(package.sha256)), "requirements_digest": package.requirements,
            "requirements": str(package.folder / requirements_name(package.requirements)) if python else "",
            "checkpoints": pod.checkpoints.model_copy(update={"folder": str(folder), "tier": "shared"}),
            "secrets": (),
            "env": {name: value.replace(WORKSPACE, str(root / "workspace")) for name, value in pod.env.items()},
            "steps": 1, "grace_s": _GRACE_S,  # how many steps there are is what a whole run tells
        }  # fmt: skip
        config = pod.model_copy(update=changes)
        (root / "workload.json").write_text(config.model_dump_json())
        program = root / "bivouac/supervisor.pyz"
        program.parent.mkdir()
        subprocess.run(own_module("trainer.supervisor.pack", str(program)), check=True)
        address = f"127.{random.randint(1, 250)}.{random.randint(1, 250)}.{random.randint(1, 250)}"
        with (root / "log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, program], env=_environment(root, address), stdout=log, stderr=log
            )
            signal_sent = _follow_job(process, address, seconds, say)
        return _judge(root, signal_sent)


def _environment(root: Path, address: str) -> dict[str, str]:
    place = {
        Env.CAMPAIGN: "trial", Env.ATTEMPT: "1", Env.NODE_NAME: "here", Env.POD_IP: address, Env.NODE_RANK: "0",
        Env.NODE_COUNT: "1", Env.RANKS_PER_NODE: "1", Env.RENDEZVOUS: f"{address}:{random.randint(20_000, 30_000)}",
        "BIVOUAC_WORKLOAD": root / "workload.json", "BIVOUAC_SHARED": root / "shared", "BIVOUAC_LOCAL": root / "local",
        "BIVOUAC_SECRETS": root / "none", "BIVOUAC_TERMINATION_LOG": root / "termination.json",
    }  # fmt: skip
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    return {**os.environ, **{str(name): str(value) for name, value in place.items()}, "PATH": path}


def _follow_job(process: subprocess.Popen[bytes], address: str, seconds: float, say: Callable[[str], None]) -> int:
    """Follow a job until enough is known, and end it; return the signal sent."""
    steps, end_time, signal_sent = [0], time.monotonic() + seconds, 0
    try:
        while process.poll() is None:
            newest_commit = -1
            try:
                answer = httpx2.get(f"http://{address}:{AGENT_PORT}/status", timeout=2.0, trust_env=False)
                status = Status.model_validate(answer.json())
                newest_commit = status.committed_step
                if status.step > steps[-1]:
                    steps.append(status.step)
                    say(f"step {status.step}")
            except (httpx2.HTTPError, ValueError):  # not up yet
                pass
            is_known = newest_commit >= 0 and len(steps) > 2 and steps[-1] - steps[1] >= _ENOUGH
            if not signal_sent and (is_known or time.monotonic() > end_time):
                process.send_signal(signal_sent := signal.SIGTERM)
                end_time = time.monotonic() + 3 * _GRACE_S
            elif signal_sent and time.monotonic() > end_time:
                process.kill()
            time.sleep(0.1)
    finally:
        process.terminate()  # after Ctrl-C: it ends what it has started
        try:
            process.wait(timeout=3 * _GRACE_S)
        except subprocess.TimeoutExpired:
            process.kill()
    return signal_sent


def _step_times(log: str) -> dict[int, float]:
    """Return when each step was reached, by the supervisor's own lines, in seconds since 1970."""
    events = (json.loads(line[1:]) for line in log.split("\n") if line.startswith(MARK) and line.endswith("}"))
    return {event["step"]: event["time"] for event in reversed([*events]) if event["event"] == "step"}


def _judge(root: Path, signal_sent: int) -> Measured:
    words = (root / "log").read_text(errors="replace")
    try:
        end = Termination.model_validate_json((root / "termination.json").read_bytes())
    except (OSError, ValueError) as error:
        raise UserError(
            "the trial left no word of its end", seen=words[-1000:], cure="run the script by hand"
        ) from error
    is_whole = not signal_sent and end.exit_code == 0
    if not signal_sent and not is_whole:
        cuda = _CUDA.search(words)
        cure = "mend it; what is missing belongs into the source or its requirements.txt; or leave out --try"
        if cuda is not None:
            cure = "a rehearsal has no GPU: where torch.cuda.is_available() is false, let it take the CPU and gloo; "
            cure += "or leave out --try, for a spec for AWS"
        error_text = end.detail if cuda is None else cuda[0].strip()[:300]
        raise UserError("the script fails on this machine", seen=error_text, cure=cure)
    sizes = [
        sum(shard["size_bytes"] for shard in json.loads(path.read_text())["shards"])
        for path in sorted((root / "shared/trial").glob("step-*/manifest.json"))
    ]
    folder = root / "shared/trial/own"
    times = _step_times(words)
    first_step, last_step = min(times, default=0), max(times, default=0)
    return Measured(
        steps=max(last_step, end.step), whole=is_whole,
        step_seconds=(times[last_step] - times[first_step]) / (last_step - first_step)
        if last_step > first_step
        else None, checkpoint_gib=sizes[-1] / GIB if sizes else None,
        unsealed=0 if sizes else sum(path.is_file() for path in folder.rglob("*")),
    )  # fmt: skip
