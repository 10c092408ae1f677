"""What `tests.structure` refuses, shown to a folder that has it."""

from __future__ import annotations

from pathlib import Path

from tests import structure


def test_a_tests_name_has_under_80_letters(tmp_path: Path) -> None:
    short, long = "a" * 79, "b" * 80
    module = tmp_path / "below" / "test_names.py"
    module.parent.mkdir()
    module.write_text(f"def test_{short}() -> None: ...\nclass TestNames:\n    def test_{long}(self) -> None: ...\n")
    (refusal,) = structure.long_sentences(tmp_path)
    assert refusal.startswith(f"{module}: test_{long} has 80 letters")
