"""PID 1 of a site: makes the bridge, starts the emulated AWS and the fault injector, reaps orphans.

It runs in its own namespaces; when it ends, everything in the site ends.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from infra.rehearsal.site.layout import (
    AWS_ADDRESS,
    AWS_ENDPOINT,
    AWS_PORT,
    BRIDGE,
    CONTROL_PLANE_ADDRESS,
    GATEWAY,
    ON_LINK,
    REGION,
)
from infra.rehearsal.site.network import add_addresses, make_bridge

READY_WITHIN_S = 60.0


def main(folder: Path, region: str) -> int:
    """Run the site until it is killed or its AWS dies."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    add_addresses("lo", ())
    make_bridge(BRIDGE, [f"{a}/16" for a in (GATEWAY, AWS_ADDRESS, CONTROL_PLANE_ADDRESS)], [ON_LINK])
    (folder / "logs").mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-P", "-m", "infra.rehearsal.aws", "--host", AWS_ADDRESS, "--port", str(AWS_PORT)]
    command += ["--work", str(folder), "--region", region]
    with (folder / "logs" / "aws.log").open("ab") as log:
        aws = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    _wait_ready(aws)
    _start_faults(folder)
    (folder / "inside.json").write_text(json.dumps({"region": region, "aws_pid": aws.pid}))
    return _reap_until(aws)


def _start_faults(folder: Path) -> None:
    keys = json.loads((folder / "aws" / "credentials.json").read_text())
    environment = os.environ | {
        "AWS_ENDPOINT_URL": AWS_ENDPOINT,
        "AWS_DEFAULT_REGION": keys["region"],
        "AWS_ACCESS_KEY_ID": keys["access_key_id"],
        "AWS_SECRET_ACCESS_KEY": keys["secret_access_key"],
    }
    with (folder / "logs" / "faults.log").open("ab") as log:
        subprocess.Popen(
            [sys.executable, "-P", "-m", "infra.rehearsal.site.faults", str(folder), AWS_ENDPOINT],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment,
        )


def _wait_ready(aws: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + READY_WITHIN_S
    while time.monotonic() < deadline:
        if aws.poll() is not None:
            sys.exit(f"the emulated AWS ended with exit code {aws.returncode}: see logs/aws.log")
        try:
            with urllib.request.urlopen(f"{AWS_ENDPOINT}/_site/ready", timeout=2) as answer:
                if answer.status == 200:
                    return
        except OSError:
            time.sleep(0.1)
    sys.exit(f"the emulated AWS was not ready within {READY_WITHIN_S:.0f} s: see logs/aws.log")


def _reap_until(aws: subprocess.Popen[bytes]) -> int:
    """Reap children until the emulated AWS ends: PID 1 inherits every orphan."""
    while True:
        try:
            pid, status = os.waitpid(-1, 0)
        except ChildProcessError:
            return 0
        if pid == aws.pid:
            print(f"the emulated AWS ended with status {status}", file=sys.stderr)
            return 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else REGION))
