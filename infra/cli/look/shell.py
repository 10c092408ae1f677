"""`bivouac shell`: a shell with `kubectl`, `aws` and `pulumi` on the campaign's cluster, account and state."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from rich.console import Console

from infra.aws.account import Account
from infra.cli.hand.by_hand import environment, spec_and_record, write_stacks
from infra.cluster.kubernetes import kubeconfig
from infra.console.plain_console import say
from infra.errors import UserError
from infra.record.store import CampaignStore
from infra.session.session import DRIVER_LEASE, holder_of
from infra.spec import names
from infra.spec.campaign import Spec

PROGRAM = str(Path(__file__).resolve().parents[1] / "hand")


def shell_command(name: str | None, region: str, command: list[str] | None, console: Console) -> int:
    """Run a shell, or `command`; return its exit code. `name`: a campaign or a spec's path; None: the account."""
    if sys.argv[2:3] == ["--"]:  # typer takes the command's first word for the name
        name, command = None, [*filter(None, [name]), *(command or [])]
    command = command or []
    if name is None:
        owner = Account(region).identity()["Account"]
        return _run_attended(command, environment(names.buckets(owner, region).state, region), Path.cwd())
    spec, store, text = spec_and_record(name, region, console)
    environ = environment(store.bucket, spec.region) | {"PULUMI_STACK": names.campaign_stack(spec.campaign)}
    with tempfile.TemporaryDirectory(prefix="bivouac-shell-") as folder:
        work = Path(folder)
        (work / "Pulumi.yaml").write_text(json.dumps({"name": names.PROJECT, "runtime": "python", "main": PROGRAM}))
        write_stacks(work, store, text)
        account, config = Account(spec.region), None
        with suppress(
            account.client("eks").exceptions.ResourceNotFoundException
        ):  # there is no cluster yet, or any more
            config = kubeconfig(account, names.Names(spec).cluster)
        if config is not None:
            path = work / "kubeconfig"
            path.touch(mode=0o600)
            path.write_text(json.dumps(config))
            environ["KUBECONFIG"] = str(path)
        if not command:
            _greet(console, store, spec, cluster=config is not None)
        return _run_attended(command, environ, work)


def _run_attended(command: list[str], environment: dict[str, str], work: Path) -> int:
    arguments = command or [os.environ.get("SHELL", "/bin/sh")]
    # Ctrl-C and Ctrl-\ are for the shell, which gets them from the terminal as we do.
    handlers = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGQUIT)}

    def defaults() -> None:
        for number in handlers:
            signal.signal(number, signal.SIG_DFL)

    try:
        code = subprocess.call(arguments, env=environment, cwd=work, preexec_fn=defaults)
    except OSError as error:
        cure = "name a program that is on PATH, or set SHELL"
        raise UserError("the command cannot be run", seen=f"{arguments[0]}: {error.strerror}", cure=cure) from error
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    return code if code >= 0 else 128 - code


def _greet(console: Console, store: CampaignStore, spec: Spec, *, cluster: bool) -> None:
    console.print(f"campaign {spec.campaign} in account {spec.account}, {spec.region}; `exit` leaves")
    console.print(f"  pulumi   stacks {names.campaign_stack(spec.campaign)} (selected) and {names.FOUNDATION_STACK}")
    console.print(f"  kubectl  {'namespace ' + names.NAMESPACE if cluster else 'there is no cluster at the moment'}")
    say(console, f"  driver   {holder_of(store, DRIVER_LEASE) or 'none'}")
