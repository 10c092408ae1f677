from __future__ import annotations

from infra.rehearsal.plugins.aws.package import AwsPackage
from infra.rehearsal.plugins.process import serve

if __name__ == "__main__":
    serve(AwsPackage())
