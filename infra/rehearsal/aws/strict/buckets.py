"""Request limits: a token bucket per operation, as EC2 documents them, and a rare refusal by chance.

https://docs.aws.amazon.com/ec2/latest/devguide/ec2-api-throttling.html
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from infra.rehearsal.aws.world import Call, FaultAnswer, World

SHARE = 0.005
"""Fraction of requests refused by chance, never two in a row of one operation."""
_READS = ("Describe", "Get", "List", "Head")


@dataclass(frozen=True)
class Limit:
    """The limit of one operation: maximum tokens, and tokens added per second."""

    burst: float
    per_s: float


READS, CHANGES = Limit(100, 20), Limit(50, 5)
"""EC2's limits of reading and of changing operations."""
OWN = {
    ("ec2", "RunInstances"): Limit(5, 2),
    ("ec2", "StartInstances"): Limit(5, 2),
    ("ec2", "TerminateInstances"): Limit(100, 5),
    ("ec2", "CreateVpcEndpoint"): Limit(20, 4),
    ("ec2", "DeleteVpcEndpoints"): Limit(20, 4),
    ("tagging", "GetResources"): Limit(15, 15),
    ("logs", "PutLogEvents"): Limit(5000, 5000),
}
SERVICES = {"iam": Limit(100, 20), "sts": Limit(600, 600), "logs": Limit(100, 25), "ecr": Limit(200, 100)}
SERVICES |= {"kms": Limit(1000, 1000)}
FREE = ("s3", "eks-auth")
"""Services without limits: S3 allows thousands of requests per second and prefix."""
CODES = {"ec2": ("RequestLimitExceeded", 503), "s3": ("SlowDown", 503), "autoscaling": ("Throttling", 400)}
CODES |= {name: ("Throttling", 400) for name in ("iam", "sts", "sns", "elasticloadbalancing", "monitoring")}
OTHER_CODE = ("ThrottlingException", 400)


@dataclass
class Bucket:
    limit: Limit
    at: float
    left: float = field(init=False)

    def __post_init__(self) -> None:
        self.left = self.limit.burst

    def take(self, now: float) -> bool:
        self.left = min(self.limit.burst, self.left + (now - self.at) * self.limit.per_s)
        self.at = now
        if self.left < 1:
            return False
        self.left -= 1
        return True


def limit_of(service: str, action: str) -> Limit | None:
    if service in FREE:
        return None
    limit = OWN.get((service, action)) or SERVICES.get(service)
    return limit or (READS if action.startswith(_READS) else CHANGES)


class CallRates:
    """A fault hook."""

    def __init__(self, world: World, clock: Callable[[], float] = time.monotonic) -> None:
        self._world, self._clock = world, clock
        self._buckets: dict[tuple[str, str], Bucket] = {}
        self._seen: Counter[tuple[str, str]] = Counter()
        self._last_chance: dict[tuple[str, str], int] = {}
        self._lock = threading.Lock()

    def hook(self, call: Call) -> FaultAnswer | None:
        if not self._world.strictness.on or call.access_key == self._world.agent_key[0]:
            return None
        key = call.service, call.action
        with self._lock:
            self._seen[key] += 1
            number = self._seen[key]
            if not self._take(key):
                return _refusal(call, "the requests of this operation exceed its limit")
            by_chance = self._world.strictness.chance("throttle", *key, number) < SHARE
            if by_chance and self._last_chance.get(key, 0) < number - 1:
                self._last_chance[key] = number
                return _refusal(call, "chance")
        return None

    def _take(self, key: tuple[str, str]) -> bool:
        limit = limit_of(*key)
        if limit is None:
            return True
        now = self._clock()
        return self._buckets.setdefault(key, Bucket(limit, now)).take(now)


def _refusal(call: Call, reason: str) -> FaultAnswer:
    code, status = CODES.get(call.service, OTHER_CODE)
    return FaultAnswer(code, f"Rate exceeded: {call.action} ({reason})", status)


def install(world: World) -> None:
    world.faults.append(CallRates(world).hook)
