"""`bivouac shell NAME`: a shell where the campaign runs, `kubectl` and `pulumi` ready."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path

from rich.console import Console

from infra import names
from infra.account import Account
from infra.actions.cluster import kubeconfig
from infra.lifecycle.engine import PASSPHRASE
from infra.lifecycle.opening import record_of, stored_spec


def shell_command(campaign: str, command: list[str], console: Console) -> int:
    """Runs a shell, or `command`; its exit code. What it needs lies in a folder that goes with it."""
    region = os.environ.get("AWS_REGION", "us-east-1")
    store = record_of(campaign, region)
    spec = stored_spec(store)
    account = Account(spec.region)
    with tempfile.TemporaryDirectory(prefix="bivouac-shell-") as folder:
        environment = dict(os.environ)
        try:
            config = kubeconfig(account, names.Names(spec).cluster)
        except account.client("eks").exceptions.ResourceNotFoundException:
            console.print("there is no cluster at the moment: kubectl has nothing to talk to")
        else:
            path = Path(folder) / "kubeconfig"
            path.write_text(json.dumps(config))
            path.chmod(0o600)
            environment["KUBECONFIG"] = str(path)
        work = Path(folder) / "pulumi"
        work.mkdir()
        backend = f"s3://{store.bucket}?region={spec.region}&awssdk=v2"
        (work / "Pulumi.yaml").write_text(
            json.dumps({"name": names.PROJECT, "runtime": "python", "backend": {"url": backend}})
        )
        environment |= {PASSPHRASE: environment.get(PASSPHRASE, ""), "PULUMI_STACK": names.campaign_stack(campaign)}
        arguments = command or [os.environ.get("SHELL", "/bin/sh")]
        return subprocess.call(arguments, env=environment, cwd=work)
