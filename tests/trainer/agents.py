"""Real agents on loopback addresses of their own: each node is a process with its own local tier."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests import waiting
from tests.addresses import own_network
from tests.root import ROOT
from tests.trainer.warm import AGENT, NAMED, SETTINGS, Process, warm
from trainer.contract import COMMITTED_NAME, Env, TrainConfig, step_folder
from trainer.contract.exits import TERMINATION_LOG_VARIABLE

PORT = 29517


def wait_until(condition: Callable[[], bool], what: str) -> None:
    waiting.until(condition, what, every_s=0.01)


def events_of(path: Path) -> list[dict[str, Any]]:
    lines = path.read_text().splitlines() if path.exists() else []
    found = []
    for line in lines:
        if line.startswith("{") and line.endswith("}"):
            found.append(json.loads(line))
    return found


@dataclass
class World:
    """The tiers, the data and the configuration that attempts share."""

    root: Path
    data: Path
    config: TrainConfig

    @property
    def shared(self) -> Path:
        return self.root / "shared"

    def local(self, node: int) -> Path:
        return self.root / f"local-{node}"

    def copy(self, root: Path, config: TrainConfig | None = None) -> World:
        shutil.copytree(self.root, root)
        return World(root, self.data, config or self.config)

    def lose_node(self, node: int) -> None:
        shutil.rmtree(self.local(node))


HELD = """
import sys, time
from pathlib import Path
from trainer.builtin import agent
from trainer.buckets.prefix import Prefix
from trainer.builtin.loop import Loop
from trainer.place import generation
step, committed = int(sys.argv.pop(1)), sys.argv.pop(1)
go_on = Loop._step
def is_there():
    if not committed.startswith("s3://"):
        return Path(committed).exists()
    folder, _, name = committed.rpartition("/")
    return Prefix(folder).get(name) is not None
def held(loop):
    while loop.step >= step and not generation() and is_there():
        time.sleep(0.05)
    return go_on(loop)
Loop._step = held
agent._exit(agent.main())
"""
"""An agent whose ranks stand still from a step on, once one is committed: they are killed there, however late. Those
that are started again in place go on."""


@dataclass(frozen=True)
class Hold:
    node: int
    step: int
    committed: int
    """This step lies on the shared tier by then."""


@dataclass
class Attempt:
    """One launch of all nodes' agents."""

    world: World
    number: int
    nodes: int = 2
    ranks_per_node: int = 1
    hold: Hold | None = None
    cold: bool = False
    """Each agent is a process of its own from the start, as in a pod, and not forked from a warm one."""
    program: tuple[str, ...] = ()
    """What a warm process executes in place of the plain agent, and the arguments before the agent's."""
    agents: list[subprocess.Popen[bytes] | Process] = field(default_factory=list)

    def __enter__(self) -> Attempt:
        config = self.world.root / f"train-{self.number}.json"
        self.world.shared.mkdir(parents=True, exist_ok=True)
        config.write_text(self.world.config.model_dump_json())
        # Addresses of our own in 127/8: attempts of concurrent tests never meet.
        self._network = f"{own_network()}."
        for node in range(self.nodes):
            self.world.local(node).mkdir(parents=True, exist_ok=True)
            self.agents.append(self._start(node, config))
        return self

    def __exit__(self, *_: object) -> None:
        for agent in self.agents:
            if agent.poll() is None:
                agent.kill()
            agent.wait()

    def address(self, node: int) -> str:
        return f"{self._network}{node + 1}"

    def log(self, node: int) -> Path:
        return self.world.root / f"attempt-{self.number}-node-{node}.log"

    def events(self, kind: str, node: int = 0) -> list[dict[str, Any]]:
        return [event for event in events_of(self.log(node)) if event["event"] == kind]

    def losses(self, node: int = 0) -> dict[int, float]:
        return {event["step"]: event["loss"] for event in self.events("step", node)}

    def step(self, node: int = 0) -> int:
        return max(self.losses(node), default=0)

    def wait_for_step(self, step: int) -> None:
        wait_until(lambda: self.step() >= step or self._ended(), f"step {step} of attempt {self.number}")
        assert self.step() >= step, self.log(0).read_text()

    def wait_for_shared(self, step: int) -> None:
        """Until the step can outlive every node."""

        def there() -> bool:
            return any(e["tier"] == "shared" and e["step"] >= step for e in self.events("committed"))

        wait_until(lambda: there() or self._ended(), f"step {step} on the shared tier in attempt {self.number}")
        assert there(), self.log(0).read_text()

    def wait(self) -> list[int | None]:
        """Exit codes of all agents."""
        wait_until(lambda: all(agent.poll() is not None for agent in self.agents), f"end of attempt {self.number}")
        return [agent.returncode for agent in self.agents]

    def kill(self, node: int) -> None:
        self.agents[node].send_signal(signal.SIGKILL)

    def terminate(self, node: int) -> None:
        self.agents[node].send_signal(signal.SIGTERM)

    def termination(self, node: int) -> dict[str, Any]:
        return json.loads((self.world.root / f"termination-{self.number}-{node}.json").read_text())

    def _ended(self) -> bool:
        return any(agent.poll() is not None for agent in self.agents)

    def _start(self, node: int, config: Path) -> subprocess.Popen[bytes] | Process:
        world = self.world
        environment = os.environ | {
            Env.CAMPAIGN: world.config.campaign,
            Env.ATTEMPT: str(self.number),
            Env.NODE_NAME: f"node-{node}",
            Env.POD_IP: self.address(node),
            Env.NODE_RANK: str(node),
            Env.NODE_COUNT: str(self.nodes),
            Env.RANKS_PER_NODE: str(self.ranks_per_node),
            Env.RENDEZVOUS: f"{self.address(0)}:{PORT}",
            TERMINATION_LOG_VARIABLE: str(world.root / f"termination-{self.number}-{node}.json"),
            "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
        }
        arguments = ["--config", str(config), "--data", str(world.data)]
        arguments += ["--local", str(world.local(node)), "--shared", str(world.shared), "--join-timeout-s", "60"]
        if self.cold:
            command = [sys.executable, "-m", "trainer.builtin.agent", *arguments]
            with self.log(node).open("wb") as log:
                return subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)
        program, *before = self.program or (AGENT,)
        arguments, environment = [*before, *arguments], environment | SETTINGS
        if self.hold is not None and self.hold.node == node:
            shared = world.config.shared_tier or world.shared / world.config.campaign
            manifest = f"{shared}/{step_folder(self.hold.committed)}/{COMMITTED_NAME}"
            program, arguments = HELD, [str(self.hold.step), str(manifest), *arguments]
        ahead = NAMED if world.config.model.name else ()
        return warm().start(program, arguments, environment, self.log(node), ahead=ahead)


def run(world: World, number: int, nodes: int = 2, ranks_per_node: int = 1) -> Attempt:
    """An attempt from its start to its end."""
    with Attempt(world, number, nodes, ranks_per_node) as attempt:
        attempt.wait()
    return attempt
