"""What commands say of this machine and installation: its fitness, a token for kubectl, the version."""

from __future__ import annotations

import json
import subprocess
from datetime import UTC, datetime, timedelta
from importlib import metadata
from pathlib import Path

from rich.console import Console

CHECKOUT = Path(__file__).parents[2]
_GIT_WITHIN_S = 10
_TOKEN_LIFE = timedelta(minutes=14)


def doctor_command(as_json: bool, console: Console) -> int:
    """Show what this machine has and lacks. Exit code 0, or 1 if something is missing."""
    from infra import target
    from infra.cli.answers import write_json

    table, rows = target.diagnose()
    fit = all(row["ok"] for row in rows)
    if as_json:
        write_json(console, {"ok": fit, "findings": rows})
    else:
        table.show(console)
    return 0 if fit else 1


def token_command(cluster: str, region: str, console: Console) -> int:
    """Print a token as kubectl's credential plugin wants it; no AWS CLI is needed."""
    from infra.aws.account import Account

    expires = (datetime.now(UTC) + _TOKEN_LIFE).strftime("%Y-%m-%dT%H:%M:%SZ")
    status = {"token": Account(region).cluster_token(cluster), "expirationTimestamp": expires}
    answer = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": status}
    console.file.write(json.dumps(answer) + "\n")
    return 0


def version(checkout: Path = CHECKOUT) -> str:
    """Return `bivouac 0.1.0 (commit 0123456789ab, with changes)`; the commit only in a checkout."""
    release = f"bivouac {metadata.version('bivouac')}"
    # A checkout of another project may hold us in its .venv: its commit says nothing about us.
    head = _git(checkout, "rev-parse", "--short=12", "HEAD") if (checkout / ".git").exists() else ""
    if not head:
        return release
    changes = _git(checkout, "status", "--porcelain", "--untracked-files=no")
    return f"{release} (commit {head}{', with changes' if changes else ''})"


def _git(checkout: Path, *arguments: str) -> str:
    """Return git's output; nothing without git or if it refuses."""
    command = ["git", "-C", str(checkout), *arguments]
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=_GIT_WITHIN_S)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return run.stdout.strip() if run.returncode == 0 else ""
