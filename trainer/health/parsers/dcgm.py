"""Parser of `dcgmi diag -r N --json` of DCGM 3 (`DCGM GPU Diagnostic`) and DCGM 4 (`DCGM Diagnostic`)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

_ROOTS = ("DCGM Diagnostic", "DCGM GPU Diagnostic")
CONFIGURATION = 5
"""`error_severity` of errors in the node's settings, not its hardware (dcgm_errors.h, DCGM_ERROR_CONFIG)."""


@dataclass(frozen=True)
class TestResult:
    category: str
    test: str
    gpus: str
    status: str
    """pass, fail, warn or skip."""
    warnings: tuple[str, ...]
    severity: int | None
    """The worst of the warnings; None if DCGM gives none."""

    @property
    def is_failure(self) -> bool:
        return self.status.startswith("fail") and self.severity != CONFIGURATION


@dataclass(frozen=True)
class Diagnostic:
    version: str
    driver: str
    results: tuple[TestResult, ...]

    @property
    def executed_count(self) -> int:
        return sum(not result.status.startswith("skip") for result in self.results)


def parse(text: str) -> Diagnostic:
    """Parse the output; text may precede its JSON. Raises `ValueError` when it holds no diagnostic."""
    begin = text.find("{")
    if begin < 0:
        raise ValueError(f"no JSON: {text.strip()[:200]!r}")
    try:
        document, _ = json.JSONDecoder().raw_decode(text[begin:])
    except json.JSONDecodeError as error:
        raise ValueError(f"broken JSON: {error}") from error
    root = next((document[name] for name in _ROOTS if name in document), None)
    if not isinstance(root, dict) or "test_categories" not in root:
        raise ValueError(f"no diagnostic: {', '.join(document)[:200]}")
    metadata = document.get("metadata") or {}
    return Diagnostic(
        version=str(metadata.get("version") or root.get("version") or ""),
        driver=str(metadata.get("Driver Version Detected") or root.get("Driver Version Detected") or ""),
        results=tuple(_results(root["test_categories"])),
    )


def _results(categories: list[Any]) -> Iterator[TestResult]:
    for category in categories:
        for test in category.get("tests") or ():
            for result in (test or {}).get("results") or ():
                warnings = [
                    warning if isinstance(warning, dict) else {"warning": warning}
                    for warning in _list(result.get("warnings"))
                ]
                levels = [
                    warning["error_severity"] for warning in warnings if isinstance(warning.get("error_severity"), int)
                ]
                yield TestResult(
                    category=str(category.get("category", "")),
                    test=str(test.get("name", "")),
                    gpus=str(result.get("gpu_ids", result.get("entity_id", ""))),
                    status=str(result.get("status", "")).lower(),
                    warnings=tuple(str(warning.get("warning", warning)) for warning in warnings),
                    severity=_worst(levels),
                )


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _worst(levels: list[int]) -> int | None:
    """Return the worst severity; `CONFIGURATION` only if all are: any other one concerns the hardware."""
    hardware_levels = [level for level in levels if level != CONFIGURATION]
    return max(hardware_levels) if hardware_levels else CONFIGURATION if levels else None
