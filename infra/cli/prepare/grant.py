"""`bivouac grant SPEC`: what an admin of an existing cluster applies once."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from infra.cli.options import stderr
from infra.cli.prepare.check import show
from infra.cli.prepare.checked import checked
from infra.errors import UserError
from infra.plan.checks import failed
from infra.standing.grant import Subject, grant_text


def grant_command(path: Path, user: str, group: str, console: Console) -> int:
    """Print the YAML. `user`, `group`: who runs `bivouac`, instead of an account that the grant makes."""
    check = checked(path)
    if failed(check.findings) or check.spec is None:
        show(path, check.findings, False, stderr)
        return UserError.exit_code
    cluster = check.spec.cluster
    if cluster is None:
        cure = "write target: kubernetes and section `cluster`, or use none: on AWS `run` makes all by itself"
        raise UserError("the spec names no existing cluster", seen=f"target: {check.spec.target}", cure=cure)
    if user and group:
        raise UserError("the grant is to one", seen=f"user {user}, group {group}", cure="give --user or --group")
    subject = Subject("User", user) if user else Subject("Group", group) if group else Subject()
    console.file.write(grant_text(check.spec, cluster, subject))
    return 0
