"""The table of waits as Pulumi's timeouts of a resource."""

from __future__ import annotations

from pulumi import CustomTimeouts

from infra.spec.waits import WaitBound


def timeouts_of(wait: WaitBound) -> CustomTimeouts:
    return CustomTimeouts(create=wait.timeout, update=wait.timeout, delete=wait.timeout)
