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
        return {key: bare(part) for key, part in value.items() if not key.startswith("__")}
    return [bare(part) for part in value] if isinstance(value, list) else value


def strip(request: Request) -> Request:
    return replace(request, inputs=bare(request.inputs), old_inputs=bare(request.old_inputs), state=bare(request.state))


def filled_names(inputs: Props) -> set[str]:
    """Return the inputs that the plugin filled in."""
    return set(inputs.get(_KEY) or ())


def of_check(program: Any, inputs: Any) -> Any:
    """Add notes to `inputs`: the plugin filled in what the program left out."""
    if isinstance(inputs, dict):
        program_map = program if isinstance(program, dict) else inputs
        made_up = sorted(key for key in inputs if program_map.get(key) is None)
        return {key: of_check(program_map.get(key), value) for key, value in inputs.items()} | {_KEY: made_up}
    if isinstance(inputs, list):
        parts = program if isinstance(program, list) and len(program) == len(inputs) else [None] * len(inputs)
        return [of_check(program_part, filled_part) for program_part, filled_part in zip(parts, inputs, strict=True)]
    return inputs


def as_before(former: Any, present: Any) -> Any:
    """Add the inputs' former notes to the observed values of a refresh."""
    if isinstance(present, dict):
        former_map = former if isinstance(former, dict) else {}
        return {key: as_before(former_map.get(key), value) for key, value in present.items()} | {
            _KEY: former_map.get(_KEY, [])
        }
    if isinstance(present, list):
        parts = former if isinstance(former, list) and len(former) == len(present) else [None] * len(present)
        return [as_before(former_part, present_part) for former_part, present_part in zip(parts, present, strict=True)]
    return present
