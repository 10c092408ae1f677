"""`bivouac check SPEC`: all errors of a spec at once. No network, unless `--online`."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from infra.cli.answers import write_json
from infra.cli.prepare.checked import checked, with_memory
from infra.cli.rendering import print_findings
from infra.console.plain_console import PlainConsole
from infra.errors import UserError
from infra.plan.checks import Finding, failed


def check_command(path: Path, json: bool = False, console: Console | None = None, online: bool = False) -> int:
    """Check a spec. Exit code 0, or 64 when nothing may be started. `json`: one object on stdout. `online`: ask AWS too
    if the spec alone has no error."""
    console = console or Console()
    try:
        aside = PlainConsole(stderr=True, highlight=False)
        seen = with_memory(checked(path), aside)
        if online and seen.spec is not None and not failed(seen.findings):
            from infra import target
            from infra.cli.prepare.checked import with_answers

            target.enter_for(seen.spec, lambda step: aside.print(f"{'site':<10} {step}", markup=False))
            seen = with_answers(seen, aside)
        findings = seen.findings
    except UserError as error:
        return refuse(error, json, console)
    show(path, findings, json, console)
    return UserError.exit_code if failed(findings) else 0


def show(path: Path, findings: tuple[Finding, ...], json: bool, console: Console) -> None:
    if json:
        rows = [finding.model_dump(mode="json") for finding in findings]
        write_json(console, {"spec": str(path), "ok": not failed(findings), "findings": rows})
    else:
        print_findings(console, path, findings)


def refuse(error: UserError, json: bool, console: Console) -> int:
    """Print an error for which the spec could not be checked at all."""
    if json:
        seen = None if error.seen is None else str(error.seen)
        write_json(console, {"ok": False, "error": {"what": error.what, "seen": seen, "cure": error.cure}})
    else:
        console.print(str(error), style="bold red", markup=False, soft_wrap=True)
    return error.exit_code
