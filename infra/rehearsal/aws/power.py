"""Routes that switch off, freeze or disconnect a machine, or signal processes on it, without EC2's knowledge.

`/_site/<hand>?instance=<id>` acts on a machine; `/_site/spot` also takes `seconds`, `/_site/event` a `code` too.
`/_site/condition` takes `type`, `reason` and `message` of a condition of its Node.
`/_site/harm?kind=<of nodelet/harm/hands.py>` harms processes or containers, on every machine without `instance`, and
answers 404 if there are none.
`/_site/signal?process=<part of a command line>&which=all|top|busiest&signal=KILL` takes every machine without
`instance`, and answers 404 if no process is hit.
"""

from __future__ import annotations

import json
import secrets
import signal
import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from typing import Any, cast, get_args
from urllib.parse import parse_qs

from infra.rehearsal.aws.world import SiteMachine, Which, World

_ANNOUNCED_AFTER_S = 0.5
Answer = tuple[int, dict[str, Any]]
HANDS: dict[str, Callable[[SiteMachine], None]] = {
    "kill": lambda machine: machine.kill(),
    "kill-rank": lambda machine: machine.kill_rank(),
    "freeze": lambda machine: machine.freeze(),
    "thaw": lambda machine: machine.thaw(),
    "cut": lambda machine: machine.link(False),
    "mend": lambda machine: machine.link(True),
}
"""/_site/<name>?instance=<id> -> action on the machine; the instance stays 'running'."""


def install(world: World) -> None:
    for name, hand in HANDS.items():
        world.routes[f"/_site/{name}"] = _route(world, hand)
    world.routes["/_site/spot"] = lambda query, body: _take_spot(world, _fields(query))
    world.routes["/_site/event"] = lambda query, body: _schedule_event(world, _fields(query))
    world.routes["/_site/condition"] = lambda query, body: _set_condition(world, _fields(query))
    world.routes["/_site/harm"] = lambda query, body: _harm(world, _fields(query))
    world.routes["/_site/signal"] = lambda query, body: _signal(world, _fields(query))
    world.routes["/_site/machines"] = lambda query, body: (200, {"machines": _machines(world)})


def _route(world: World, hand: Callable[[SiteMachine], None]) -> Callable[[str, bytes], Answer]:
    def route(query: str, body: bytes) -> Answer:
        instance_id = _fields(query).get("instance", "")
        machine = world.machines.get(instance_id)
        if machine is None:
            return _missing(world, instance_id)
        hand(machine)
        return 200, {"instance": instance_id, "alive": machine.alive()}

    return route


def _take_spot(world: World, fields: Mapping[str, str]) -> Answer:
    """Announce in its metadata, in EC2's form, that a spot instance goes in `seconds`, and take it then."""
    instance_id, seconds = fields.get("instance", ""), float(fields.get("seconds", "120"))
    machine = world.machines.get(instance_id)
    if machine is None:
        return _missing(world, instance_id)
    due = (datetime.now(UTC) + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")
    _write_leaf(world, instance_id, "spot/instance-action", {"action": "terminate", "time": due})
    taking = threading.Timer(seconds, machine.kill)
    taking.daemon = True
    taking.start()
    return HTTPStatus.OK, {"instance": instance_id, "time": due}


def _schedule_event(world: World, fields: Mapping[str, str]) -> Answer:
    """Announce a scheduled event of an instance, in its metadata and in DescribeInstanceStatus. Nothing happens then.
    https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/viewing_scheduled_events.html"""
    instance_id, code = fields.get("instance", ""), fields.get("code", "instance-retirement")
    if instance_id not in world.machines:
        return _missing(world, instance_id)
    due = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=float(fields["seconds"]))
    event = {"Code": code, "Description": "The instance is running on degraded hardware", "NotBefore": due}
    event |= {"InstanceEventId": f"instance-event-{secrets.token_hex(9)[:17]}"}
    row = {"Code": code, "Description": event["Description"], "EventId": event["InstanceEventId"], "State": "active"}
    row |= {"NotBefore": f"{due:%-d %b %Y %H:%M:%S} GMT"}

    def announce() -> None:
        world.scheduled_events[instance_id] = [event]
        _write_leaf(world, instance_id, "events/maintenance/scheduled", [row])

    world.schedule_once(_ANNOUNCED_AFTER_S, announce)  # whoever asks for it notes the moment before anybody sees it
    return HTTPStatus.OK, {"instance": instance_id, "time": due.isoformat()}


def _set_condition(world: World, fields: Mapping[str, str]) -> Answer:
    """Set a condition of an instance's Node to False, as EKS's node monitoring agent does for `reason`.
    https://docs.aws.amazon.com/eks/latest/userguide/node-health.html"""
    from lightkube.resources.core_v1 import Node

    now = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
    condition = {name: fields.get(name, "") for name in ("type", "reason", "message")}
    condition |= {"status": "False", "lastTransitionTime": now, "lastHeartbeatTime": now}
    for client in [plane.client() for plane in world.control_planes.values()]:
        for node in client.list(Node):
            if node.spec.providerID.endswith(f"/{fields.get('instance')}"):
                client.patch(Node.Status, node.metadata.name, {"status": {"conditions": [condition]}})
                return HTTPStatus.OK, condition
    return _missing(world, fields.get("instance", ""))


def _write_leaf(world: World, instance_id: str, path: str, content: Any) -> None:
    leaf = world.work / "machines" / instance_id / "metadata" / "meta-data" / path
    leaf.parent.mkdir(parents=True, exist_ok=True)
    partial = leaf.with_suffix(".partial")
    partial.write_text(json.dumps(content))
    partial.replace(leaf)


def _harm(world: World, fields: Mapping[str, str]) -> Answer:
    instance_id = fields.get("instance")
    if instance_id is not None and instance_id not in world.machines:
        return _missing(world, instance_id)
    machines = list(world.machines.values()) if instance_id is None else [world.machines[instance_id]]
    try:
        hits = sum(machine.harm(fields.get("kind", ""), fields) for machine in machines if machine.alive())
    except LookupError as error:
        return HTTPStatus.BAD_REQUEST, {"message": f"no such kind or no field: {error}"}
    except OSError as error:
        return HTTPStatus.CONFLICT, {"message": str(error)}
    return (HTTPStatus.OK if hits else HTTPStatus.NOT_FOUND), {"harmed": hits}


def _signal(world: World, fields: Mapping[str, str]) -> Answer:
    instance_id, selection = fields.get("instance"), fields.get("which", "all")
    number = signal.Signals.__members__.get(f"SIG{fields.get('signal', 'KILL')}")
    if number is None or selection not in get_args(Which):
        return HTTPStatus.BAD_REQUEST, {"message": "no such signal, or no such `which`", **fields}
    if instance_id is not None and instance_id not in world.machines:
        return _missing(world, instance_id)
    machines = list(world.machines.values()) if instance_id is None else [world.machines[instance_id]]
    hits = sum(machine.signal(fields.get("process", ""), cast(Which, selection), number) for machine in machines)
    return (HTTPStatus.OK if hits else HTTPStatus.NOT_FOUND), {"processes": hits}


def _fields(query: str) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(query).items()}


def _missing(world: World, instance_id: str) -> Answer:
    return HTTPStatus.NOT_FOUND, {"message": f"{instance_id!r} has no machine", "machines": _machines(world)}


def _machines(world: World) -> dict[str, bool]:
    """Return by instance ID whether the machine is alive."""
    return {instance_id: machine.alive() for instance_id, machine in list(world.machines.items())}
