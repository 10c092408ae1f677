"""Until when EKS supports which Kubernetes version at the standard price."""

from __future__ import annotations

from datetime import date

from infra.facts import KubernetesSupport


def kubernetes_support() -> KubernetesSupport:
    """1.36: standard support is 14 months from its release on EKS, about July 2026; the day was not announced."""
    return KubernetesSupport(
        as_of=date(2026, 7, 31),
        source="https://docs.aws.amazon.com/eks/latest/userguide/kubernetes-versions.html",
        standard_until={
            "1.33": date(2026, 7, 29),
            "1.34": date(2026, 12, 2),
            "1.35": date(2027, 3, 27),
            "1.36": None,
        },
    )
