"""Write the generated pages of docs/: spec, commands, waits, metrics, runbooks, decisions. Run by `make docs`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from infra.monitoring.alerts import RUNBOOKS, alerts, runbook
from tests.docs import command_reference, decisions_index, metrics_reference, spec_reference, waits_reference
from tests.root import ROOT

PAGES: dict[str, Callable[[], str]] = {
    "docs/spec.md": spec_reference.page,
    "docs/commands.md": command_reference.page,
    "docs/waits.md": waits_reference.page,
    "docs/metrics.md": metrics_reference.page,
    "docs/decisions/README.md": decisions_index.page,
    **{f"{RUNBOOKS}/{name}.md": partial(runbook, name, rule) for name, rule in alerts().items()},
}
"""Path from the repository's root -> the function that returns its text."""


def main() -> None:
    for path, page in PAGES.items():
        (ROOT / path).write_text(page())
        print(f"written: {path}")


if __name__ == "__main__":
    main()
