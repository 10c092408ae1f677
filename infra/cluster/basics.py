"""What every node needs of the world, proven on the system node before a GPU node bills: the command of one pod.

The pod has the steward's image, account and mounts. So a missing image, shared tier, name service, identity or right
shows while only the control plane bills. Each look is repeated for a while: what is new in an account comes late.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from lightkube.resources.core_v1 import Node
from pydantic import TypeAdapter

from infra.aws.account import QUICK, Account
from infra.cluster.kubernetes import from_pod
from trainer.contract import SHARED_CHECKPOINTS, Probe
from trainer.contract.exits import write_termination
from trainer.contract.frozen import Frozen

CONFIG_FILE = Path("/config/basics.json")
LATE_S = 90.0
"""Time for an identity, a right or a name that was made a moment ago to be known everywhere."""
_PAUSE_S = 3.0
_LONGEST = 400
Probes = TypeAdapter(list[Probe])


class Basics(Frozen):
    region: str
    bucket: str
    """The state bucket."""
    key: str
    """An object that the steward may write."""
    shared_tier: str = ""
    """`s3://bucket/prefix` in place of the shared file system."""


def looks(config: Basics, account: Account, shared: Path) -> dict[str, tuple[Callable[[], str], str]]:
    """Return name -> (look, cure). A look returns what it saw, or raises."""
    s3 = account.client("s3")

    def name_service() -> str:
        host = urlsplit(s3.meta.endpoint_url).hostname or ""
        return f"{host} is {socket.getaddrinfo(host, 443)[0][4][0]}"

    def state_bucket() -> str:
        s3.put_object(Bucket=config.bucket, Key=config.key, Body=b"written by the system node")
        read = s3.get_object(Bucket=config.bucket, Key=config.key)["Body"].read()
        return f"s3://{config.bucket}/{config.key}, {len(read)} bytes written and read"

    def file_system() -> str:
        path = shared / f".basics-{os.getpid()}"
        content = os.urandom(2**20)
        try:
            with path.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            read = path.read_bytes()
        finally:
            path.unlink(missing_ok=True)
        if read != content:
            raise OSError(f"{path} has other bytes than were written")
        return f"1 MiB written to {shared} and read"

    def shared_tier() -> str:
        bucket, _, prefix = config.shared_tier.removeprefix("s3://").partition("/")
        pages = s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=f"{prefix}/")
        count = sum(page["KeyCount"] for page in pages)
        return f"{config.shared_tier} can be listed, {count} objects"

    def kubernetes() -> str:
        return f"{len(list(from_pod(lambda *_: None).list(Node)))} nodes"

    shared_place: dict[str, tuple[Callable[[], str], str]] = {
        "file_system": (file_system, "see the file system's state in FSx's console, and its security group")
    }
    if config.shared_tier:
        shared_place = {"shared_tier": (shared_tier, "see the steward's role, and the archive bucket's key and policy")}
    return {
        "name_service": (name_service, "see CoreDNS's pods, and the VPC's DNS support and endpoints"),
        "state_bucket": (
            state_bucket,
            "see the Pod Identity agent's pods, the association of the steward's account, its role, the bucket's key "
            "and policy, and the subnet's way to S3",
        ),
        **shared_place,
        "kubernetes_api": (kubernetes, "see the steward's RBAC, and the security group between nodes and API server"),
    }


def probe(name: str, look: Callable[[], str], cure: str, end: float) -> Probe:
    """Look until it succeeds or the time, on the monotonic clock, is over; at least once."""
    previous = ""
    while True:
        try:
            return Probe(name=name, ok=True, seen=look()[:_LONGEST], wanted="works")
        except Exception as error:
            fact = f"{type(error).__name__}: {error}"[:_LONGEST]
            if fact != previous:
                print(f"{name}: {fact}", flush=True)
            previous = fact
            if time.monotonic() > end:
                return Probe(name=name, ok=False, seen=fact, wanted="works", cure=cure)
        time.sleep(_PAUSE_S)


def main() -> int:
    """Look at everything; write the probes as the pod's termination message. Return 0 if all is well."""
    config = Basics.model_validate_json(CONFIG_FILE.read_text())
    end = time.monotonic() + LATE_S
    table = looks(config, Account(config.region, QUICK), Path(SHARED_CHECKPOINTS))
    probes = [probe(name, look, cure, end) for name, (look, cure) in table.items()]
    message = Probes.dump_json(probes)
    print(message.decode(), flush=True)
    write_termination(message.decode())
    return 0 if all(result.ok for result in probes) else 1


if __name__ == "__main__":
    sys.exit(main())
