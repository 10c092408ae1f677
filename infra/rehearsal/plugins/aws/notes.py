"""The real plugin's notes among the inputs: the list `__defaults` of the inputs that it filled in.

Its bridge to Terraform's provider adds the list to each map (pulumi-terraform-bridge, pkg/tfbridge/schema.go,
applyDefaults): at the top, in nested objects and lists of them, and in tags and labels too. Values that Terraform's
provider leaves to AWS (`Computed` without `Default`) are in neither the inputs nor the list.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from infra.rehearsal.plugins.package import Request
from infra.rehearsal.plugins.wire import Props

_KEY = "__defaults"


def bare(value: Any) -> Any:
    """Remove the notes at every depth."""
    if isinstance(value, dict):
        return {key: bare(one) for key, one in value.items() if not key.startswith("__")}
    return [bare(one) for one in value] if isinstance(value, list) else value


def without(request: Request) -> Request:
    return replace(request, inputs=bare(request.inputs), old_inputs=bare(request.old_inputs), state=bare(request.state))


def defaulted(inputs: Props) -> set[str]:
    """Return the inputs that the plugin filled in."""
    return set(inputs.get(_KEY) or ())


def of_check(given: Any, completed: Any) -> Any:
    """Add notes to `completed`: the plugin filled in what was not given."""
    if isinstance(completed, dict):
        own = given if isinstance(given, dict) else completed
        made_up = sorted(key for key in completed if own.get(key) is None)
        return {key: of_check(own.get(key), value) for key, value in completed.items()} | {_KEY: made_up}
    if isinstance(completed, list):
        several = given if isinstance(given, list) and len(given) == len(completed) else [None] * len(completed)
        return [of_check(one, other) for one, other in zip(several, completed, strict=True)]
    return completed


def as_before(noted: Any, seen: Any) -> Any:
    """Add the inputs' former notes to the observed values of a refresh."""
    if isinstance(seen, dict):
        own = noted if isinstance(noted, dict) else {}
        return {key: as_before(own.get(key), value) for key, value in seen.items()} | {_KEY: own.get(_KEY, [])}
    if isinstance(seen, list):
        several = noted if isinstance(noted, list) and len(noted) == len(seen) else [None] * len(seen)
        return [as_before(one, other) for one, other in zip(several, seen, strict=True)]
    return seen
