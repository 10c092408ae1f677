"""Write the generated pages of docs/: the spec, the command line, the table of waits. Run by `make docs`."""

from __future__ import annotations

from tests.docs import command_reference, spec_reference, waits_reference
from tests.root import ROOT

PAGES = {
    "docs/spec.md": spec_reference.page,
    "docs/commands.md": command_reference.page,
    "docs/waits.md": waits_reference.page,
}
"""Path from the repository's root -> the function that returns its text."""


def main() -> None:
    for path, page in PAGES.items():
        (ROOT / path).write_text(page())
        print(f"written: {path}")


if __name__ == "__main__":
    main()
