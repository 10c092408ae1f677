"""The process of the emulated AWS: set up the account and the services, serve them on one address."""

from __future__ import annotations

import importlib
import json
import logging
import os
import signal
import socket
import threading
import warnings
from functools import lru_cache

from botocore.utils import parse_to_aware_datetime
from moto import settings
from moto.core import serialize
from moto.core.base_backend import BackendDict, BaseBackend
from moto.moto_api._internal import moto_api_backend
from moto.moto_server.werkzeug_app import MotoRequestHandler
from werkzeug.serving import BaseWSGIServer, make_server

from infra.rehearsal.aws.gateway import Gateway
from infra.rehearsal.aws.iam import access
from infra.rehearsal.aws.world import World

log = logging.getLogger(__name__)

MODULES = (
    "lookups", "troubles", "ec2.compute", "power", "ec2.autoscaling", "eks.clusters", "eks.access", "eks.addons",
    "eks.pod_identity", "eks.tags", "eks.updates", "eks.nodegroups", "iam.identity", "iam.sizes", "fsx.systems",
    "fsx.damage", "fsx.given", "fsx.figures",
    "ecr", "ssm", "schedules", "builds", "ec2.placement", "ec2.reservations", "ec2.market", "money.budgets",
    "money.cost_tags", "s3.bucket_policies", "s3.bucket_settings", "s3.checksums", "ec2.quotas", "ec2.networks",
    "ec2.templates", "s3.kms", "logs", "ec2.residual", "tagging", "faults", "strict.buckets", "journal",
)  # fmt: skip
"""Installed in this order by `install(world: World) -> None` of each."""
SETTINGS = ("MOTO_ACCOUNT_ID", "MOTO_IAM_LOAD_MANAGED_POLICIES")
"""Variables of the environment that moto reads while it serves."""
TIMES = 10_000
CREDENTIALS = "credentials.json"
"""File in <work>/aws: the keys of the operator (top level) and of the emulator's principal, for the starter."""


class RequestHandler(MotoRequestHandler):
    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        log.debug("%s %s", self.requestline, code)


def build(world: World) -> Gateway:
    """Return the application of a new, empty account: principals first, then every service."""
    _forget()
    os.environ |= dict(zip(SETTINGS, (world.account, "true"), strict=True))
    # The gateway checks the same users, roles and policies, but evaluates Resource and Condition too.
    settings.INITIAL_NO_AUTH_ACTION_COUNT = float("inf")
    # Errors that a service's model does not list are normal, such as access denied.
    warnings.filterwarnings("ignore", "Exception.* does not match an error shape", module="moto.core.serialize")
    # A listing of S3 converts the time of each object, which dateutil parses anew.
    serialize.parse_to_aware_datetime = lru_cache(TIMES)(parse_to_aware_datetime)
    access.create_principals(world)
    for name in MODULES:
        importlib.import_module(f"infra.rehearsal.aws.{name}").install(world)
    world.routes["/_site/ready"] = lambda query, body: (200, {"ready": True, "endpoint": world.endpoint_url})
    return Gateway(world)


def _forget() -> None:
    """Drop what another world of this process has left. moto makes each backend anew before it drops it, EC2's with
    thousands of public images; only those that hold something outside of themselves need that."""
    for backends in BackendDict._instances:  # type: ignore[misc]
        if backends.backend.reset is BaseBackend.reset:
            backends.clear()
    moto_api_backend.reset()


def write_credentials(world: World) -> None:
    folder = world.work / "aws"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / CREDENTIALS
    (key, secret), agent = world.operator_key, world.agent_key
    document = {
        "access_key_id": key,
        "secret_access_key": secret,
        "endpoint_url": world.endpoint_url,
        "region": world.region,
        "account": world.account,
        "agent": {"access_key_id": agent[0], "secret_access_key": agent[1]},
    }
    partial = path.with_suffix(".partial")
    partial.touch(mode=0o600)
    partial.write_text(json.dumps(document, indent=1))
    partial.rename(path)


def make(world: World, host: str, port: int) -> BaseWSGIServer:
    """Return a server bound only to `host:port` (port 0: any free one), for the caller to run.

    It gets a bound socket: a server that binds its own asks a name server for its name, and in a site there is none, so
    that it would wait for six seconds.
    """
    with socket.create_server((host, port)) as bound:
        server = make_server(host, port, build(world), threaded=True, request_handler=RequestHandler, fd=bound.fileno())
    server.server_name, server.server_port = host, server.port
    return server


def serve(world: World, host: str, port: int) -> None:
    """Serve until SIGTERM or SIGINT, then stop machines and control planes."""
    server = make(world, host, port)
    world.start()
    write_credentials(world)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: threading.Thread(target=server.shutdown).start())
    log.info("serving %s", world.endpoint_url)
    try:
        server.serve_forever()
    finally:
        world.stop()
