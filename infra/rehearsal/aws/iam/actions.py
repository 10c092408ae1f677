"""IAM permissions of operations, where they differ from the operation's own name: `actions.yaml`, with the meanings."""

from __future__ import annotations

from typing import Any

from infra.tables import table


def _by_operation(services: dict[str, dict[str, Any]]) -> dict[tuple[str, str], Any]:
    return {(service, name): value for service, names in services.items() for name, value in names.items()}


_TABLES: dict[str, Any] = table("infra.rehearsal.aws.iam", "actions")
ACTIONS: dict[str, dict[str, str]] = _TABLES["actions"]
VERSIONED = frozenset(_TABLES["versioned"])
BESIDE: dict[str, str] = _TABLES["beside"]
PREFIXES: dict[str, str] = _TABLES["prefixes"]
ROLE_PASSED_BY: dict[tuple[str, str], tuple[str, str]] = _by_operation(_TABLES["role_passed_by"])
TAGS_WITH: dict[tuple[str, str], str] = _by_operation(_TABLES["tags_with"])
BUILD_OVERRIDES: dict[str, str] = _TABLES["build_overrides"]
