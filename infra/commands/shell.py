"""`bivouac shell NAME`: a shell where the campaign runs, `kubectl` and `pulumi` ready."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path

from rich.console import Console

from infra import names
from infra.account import Account
from infra.actions.cluster import kubeconfig
from infra.errors import UserError
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
        # Ctrl-C and Ctrl-\ are the shell's inside: it gets them from the terminal as we do.
        handlers = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGQUIT)}
        try:
            return _exit_code(arguments, environment, work, handlers)
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)


def _exit_code(arguments: list[str], environment: dict[str, str], work: Path, handlers: Iterable[int]) -> int:
    def defaults() -> None:
        for number in handlers:
            signal.signal(number, signal.SIG_DFL)

    try:
        code = subprocess.call(arguments, env=environment, cwd=work, preexec_fn=defaults)
    except OSError as error:
        cure = "name a program that is on PATH, or set SHELL"
        raise UserError("the command cannot be run", seen=f"{arguments[0]}: {error.strerror}", cure=cure) from error
    return code if code >= 0 else 128 - code
