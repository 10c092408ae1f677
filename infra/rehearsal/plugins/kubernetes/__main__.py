from __future__ import annotations

from infra.rehearsal.plugins.kubernetes.package import KubernetesPackage
from infra.rehearsal.plugins.process import serve

if __name__ == "__main__":
    serve(KubernetesPackage())
