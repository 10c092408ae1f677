"""A stand-in job with real files and real answers, and the faults that befall it, below the real steward.

The job's state is a chain of digests, one for each step, so a step that was lost, doubled or taken from a damaged
checkpoint shows in the end. It writes checkpoints as a trainer does, the manifest last, resumes from the newest sound
one, and answers what the steward asks of each pod. Nothing here is the product's, but for the names of its files.
"""

from __future__ import annotations

import hashlib
import json
import random
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from infra.steward.seeing.sources import PASSING
from infra.steward.steward import Steward
from tests.fake_cluster import PODS, ended, gpu_node
from tests.part import part
from tests.unit.steward.steward_story import TURN, Over, StewardRun
from tests.worlds.s3 import refusal
from trainer.contract import COMMITTED_NAME, Phase, Status

EVERY, PACE, MINUTE_S = 6, 2, 60.0
"""Steps between two checkpoints, and in a turn."""
MEAN_GAP_S, LAST_FAULT_S = 2 * MINUTE_S, 15 * MINUTE_S
FAULTS = ("rank killed", "rank restarted in place", "user error", "out of storage", "job hangs", "node dies",
          "two nodes die", "node freezes", "commit cut short", "checkpoint damaged", "S3 away", "Kubernetes away",
          "EC2 away", "steward killed")  # fmt: skip
ENDS = {"rank killed": 70, "user error": 64, "out of storage": 74}
JOINS_TURNS, COPY_TURNS, RESTART_TURNS = 6, 3, 6


@cache
def twin(step: int) -> str:
    """The state after a step of the job that nothing befell."""
    return "begin" if step == 0 else hashlib.sha256(f"{twin(step - 1)} {step}".encode()).hexdigest()


@dataclass(frozen=True)
class Fault:
    at_s: float
    kind: str
    pod: int
    lasts_s: float


def drawn(chance: random.Random) -> list[Fault]:
    """Faults with Poisson gaps."""
    faults, at_s = list[Fault](), 0.0
    while (at_s := at_s + chance.expovariate(1 / MEAN_GAP_S)) < LAST_FAULT_S:
        faults.append(Fault(at_s, chance.choice(FAULTS), chance.randrange(PODS), chance.uniform(20, 240)))
    return faults


@dataclass
class Campaign:
    """The world between two turns of the steward."""

    story: StewardRun
    folder: Path
    """The job's on the shared tier."""
    steps: int
    faults: list[Fault]
    job: str = ""
    step: int = 0
    state: str = "begin"
    committed: int = -1
    """What the job believes: a checkpoint that was damaged since is still one."""
    generation: int = 0
    phase: Phase = Phase.STARTING
    stuck: bool = False
    """A peer is gone, or a collective hangs: no step is made."""
    unheard: dict[int, float] = field(default_factory=dict)
    """Pod -> time until which it does not answer."""
    weather: dict[str, float] = field(default_factory=dict)
    """Source -> time until which it is away."""
    joining: dict[str, int] = field(default_factory=dict)
    """Instance that is gone -> turns until its successor joins."""
    copy_turns: dict[str, int] = field(default_factory=dict)
    struck: list[str] = field(default_factory=list)
    steward_dies: bool = False
    machines: int = PODS
    archived: int | None = None
    nodes_at_archive: int = 0

    def __post_init__(self) -> None:
        self._begin = self.story.time()

    # What the job does.

    def sound_steps(self) -> list[int]:
        """Steps whose checkpoint is whole: by this world's own digests."""
        return sorted(step for path in self.folder.glob("step-*") if (step := self._sound(path)) is not None)

    def _sound(self, path: Path) -> int | None:
        try:
            manifest = json.loads((path / COMMITTED_NAME).read_text())
            state = (path / "state").read_text()
        except FileNotFoundError:
            return None
        return int(manifest["step"]) if hashlib.sha256(state.encode()).hexdigest() == manifest["sha256"] else None

    def _save(self, whole: bool = True) -> None:
        path = self.folder / f"step-{self.step:08d}"
        path.mkdir(parents=True, exist_ok=True)
        (path / COMMITTED_NAME).unlink(missing_ok=True)
        (path / "state").write_text(self.state)
        if whole:
            manifest = {"step": self.step, "sha256": hashlib.sha256(self.state.encode()).hexdigest()}
            (path / COMMITTED_NAME).write_text(json.dumps(manifest))
            self.committed = self.step

    def _restore(self) -> None:
        self.step = max(self.sound_steps(), default=0)
        self.state = (self.folder / f"step-{self.step:08d}/state").read_text() if self.step else "begin"
        self.phase = Phase.TRAINING

    def _train(self) -> None:
        cluster = self.story.cluster
        jobs = [name for name in cluster.jobs if name.startswith("story-a")]
        if not jobs:
            self.job = ""
            return
        if jobs[0] != self.job:
            self.job, self.generation, self.stuck, self.phase = jobs[0], 0, False, Phase.STARTING
            self._place()
        elif self.phase is Phase.STARTING:
            self._restore()
        elif not self.stuck and self.step < self.steps:
            for _ in range(min(PACE, self.steps - self.step)):
                self.step += 1
                self.state = hashlib.sha256(f"{self.state} {self.step}".encode()).hexdigest()
                if self.step % EVERY == 0 or self.step == self.steps:
                    self._save()
        elif not self.stuck:
            for index in range(PODS):
                self._end(index, "Succeeded", 0)

    def _place(self) -> None:
        """Bind the new pods to nodes, as the scheduler does."""
        cluster = self.story.cluster
        free = [name for name, node in cluster.nodes.items() if node.spec and not node.spec.unschedulable]
        for index, name in enumerate(free[:PODS]):
            pod = cluster.pods.get(f"{self.job}-{index}")
            if pod is not None and pod.spec is not None:
                pod.spec.nodeName = name

    def _end(self, index: int, phase: str, code: int) -> None:
        pod = self.story.cluster.pods.get(f"{self.job}-{index}")
        if pod is not None and pod.status is not None and pod.status.phase == "Running":
            pod.status.phase = phase
            words = {"exit_code": code, "reason": "drawn", "step": self.step} if code else {}
            pod.status.containerStatuses = [ended(code, json.dumps(words))]

    def probe(self, pod: Any) -> Status | None:
        """What `/status` of a pod answers."""
        index = int(pod.metadata.name.rpartition("-")[2])
        if self.story.time() < self.unheard.get(index, 0.0) or not pod.metadata.name.startswith(f"{self.job}-"):
            return None
        return part(Status, phase=self.phase, step=self.step, committed_step=self.committed, ranks=(), step_seconds=5.0,
                    generation=self.generation)  # fmt: skip

    # What befalls it.

    def turn(self) -> None:
        now = self.story.time()
        while self.faults and now - self._begin >= self.faults[0].at_s:
            self._strike(self.faults.pop(0))
        away = {source for source, until in self.weather.items() if now < until}
        self.story.s3.away = refusal("InternalError", 500) if "S3" in away else None
        self.story.cluster.away, self.story.aws.away = "Kubernetes" in away, "EC2" in away
        self._replace_nodes()
        self._end_copies()
        self._train()
        if self.steward_dies:
            raise Over

    def live(self, minutes: float) -> bool:
        """One steward, to the campaign's end, to its own death, or for so long; whether the campaign is over."""
        self.steward_dies = False
        try:
            return self.story.run(minutes, self.turn)
        except Over:
            return False
        except PASSING:  # it dies where it cannot even begin, and Kubernetes starts it again, a minute later at most
            for _ in range(RESTART_TURNS):
                self.story.time.go(TURN.total_seconds())
                self.turn()
            return False

    def clear(self) -> None:
        """End all weather: what is judged can be seen."""
        self.story.s3.away, self.story.cluster.away, self.story.aws.away = None, False, False

    def _strike(self, fault: Fault) -> None:
        pods = [pod for name, pod in self.story.cluster.pods.items() if name.startswith(f"{self.job}-")]
        runs = len(pods) == PODS and all(pod.status and pod.status.phase == "Running" for pod in pods)
        now, trains = self.story.time(), bool(self.job) and runs and self.phase is Phase.TRAINING
        source, _, rest = fault.kind.rpartition(" ")
        if rest == "away":
            self.weather[source] = now + fault.lasts_s
        elif fault.kind == "steward killed":
            self.steward_dies = True
        elif not trains:
            return
        elif fault.kind in ENDS:
            self._end(fault.pod, "Failed", ENDS[fault.kind])
            self.stuck = True
        elif fault.kind == "rank restarted in place":
            self.generation, self.phase = self.generation + 1, Phase.STARTING
        elif fault.kind == "job hangs":
            self.stuck = True
        elif fault.kind == "node freezes":
            self.unheard[fault.pod] = now + fault.lasts_s
        elif fault.kind == "commit cut short":
            self._save(whole=False)
            self._end(fault.pod, "Failed", 70)
            self.stuck = True
        elif fault.kind == "checkpoint damaged":
            self._damage()
        else:
            for index in range(PODS) if fault.kind == "two nodes die" else [fault.pod]:
                self._kill_node(index, is_told=fault.lasts_s > MEAN_GAP_S)
        self.struck.append(fault.kind)

    def _damage(self) -> None:
        """Change the newest checkpoint, and end the job, which would else write on."""
        steps = self.sound_steps()
        if len(steps) > 1:
            (self.folder / f"step-{steps[-1]:08d}/state").write_text("rotten")
            self._end(0, "Failed", 70)
            self.stuck = True

    def _kill_node(self, index: int, is_told: bool) -> None:
        """End a node for Kubernetes and its pod; for EC2 only where `is_told`, else its instance runs and bills."""
        pod = self.story.cluster.pods.get(f"{self.job}-{index}")
        name = str(pod.spec.nodeName) if pod is not None and pod.spec is not None else ""
        node = self.story.cluster.nodes.get(name)
        if node is None or node.status is None or not node.status.conditions:
            return
        node.status.conditions[0].status = "Unknown"
        if is_told:
            self.story.aws.states[_instance(node)] = "terminated"
        self.unheard[index], self.stuck = float("inf"), True

    def _replace_nodes(self) -> None:
        """Have the group start another instance for each that is gone or given back."""
        cluster, aws = self.story.cluster, self.story.aws
        for name, node in list(cluster.nodes.items()):
            instance = _instance(node)
            if instance in aws.ended or aws.states.get(instance) == "terminated":
                left = self.joining[instance] = self.joining.get(instance, JOINS_TURNS) - 1
                if left <= 0:
                    del cluster.nodes[name]
        while len(cluster.nodes) < aws.desired:
            cluster.nodes[f"node-{self.machines}"] = gpu_node(self.machines)
            self.machines += 1
        if not self.job:
            self.unheard.clear()

    def _end_copies(self) -> None:
        for name in list(self.story.cluster.copies):
            left = self.copy_turns[name] = self.copy_turns.get(name, COPY_TURNS) - 1
            if left == 0:
                newest = max(self.sound_steps(), default=-1)
                summary = {"step": newest, "place": "s3://copies", "bytes": 1}
                self.story.cluster.end(name, summary if newest >= 0 else "nothing is sound")
        self.copy_turns = {name: left for name, left in self.copy_turns.items() if name in self.story.cluster.copies}

    def archive(self, steward: Steward) -> None:
        """What the archive's Job finds, in its place."""
        self.archived = max(self.sound_steps(), default=-1)
        self.nodes_at_archive = len(self.story.cluster.nodes)


def _instance(node: Any) -> str:
    return str(node.spec.providerID).rpartition("/")[2]
