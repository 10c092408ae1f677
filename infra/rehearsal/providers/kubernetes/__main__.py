from __future__ import annotations

from infra.rehearsal.providers.kubernetes.package import KubernetesPackage
from infra.rehearsal.providers.process import serve

if __name__ == "__main__":
    serve(KubernetesPackage())
