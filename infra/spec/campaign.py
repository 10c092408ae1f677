"""The spec: one campaign in one file. Validated once, frozen, passed everywhere.

Only shape and local sense are checked here; everything that weighs one part against another is a rule in `checks`.
"""

from __future__ import annotations

import hashlib
from datetime import timedelta
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from infra.errors import UserError
from infra.spec.document import Unreadable, read
from infra.spec.duration import Duration
from infra.spec.problems import Problem, duplicates, lines_of, misread, nearest_line, out_of_range, problems_of
from infra.spec.section import Section, sound_part
from infra.spec.sections import Addons as Addons
from infra.spec.sections import ApiEndpoint as ApiEndpoint
from infra.spec.sections import Archive as Archive
from infra.spec.sections import DriverVpc as DriverVpc
from infra.spec.sections import Egress as Egress
from infra.spec.sections import Encryption as Encryption
from infra.spec.sections import LocalStorage as LocalStorage
from infra.spec.sections import Network as Network
from infra.spec.sections import SharedStorage as SharedStorage
from infra.spec.sections import Storage as Storage
from trainer.contract import CheckpointConfig, ModelConfig, OptimizerConfig

MAX_NAME = 20
"""Longest campaign name: the longest AWS name made from it is an IAM role, `bivouac-<name>-<workload>-...`, 64."""


class Capacity(StrEnum):
    """How the GPU nodes are bought."""

    ON_DEMAND = "on-demand"
    SPOT = "spot"
    RESERVATION = "reservation"
    CAPACITY_BLOCK = "capacity-block"


class OnStop(StrEnum):
    """What follows an error that a retry would repeat: the warm cluster waits for a relaunch, or falls at once."""

    HOLD = "hold"
    TEARDOWN = "teardown"


class Money(Section):
    budget_usd: Decimal = Field(gt=0)
    deadline: Duration = timedelta(days=7)
    """From the first provision: then the GPU node group is set to zero by AWS itself."""
    alarm_email: str | None = None
    alarm_topic_arn: Annotated[str, Field(pattern=r"^arn:aws:sns:[a-z0-9-]+:[0-9]{12}:[A-Za-z0-9_-]+$")] | None = None
    """An SNS topic to alarm instead of the campaign's own: its policy must let AWS Budgets publish"""
    freeze_roles: tuple[Annotated[str, Field(pattern=r"^[\w+=,.@-]{1,64}$")], ...] = ()
    """IAM roles (names, without path) that may buy no more once AWS counts the budget as spent: a CI's role, say. They
    may still tear down; a person, or the campaign's own teardown, lifts it."""


class Nodes(Section):
    count: int = Field(ge=1)
    instance_type: str
    capacity: Capacity = Capacity.ON_DEMAND
    reservation_id: str | None = None
    """Where `capacity` is bought beforehand: `cr-...`, a reservation or a capacity block; for reservations also the ARN
    of a resource group that holds them, or `open`: every open one that matches, and nothing else."""
    block_end: AwareDatetime | None = None
    """End of the capacity block, as `bivouac block buy` prints it: for check and plan, which ask nobody. A run takes
    AWS's own."""
    placement_group: bool | None = None
    """None: a cluster placement group wherever AWS allows and advises it."""
    ranks_per_node: int | None = Field(default=None, ge=1)
    """None: one rank per accelerator."""
    block_fee_usd: Decimal | None = Field(default=None, gt=0)
    """What the whole capacity block cost, paid at once: the hours of it that the campaign leaves unused count too."""
    usd_per_hour: Decimal | None = Field(default=None, ge=0)
    """Of one node, where the catalogue cannot know it: a capacity block's fee / hours, a private price."""
    system_instance_type: str = "m7i.large"
    system_count: Literal[1, 2] = 1
    """Nodes for what runs beside the gang. 2: a second steward stands by on the other, and has the campaign within half
    a minute when the first one's node dies; 1: it is back once the node group has made another node, minutes later."""


class Image(Section):
    base: str
    """`repository:tag` or `repository@sha256:...` in the account's own registry, where somebody pushed it once: see
    images/trainer.Dockerfile. The bake puts one layer with the project on top."""


Location = Annotated[str, BeforeValidator(lambda given: str(given) if isinstance(given, Path) else given)]


class MixtureSource(Section):
    """One of several sources."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")
    source: Location = Field(min_length=1)
    pattern: str = "**/*"
    weight: float = Field(gt=0)
    """Relative to the others; changes the order, not the prepared data."""
    licence: str = ""
    origin: str = ""


class Data(Section):
    """Text to prepare: one source, or a mixture of several."""

    source: Location = ""
    """A folder or file of text, JSON lines or Parquet, or `s3://bucket/prefix`. `python:stdlib` stands for the running
    Python's standard library sources."""
    pattern: str = "**/*.py"
    licence: str = ""
    origin: str = ""
    """Where the text came from, for people."""
    mixture: tuple[MixtureSource, ...] = ()
    """Instead of `source`."""
    format: Literal["auto", "text", "jsonl", "parquet"] = "auto"
    text_field: str = "text"
    tokenizer: Path | None = None
    """A `tokenizer.json` to use; left out: one of `training.model.vocabulary` is trained."""
    max_files: int | None = Field(default=None, ge=1)
    """Of each source."""
    min_characters: int = Field(default=1, ge=1)
    max_characters: int | None = Field(default=None, ge=1)
    max_repeated_lines: float = Field(default=1.0, gt=0, le=1)
    min_letters_share: float = Field(default=0.0, ge=0, lt=1)
    deduplicate: bool = True
    held_out: float = Field(default=0.05, gt=0, lt=0.5)
    seed: int = 1234
    shuffle_blocks: int = Field(default=16, ge=1)
    """Blocks (of one shard's size) whose samples are shuffled with each other."""
    max_epochs: float = Field(default=50, gt=0)
    """Refuse steps that would read the data more often than so."""
    cache_gib: float = Field(default=32.0, ge=0)
    """Room on each node's NVMe for shards that are brought ahead of need; 0: they are read from the shared tier."""

    @model_validator(mode="after")
    def _names_one_source_or_a_mixture(self) -> Self:
        if bool(self.source) == bool(self.mixture):
            raise ValueError("give either `source` or `mixture`")
        names = [part.name for part in self.mixture]
        if len(set(names)) < len(names):
            raise ValueError("the names of a mixture's sources differ")
        return self

    @property
    def parts(self) -> tuple[MixtureSource, ...]:
        """All sources, whichever way they were given."""
        if self.mixture:
            return self.mixture
        alone = MixtureSource(
            name="text", source=self.source, pattern=self.pattern, weight=1, licence=self.licence, origin=self.origin
        )
        return (alone,)


class Training(Section):
    model: ModelConfig = ModelConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    steps: int = Field(ge=1)
    global_batch: int = Field(ge=1)
    micro_batch: int = Field(default=2, ge=1)
    zero_stage: int = Field(default=1, ge=0, le=3)
    precision: Literal["float32", "bfloat16"] = "bfloat16"
    seed: int = 42
    evaluate_every: int = Field(default=50, ge=1)
    evaluate_batches: int = Field(default=8, ge=1)
    step_seconds_estimate: float = Field(default=1.0, gt=0)
    """For plan only: until a measurement replaces it."""
    collective_timeout_s: float = Field(default=30.0, gt=0)
    """How long a rank waits in one exchange of a step, or of DeepSpeed's load, before it calls a peer lost. Not for
    opening data or fetching a checkpoint: there a slow rank is waited for while it lives, up to the startup timeout."""


LIMITS_WINDOW = timedelta(hours=24)
"""A limit of `recovery` per failure class holds for any so long."""


class Recovery(Section):
    """Limits per failure class and the rules above them. A limit breaks a loop: it is no allowance for the campaign's
    life, during which node losses are expected, one per `node_mtbf_hours` and node."""

    attempts_without_progress: int = Field(default=3, ge=1)
    """Stop after so many attempts in a row without a newer committed checkpoint."""
    process_restarts: int = Field(default=10, ge=0)
    """Attempts that may end within any 24 hours for anything but a lost node and what holds (process, storage, hang,
    start, interruption); one more stops."""
    node_replacements: int = Field(default=5, ge=0)
    """Attempts that may end within any 24 hours by the loss of a node; one more stops. `check` says what
    `node_mtbf_hours` makes it need."""
    repairs_per_hour: int = Field(default=10, ge=0)
    """Circuit breaker against our own repairs: nodes replaced within any hour; one more stops."""
    heartbeat_timeout: Duration = timedelta(seconds=30)
    """A pod whose `/status` has been silent so long is suspected; suspicion is confirmed by a second source."""
    hang_timeout: Duration = timedelta(minutes=10)
    """No finished step for so long, outside of starting and saving, is a hang."""
    startup_timeout: Duration = timedelta(minutes=20)
    """From a gang's launch to its first step; in preflight to the moment when its containers run (first image pull)."""
    capacity_timeout: Duration = timedelta(minutes=30)
    blind_timeout: Duration = timedelta(hours=1)
    """With a record (S3, its KMS key) that cannot be written for so long, the gang is asked to commit and the GPU nodes
    are given back; so with an end that is due and a Kubernetes API that cannot be reached."""
    node_mtbf_hours: float = Field(default=2000.0, gt=0)
    """Estimate of one node's mean time between failures; the cadence is derived from it, and what the limits need."""


class Preflight(Section):
    profile: str | None = None
    """Name of the expectation in the catalogue; None: the instance type's own."""
    rounds: int = Field(default=3, ge=1)
    """Replace unfit nodes at most so many times."""
    bus_bandwidth_share: float | None = Field(default=None, gt=0, le=1)
    """Part of the profile's measured bus bandwidth that the gang must reach; None: the catalogue's own (0.7)."""
    bus_bandwidth_gb_s: float | None = Field(default=None, gt=0)
    """GB/s that the gang's all-reduce must reach, instead of that part: for a type of which the catalogue has no
    figure, or with a figure of your own (nccl-tests, or the report of an earlier campaign)."""
    dcgm_level: int | None = Field(default=None, ge=1, le=4)
    """Also run `dcgmi diag -r` at this level on each node: 1 takes seconds, 2 two minutes, 3 half an hour, 4 up to two
    hours of paid time. It runs in the trainer's container, so `image.base` must hold DCGM, as images/trainer.Dockerfile
    does. None: not run."""


class KillNode(Section):
    """Kill one node as a whole, without warning, when training has passed a step."""

    kill_node: int = Field(ge=0)
    """Rank of the node in the gang."""
    after_step: int = Field(ge=1)


class Rehearsal(Section):
    """What to rehearse; has no meaning on AWS and is refused there."""

    faults: tuple[KillNode, ...] = ()
    aws: Literal["strict", "soft"] = "strict"
    """How the emulated AWS behaves: late, in short pages, within quotas and request limits as AWS, or none of it. The
    first campaign of a site decides for it."""
    seed: int = 1
    """Of all that chance decides in a strict AWS: the same seed gives the same delays and refusals."""


class Spec(Section):
    campaign: Annotated[
        str, Field(pattern=r"^[a-z][a-z0-9-]*[a-z0-9]$", description="small letters, digits and dashes")
    ]
    owner: str = Field(min_length=3)
    purpose: str = Field(min_length=3)
    target: Literal["aws", "rehearsal"]
    account: Annotated[str, Field(pattern=r"^[0-9]{12}$", description="the 12 digits, in quotes")]
    region: str
    zone: str
    second_zone: str | None = None
    """For the control plane only; None: the next of the account's zones that EKS takes."""
    kubernetes: str = "1.36"
    money: Money
    nodes: Nodes
    network: Network = Network()
    storage: Storage = Storage()
    encryption: Encryption = Encryption()
    addons: Addons = Addons()
    image: Image
    data: Data
    training: Training
    checkpoint: CheckpointConfig | None = None
    """None: derived by plan (Daly's interval)."""
    recovery: Recovery = Recovery()
    preflight: Preflight = Preflight()
    on_stop: OnStop = OnStop.HOLD
    """After a user, data or numeric error. Done, budget, deadline and a hopeless campaign always tear down."""
    hold_for: Duration = timedelta(minutes=60)
    """How long the warm cluster waits for `bivouac relaunch`, billing all the while."""
    rehearsal: Rehearsal | None = None

    @model_validator(mode="after")
    def _rehearsal_only_there(self) -> Spec:
        if self.target == "aws" and self.rehearsal is not None:
            raise ValueError("section `rehearsal` has no meaning with target aws: remove it")
        return self

    @property
    def tagged_budget_usd(self) -> Decimal:
        """What of the budget is left for what carries the campaign's tag: a block's fee is paid by an untagged
        purchase before, and its instances then bill nothing."""
        fee = self.nodes.block_fee_usd if self.nodes.capacity is Capacity.CAPACITY_BLOCK else None
        return self.money.budget_usd - (fee or 0)

    def digest(self) -> str:
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()


class SpecFile(BaseModel):
    """A validated spec and where each field stood."""

    model_config = ConfigDict(frozen=True)

    path: Path
    spec: Spec
    lines: dict[str, int]
    """Dotted field path -> 1-based line."""

    def line_of(self, field: str) -> int | None:
        """Line of a field, or of the nearest section above it that the file has."""
        return nearest_line(self.lines, field)


class SpecError(UserError):
    """The file is no valid spec; `problems` holds all that is wrong with its shape, `sound` the spec without that."""

    def __init__(self, path: Path, problems: tuple[Problem, ...], sound: SpecFile | None = None) -> None:
        self.path, self.problems, self.sound = path, problems, sound
        rows = [f"{path}:{p.line or 1}: {p.field}: {p.message} (seen: {p.seen}; cure: {p.cure})" for p in problems]
        super().__init__("the spec is not valid", seen="\n  " + "\n  ".join(rows), cure="mend the fields above")


def load(path: Path) -> SpecFile:
    """Read and validate a spec; raises `SpecError` with every problem, or `UserError` when there is no such file."""
    try:
        document = read(path)
    except Unreadable as error:
        raise SpecError(path, (error.problem,)) from error
    raw, root = document.content, document.root
    if not isinstance(raw, dict):
        problem = Problem(
            field="(file)",
            line=1,
            message="a spec is a mapping of fields",
            seen="an empty file" if raw is None else type(raw).__name__,
            cure="start from infra/campaigns/rehearsal.yaml",
        )
        raise SpecError(path, (problem,))
    lines, odd = lines_of(root), duplicates(root) + misread(root, Spec)

    def refused(problems: tuple[Problem, ...]) -> SpecError:
        sound = sound_part(Spec, raw, [tuple(problem.field.split(".")) for problem in problems])
        return SpecError(path, problems, SpecFile.model_construct(path=path, spec=sound, lines=lines))

    try:
        spec = Spec.model_validate(raw)
    except ValidationError as error:
        told = {problem.field for problem in odd}
        shape = tuple(p for p in problems_of(error, root, Spec) if p.field not in told)
        raise refused(odd + shape) from error
    odd += out_of_range(spec, root)
    if odd:
        raise refused(odd)
    return SpecFile(path=path, spec=spec, lines=lines)
