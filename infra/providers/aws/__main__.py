from __future__ import annotations

from infra.providers.aws.package import AwsPackage
from infra.providers.process import serve

if __name__ == "__main__":
    serve(AwsPackage())
