"""The Pulumi program of both kinds of stack."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pulumi
from pulumi import ResourceOptions, ResourceTransformationArgs, ResourceTransformationResult

from infra.kinds import kind_of_type
from infra.spec.names import DATA_POOL
from infra.stack.settings import FoundationSettings, read_settings


def program() -> None:
    """Make the stack that the configuration describes. The imports are late: the SDKs take seconds to load."""
    settings = read_settings(pulumi.Config().get)
    if isinstance(settings, FoundationSettings):
        from infra.stack.foundation import foundation

        outputs = foundation(settings)
    else:
        from infra.stack.campaign import campaign

        if settings.protected:
            pulumi.runtime.register_stack_transformation(_protect)
        outputs = campaign(settings)
    for name, value in outputs.items():
        pulumi.export(name, value)


def holds_state(kind: str, name: str) -> bool:
    """Return whether this resource holds the campaign's state, or what does. Nodes that prepare the data do not."""
    return kind_of_type(kind).holds_state and name != f"{DATA_POOL}-nodes"


def _protect(args: ResourceTransformationArgs) -> ResourceTransformationResult:
    """Set Pulumi's own mark on what holds state: a `pulumi destroy` refuses to delete it."""
    mark = ResourceOptions(protect=True if holds_state(args.type_, args.name) else None)
    return ResourceTransformationResult(args.props, ResourceOptions.merge(args.opts, mark))


def unprotect(resources: Iterable[dict[str, Any]]) -> bool:
    """Take the mark from resources of a state; return whether there was one."""
    return any([resource.pop("protect", False) for resource in resources])
