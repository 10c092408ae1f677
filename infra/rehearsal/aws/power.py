"""Routes that switch off, freeze or disconnect a machine, or kill a rank on it, without EC2's knowledge."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs

from infra.rehearsal.aws.world import SiteMachine, World

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
    world.routes["/_site/machines"] = lambda query, body: (200, {"machines": _machines(world)})


def _route(world: World, hand: Callable[[SiteMachine], None]) -> Callable[[str, bytes], tuple[int, dict[str, Any]]]:
    def route(query: str, body: bytes) -> tuple[int, dict[str, Any]]:
        instance_id = parse_qs(query).get("instance", [""])[0]
        machine = world.machines.get(instance_id)
        if machine is None:
            return 404, {"message": f"{instance_id!r} has no machine", "machines": _machines(world)}
        hand(machine)
        return 200, {"instance": instance_id, "alive": machine.alive()}

    return route


def _machines(world: World) -> dict[str, bool]:
    """Return by instance ID whether the machine is alive."""
    return {instance_id: machine.alive() for instance_id, machine in list(world.machines.items())}
