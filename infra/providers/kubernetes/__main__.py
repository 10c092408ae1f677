from __future__ import annotations

from infra.providers.kubernetes.package import KubernetesPackage
from infra.providers.process import serve

if __name__ == "__main__":
    serve(KubernetesPackage())
