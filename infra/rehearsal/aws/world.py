"""Shared state of the emulated AWS: the site's folders, machines, control planes, and one scheduler thread."""

from __future__ import annotations

import heapq
import itertools
import logging
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, Protocol

from infra.rehearsal.aws.strict.settings import STRICT, Strictness

log = logging.getLogger(__name__)


Which = Literal["all", "top", "busiest"]
"""Processes of a machine that match: all, those whose parents do not, or the one that works most."""


class SiteMachine(Protocol):
    """The part of `infra.rehearsal.nodelet.machine.Machine` that AWS uses."""

    pid: int

    def alive(self) -> bool: ...
    def kill(self) -> None: ...
    def kill_rank(self) -> None: ...
    def signal(self, process: str, selection: Which, number: signal.Signals) -> int: ...
    def harm(self, kind: str, fields: Mapping[str, str]) -> int: ...
    def freeze(self) -> None: ...
    def thaw(self) -> None: ...
    def link(self, is_up: bool) -> None: ...
    def run(self, script: str, timeout_s: float, env: dict[str, str] | None = None) -> Any: ...


class SiteControlPlane(Protocol):
    """The part of `infra.rehearsal.kubernetes.control_plane.ControlPlane` that AWS uses."""

    ca_pem: str
    endpoint: str
    admin_kubeconfig: Path

    def client(self) -> Any: ...
    def freeze(self) -> None: ...
    def thaw(self) -> None: ...
    def restart_etcd(self) -> None: ...
    def signal(self, component: str, number: signal.Signals) -> None: ...
    def tell(self, node: str, words: bytes) -> None: ...
    def refuse_scrapes(self, is_refused: bool) -> None: ...
    def stop(self) -> None: ...
    def delete_node(self, provider_id: str) -> None: ...


MachineFactory = Callable[[dict[str, Any]], SiteMachine]
"""Fields of MachineConfig -> SiteMachine."""
ControlPlaneFactory = Callable[[dict[str, Any]], SiteControlPlane]
"""Fields of ControlPlaneConfig -> SiteControlPlane; blocks until the API server answers."""
SiteRoute = Callable[[str, bytes], tuple[int, dict[str, Any]]]
"""(query string, body) -> (status, JSON document); unauthenticated, reachable inside the site only.

A route whose path ends with `/` gets the next part of the path instead of the query string.
"""


Effect = Literal["refuse", "refuse-after", "drop", "drop-after", "truncate", "delay", "stale"]


@dataclass(frozen=True)
class Call:
    """One signed request, before it is answered."""

    service: str
    action: str
    access_key: str
    path: str = ""
    agent: str = ""
    """The client's user agent; it contains AWS_SDK_UA_APP_ID of the client's environment as `app/<id>`."""


@dataclass(frozen=True)
class FaultAnswer:
    """An answer instead of the service's own; `code` is the AWS error code, for instance ThrottlingException."""

    code: str
    message: str
    status: int = 400
    effect: Effect = "refuse"
    delay_s: float = 0.0
    keep_bytes: int = 0
    lag_s: float = 0.0


@dataclass(frozen=True)
class InstanceLaunch:
    """One instance about to start."""

    instance_type: str
    zone: str
    image_id: str
    market: str | None = None
    """MarketType: spot, capacity-block, ..."""
    capacity_reservation_id: str | None = None
    capacity_reservation_group: str | None = None
    """ARN of a resource group of reservations."""
    reservations_only: bool = False
    """If True, it starts only in a reservation (of the group, or open to all)."""
    placement_group: str | None = None
    node_group: str | None = None


class LaunchRefused(Exception):
    """EC2 refuses to start the instance, with an error code such as InsufficientInstanceCapacity and a message."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code, self.message = code, message


LaunchHook = Callable[[InstanceLaunch], None]
FaultHook = Callable[[Call], FaultAnswer | None]


def start_machine(settings: dict[str, Any]) -> SiteMachine:
    from infra.rehearsal.nodelet.machine import Machine as Nodelet
    from infra.rehearsal.nodelet.machine import MachineConfig

    return Nodelet.start(MachineConfig(**settings))


def start_control_plane(settings: dict[str, Any]) -> SiteControlPlane:
    from infra.rehearsal.kubernetes.control_plane import ControlPlane as Kubernetes
    from infra.rehearsal.kubernetes.control_plane import ControlPlaneConfig

    return Kubernetes.start(ControlPlaneConfig(**settings))


@dataclass(frozen=True)
class ServiceAccount:
    """The owner of a token."""

    namespace: str
    name: str
    pod: str


def ready_nodes(control_plane: SiteControlPlane) -> set[str]:
    """Return the provider IDs of the Nodes that are Ready."""
    from lightkube.resources.core_v1 import Node

    def ready(node: Any) -> bool:
        conditions = (node.status.conditions if node.status else None) or []
        return any(condition.type == "Ready" and condition.status == "True" for condition in conditions)

    return {node.spec.providerID for node in control_plane.client().list(Node) if ready(node)}


def token_owner(control_plane: SiteControlPlane, token: str, audience: str) -> ServiceAccount | None:
    """Return the service account that the API server issued `token` to for `audience`, or None."""
    from lightkube.models.authentication_v1 import TokenReviewSpec
    from lightkube.resources.authentication_v1 import TokenReview

    review = control_plane.client().create(TokenReview(spec=TokenReviewSpec(token=token, audiences=[audience])))
    status = review.status
    if not status or not status.authenticated or not status.user:
        return None
    _, _, namespace, name = status.user.username.split(":")
    return ServiceAccount(namespace, name, (status.user.extra or {}).get(POD_NAME, [""])[0])


POD_NAME = "authentication.kubernetes.io/pod-name"


@dataclass
class World:
    """State of one emulated account and region. Every change requires `lock`."""

    work: Path
    """The site's folder, with aws/ machines/<instance-id>/ control-plane/ fsx/<fs-id>/ logs/."""
    tools: Path
    endpoint_url: str
    region: str = "us-east-1"
    request_region: str = ""
    """Region of the request that is handled under `lock`; services that the account has in several regions need it."""
    account: str = "123456789012"
    strictness: Strictness = STRICT
    fsx_root: Path = Path()
    agent_key: tuple[str, str] = ("", "")
    """Access key of the emulator's own principal, which may assume every role."""
    operator_key: tuple[str, str] = ("", "")
    control_plane_address: str = "10.77.0.10"
    machine_factory: MachineFactory = start_machine
    control_plane_factory: ControlPlaneFactory = start_control_plane
    ready_nodes: Callable[[SiteControlPlane], set[str]] = ready_nodes
    token_owner: Callable[[SiteControlPlane, str, str], ServiceAccount | None] = token_owner
    join_within_s: float = 120.0
    """A node group whose instances have not all joined by then is CREATE_FAILED (on AWS after about 15 minutes)."""
    entries_count_after_s: float = 1.0
    """The API server ignores an access entry younger than this (on AWS up to a minute). Less than a node group takes,
    as on AWS: a stack waits for its system nodes, and then takes its entry for known."""
    replace_impaired_after_s: float = 300.0
    """An Auto Scaling group replaces an instance whose status check has failed for so long."""
    machines: dict[str, SiteMachine] = field(default_factory=dict)
    """By instance ID. Terminated instances are removed."""
    scheduled_events: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """Instance ID -> the events that EC2 announces for it, as DescribeInstanceStatus has them."""
    control_planes: dict[str, SiteControlPlane] = field(default_factory=dict)
    """By cluster name."""
    clusters: dict[str, Any] = field(default_factory=dict)
    """EKS clusters (`eks.Cluster`) by name."""
    troubles: Any = None
    """`troubles.Troubles`, once installed."""
    auto_scaling: Any = None
    """`autoscaling.AutoScaling`, once installed."""
    launch_hooks: list[LaunchHook] = field(default_factory=list)
    """Called in order before each instance of a node group or of RunInstances starts; may raise LaunchRefused."""
    placement_tags: Callable[[str], dict[str, str]] = lambda name: {}
    """Tags of a placement group, by its name."""
    block_ends: Callable[[str], datetime | None] = lambda name: None
    """End of a reservation, once `reservations` is installed."""
    settling: Callable[[str, str], list[Any] | None] = lambda arn, what: None
    """Policy documents in force until a change of a role's or user's `trust` or `granted` takes effect."""
    at_end: list[Callable[[], None]] = field(default_factory=list)
    """Called when the world ends: what it has started besides machines."""
    faults: list[FaultHook] = field(default_factory=list)
    """Called in order before each signed request; the first Fault is the answer."""
    routes: dict[str, SiteRoute] = field(default_factory=dict)
    """By path, for instance `/_site/ready`."""
    services: dict[str, Any] = field(default_factory=dict)
    """Response classes (moto's BaseResponse) of whole services that moto lacks, by signing name."""
    lock: threading.RLock = field(default_factory=threading.RLock)

    def __post_init__(self) -> None:
        if self.fsx_root == Path():
            self.fsx_root = self.work / "fsx"
        self._backends: dict[str, Any] = {}
        self._due: list[tuple[float, int, Callable[[], None], float | None]] = []
        self._order = itertools.count()
        self._tick = threading.Condition()
        self._stopping = False
        self._taken: Counter[str] = Counter()
        self._apart: list[tuple[float, Callable[[], None]]] = []
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="aws-clockwork", daemon=True)

    def backend(self, service: str) -> Any:
        """Return moto's backend of this account and region, for instance `ec2`; global services have their own key."""
        from moto.backends import get_backend

        if service not in self._backends:
            accounts = get_backend(service)[self.account]  # type: ignore[call-overload]
            partition = "aws" if service in ("iam", "s3", "sts", "budgets") else self.region
            self._backends[service] = accounts[partition]
        return self._backends[service]

    def schedule_every(self, seconds: float, function: Callable[[], None], apart: bool = False) -> None:
        """Run `function` about every `seconds` on the scheduler thread; it must be short and may raise.

        `apart` gives it its own thread, for requests to a Kubernetes that may be slow or gone.
        """
        if apart:
            self._apart.append((seconds, function))
        else:
            self._schedule(0.0, function, seconds)

    def schedule_once(self, delay_s: float, function: Callable[[], None]) -> None:
        """Run `function` once, on the scheduler thread."""
        self._schedule(delay_s, function, None)

    def takes(self, work: str, quick: float) -> float:
        """Return the seconds of one of AWS's works: `quick`, or AWS's own time at the site's scale."""
        self._taken[work] += 1
        return self.strictness.seconds(work, quick, self._taken[work])

    def spawn(self, function: Callable[[], None]) -> None:
        """Run a long task, such as a control plane's start, on its own thread."""
        threading.Thread(target=self._guard, args=(function,), daemon=True).start()

    def start(self) -> None:
        self._thread.start()
        for seconds, function in self._apart:
            threading.Thread(target=self._repeat, args=(seconds, function), daemon=True).start()

    def _repeat(self, seconds: float, function: Callable[[], None]) -> None:
        while not self._stopped.wait(seconds):
            self._guard(function)

    def stop(self) -> None:
        """Stop the scheduler thread, then the machines and the control planes."""
        with self._tick:
            self._stopping = True
            self._tick.notify()
        self._stopped.set()
        for end in self.at_end:
            end()
        for machine in list(self.machines.values()):
            machine.kill()
        for control_plane in list(self.control_planes.values()):
            control_plane.stop()

    def _schedule(self, delay_s: float, function: Callable[[], None], period_s: float | None) -> None:
        with self._tick:
            heapq.heappush(self._due, (time.monotonic() + delay_s, next(self._order), function, period_s))
            self._tick.notify()

    def _run(self) -> None:
        while True:
            with self._tick:
                while not self._stopping and (not self._due or self._due[0][0] > time.monotonic()):
                    self._tick.wait(self._due[0][0] - time.monotonic() if self._due else None)
                if self._stopping:
                    return
                _, _, function, period_s = heapq.heappop(self._due)
            self._guard(function)
            if period_s is not None:
                self._schedule(period_s, function, period_s)

    @staticmethod
    def _guard(function: Callable[[], None]) -> None:
        try:
            function()
        except Exception:
            log.exception("%s failed", getattr(function, "__qualname__", function))
