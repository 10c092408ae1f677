"""What the real plugin notes for itself among the inputs: which of them it filled in, in every object and map.

Its bridge to Terraform's provider ends the making of each map with the list `__defaults` (pulumi-terraform-bridge,
pkg/tfbridge/schema.go, applyDefaults): at the top, in nested objects and those of lists, and in tags and labels too.
What Terraform's provider leaves to AWS (`Computed` without `Default`) is in neither the inputs nor the list.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from infra.providers.package import Request
from infra.providers.wire import Props

_KEY = "__defaults"


def bare(value: Any) -> Any:
    """Without notes, at every depth."""
    if isinstance(value, dict):
        return {key: bare(one) for key, one in value.items() if not key.startswith("__")}
    return [bare(one) for one in value] if isinstance(value, list) else value


def without(request: Request) -> Request:
    return replace(request, inputs=bare(request.inputs), old_inputs=bare(request.old_inputs), state=bare(request.state))


def defaulted(inputs: Props) -> set[str]:
    """The inputs that the plugin filled in."""
    return set(inputs.get(_KEY) or ())


def of_check(given: Any, completed: Any) -> Any:
    """`completed` with its notes: what was not given is the plugin's."""
    if isinstance(completed, dict):
        own = given if isinstance(given, dict) else completed
        made_up = sorted(key for key in completed if own.get(key) is None)
        return {key: of_check(own.get(key), value) for key, value in completed.items()} | {_KEY: made_up}
    if isinstance(completed, list):
        several = given if isinstance(given, list) and len(given) == len(completed) else [None] * len(completed)
        return [of_check(one, other) for one, other in zip(several, completed, strict=True)]
    return completed


def as_before(noted: Any, seen: Any) -> Any:
    """What a refresh saw, with the notes that the inputs had."""
    if isinstance(seen, dict):
        own = noted if isinstance(noted, dict) else {}
        return {key: as_before(own.get(key), value) for key, value in seen.items()} | {_KEY: own.get(_KEY, [])}
    if isinstance(seen, list):
        several = noted if isinstance(noted, list) and len(noted) == len(seen) else [None] * len(seen)
        return [as_before(one, other) for one, other in zip(several, seen, strict=True)]
    return seen
