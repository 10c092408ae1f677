"""`bivouac shell NAME`: a shell with `kubectl`, `aws` and `pulumi` on the campaign's cluster, account and state."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich.console import Console

from infra import target
from infra.aws.account import Account
from infra.bake.keeping import foundation_settings
from infra.cli.records import record_of
from infra.cluster.kubernetes import kubeconfig
from infra.engine import secrets
from infra.engine.state_copy import stored_state
from infra.errors import UserError
from infra.record.store import CampaignStore
from infra.session.session import DRIVER_LEASE, STACK_CONFIG, holder_of, stored_spec
from infra.spec import names
from infra.spec.campaign import Spec

PROGRAM = Path(__file__).resolve().parents[2] / "stack" / "__main__.py"


def shell_command(campaign: str, region: str, command: list[str], console: Console) -> int:
    """Run a shell, or `command`; return its exit code. Its temporary folder goes with it."""
    store = record_of(campaign, region)
    spec = stored_spec(store)
    account = Account(spec.region)
    with tempfile.TemporaryDirectory(prefix="bivouac-shell-") as folder:
        work = Path(folder) / "pulumi"
        work.mkdir()
        _write_project(work, store, spec)
        environment = dict(os.environ)
        environment["PATH"] = os.pathsep.join([*target.hands(), environment["PATH"]])
        environment |= {
            **secrets.passphrase(),
            "PULUMI_STACK": names.campaign_stack(campaign),
            "AWS_REGION": spec.region,
            "AWS_DEFAULT_REGION": spec.region,
            "AWS_PAGER": "",
        }
        config = _kubeconfig(account, spec)
        if config is not None:
            path = Path(folder) / "kubeconfig"
            path.touch(mode=0o600)
            path.write_text(json.dumps(config))
            environment["KUBECONFIG"] = str(path)
        if not command:
            _greet(console, store, spec, cluster=config is not None)
        arguments = command or [os.environ.get("SHELL", "/bin/sh")]
        # Ctrl-C and Ctrl-\ are for the shell, which gets them from the terminal as we do.
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


def _write_project(work: Path, store: CampaignStore, spec: Spec) -> None:
    """Write a Pulumi project with the driver's program, backend and stack configuration."""
    shutil.copy(PROGRAM, work / "__main__.py")
    backend = f"s3://{store.bucket}?region={spec.region}&awssdk=v2"
    project = {"name": names.PROJECT, "runtime": "python", "backend": {"url": backend}}
    (work / "Pulumi.yaml").write_text(json.dumps(project))
    foundation = foundation_settings(store, spec).to_config()
    stacks = {names.FOUNDATION_STACK: foundation, names.campaign_stack(spec.campaign): store.get_json(STACK_CONFIG)}
    for stack, config in stacks.items():
        # JSON is YAML. A campaign's stack that was not brought up yet has no configuration.
        settings = {**secrets.kept(stored_state(store, stack)), "config": config or {}}
        (work / f"Pulumi.{stack}.yaml").write_text(json.dumps(settings))


def _kubeconfig(account: Account, spec: Spec) -> dict[str, Any] | None:
    """Return the kubeconfig, None while there is no cluster."""
    try:
        return kubeconfig(account, names.Names(spec).cluster)
    except account.client("eks").exceptions.ResourceNotFoundException:
        return None


def _greet(console: Console, store: CampaignStore, spec: Spec, *, cluster: bool) -> None:
    console.print(f"campaign {spec.campaign} in account {spec.account}, {spec.region}; `exit` leaves")
    console.print(f"  pulumi   stacks {names.campaign_stack(spec.campaign)} (selected) and {names.FOUNDATION_STACK}")
    console.print(f"  kubectl  {'namespace ' + names.NAMESPACE if cluster else 'there is no cluster at the moment'}")
    console.print(f"  driver   {holder_of(store, DRIVER_LEASE) or 'none'}", markup=False, soft_wrap=True)
    console.print("  `pulumi destroy` does not need an archive: `bivouac down` does", style="dim")
