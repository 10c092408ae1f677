"""Troubles of AWS on demand: no capacity, a deletion that hangs or fails, an unhealthy add-on, a frozen API.

Four routes of the site, used like `/_site/faults` (empty body: read; `add`, `clear`):
`/_site/troubles` has rules for the lives of resources, `/_site/capacity` rules for launches, and
`/_site/control-plane?cluster=NAME&hand=freeze|thaw|kill|restart-etcd|refuse-scrapes|admit-scrapes` acts on a cluster's
control plane, the only one if no name is given; with `&component=prometheus|alertmanager` on one program beside it.
`/_site/exporter?node=NAME` has an exporter tell of a node what its body says
(`infra/rehearsal/kubernetes/exporters.py`).
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Any, Literal
from urllib.parse import parse_qs

from moto.ec2.models.instance_types import InstanceTypeOfferingBackend

from infra.rehearsal.aws.ec2.instances import LIVE
from infra.rehearsal.aws.faults import Rules
from infra.rehearsal.aws.operations import wrap
from infra.rehearsal.aws.world import InstanceLaunch, LaunchRefused, SiteControlPlane, World
from trainer.contract.frozen import Frozen

Kind = Literal["cluster", "node-group", "add-on", "file-system", "image", "instance", "node"]
Phase = Literal["create", "delete"]


class Trouble(Frozen):
    """A fault in a resource's creation or deletion."""

    kind: Kind
    """`node` with `create` is an instance whose NodeConfig names another cluster: it runs and never joins."""
    name: str = "*"
    """`fnmatch` pattern for its name or ID."""
    phase: Phase = "delete"
    outcome: Literal["hang", "fail"] = "hang"
    """`hang`: the state stays while the rule exists; `fail`: it gets its kind's FAILED status with `message`."""
    seconds: float | None = None
    """Duration of a hang; None means until the rule is cleared."""
    times: int = 1
    """Total number of failures."""
    message: str = "an injected fault"


class Shortage(Frozen):
    """Launches that EC2 refuses for lack of capacity, a quota, or a bad image."""

    instance_type: str = "*"
    node_group: str = "*"
    """Pattern; launches outside node groups match `*` only."""
    zone: str = "*"
    places: int = 0
    """Number of instances of the type that may live at a time."""
    seconds: float | None = None
    """Duration of the shortage; None means until it is cleared."""
    code: str = "InsufficientInstanceCapacity"
    message: str = (
        "We currently do not have sufficient capacity in the Availability Zone you requested. Our system will be "
        "working on provisioning additional capacity."
    )


class Troubles:
    """`world.troubles`: services consult it before one of their resources changes state."""

    def __init__(self) -> None:
        self.rules = Rules(Trouble)
        self._begun: dict[tuple[int, str], float] = {}
        self._failed: dict[int, int] = {}

    def find(self, kind: Kind, name: str, phase: Phase) -> Trouble | None:
        """Return the resource's current trouble; each return of a failure counts as one."""
        for number, (rule, _) in list(self.rules.standing.items()):
            if (rule.kind, rule.phase) != (kind, phase) or not fnmatchcase(name, rule.name):
                continue
            if rule.outcome == "fail":
                if self._failed.get(number, 0) < rule.times:
                    self._failed[number] = self._failed.get(number, 0) + 1
                    return rule
                continue
            started_at = self._begun.setdefault((number, name), time.monotonic())
            if rule.seconds is None or time.monotonic() - started_at < rule.seconds:
                return rule
        return None


class CapacityTroubles:
    """A launch hook that refuses launches beyond the shortages' places."""

    def __init__(self, world: World) -> None:
        self.world, self.rules = world, Rules(Shortage)

    def hook(self, launch: InstanceLaunch) -> None:
        for rule, struck_at in list(self.rules.standing.values()):
            is_expired = rule.seconds is not None and time.monotonic() - struck_at > rule.seconds
            hit = fnmatchcase(launch.instance_type, rule.instance_type)
            if is_expired or not hit or not fnmatchcase(launch.zone, rule.zone):
                continue
            if not fnmatchcase(launch.node_group or "", rule.node_group):
                continue
            instances = self.world.backend("ec2").all_instances()
            living = sum(fnmatchcase(i.instance_type, rule.instance_type) and i.state in LIVE for i in instances)
            if living >= rule.places:
                raise LaunchRefused(rule.code, rule.message)

    def offerings(
        self, original: Callable[..., Any], ec2: Any, location_type: str | None = None, *positional: Any
    ) -> Any:
        """Return the offerings without those of shortages with code `Unsupported`, which AWS does not sell."""
        unsold = [rule for rule, _ in self.rules.standing.values() if rule.code == "Unsupported"]
        return [
            offer
            for offer in original(ec2, location_type, *positional)
            if location_type != "availability-zone"
            or not any(
                fnmatchcase(offer["InstanceType"], rule.instance_type) and fnmatchcase(offer["Location"], rule.zone)
                for rule in unsold
            )
        ]


_HANDS: dict[str, Callable[[SiteControlPlane], None]] = {
    "freeze": lambda plane: plane.freeze(),
    "thaw": lambda plane: plane.thaw(),
    "kill": lambda plane: plane.stop(),
    "restart-etcd": lambda plane: plane.restart_etcd(),
    "refuse-scrapes": lambda plane: plane.refuse_scrapes(True),
    "admit-scrapes": lambda plane: plane.refuse_scrapes(False),
}
_SIGNALS = {"freeze": signal.SIGSTOP, "thaw": signal.SIGCONT, "kill": signal.SIGKILL}


def _lay_hands(world: World, query: str) -> tuple[int, dict[str, Any]]:
    request = {key: values[0] for key, values in parse_qs(query).items()}
    planes = world.control_planes
    plane = planes.get(request["cluster"]) if "cluster" in request else next(iter(planes.values()), None)
    hand = request.get("hand", "")
    if plane is None or hand not in _HANDS:
        return 404, {"clusters": sorted(planes), "hands": sorted(_HANDS)}
    if (component := request.get("component")) and hand in _SIGNALS:
        try:
            plane.signal(component, _SIGNALS[hand])
        except LookupError as error:
            return 404, {"message": str(error)}
    else:
        _HANDS[hand](plane)
    return 200, request


def _tell(world: World, query: str, body: bytes) -> tuple[int, dict[str, Any]]:
    """Let an exporter of the cluster tell of a node what `body` says."""
    node = {key: values[0] for key, values in parse_qs(query).items()}["node"]
    for plane in world.control_planes.values():
        plane.tell(node, body)
    return (200 if world.control_planes else 404), {"node": node}


def install(world: World) -> None:
    world.troubles = Troubles()
    capacity = CapacityTroubles(world)
    world.launch_hooks.append(capacity.hook)
    wrap(InstanceTypeOfferingBackend, "describe_instance_type_offerings", capacity.offerings)
    world.routes["/_site/troubles"] = world.troubles.rules.route
    world.routes["/_site/capacity"] = capacity.rules.route
    world.routes["/_site/exporter"] = lambda query, body: _tell(world, query, body)
    world.routes["/_site/control-plane"] = lambda query, body: _lay_hands(world, query)
