"""What each stage has come to, as the record stores it."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, ClassVar, Self

from infra.record.payloads.base import RecordModel


class Stage(StrEnum):
    """The stages of a campaign, in order."""

    CHECK = "check"
    PLAN = "plan"
    BAKE = "bake"
    PROVISION = "provision"
    PREFLIGHT = "preflight"
    LAUNCH = "launch"
    SUPERVISE = "supervise"
    ARCHIVE = "archive"
    TEARDOWN = "teardown"
    CERTIFY = "certify"
    REPORT = "report"


OUTPUTS: dict[Stage, type[StageOutput]] = {}


class StageOutput(RecordModel):
    """The outputs of one stage. `check` and `plan` have none."""

    stage: ClassVar[Stage]

    def __init_subclass__(cls, stage: Stage, **config: Any) -> None:
        super().__init_subclass__(**config)
        cls.stage = stage
        OUTPUTS[stage] = cls

    @classmethod
    def of(cls, outputs: Mapping[Stage, StageOutput]) -> Self:
        """Return this stage's outputs; raise `KeyError` if it has not finished."""
        return cls.model_validate(outputs[cls.stage])

    @classmethod
    def known(cls, outputs: Mapping[Stage, StageOutput]) -> Self:
        """Return this stage's outputs, an empty one if it has not finished."""
        return cls.of(outputs) if cls.stage in outputs else cls()


class BakedNodes(RecordModel):
    ami: str
    manifest: str = ""
    """Key in the state bucket."""
    baked: bool = False
    ours: bool = True
    """A bake of ours made it."""


class BakeOutput(StageOutput, stage=Stage.BAKE):
    manifest: str = ""
    """Key of the trainer image's manifest in the state bucket."""
    image: str = ""
    """The trainer image by digest."""
    steward_image: str | None = None
    job_image: str | None = None
    """A workload's own."""
    code: str = ""
    """Digest of the images' inputs."""
    baked: bool | None = None
    """False: all of it was baked before."""
    builder_s: float | None = None
    """Time for which builders stood, those that stood beside each other added up; None: nobody noted it."""
    node_image: BakedNodes | None = None
    foundation: dict[str, Any] | None = None
    """The foundation's outputs: `infra.stack.outputs.FoundationOutputs`."""


class ProvisionOutput(StageOutput, stage=Stage.PROVISION):
    outputs: dict[str, Any] = {}
    """The stack's: `infra.stack.outputs.CampaignOutputs`."""
    resources: int = 0
    data_digest: str = ""
    """Of the prepared data, or of a workload's code."""
    unigram_loss: float | None = None
    train_tokens: int | None = None
    init_from: str = ""
    """Folder in the built-in trainer's pods with the weights to start from."""
    source_sha256: str = ""
    source_commit: str | None = None
    packages: tuple[str, ...] = ()
    packages_for: tuple[str, str] = ("", "")
    """Digest of a workload's requirements, and the Python that they are for."""
    budget_counts: str = ""
    """Whether AWS's bills know the campaign's tag: `infra.aws.cost_tag.Counting`."""


class PreflightOutput(StageOutput, stage=Stage.PREFLIGHT):
    verdicts: tuple[dict[str, Any], ...] = ()
    profile: str = ""
    bus_bandwidth_gb_s: float | None = None
    floor_gb_s: float | None = None
    not_seen: tuple[str, ...] = ()
    """Probes that could not look."""


class LaunchOutput(StageOutput, stage=Stage.LAUNCH):
    attempts: int = 0


class SuperviseOutput(StageOutput, stage=Stage.SUPERVISE):
    outcome: str | None = None
    attempts: int = 0


class UnprovenCopy(RecordModel):
    prefix: str | None = None
    """An address in S3."""


class ArchiveOutput(StageOutput, stage=Stage.ARCHIVE):
    """Beside these fields it has those of the golden checkpoint's event, if there is one."""

    unproven: UnprovenCopy | None = None
    nothing_committed: bool = False


class TeardownOutput(StageOutput, stage=Stage.TEARDOWN):
    resources: int = 0
    swept: tuple[str, ...] = ()
    unreached: dict[str, str] = {}
    """Borrowed node -> why the campaign's folder there was not reached."""


class CertifyOutput(StageOutput, stage=Stage.CERTIFY):
    clean: bool = False
    found: tuple[str, ...] = ()
    could_not_look: tuple[str, ...] = ()
    suspects: tuple[str, ...] = ()


class ReportOutput(StageOutput, stage=Stage.REPORT):
    """Beside this field it has the files on the driver's machine."""

    goodput: float | None = None
