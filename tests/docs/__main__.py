"""Write the generated pages of docs/: spec, command line, waits, index of decisions. Run by `make docs`."""

from __future__ import annotations

from tests.docs import command_reference, decisions_index, spec_reference, waits_reference
from tests.root import ROOT

PAGES = {
    "docs/spec.md": spec_reference.page,
    "docs/commands.md": command_reference.page,
    "docs/waits.md": waits_reference.page,
    "docs/decisions/README.md": decisions_index.page,
}
"""Path from the repository's root -> the function that returns its text."""


def main() -> None:
    for path, page in PAGES.items():
        (ROOT / path).write_text(page())
        print(f"written: {path}")


if __name__ == "__main__":
    main()
