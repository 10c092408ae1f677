"""`python -m infra.rehearsal.aws`: the emulated AWS of one site."""

from __future__ import annotations

import argparse
import logging
from functools import lru_cache
from pathlib import Path

from botocore.loaders import JSONFileLoader, Loader

from infra.folders import cache_root
from infra.rehearsal.aws.strict import settings
from infra.rehearsal.aws.world import World

_MODELS = 1000


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m infra.rehearsal.aws", description=__doc__)
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, default=5000)
    parser.add_argument("--work", type=Path, required=True, help="the site's folder")
    parser.add_argument("--tools", type=Path, default=cache_root() / "bin", help="folder of the Kubernetes binaries")
    parser.add_argument("--region", default="us-east-1")
    parser.add_argument("--account", default="123456789012")
    parser.add_argument("--control-plane-address", default="10.77.0.10")
    options = parser.parse_args()
    _read_models_once()
    from infra.rehearsal.aws.server import serve  # it imports moto, which reads models

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    world = World(
        work=options.work,
        tools=options.tools,
        endpoint_url=f"http://{options.host}:{options.port}",
        region=options.region,
        account=options.account,
        control_plane_address=options.control_plane_address,
        strictness=settings.read(options.work),
    )
    serve(world, options.host, options.port)


def _read_models_once() -> None:
    """Let all of boto's loaders have one memory: moto makes sessions of its own, each of which would read a service's
    model anew. EC2's takes 0.12 s."""
    models = JSONFileLoader()
    models.load_file = lru_cache(_MODELS)(models.load_file)  # type: ignore[method-assign]
    Loader.FILE_LOADER_CLASS = staticmethod(lambda: models)


if __name__ == "__main__":
    main()
