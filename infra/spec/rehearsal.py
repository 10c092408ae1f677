"""The spec's section `rehearsal`."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from infra.spec.drills.scenarios import scenarios
from infra.spec.section import Section


class Fault(Section):
    """What strikes without warning after training has passed a step: give `kill_node`, `kill_rank` or `fault`."""

    kill_node: int | None = Field(default=None, ge=0)
    """A whole node: index of its pod in the gang."""
    kill_rank: int | None = Field(default=None, ge=0)
    """A rank, while its node is well: index of its pod in the gang. `recovery.restarts_in_place` says what follows."""
    fault: str | None = Field(default=None, exclude_if=lambda value: value is None)
    """A fault by its name, at the last node of the gang: `bivouac drill --list` has the names, and what follows."""
    after_step: int = Field(ge=1)
    """The step that training must have passed."""

    @model_validator(mode="after")
    def _strikes_once(self) -> Self:
        if [self.kill_node, self.kill_rank, self.fault].count(None) != 2:
            raise ValueError("give either `kill_node` or `kill_rank` or `fault`")
        if self.fault is not None and self.fault not in scenarios():
            raise ValueError(f"no fault of this name; there are {', '.join(scenarios())}")
        if self.fault is not None and (reason := scenarios()[self.fault].absent_because):
            raise ValueError(f"a rehearsal cannot strike with {self.fault}: {reason}")
        return self

    @property
    def kills(self) -> Literal["kill_node", "kill_rank", "fault"]:
        """Return the field that says what strikes."""
        if self.fault is not None:
            return "fault"
        return "kill_rank" if self.kill_node is None else "kill_node"

    @property
    def pod(self) -> int:
        """Return the index of the pod in the gang; 0 for a fault by name, whose places every gang has."""
        return 0 if self.fault is not None else int(getattr(self, self.kills))

    @property
    def lost_nodes(self) -> int:
        """Return how many nodes are to be replaced."""
        return scenarios()[self.fault].nodes if self.fault is not None else int(self.kill_node is not None)

    @property
    def ends_campaign(self) -> bool:
        """Return whether no other fault of the training can follow."""
        return self.fault is not None and scenarios()[self.fault].ends_campaign

    @property
    def in_training(self) -> bool:
        """Return whether it strikes a training, and not the teardown after it."""
        return self.fault is None or scenarios()[self.fault].stage == "training"

    def sentence(self) -> str:
        return f"{self.kills}: {self.fault or self.pod}, after_step: {self.after_step}"


class Rehearsal(Section):
    """Parameters of a rehearsal; AWS refuses them."""

    faults: tuple[Fault, ...] = ()
    """What strikes during the rehearsal, in the order of the steps: a later one waits until the earlier is overcome."""
    aws: Literal["strict", "soft"] = "strict"
    """Behaviour of the emulated AWS. `strict`: delays, short pages, quotas and request limits, as AWS has. `soft`: none
    of these. The first campaign of a site decides."""
    seed: int = 1
    """Seed of random events in a strict AWS: the same seed gives the same delays and refusals."""
    secrets: str | None = None
    """File of this machine with a line `NOTIFY_WEBHOOK=https://...`, which a rehearsal stores where `notify.webhook`
    points, and with a line `NOTIFY_NAME=...` for each route NAME of `notify.routes`. None: nothing is stored there, and
    the record says that the webhook cannot be read."""
    time_scale: float | None = Field(default=None, ge=1, le=1000)
    """How many times as fast as AWS the emulated one works: at 60, a control plane of 12 minutes takes 12 seconds, and
    the campaign's own waits shrink with it. Without it each work takes a moment. The site's first campaign decides."""
