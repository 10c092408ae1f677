from __future__ import annotations

from infra.rehearsal.providers.aws.package import AwsPackage
from infra.rehearsal.providers.process import serve

if __name__ == "__main__":
    serve(AwsPackage())
