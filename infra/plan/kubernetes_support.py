"""End of EKS's standard support for each Kubernetes version."""

from __future__ import annotations

from datetime import date

from infra.plan.facts import KubernetesSupport


def kubernetes_support() -> KubernetesSupport:
    """Return the dates: 1.36's is from DescribeClusterVersions in September 2026, quoted in the compatibility matrix of
    awslabs/awsome-distributed-ai; the others are from the user guide."""
    return KubernetesSupport(
        as_of=date(2026, 9, 18),
        source="https://docs.aws.amazon.com/eks/latest/userguide/kubernetes-versions.html",
        standard_until={
            "1.33": date(2026, 7, 29),
            "1.34": date(2026, 12, 2),
            "1.35": date(2027, 3, 27),
            "1.36": date(2027, 8, 2),
        },
    )
