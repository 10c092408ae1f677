"""`bivouac check SPEC`: all errors of a spec at once. No network, unless `--online`."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from infra.cli.answers import write_json
from infra.cli.options import site_steps, stderr
from infra.cli.prepare.checked import checked, with_memory
from infra.cli.rendering import print_findings
from infra.console.plain_console import say
from infra.errors import UserError
from infra.plan.checks import Finding, failed


def check_command(path: Path, json: bool, console: Console, online: bool = False) -> int:
    """Check a spec. Exit code 0, or 64 when nothing may be started. `json`: one object on stdout. `online`: ask AWS,
    or the existing cluster, too if the spec alone has no error."""
    result = with_memory(checked(path, fetches=(lambda text: say(stderr, text)) if online else None), stderr)
    if online and result.spec is not None and not failed(result.findings):
        from infra import target
        from infra.cli.prepare.checked import with_answers

        target.enter_for(result.spec, site_steps(stderr), anywhere=True)
        result = with_answers(result, stderr)
    show(path, result.findings, json, console)
    return UserError.exit_code if failed(result.findings) else 0


def schema_command(console: Console) -> int:
    """Print the JSON schema of a spec."""
    from infra.spec.schema import schema

    write_json(console, schema())
    return 0


def show(path: Path, findings: tuple[Finding, ...], json: bool, console: Console) -> None:
    if json:
        rows = [finding.model_dump(mode="json") for finding in findings]
        write_json(console, {"spec": str(path), "ok": not failed(findings), "findings": rows})
    else:
        print_findings(console, path, findings)
