"""The spec: one campaign in one file, validated once and then frozen.

This module checks only shapes and single sections; rules that compare sections are in `infra.plan.checks`.
"""

from __future__ import annotations

import hashlib
from datetime import timedelta
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationError, model_validator

from infra.errors import UserError
from infra.spec.checkpoint import Checkpoint as Checkpoint
from infra.spec.data import Data as Data
from infra.spec.data import MixtureSource as MixtureSource
from infra.spec.document import UnreadableDocument, read
from infra.spec.duration import Duration
from infra.spec.names import (
    LONGEST_TAG,
    NOTICES,
    PROJECT,
    Buckets,
    buckets,
    tag_value,
)
from infra.spec.nodes import Money as Money
from infra.spec.nodes import Nodes as Nodes
from infra.spec.notify import Notify
from infra.spec.problems import Problem, duplicates, lines_of, misread, nearest_line, out_of_range, problems_of
from infra.spec.rehearsal import Rehearsal as Rehearsal
from infra.spec.secrets import SecretSource
from infra.spec.section import Section, sound_part
from infra.spec.sections import THIS_MACHINE, Access
from infra.spec.sections import Addons as Addons
from infra.spec.sections import ApiEndpoint as ApiEndpoint
from infra.spec.sections import Archive as Archive
from infra.spec.sections import Capacity as Capacity
from infra.spec.sections import DriverVpc as DriverVpc
from infra.spec.sections import Egress as Egress
from infra.spec.sections import Encryption as Encryption
from infra.spec.sections import Image as Image
from infra.spec.sections import LocalStorage as LocalStorage
from infra.spec.sections import Network as Network
from infra.spec.sections import Preflight as Preflight
from infra.spec.sections import Recovery as Recovery
from infra.spec.sections import SharedStorage as SharedStorage
from infra.spec.sections import Storage as Storage
from infra.spec.sections import Subnets as Subnets
from infra.spec.services import ENDPOINT_SERVICES, FSX_SERVICE, MONITORING_SERVICE, SECRETS_SERVICE
from infra.spec.standing import StandingCluster as StandingCluster
from infra.spec.standing import fill, refuse_misplaced
from infra.spec.training import Training as Training
from infra.spec.workload.built_in import BuiltIn
from infra.spec.workload.workload import Workload as Workload
from trainer.contract.frozen import Frozen

MAX_NAME = 20
"""Longest campaign name. The longest AWS name with it, an IAM role `bivouac-<name>-<workload>-...`, may have 64."""


_CAPACITY_TIMEOUTS = {
    Capacity.ON_DEMAND: timedelta(minutes=45),
    Capacity.SPOT: timedelta(minutes=45),
    Capacity.RESERVATION: timedelta(hours=4),
    Capacity.CAPACITY_BLOCK: timedelta(hours=6),
}


class OnStop(StrEnum):
    """Consequence of an error that a retry would repeat: the warm cluster waits for a relaunch, or is torn down."""

    HOLD = "hold"
    TEARDOWN = "teardown"


class Spec(Section):
    campaign: Annotated[
        str, Field(pattern=r"^[a-z][a-z0-9-]*[a-z0-9]$", description="small letters, digits and dashes")
    ]
    """Name of the campaign, used in every AWS name and tag."""
    owner: Annotated[str, Field(min_length=3, max_length=LONGEST_TAG), AfterValidator(tag_value)]
    """Person or team that answers for the campaign; printed in the report, and a tag of every resource, in which AWS
    takes letters, digits, spaces and `_ . : / = + - @`."""
    purpose: str = Field(min_length=3)
    """Purpose of the campaign in a few words; printed in the report."""
    target: Literal["aws", "rehearsal", "kubernetes"]
    """Place where the campaign runs: AWS, a rehearsal on this machine, or an existing Kubernetes cluster, which has no
    account, region and zone."""
    account: Annotated[str, Field(pattern=r"^[0-9]{12}$", description="the 12 digits, in quotes")]
    """The AWS account. Credentials of another account are refused."""
    region: str
    """The AWS region, such as `us-east-1`."""
    zone: str
    """The availability zone of all nodes and of the file system, such as `us-east-1b`."""
    second_zone: str | None = None
    """A second zone, for the control plane only. None: the next zone of the account that EKS supports."""
    kubernetes: str = "1.36"
    """Kubernetes version, in quotes."""
    money: Money
    """Budget, deadline and alarms."""
    access: tuple[Access, ...] = ()
    """People and services, by IAM role or user, who may enter the cluster besides whoever drives."""
    notify: Notify = Notify()
    """People to tell of what happens, and the way."""
    nodes: Nodes
    """Number, type and purchase of the nodes."""
    cluster: StandingCluster | None = Field(default=None, exclude_if=lambda value: value is None)
    """The existing cluster of target kubernetes."""
    network: Network = Network()
    """The campaign's VPC and its access to AWS and the internet."""
    storage: Storage = Storage()
    """File system, local disks and archive."""
    encryption: Encryption = Encryption()
    """Encryption keys of the campaign's storage."""
    addons: Addons = Addons()
    """Optional parts of the cluster."""
    image: Image
    """The bases of trainer image and steward image, and where images are baked."""
    data: Data | None = None
    """Text to train on, with `training`."""
    training: Training | None = None
    """The built-in trainer's model, optimizer, batch and length. Give either `training` or `workload`."""
    workload: Workload | None = None
    """A training job of your own."""
    checkpoint: Checkpoint | None = None
    """Schedule and retention of checkpoints. None: plan derives the interval (Daly's formula)."""
    recovery: Recovery = Recovery()
    """Limits and timeouts of the steward."""
    preflight: Preflight = Preflight()
    """Health check of the nodes before training."""
    on_stop: OnStop = OnStop.HOLD
    """Consequence of a user, data or numeric error: the warm cluster waits for a relaunch, or is torn down. The end of
    the training, the budget, the deadline and exceeded recovery limits always tear down."""
    hold_for: Duration = timedelta(minutes=60)
    """Time that the warm cluster waits for `bivouac relaunch`; it bills meanwhile."""
    rehearsal: Rehearsal | None = None
    """Faults and behaviour of a rehearsal. Other targets refuse this section."""

    @model_validator(mode="before")
    @classmethod
    def _fill_for_the_target(cls, raw: Any) -> Any:
        return fill(raw)

    @model_validator(mode="after")
    def _sections_of_the_target(self) -> Spec:
        if self.target != "rehearsal" and self.rehearsal is not None:
            raise ValueError(f"section `rehearsal` has no meaning with target {self.target}: remove it")
        refuse_misplaced(self.target, self.cluster)
        return self

    @model_validator(mode="after")
    def _trains_one_thing(self) -> Spec:
        if (self.training is None) == (self.workload is None):
            raise ValueError("give either `training`, for the built-in trainer, or `workload`, for a job of your own")
        if (self.training is None) != (self.data is None):
            raise ValueError("section `data` belongs to `training`: give both or neither")
        return self

    @property
    def job(self) -> Training | Workload:
        """The section of the job, as it runs on the target. Raises `AttributeError` if an incomplete spec lacks it."""
        if self.training is not None:
            return self.training
        if self.workload is None:
            raise AttributeError("training")
        return self.workload.on(self.target)

    @property
    def borrows_nodes(self) -> bool:
        """The nodes stand before the campaign and stay after it."""
        return self.cluster is not None

    @property
    def s3_region(self) -> str:
        """Region that requests to the buckets of record and archive are signed for."""
        return self.region if self.cluster is None else self.cluster.s3.region

    @property
    def buckets(self) -> Buckets:
        """The foundation's buckets, or the one bucket of an existing cluster."""
        if self.cluster is None:
            return buckets(self.account, self.region)
        return Buckets(*[self.cluster.s3.bucket] * 3)

    @property
    def bucket_root(self) -> str:
        """Folder of all that the project writes in its buckets, with a slash; empty where the buckets are its own."""
        return "" if self.cluster is None else f"{PROJECT}/"

    @property
    def links(self) -> dict[str, str]:
        """Name -> S3 prefix of all that the file system shows at `/mounts`."""
        return (self.training or self.runtime).links

    @property
    def capacity_timeout(self) -> timedelta:
        """Longest wait for nodes."""
        return self.recovery.capacity_timeout or min(_CAPACITY_TIMEOUTS[self.nodes.capacity], self.money.deadline)

    @property
    def profile(self) -> str:
        """Name of the expected node profile in the catalogue."""
        return self.preflight.profile or (THIS_MACHINE if self.target == "rehearsal" else self.nodes.instance_type)

    @property
    def runtime(self) -> Workload | BuiltIn:
        """Properties of the job's pods on the target: the workload's, or the built-in trainer's of the same names."""
        return self.file_runtime.on(self.target)

    @property
    def file_runtime(self) -> Workload | BuiltIn:
        """`runtime` as the file has it, before what differs on the target."""
        return self.workload or BuiltIn()

    @property
    def secrets(self) -> dict[str, SecretSource]:
        """Variable of the job -> where its secret value lies on the target; none for the built-in trainer."""
        return self.runtime.secrets

    @property
    def pull_secret(self) -> SecretSource | None:
        """Place of the login to the registry of the workload's image on the target; None without one."""
        return self.runtime.pull_secret

    @property
    def notices_topic(self) -> str:
        """ARN of the topic that the campaign's notices go to."""
        return self.notify.topic or f"arn:aws:sns:{self.region}:{self.account}:{NOTICES}"

    @property
    def endpoint_services(self) -> tuple[str, ...]:
        """Services with an interface endpoint of the campaign's; none with a NAT gateway, or in an existing VPC."""
        return self.services if self.network.made and self.network.egress is Egress.ENDPOINTS else ()

    @property
    def services(self) -> tuple[str, ...]:
        """Services that need an interface endpoint where nodes have no other path to AWS."""
        sources = [*self.secrets.values(), *self.notify.addresses.values()]
        unused_services = {FSX_SERVICE} if self.storage.shared is None else set()
        unused_services |= set() if self.watches_file_system else {MONITORING_SERVICE}
        secrets_service = (SECRETS_SERVICE,) if any(name.secret for name in sources) else ()
        return (*(name for name in ENDPOINT_SERVICES if name not in unused_services), *secrets_service)

    @property
    def watches_file_system(self) -> bool:
        """True where the steward asks CloudWatch about the file system, and Prometheus asks the steward."""
        return self.storage.shared is not None and self.addons.prometheus and self.cluster is None

    @property
    def prepares_data(self) -> bool:
        return self.data is not None and self.data.in_cluster

    @property
    def built_in(self) -> tuple[Training, Data]:
        """The sections of the built-in trainer. Raises `AttributeError` if the spec lacks one."""
        if self.training is None or self.data is None:
            raise AttributeError("training")
        return self.training, self.data

    @property
    def tagged_budget_usd(self) -> Decimal:
        """Part of the budget for resources with the campaign's tag. A capacity block's fee is paid beforehand by an
        untagged purchase, and its instances then bill nothing."""
        fee = self.nodes.block_fee_usd if self.nodes.capacity is Capacity.CAPACITY_BLOCK else None
        return self.money.budget_usd - (fee or 0)

    def digest(self) -> str:
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()


class SpecFile(Frozen, extra="ignore"):
    """A validated spec and the line of each field."""

    path: Path
    spec: Spec
    lines: dict[str, int]
    """Dotted field path -> 1-based line."""

    def line_of(self, field: str) -> int | None:
        """Return the line of a field, or of the nearest section above it that the file has."""
        return nearest_line(self.lines, field)


class SpecError(UserError):
    """The file is no valid spec; `problems` holds all errors of its shape, `sound` the spec without those fields."""

    def __init__(self, path: Path, problems: tuple[Problem, ...], sound: SpecFile | None = None) -> None:
        self.path, self.problems, self.sound = path, problems, sound
        rows = [f"{path}:{p.line or 1}: {p.field}: {p.message} (seen: {p.seen}; cure: {p.cure})" for p in problems]
        super().__init__("the spec is not valid", seen="\n  " + "\n  ".join(rows), cure="mend the fields above")


def load(path: Path) -> SpecFile:
    """Read and validate a spec; raise `SpecError` with every problem, or `UserError` if there is no such file."""
    try:
        document = read(path)
    except UnreadableDocument as error:
        raise SpecError(path, (error.problem,)) from error
    raw, root = document.content, document.root
    if not isinstance(raw, dict):
        problem = Problem(
            field="(file)",
            line=1,
            message="a spec is a mapping of fields",
            seen="an empty file" if raw is None else type(raw).__name__,
            cure="start from what `bivouac init` writes",
        )
        raise SpecError(path, (problem,))
    lines, odd = lines_of(root), duplicates(root) + misread(root, Spec)

    def refusal(problems: tuple[Problem, ...]) -> SpecError:
        sound = sound_part(Spec, raw, [tuple(problem.field.split(".")) for problem in problems])
        return SpecError(path, problems, SpecFile.model_construct(path=path, spec=sound, lines=lines))

    try:
        spec = Spec.model_validate(raw)
    except ValidationError as error:
        known_fields = {problem.field for problem in odd}
        shape = tuple(p for p in problems_of(error, root, Spec) if p.field not in known_fields)
        raise refusal(odd + shape) from error
    odd += out_of_range(spec, root)
    if odd:
        raise refusal(odd)
    return SpecFile(path=path, spec=spec, lines=lines)
