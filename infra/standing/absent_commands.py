"""Commands that have no way in an existing cluster: why, and what a person uses there instead."""

from __future__ import annotations

from infra.errors import UserError
from infra.spec.campaign import Spec
from infra.spec.standing import NOT_YET, StandingCluster

_SELECTED = "-l bivouac.dev/campaign={campaign}"
_INSTEAD = {
    "repair": (
        "no stack of ours is there that could drift",
        "`bivouac run SPEC` makes anew what is missing; see `{kubectl} get events`",
    ),
    "sweep": (
        "it looks for what AWS bills",
        f"`bivouac down {{campaign}}` looks anew; see `{{kubectl}} get all,configmaps,pvc {_SELECTED}`",
    ),
    "shell": ("it leads to Pulumi's stacks and to EKS", f"see `{{kubectl}} get pods {_SELECTED}`"),
    "exec": (
        "the grant lets nobody into a pod",
        f"with rights of your own `{{kubectl}} exec -it POD -c trainer -- bash`; `{{kubectl}} get pods {_SELECTED}`",
    ),
    "cp": (
        "the grant lets nobody into a pod",
        f"with rights of your own `{{kubectl}} cp -c trainer POD:PATH PATH`; `{{kubectl}} get pods {_SELECTED}`",
    ),
}
"""Command -> why it has no way there, and the cure."""


def refuse(spec: Spec, cluster: StandingCluster, command: str) -> None:
    """Raise `UserError` with the reason, and with the line of kubectl that does the same. A command without a row only
    says that it does not work there."""
    reason, cure = _INSTEAD.get(
        command, ("", "docs/kubernetes.md says which commands work there; `{kubectl} get pods` shows the rest")
    )
    kubectl = f"kubectl --context {cluster.context} -n {cluster.namespace}"
    raise UserError(
        NOT_YET + (f": {reason}" if reason else ""),
        seen=f"{spec.campaign} in context {cluster.context}",
        cure=cure.format(kubectl=kubectl, campaign=spec.campaign),
    )
