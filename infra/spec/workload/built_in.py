"""The built-in trainer's answers to what a workload says of its pods, so that no caller asks which of them runs."""

from __future__ import annotations

from datetime import timedelta

from infra.spec.secrets import SecretSource
from infra.spec.workload.mounts import Mount
from infra.spec.workload.sections import Resources, SmallMachine
from trainer.contract.frozen import Frozen


class BuiltIn(Frozen):
    """The fields and properties of `Workload` that hold for both; each is documented there."""

    is_built_in: bool = True
    section: str = "training"
    data_name: str = "prepared data"
    pod_command: tuple[str, ...] = ("python", "-m", "trainer.builtin.agent")
    sealing_s: int = 0
    has_marks: bool = False
    elastic: bool = True
    step_time_field: str = "training.step_seconds_estimate"
    image: str | None = None
    pull_secret: SecretSource | None = None
    secrets: dict[str, SecretSource] = {}
    resources: Resources = Resources()
    rehearsal: SmallMachine = SmallMachine()
    source: None = None
    script: str | None = None
    module: str | None = None
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    init_from: str | None = None
    evaluate: None = None
    export: None = None
    requirements: str | None = None
    nccl: dict[str, str] = {}
    env: dict[str, str] = {}
    mounts: dict[str, str] = {}
    links: dict[str, str] = {}
    attached: dict[str, Mount] = {}
    by_mountpoint: dict[str, str] = {}
    given_file_systems: tuple[str, ...] = ()
    staged: dict[str, float] = {}
    named_programs: tuple[tuple[str, str], ...] = ()
    judging: timedelta = timedelta()
    host_network: bool = False
    by_mpirun: bool = False
    on_disks: bool = False

    def on(self, target: str) -> BuiltIn:
        """Return itself: it differs on no target."""
        return self
